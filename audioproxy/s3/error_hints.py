"""What would be right where an object store refuses everything."""

from __future__ import annotations

from audioproxy.s3.objects import ObjectStore, StoreError

# What is required where more is known than the kind of an error.
_REMEDIES = {
    "RequestTimeTooSkewed": "a clock that is right is required",
    "certificate is not trusted": "AP_S3_CA_BUNDLE, or AP_VARIANT_S3_CA_BUNDLE, with the authority"
    " behind its certificate is required",
    "certificate is for another name": "AP_S3_ADDRESSING=path, or the endpoint's name as it stands"
    " in its certificate, is required",
}


def required(store: ObjectStore, error: StoreError, otherwise: str) -> str:
    """Return what is required for a request to go well that did not.

    :param otherwise: what the kind of the error says.
    """
    words = next((better for said, better in _REMEDIES.items() if said in str(error)), otherwise)
    if "RequestTimeTooSkewed" in str(error):
        ahead = store.clock_ahead
        return f"{words}, here and there" if ahead is None else f"{words}: {compare(ahead)}"
    return words


def compare(ahead: int) -> str:
    """Return in words by how much this machine's clock is ahead of a store's."""
    side = "ahead of" if ahead >= 0 else "behind"
    return f"this machine's is {abs(ahead)} s {side} the store's"
