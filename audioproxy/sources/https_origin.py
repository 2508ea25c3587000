"""Requests to https origins: the state of a source, through redirects on the allowlist."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urljoin

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import NoSuchSource, NotFound, UpstreamUnavailable
from audioproxy.grammar.sources import HttpsSource, parse_https
from audioproxy.http_client.client import HttpClient, Response
from audioproxy.http_client.errors import PrivateAddress, TransportError, UntrustedCertificate
from audioproxy.observe.log_context import Logger

_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
# Statuses of responses with the whole source.
_WHOLE = (200, 203)
# Statuses with which careless servers respond to a range, though they serve the whole.
_RANGE_REFUSED = (400, 416, 501)
# Statuses which say that there is no such source; the others refuse it.
_GONE = (404, 410)
# Statuses which ask for credentials, or for others.
_UNAUTHORIZED = (401, 403)
# Statuses of temporary errors, which do not tell whether the source exists.
_TEMPORARY = (408, 425, 429)

# Characters that a request target cannot have (RFC 3986, 2), though a source may be spelled with
# them. They are sent percent-encoded.
_UNSAFE = re.compile(r'["<>\\^`{|}]|%(?![0-9A-Fa-f]{2})')

# Bytes, as Latin-1, that a URL cannot have, but that the Location of a careless server has.
_NO_URL = re.compile(r"[^!-~]")

# Seconds for all requests about one source, redirects included; and those before another attempt
# after a temporary error, unless the origin states more.
_LOOKUP_TIMEOUT = 30.0
_DELAYS = (0.5, 2.0)
# Replaces a semicolon, since `urljoin` drops an empty parameter after one.
_SEMICOLON = "\ue000"

# What differs between entity tags of the same bytes: the prefix of weak ones, and the suffixes of
# servers that compress some responses.
_TAG_VARIATION = re.compile(r'^W/|[-;]{1,2}(?:gzip|br|zstd|deflate|df)(?="?$)')
# Seconds before the response within which a modification may go unnoticed (RFC 9110, 8.8.2.2).
# Servers that generate a source state the time of the response.
_MODIFIED_MARGIN = 2

_log = Logger()


class UnusableOrigin(UpstreamUnavailable):
    """The origin responds, but is not trusted, or redirects without end."""


class Temporary(Exception):
    """The origin is busy, or cannot be reached now.

    :ivar message: for the client.
    :ivar retry_after: seconds, where the origin states them.
    :ivar is_repeated: whether another attempt may have another end at once.
    """

    def __init__(
        self, text: str, message: str, retry_after: float | None = None, *, is_repeated: bool
    ) -> None:
        super().__init__(text)
        self.message = message
        self.retry_after = retry_after
        self.is_repeated = is_repeated


@dataclass(frozen=True, slots=True)
class OriginState:
    """A source as its origin's response headers describe it.

    :ivar source: the address at the end of all redirects.
    :ivar size: bytes, or None where it is not stated.
    :ivar etag: the entity tag; empty where it is not stated.
    :ivar modified: the value of Last-Modified; empty where it is not stated, or too recent to
        distinguish versions.
    :ivar first: the first byte of the body; None where it is not known.
    :ivar last: the last byte of the body; None where it is not known.
    :ivar unreadable: why the body cannot be read as a source; empty where it can.
    """

    source: HttpsSource
    size: int | None
    etag: str = ""
    modified: str = ""
    first: int | None = None
    last: int | None = None
    unreadable: str = ""

    @property
    def validator(self) -> bytes:
        """A value that changes with the source; empty where the origin states none."""
        version = _comparable(self.etag) or self.modified
        return f"{version} {self.size}".encode("latin-1") if version else b""

    @property
    def is_whole(self) -> bool:
        """Whether the body is the whole source."""
        return self.first == 0 and self.last == (None if self.size is None else self.size - 1)

    def matches(self, later: OriginState) -> bool:
        """Return whether a later state is of the same bytes, as far as the headers tell.

        The servers of one origin may give one file different entity tags.
        """
        if self.contradicts(later):
            return False
        return self._is_confirmed_by(later) or not (self.etag or self.modified)

    def contradicts(self, later: OriginState) -> bool:
        """Return whether the headers of a later state tell that it is of other bytes.

        Where one of them has no validators, nothing tells.
        """
        if self.unreadable != later.unreadable:
            return True
        if self.size is not None and later.size is not None and self.size != later.size:
            return True
        if self._is_confirmed_by(later):
            return False
        return bool((self.etag and later.etag) or (self.modified and later.modified))

    def _is_confirmed_by(self, later: OriginState) -> bool:
        if self.etag and _comparable(self.etag) == _comparable(later.etag):
            return True
        return bool(self.modified) and self.modified == later.modified


@dataclass(frozen=True, slots=True)
class OriginClient:
    """Sends requests to the https hosts on the allowlist.

    The headers are those of one process for its whole life. So all that it remembers of a source,
    by address and validator, was read with the same headers.

    :ivar client: connects to public addresses alone, if private ones are denied.
    :ivar headers: headers by name, by the authority of the origin whose sources they are for.
    """

    client: HttpClient
    allowlist: Sequence[str]
    clock: IReactorTime
    headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def is_connected(self, source: HttpsSource) -> bool:
        """Return whether a request to the origin of a source needs no new connection."""
        return self.client.is_connected(request_url(source))

    async def look_up(
        self, source: HttpsSource, byte_range: str | None = None
    ) -> tuple[OriginState, Response]:
        """Follow redirects to the source, and return its state there and the response.

        :param byte_range: such as ``0-0``. An origin that responds to a range of the start with an
            error, though the source may exist, is asked for the whole.
        :returns: the body of the response has to be read, streamed or discarded.
        :raises NotFound: where there is no source, the origin refuses it, or a redirect leads off
            the allowlist.
        :raises UpstreamUnavailable: where the origin cannot be reached or trusted, is broken or
            busy, or redirects without end (D48).
        """
        deadline = Deadline(self.clock, _LOOKUP_TIMEOUT)
        for delay in (*_DELAYS, None):
            try:
                return await deadline.limit(self.walk(source, byte_range))
            except TimeoutError as error:
                _log.warn("the origin {host} does not respond in time", host=source.host)
                raise UpstreamUnavailable("The origin did not respond in time.") from error
            except Temporary as error:
                wait = max(delay or 0.0, error.retry_after or 0.0)
                if delay is None or not error.is_repeated or wait >= deadline.remaining:
                    _log.warn("the origin {host} {why}", host=source.host, why=error)
                    raise UpstreamUnavailable(error.message) from error
            await deferLater(self.clock, wait)
        raise AssertionError

    async def walk(
        self, source: HttpsSource, byte_range: str | None
    ) -> tuple[OriginState, Response]:
        """Follow redirects once, as `look_up` does.

        :raises Temporary: where another attempt may succeed.
        """
        target = source
        for _ in range(_MAX_REDIRECTS + 1):
            response = await self._send(target, source, byte_range)
            is_start = byte_range is not None and byte_range.startswith("0-")
            if is_start and response.status in _RANGE_REFUSED and not _is_empty(response):
                response.discard()
                response = await self._send(target, source, None)
            if response.status not in _REDIRECTS:
                return _read_state(target, response), response
            response.discard()
            target = self._redirect_target(target, response)
        _log.warn("the origin {host} redirects without end", host=source.host)
        raise UnusableOrigin(f"The source is behind more than {_MAX_REDIRECTS} redirects.")

    async def get(
        self, target: HttpsSource, source: HttpsSource, byte_range: str | None
    ) -> tuple[OriginState, Response]:
        """Request a source where an earlier redirect has led to.

        :raises NotFound: where it is not there, or is behind a redirect.
        :raises Temporary: where another attempt may succeed.
        """
        response = await self._send(target, source, byte_range)
        if response.status in _REDIRECTS:
            response.discard()
            raise NotFound("another redirect")
        return _read_state(target, response), response

    async def _send(
        self, target: HttpsSource, source: HttpsSource, byte_range: str | None
    ) -> Response:
        # A redirect to another origin carries no headers, even if that one has its own (D79).
        is_own = target.authority == source.authority
        own_headers = self.headers.get(source.authority, {}) if is_own else {}
        headers = {**own_headers, "accept-encoding": "identity"}
        if byte_range:
            headers["range"] = f"bytes={byte_range}"
        host = target.host
        try:
            response = await self.client.request("GET", request_url(target), headers)
        except UntrustedCertificate as error:
            _log.warn("the origin {host} is not trusted: {error}", host=host, error=error)
            raise UnusableOrigin("The origin's certificate cannot be verified.") from error
        except PrivateAddress as error:
            text = "the origin {host} is refused by AP_SOURCE_DENY_PRIVATE: {error}"
            _log.warn(text, host=host, error=error)
            raise NotFound("the host has no public address") from error
        except TransportError as error:
            why = "the response is not HTTP" if own_headers and error.is_quote else error
            raise Temporary(
                f"is unreachable: {why}",
                "The origin could not be reached.",
                is_repeated=error.is_closed,
            ) from error
        if own_headers and response.status in _UNAUTHORIZED:
            text = "the origin {host} responds with {status}: its headers in AP_SOURCE_HEADERS_FILE"
            text += " may be wrong or expired"
            _log.warn(text, host=host, status=response.status)
        if target.authority in self.headers and not is_own and response.status in _UNAUTHORIZED:
            text = "the origin {host} responds with {status}: its headers in AP_SOURCE_HEADERS_FILE"
            text += " are for sources whose own URL names it, and no redirect carries them"
            _log.warn(text, host=host, status=response.status)
        return response

    def _redirect_target(self, source: HttpsSource, response: Response) -> HttpsSource:
        location = response.header("location")
        if location is None:
            raise NotFound("a redirect without a location")
        try:
            # As browsers and curl do, percent-encode the bytes that a URL cannot have.
            encoded = _NO_URL.sub(_percent_encode, location)
            target = parse_https(_resolve(source.url, encoded).encode("latin-1"))
        except ValueError as error:
            # The error may quote the address, whose query stays out of the log (D47).
            raise NotFound("a redirect to an address that is not https") from error
        if not target.is_allowed(self.allowlist):
            raise NotFound("a redirect to a host that is not on the allowlist")
        return target


def _read_state(source: HttpsSource, response: Response) -> OriginState:
    """Return the state of a source from the response to a GET, which is discarded where refused.

    :raises NotFound: where the status says that there is no such source, or refuses it.
    :raises Temporary: where the status is that of a temporary or a server error.
    """
    status = response.status
    if status >= 400 and status != 416:
        response.discard()
        if status < 500 and status not in _TEMPORARY:
            refusal = NoSuchSource if status in _GONE else NotFound
            raise refusal(f"the origin responds with {status}")
        raise Temporary(
            f"responds with {status}",
            "The origin is broken or busy.",
            response.retry_after,
            is_repeated=True,
        )
    first, last, size = None, None, response.total
    if (found := response.range) is not None:
        first, last = found.first, found.last
    elif status in _WHOLE:
        first, last = 0, None if size is None else size - 1
    return OriginState(
        source,
        size,
        response.header("etag") or "",
        _modified(response),
        first,
        last,
        _unreadable(response),
    )


def _modified(response: Response) -> str:
    """Return Last-Modified; empty where it is as recent as the response."""
    modified = response.header("last-modified") or ""
    sent, changed = response.date("date"), response.date("last-modified")
    if sent is None or changed is None:
        return modified
    return modified if (sent - changed).total_seconds() >= _MODIFIED_MARGIN else ""


def _comparable(etag: str) -> str:
    """Return what the weak and the compressed forms of an entity tag share (RFC 9110, 8.8.3.2)."""
    return _TAG_VARIATION.sub("", etag)


def _is_empty(response: Response) -> bool:
    """Return whether a response says that the source has no bytes, and so no range."""
    return response.status == 416 and response.total == 0


def request_url(source: HttpsSource) -> str:
    return _UNSAFE.sub(_percent_encode, source.url)


def _unreadable(response: Response) -> str:
    """Return why the body of a response cannot be read as a source; empty where it can.

    The source is opened all the same: a client's `HEAD` needs no body, and gets a 200 (D48).
    """
    if response.status == 416:
        return "The source is empty."
    if response.status not in (*_WHOLE, 206):
        return "The origin returns neither the source nor a redirect."
    if response.is_encoded:
        return "The origin sends the source with a Content-Encoding, which was not requested."
    return ""


def _percent_encode(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def _resolve(base: str, location: str) -> str:
    """Return the target of a redirect (RFC 3986, 5.2)."""
    base, location = (text.replace(";", _SEMICOLON) for text in (base, location))
    return urljoin(base, location).replace(_SEMICOLON, ";")
