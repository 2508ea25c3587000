"""Sources at https addresses: asked about by us, redirects walked by us, read by ffmpeg."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urljoin

from twisted.internet.interfaces import IReactorTime

from audioproxy.errors import (
    NotFound,
    Refusal,
    RenderFailed,
    SourceTooLarge,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.grammar.sources import HttpsSource, parse_https
from audioproxy.http_client.client import USER_AGENT, HttpClient, Response
from audioproxy.http_client.errors import Unreachable, Untrusted
from audioproxy.http_client.timeouts import within
from audioproxy.log_context import Logger
from audioproxy.media.diagnostics import redact
from audioproxy.media.inputs import SOURCE_DESCRIPTOR, Input, local_input, remote_input
from audioproxy.scratch import Scratch, ScratchSpace
from audioproxy.sources.allowlist import Allowlist
from audioproxy.sources.download import FileConsumer, TooMuch
from audioproxy.threads import InThread

_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
# Statuses of answers with the whole source.
_WHOLE = (200, 203)
# How an origin says that it has no HEAD (D41). One that signs its URLs refuses it with a 403.
_NO_HEAD = (403, 405, 501)
# Troubles that pass, and say nothing of whether there is such a source.
_PASSING = (408, 425, 429)

# What no URL may have in it as it travels (RFC 3986, 2), though a source may be spelled so. ffmpeg
# writes these in hexadecimal; so that one thing is asked about and read, we do it first.
_UNSAFE = re.compile(r'["<>\\^`{|}]|%(?![0-9A-Fa-f]{2})')

_CHANGED = "The source changed while it was read."

# Seconds to find out about a source, through all redirects.
_STAT = 30.0
# Stands for a semicolon, after which `urljoin` forgets an empty parameter.
_SEMICOLON = "\ue000"

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")

_log = Logger()


class UnusableOrigin(UpstreamUnavailable):
    """The origin answers, and no source can be read from it."""


@dataclass(frozen=True, slots=True)
class State:
    """What an origin says of a source.

    :ivar source: where the redirects ended.
    :ivar size: bytes, or None where it does not say.
    :ivar tag: its entity tag, or nothing.
    :ivar modified: when it says that the source was changed, or nothing.
    :ivar ranges: whether it has served a range; None where it was not asked for one.
    :ivar unsized: a GET is answered with the whole body, and its length is not stated.
    :ivar fault: why what it sends cannot be read as a source; nothing where it can.
    """

    source: HttpsSource
    size: int | None
    tag: str
    modified: str
    ranges: bool | None
    unsized: bool = False
    fault: str = ""

    @property
    def validator(self) -> bytes:
        """What changes when the source does; nothing, where the origin has nothing of the kind."""
        named = self.tag or self.modified
        return f"{named} {self.size}".encode("latin-1") if named else b""

    def agrees(self, later: State) -> bool:
        """Tell whether a later state is of the same bytes, as far as anyone can know.

        The servers of one origin may give one file unlike entity tags.
        """
        if self.fault != later.fault:
            return False
        if self.size is not None and later.size is not None and self.size != later.size:
            return False
        if self.tag and self.tag == later.tag:
            return True
        if self.modified and self.modified == later.modified:
            return True
        return not (self.tag or self.modified)


@dataclass(frozen=True, slots=True)
class HttpsSources:
    """The world outside, as far as it is on the allowlist.

    :ivar ca_file: PEM file of what ffmpeg trusts; None is the system's own.
    :ivar space: where sources are kept that cannot be read safely where they are.
    :ivar limit: bytes; larger sources are not fetched.
    """

    client: HttpClient
    allowlist: Allowlist
    ca_file: str | None
    space: ScratchSpace
    clock: IReactorTime
    in_thread: InThread
    limit: int

    async def open(self, source: HttpsSource) -> HttpsFile:
        """Find out what an origin says of a source.

        :raises NotFound: where it has none, refuses it, or redirects to where nobody may go.
        :raises UpstreamUnavailable: where the origin cannot be reached or trusted, is broken or
            busy, or redirects without end (D48).
        """
        return HttpsFile(self, source, await self.ask(source))

    async def ask(self, source: HttpsSource) -> State:
        """Follow redirects to where the source is, and return what is said of it there."""
        try:
            return await within(self.clock, _STAT, self._walk(source))
        except TimeoutError as error:
            _log.warn("the origin {host} takes too long", host=source.host)
            raise UpstreamUnavailable("The origin does not answer in time.") from error

    async def _walk(self, source: HttpsSource) -> State:
        for _ in range(_MOST_REDIRECTS + 1):
            answer = await self._ask_once(source)
            if answer.status not in _REDIRECTS:
                return _read(source, answer)
            source = self._next(source, answer)
        _log.warn("the origin {host} redirects without end", host=source.host)
        raise UnusableOrigin(f"The source is behind more than {_MOST_REDIRECTS} redirects.")

    async def get(self, source: HttpsSource, open_range: str | None = None) -> Response:
        """Ask for a source, or for a stretch of it such as ``0-0``."""
        return await self._send(
            "GET", source, {"range": f"bytes={open_range}"} if open_range else {}
        )

    async def _ask_once(self, source: HttpsSource) -> Response:
        answer = await self._send("HEAD", source, {})
        # Some frameworks answer HEAD without the length, or with that of no body.
        if answer.status in _NO_HEAD or (answer.status == 200 and not answer.length):
            answer = await self.get(source, "0-0")
            await answer.drop()
        return answer

    async def _send(self, method: str, source: HttpsSource, headers: dict[str, str]) -> Response:
        try:
            return await self.client.request(
                method, _spelled(source), {"accept-encoding": "identity", **headers}
            )
        except Untrusted as error:
            _log.warn("the origin {host} is not trusted: {error}", host=source.host, error=error)
            raise UnusableOrigin("The origin's certificate cannot be verified.") from error
        except Unreachable as error:
            _log.warn("the origin {host} is unreachable: {error}", host=source.host, error=error)
            raise UpstreamUnavailable("The origin could not be reached.") from error

    def _next(self, source: HttpsSource, answer: Response) -> HttpsSource:
        location = answer.header("location")
        if location is None:
            raise NotFound("a redirect without a location")
        try:
            there = parse_https(_resolve(source.url, location).encode("latin-1"))
        except ValueError as error:
            # The error may quote the address, whose query stays out of the log (D47).
            raise NotFound("a redirect to no https address") from error
        if not self.allowlist.admits(there):
            raise NotFound("a redirect to a host that is not on the allowlist")
        return there


class HttpsFile:
    """A source at an https address.

    ffmpeg reads it there if it can tell the end of it from an early one, and one part of it from
    another: if its length is known, ranges are served, and something tells its versions apart. Any
    other is fetched first, by us, who see how its body is framed.
    """

    def __init__(self, origins: HttpsSources, source: HttpsSource, state: State) -> None:
        self._origins = origins
        self._source = source
        self._state = state
        self._ranges = state.ranges
        self._unsized = state.unsized
        self._copy: Scratch | None = None
        self._in_place = False
        self._closed = False

    @property
    def size(self) -> int | None:
        """Bytes, where the origin says."""
        return self._state.size

    @property
    def validator(self) -> bytes:
        """The entity tag or the time of the last change, and the size."""
        return self._state.validator

    @property
    def descriptors(self) -> Mapping[int, int]:
        """The copy's, where one was made."""
        return {} if self._copy is None else {SOURCE_DESCRIPTOR: self._copy.descriptor}

    async def input(self, seconds: float, *, whole: bool) -> Input:
        """Return the address, or a copy where that is safer.

        :raises Refusal: where it cannot be had.
        :raises TimeoutError: where it cannot be had in time.
        """
        if self._state.fault:
            raise UndecodableSource(self._state.fault)
        if self._copy is None:
            await within(self._origins.clock, seconds, self._make_ready(seconds, whole))
        if self._copy is not None:
            if self._closed:
                # The owner has gone, and others share its probe, which opens the copy now.
                self._origins.clock.callLater(0, self.close)
            return local_input()
        assert self._ranges is not None
        return remote_input(
            _spelled(self._state.source), USER_AGENT, self._origins.ca_file, ranges=self._ranges
        )

    def fingerprint(self) -> bytes:
        """Return nothing: whoever reads it may get another version than the one that was asked for.

        Not every origin keeps one entity tag for one version, so that reads cannot insist on it.
        """
        return b""

    async def unchanged(self) -> bool:
        """Tell whether the origin says the same as before; a copy was of one state anyway."""
        if self._copy is not None or not self.validator:
            return True
        try:
            # The address behind a redirect may have been one for a short time.
            return self._state.agrees(await self._origins.ask(self._source))
        except UnusableOrigin:
            return False
        except UpstreamUnavailable:
            # It was read to its end, and now there is nobody to ask.
            return True
        except Refusal:
            return False

    def close(self) -> None:
        """Remove the copy; again is harmless."""
        self._closed = True
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()

    async def _make_ready(self, seconds: float, whole: bool) -> None:
        if whole and self._state.source != self._source:
            # The address behind a redirect may be one for a short time, and the queue was long.
            self._renew(await self._origins.ask(self._source))
        ranges = await self._serves_ranges()
        if whole:
            # Several ranges of what has no validator may be of two versions.
            if not (ranges and self.validator):
                await self._fetch(seconds)
        elif not (ranges or self._in_place) and (self._unsized or self.size is None):
            # Whether it is whole shows at its end alone, for a probe too (D48). What is too large
            # or too slow to be fetched for one is probed in place.
            half = seconds / 2
            try:
                await within(self._origins.clock, half, self._fetch(half))
            except (SourceTooLarge, TimeoutError):
                self._in_place = True

    def _renew(self, state: State) -> None:
        if not self._state.agrees(state):
            raise RenderFailed(_CHANGED)
        if state.source != self._state.source:
            self._ranges, self._unsized = state.ranges, state.unsized
        self._state = state

    async def _serves_ranges(self) -> bool:
        """Tell whether a range is answered with that range; what a header promises is no proof."""
        if self._ranges is None:
            size = self._state.size
            last = max(0, (size or 1) - 1)
            answer = await self._origins.get(self._state.source, f"{last}-{last}")
            await answer.drop()
            self._ranges = answer.status == 206 and _stretch(answer) == (last, last, size)
            self._unsized = _is_unsized(answer)
        return self._ranges

    async def _fetch(self, seconds: float) -> None:
        origins = self._origins
        answer = await origins.get(self._state.source)
        try:
            self._check(answer)
            copy = await origins.space.create(seconds)
        except (Refusal, OSError) as error:
            await answer.drop()
            raise _refusal(error, origins.limit) from None
        size = self._state.size if answer.length is None else answer.length
        try:
            await FileConsumer(copy.descriptor, origins.limit, origins.in_thread).take(
                answer.flow(size)
            )
        except BaseException as error:
            copy.close()
            raise _refusal(error, origins.limit) from None
        self._copy = copy

    def _check(self, answer: Response) -> None:
        state = _read(self._state.source, answer)
        if state.fault:
            raise UndecodableSource(state.fault)
        if answer.status not in _WHOLE:
            raise UpstreamUnavailable("The origin does not give the source any more.")
        if not self._state.agrees(state):
            raise RenderFailed(_CHANGED)
        SourceTooLarge.check(state.size, self._origins.limit)


