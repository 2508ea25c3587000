"""Hints for errors of an object store: what a request needs to succeed."""

from __future__ import annotations

from audioproxy.s3.objects import ObjectStore, StoreError

# Hints, by the part of an error's text that identifies the error.
_HINTS = {
    "RequestTimeTooSkewed": "a correct clock is required",
    "certificate is not trusted": "AP_S3_CA_BUNDLE or AP_VARIANT_S3_CA_BUNDLE with the CA of"
    " its certificate is required",
    "certificate is for another name": "AP_S3_ADDRESSING=path, or the endpoint's name as in its"
    " certificate, is required",
}


def hint_for(store: ObjectStore, error: StoreError, otherwise: str) -> str:
    """Return a hint: what the failed request needs to succeed.

    :param otherwise: the hint for an error that has no hint of its own.
    """
    hint = next((hint for text, hint in _HINTS.items() if text in str(error)), otherwise)
    if "RequestTimeTooSkewed" in str(error):
        ahead = store.clock_ahead
        return (
            f"{hint}"
            f"{', here and in the store' if ahead is None else f': {describe_clock_offset(ahead)}'}"
        )
    return hint


def describe_clock_offset(ahead: int) -> str:
    """Return the difference between this machine's clock and a store's as text.

    :param ahead: seconds by which this machine's clock is ahead.
    """
    side = "ahead of" if ahead >= 0 else "behind"
    return f"this machine's is {abs(ahead)} s {side} the store's"
