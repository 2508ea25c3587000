"""Hints for errors of an object store: what a request needs to succeed."""

from __future__ import annotations

from audioproxy.http_client.errors import NameMismatch, UntrustedCertificate
from audioproxy.s3.objects import ObjectStore, StoreError

# Hints for errors of TLS. The first class that matches counts.
_CERTIFICATE_HINTS = {
    NameMismatch: "AP_S3_ADDRESSING=path, or the endpoint's name as in its certificate, is"
    " required",
    UntrustedCertificate: "AP_S3_CA_BUNDLE or AP_VARIANT_S3_CA_BUNDLE with the CA of its"
    " certificate is required",
}


def hint_for(store: ObjectStore, error: StoreError, otherwise: str) -> str:
    """Return a hint: what the failed request needs to succeed.

    :param otherwise: the hint for an error that has no hint of its own.
    """
    if error.code == "RequestTimeTooSkewed":
        ahead = store.clock_ahead
        where = ", here and in the store" if ahead is None else f": {describe_clock_offset(ahead)}"
        return f"a correct clock is required{where}"
    for kind, hint in _CERTIFICATE_HINTS.items():
        if isinstance(error.__cause__, kind):
            return hint
    return otherwise


def describe_clock_offset(ahead: int) -> str:
    """Return the difference between this machine's clock and a store's as text.

    :param ahead: seconds by which this machine's clock is ahead.
    """
    side = "ahead of" if ahead >= 0 else "behind"
    return f"this machine's is {abs(ahead)} s {side} the store's"
