"""Errors of outbound requests, in place of all errors of Twisted's client."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from OpenSSL.SSL import Error as TlsError
from twisted.internet.defer import CancelledError
from twisted.internet.error import (
    ConnectError,
    ConnectingCancelledError,
    ConnectionClosed,
    TimeoutError,
)

from audioproxy.errors import reason_of

# A URL may contain quotes. A quote at its very end belongs to the message around the URL.
_QUERY = re.compile(r"\?\S*?(?=['\"]?(?:\s|$))")
_USER_INFORMATION = re.compile(r"(?<=://)[^/\s]*@")


class TransportError(Exception):
    """There is no response, or it is incomplete. The text gives the reason.

    :ivar is_closed: the connection was closed before the response was complete.
    :ivar is_quote: the text may quote the response, which may repeat headers of the request.
    """

    def __init__(self, text: str, *, is_closed: bool = False, is_quote: bool = False) -> None:
        super().__init__(text)
        self.is_closed = is_closed
        self.is_quote = is_quote


class TooMuch(TransportError):
    """The body is longer than its stated length, so it may be another one."""


class UntrustedCertificate(TransportError):
    """The server's certificate is not trusted, or is for another name."""


class NameMismatch(UntrustedCertificate):
    """The server's certificate is for another name."""


class PrivateAddress(TransportError):
    """The server has no public address, and others are refused."""


def translate_error(error: BaseException | None, expired: bool = False) -> Exception:
    """Return an error of Twisted's client as `TransportError` or ``CancelledError``.

    :param expired: the request was cancelled because it made no progress.
    """
    causes = list(_causes(error))
    if isinstance(error, TransportError):
        return error
    if expired:
        return TransportError("no response in time")
    if any(isinstance(cause, CancelledError | ConnectingCancelledError) for cause in causes):
        return CancelledError()
    for cause in causes:
        if isinstance(cause, NameMismatch):
            return cause
        if isinstance(cause, TlsError) and "certificate verify failed" in str(cause):
            return UntrustedCertificate("the certificate is not trusted")
    last = causes[-1]
    if (text := _describe(last)) is not None:
        return TransportError(without_secrets(text), is_closed=isinstance(last, ConnectionClosed))
    # Bytes that are not HTTP may repeat the query of the request (D47).
    quote = without_secrets(_quote(last))
    return TransportError(quote or "the response is incomplete", is_quote=True)


def without_secrets(text: str) -> str:
    """Return text without the query strings and the user information of its URLs.

    The query of a presigned URL is a credential (D45).
    """
    return _USER_INFORMATION.sub("", _QUERY.sub("", text))


def _describe(error: BaseException) -> str | None:
    """Return the text of an error that is not about a response; None for any other error."""
    if isinstance(error, ConnectError) and error.osError:
        return os.strerror(error.osError)
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, ConnectError):
        return str(error).rstrip(".")
    if isinstance(error, ConnectionClosed):
        return "the connection was closed"
    if isinstance(error, TlsError) and error.args:
        return "TLS: " + ", ".join(reason for *_, reason in error.args[0])
    if isinstance(error, OSError):
        return reason_of(error)
    return None


def _quote(error: BaseException) -> str:
    """Return the text of an error of Twisted about a response, without its class and tuples."""
    if len(error.args) == 2 and isinstance(error.args[1], bytes):
        # The fault, and what Twisted has received.
        fault, received = error.args
        return f"the response is not HTTP ({fault}: {received.decode('ascii', 'replace')})"
    return str(error).rstrip(".")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    if error is not None:
        yield error
    for reason in getattr(error, "reasons", ()):
        yield from _causes(reason.value)
