"""What goes wrong on the way to another machine, in a few classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from OpenSSL.SSL import Error as TlsError
from service_identity import VerificationError
from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectingCancelledError

from audioproxy.media.diagnostics import without_secrets

T = TypeVar("T")


class Unreachable(Exception):
    """There was no answer, or not the whole of one. The text says why."""


class Untrusted(Unreachable):
    """The other side could not prove by its certificate who it is."""


def explain(error: BaseException | None, expired: bool = False) -> Exception:
    """Return why there is no answer, or not all of it, as one of the classes here.

    :param expired: it was called off for want of progress.
    """
    causes = list(_causes(error))
    if isinstance(error, Unreachable):
        return error
    if expired:
        return Unreachable("no answer in time")
    if any(isinstance(cause, CancelledError | ConnectingCancelledError) for cause in causes):
        return CancelledError()
    for cause in causes:
        if isinstance(cause, VerificationError):
            return Untrusted("the certificate is for another name")
        if isinstance(cause, TlsError) and "certificate verify failed" in str(cause):
            return Untrusted("the certificate is not trusted")
    last = causes[-1]
    # What the server sent instead of HTTP may repeat the query of the request (D47).
    text = without_secrets(str(last))
    return Unreachable(f"{type(last).__name__}: {text}" if text else type(last).__name__)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error of Twisted's client and what it wraps."""
    if error is not None:
        yield error
    for reason in getattr(error, "reasons", ()):
        yield from _causes(reason.value)
