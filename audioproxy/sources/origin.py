"""Requests to https origins: the state of a source, through redirects on the allowlist."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urljoin

from twisted.internet.interfaces import IReactorTime

from audioproxy.errors import NotFound, UpstreamUnavailable
from audioproxy.grammar.sources import HttpsSource, parse_https
from audioproxy.http_client.client import HttpClient, Response
from audioproxy.http_client.errors import TransportError, UntrustedCertificate
from audioproxy.http_client.timeouts import with_timeout
from audioproxy.log_context import Logger
from audioproxy.sources.allowlist import Allowlist

_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
#: Statuses of responses with the whole source.
WHOLE = (200, 203)
# Statuses of origins that refuse HEAD (D41). An origin with signed URLs refuses HEAD with a 403.
_HEAD_REFUSED = (403, 405, 501)
# Statuses of temporary errors, which do not tell whether the source exists.
_TEMPORARY = (408, 425, 429)

# Characters that a request target cannot have (RFC 3986, 2), though a source may be spelled with
# them. ffmpeg percent-encodes them. This module does the same, so that both request the same URL.
_UNSAFE = re.compile(r'["<>\\^`{|}]|%(?![0-9A-Fa-f]{2})')

# Bytes, as Latin-1, that a URL cannot have, but that the Location of a careless server has.
_NO_URL = re.compile(r"[^!-~]")

# Seconds for all requests about one source, redirects included.
_STATE_TIMEOUT = 30.0
# Replaces a semicolon, since `urljoin` drops an empty parameter after one.
_SEMICOLON = "\ue000"

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")

_log = Logger()


class UnusableOrigin(UpstreamUnavailable):
    """The origin responds, but is not trusted, or redirects without end."""


@dataclass(frozen=True, slots=True)
class OriginState:
    """A source as its origin's response headers describe it.

    :ivar source: the address at the end of all redirects.
    :ivar size: bytes, or None where it is not stated.
    :ivar etag: the entity tag; empty where it is not stated.
    :ivar modified: the value of Last-Modified; empty where it is not stated.
    :ivar ranges: whether a range was served; None where none was requested.
    :ivar claims_ranges: the origin states that it serves ranges.
    :ivar unsized: a GET returns the whole body without its length.
    :ivar unreadable: why the body cannot be read as a source; empty where it can.
    """

    source: HttpsSource
    size: int | None
    etag: str
    modified: str
    ranges: bool | None
    unsized: bool = False
    unreadable: str = ""
    claims_ranges: bool = False

    @property
    def validator(self) -> bytes:
        """A value that changes with the source; empty where the origin states none."""
        version = self.etag or self.modified
        return f"{version} {self.size}".encode("latin-1") if version else b""

    def matches(self, later: OriginState) -> bool:
        """Return whether a later state is of the same bytes, as far as the headers tell.

        The servers of one origin may give one file different entity tags.
        """
        if self.unreadable != later.unreadable:
            return False
        if self.size is not None and later.size is not None and self.size != later.size:
            return False
        if self.etag and self.etag == later.etag:
            return True
        if self.modified and self.modified == later.modified:
            return True
        return not (self.etag or self.modified)


@dataclass(frozen=True, slots=True)
class OriginClient:
    """Sends requests to the https hosts on the allowlist."""

    client: HttpClient
    allowlist: Allowlist
    clock: IReactorTime

    async def state(self, source: HttpsSource) -> OriginState:
        """Follow redirects to the source and return its state there.

        :raises NotFound: where there is no source, the origin refuses it, or a redirect leads off
            the allowlist.
        :raises UpstreamUnavailable: where the origin cannot be reached or trusted, is broken or
            busy, or redirects without end (D48).
        """
        try:
            return await with_timeout(self.clock, _STATE_TIMEOUT, self._follow_redirects(source))
        except TimeoutError as error:
            _log.warn("the origin {host} does not respond in time", host=source.host)
            raise UpstreamUnavailable("The origin did not respond in time.") from error

    async def get(self, source: HttpsSource, byte_range: str | None = None) -> Response:
        """Request a source, or a byte range of it such as ``0-0``."""
        return await self._send(
            "GET", source, {"range": f"bytes={byte_range}"} if byte_range else {}
        )

    async def _follow_redirects(self, source: HttpsSource) -> OriginState:
        for _ in range(_MAX_REDIRECTS + 1):
            response = await self._head(source)
            if response.status not in _REDIRECTS:
                return read_state(source, response)
            source = self._redirect_target(source, response)
        _log.warn("the origin {host} redirects without end", host=source.host)
        raise UnusableOrigin(f"The source is behind more than {_MAX_REDIRECTS} redirects.")

    async def _head(self, source: HttpsSource) -> Response:
        """Return the response to HEAD, or to a GET of one byte where that tells more."""
        response = await self._send("HEAD", source, {})
        # Some frameworks respond to HEAD without a Content-Length, or with a Content-Length of 0.
        if response.status in _HEAD_REFUSED or (response.status == 200 and not response.length):
            response = await self.get(source, "0-0")
            await response.discard()
        return response

    async def _send(self, method: str, source: HttpsSource, headers: dict[str, str]) -> Response:
        try:
            return await self.client.request(
                method, request_url(source), {"accept-encoding": "identity", **headers}
            )
        except UntrustedCertificate as error:
            _log.warn("the origin {host} is not trusted: {error}", host=source.host, error=error)
            raise UnusableOrigin("The origin's certificate cannot be verified.") from error
        except TransportError as error:
            _log.warn("the origin {host} is unreachable: {error}", host=source.host, error=error)
            raise UpstreamUnavailable("The origin could not be reached.") from error

    def _redirect_target(self, source: HttpsSource, response: Response) -> HttpsSource:
        location = response.header("location")
        if location is None:
            raise NotFound("a redirect without a location")
        try:
            target = parse_https(_resolve(source.url, _encode(location)).encode("latin-1"))
        except ValueError as error:
            # The error may quote the address, whose query stays out of the log (D47).
            raise NotFound("a redirect to an address that is not https") from error
        if not self.allowlist.allows(target):
            raise NotFound("a redirect to a host that is not on the allowlist")
        return target


def read_state(source: HttpsSource, response: Response) -> OriginState:
    """Return the state of a source from a response to HEAD or GET.

    :raises NotFound: where the status says that there is no such source, or refuses it.
    :raises UpstreamUnavailable: where the status is that of a temporary or a server error.
    """
    status = response.status
    if status >= 500 or status in _TEMPORARY:
        _log.warn("the origin {host} responds with {status}", host=source.host, status=status)
        raise UpstreamUnavailable("The origin is broken or busy.")
    if status >= 400 and status != 416:
        raise NotFound(f"the origin responds with {status}")
    served_range = content_range(response) if status == 206 else None
    size = response.length if status != 206 else served_range[2] if served_range else None
    return OriginState(
        source,
        size,
        response.header("etag") or "",
        response.header("last-modified") or "",
        None if response.is_head else served_range is not None,
        is_unsized(response),
        _unreadable(response),
        response.header("accept-ranges") == "bytes",
    )


def is_unsized(response: Response) -> bool:
    """Return whether a response to a GET has the whole source, without its length."""
    return response.status in WHOLE and not response.is_head and response.length is None


def content_range(response: Response) -> tuple[int, int, int] | None:
    """Return the first byte, the last byte and the size from Content-Range."""
    match = _CONTENT_RANGE.fullmatch(response.header("content-range") or "")
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def request_url(source: HttpsSource) -> str:
    """Return a source's URL as it is sent."""
    return _UNSAFE.sub(_percent_encode, source.url)


def _unreadable(response: Response) -> str:
    """Return why the body of a response cannot be read as a source; empty where it can.

    The source is opened all the same: a client's `HEAD` needs no body, and gets a 200 (D48).
    """
    if response.status == 416:
        return "The source is empty."
    if response.status not in (*WHOLE, 206):
        return "The origin returns neither the source nor a redirect."
    if response.is_encoded:
        return "The origin sends the source with a Content-Encoding, which was not requested."
    return ""


def _encode(location: str) -> str:
    """Percent-encode the bytes that a URL cannot have, as browsers and curl do."""
    return _NO_URL.sub(_percent_encode, location)


def _percent_encode(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def _resolve(base: str, location: str) -> str:
    """Return the target of a redirect (RFC 3986, 5.2)."""
    base, location = (text.replace(";", _SEMICOLON) for text in (base, location))
    return urljoin(base, location).replace(_SEMICOLON, ";")