def _read(source: HttpsSource, answer: Response) -> State:
    """Return what an answer says of a source.

    :raises NotFound, UpstreamUnavailable: for one that says that there is none to be had.
    """
    status = answer.status
    if status >= 500 or status in _PASSING:
        _log.warn("the origin {host} answers {status}", host=source.host, status=status)
        raise UpstreamUnavailable("The origin is broken or busy.")
    if status >= 400 and status != 416:
        raise NotFound(f"the origin answers {status}")
    open_range = _stretch(answer) if status == 206 else None
    size = answer.length if status != 206 else open_range[2] if open_range else None
    return State(
        source,
        size,
        answer.header("etag") or "",
        answer.header("last-modified") or "",
        None if answer.bodiless else open_range is not None,
        _is_unsized(answer),
        _fault(answer),
    )


def _is_unsized(answer: Response) -> bool:
    """Return whether an answer to a GET has the whole source, without its length."""
    return answer.status in _WHOLE and not answer.bodiless and answer.length is None


def _fault(answer: Response) -> str:
    """Return why the body of an answer cannot be read as a source; nothing where it can.

    `HEAD` reads no body, so it answers 200 all the same (D48).
    """
    if answer.status == 416:
        return "The source is empty."
    if answer.status not in (*_WHOLE, 206):
        return "The origin's answer is neither the source nor a redirect."
    if (answer.header("content-encoding") or "identity").lower() != "identity":
        return "The origin sends the source compressed, unasked."
    return ""


def _resolve(base: str, location: str) -> str:
    """Return where a location leads from an address (RFC 3986, 5.2)."""
    base, location = (text.replace(";", _SEMICOLON) for text in (base, location))
    return urljoin(base, location).replace(_SEMICOLON, ";")


def _spelled(source: HttpsSource) -> str:
    """Return a source's address as it travels."""
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", source.url)


def _stretch(answer: Response) -> tuple[int, int, int] | None:
    """Return the first byte, the last byte and the size that Content-Range names."""
    match = _CONTENT_RANGE.fullmatch(answer.header("content-range") or "")
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _refusal(error: BaseException, limit: int) -> BaseException:
    """Return what an error means that came while a source was fetched."""
    if isinstance(error, TooMuch):
        return SourceTooLarge(f"The source has more than {limit} bytes, and no more are accepted.")
    if isinstance(error, Unreachable):
        return UpstreamUnavailable("The origin does not give the whole source.")
    if isinstance(error, OSError):
        _log.warn("a source cannot be kept: {why}", why=redact(str(error).encode()))
        return RenderFailed("There is no place for the source.")
    return error
