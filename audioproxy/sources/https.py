"""Sources at https addresses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from cachetools import TTLCache
from twisted.internet.defer import Deferred

from audioproxy.errors import NotFound, RenderFailed, UpstreamUnavailable
from audioproxy.grammar.sources import HttpsSource
from audioproxy.http_client.client import Response
from audioproxy.observe.log_context import Logger
from audioproxy.sources.far_source import (
    LAST_BYTES,
    START_BYTES,
    STAT_BYTES,
    FarReading,
    FarSource,
    Found,
)
from audioproxy.sources.fetch import CHANGED, Busy, Part, abandon
from audioproxy.sources.https_origin import OriginClient
from audioproxy.sources.origin_state import OriginState, Temporary

# Sources that a node remembers since their origin has contradicted itself, and the seconds for
# which it requests them without a range: one response cannot mix versions.
_MOST_UNRELIABLE = 4096
_UNRELIABLE_SECONDS = 3600

#: What the headers of a response state, and the response.
_Answer: TypeAlias = tuple[OriginState, Response]

_log = Logger()


class HttpsSources:
    """Opens sources at the https hosts on the allowlist."""

    def __init__(self, origins: OriginClient, reading: FarReading) -> None:
        self.origins = origins
        self._reading = reading
        # Origins that would send a whole source in the place of its end.
        self._without_ranges: TTLCache[str, bool] = TTLCache(
            _MOST_UNRELIABLE, _UNRELIABLE_SECONDS, reading.clock.seconds
        )
        self.unreliable: TTLCache[bytes, bool] = TTLCache(
            _MOST_UNRELIABLE, _UNRELIABLE_SECONDS, reading.clock.seconds
        )

    async def open(self, source: HttpsSource, *, reads: bool = True) -> FarSource:
        """Request the start of a source from its origin.

        A source is read in ranges where all of them are certainly of one version: its size must be
        known, ranges must be served, and a validator must distinguish the versions.

        :raises NotFound, UpstreamUnavailable: as `OriginClient.look_up` does; the latter also where
            the origin returns a range that was not requested.
        """
        canonical = source.canonical
        is_known = self._reading.files.knows(canonical)
        count = 1 if is_known else START_BYTES if reads else STAT_BYTES
        wanted = None if canonical in self.unreliable and reads else f"0-{count - 1}"
        ending: Deferred[_Answer] | None = None
        is_new = reads and not is_known and not self.origins.is_connected(source)
        if is_new and wanted and source.authority not in self._without_ranges:
            # Another connection takes no longer than the first one.
            walking = self.origins.walk(source, f"-{LAST_BYTES}")
            ending = Deferred.fromCoroutine(walking)
        start: Part | None = None
        try:
            origin, response = await self._look_up(source, wanted, count)
            # Without a validator, nothing tells whether later ranges are of the same version.
            is_whole = response.range is None or not origin.validator
            if (is_known and not is_whole) or not reads or origin.unreadable:
                # A short body is read, so that its connection can be used again.
                response.discard()
            else:
                start = Part.of(response)
        except BaseException:
            abandon(ending, _abort)
            raise
        version = _HttpsVersion(self, source, origin, is_whole, start is not None)
        end: Deferred[Part] | None = None
        if ending is not None and not is_whole and (origin.size or 0) > START_BYTES:
            end = Deferred.fromCoroutine(version.accept_end(ending))
        else:
            abandon(ending, _abort)
        if is_whole and reads and (origin.size is None or origin.size > START_BYTES):
            self._without_ranges[source.authority] = True
        found = Found(
            canonical,
            origin.validator,
            origin.size,
            version,
            start,
            end,
            origin.unreadable,
        )
        return self._reading.open(found, reads=reads)

    async def _look_up(self, source: HttpsSource, byte_range: str | None, count: int) -> _Answer:
        """Request the start of a source, or all of it where its ranges are of no use."""
        origin, response = await self.origins.look_up(source, byte_range)
        size = origin.size
        is_start = size is not None and (origin.first, origin.last) == (0, min(count, size) - 1)
        is_usable = origin.is_whole or (is_start and bool(origin.validator))
        if not (is_usable or origin.unreadable):
            response.discard()
            origin, response = await self.origins.look_up(source)
            if not (origin.is_whole or origin.unreadable):
                response.discard()
                _log.warn("the origin {host} returns a part of a source", host=source.host)
                raise UpstreamUnavailable("The origin did not return the whole source.")
        return origin, response


def _abort(answer: _Answer) -> None:
    answer[1].abort()


@dataclass(eq=False)
class _HttpsVersion:
    """One version of a source, as `fetch.Version`.

    :ivar is_requested: its bytes were requested before.
    """

    sources: HttpsSources
    source: HttpsSource
    origin: OriginState
    is_whole: bool
    is_requested: bool

    @property
    def name(self) -> str:
        return self.source.authority

    async def accept_end(self, ending: Deferred[_Answer]) -> Part:
        """Return the response to a request for the last bytes."""
        try:
            later, response = await ending
        except Temporary as error:
            raise Busy(str(error)) from error
        size = self.origin.size or 0
        is_end = (later.first, later.last) == (size - LAST_BYTES, size - 1)
        if not (is_end and self.origin.matches(later)):
            response.abort()
            raise Busy("it has not returned the last bytes")
        return Part.of(response)

    async def _send(self, byte_range: str | None) -> tuple[OriginState, Response]:
        """Send a request to where the last redirect has led, or follow redirects again.

        A redirect may lead to an address that is valid for seconds.
        """
        origins, target = self.sources.origins, self.origin.source
        if target != self.source:
            with suppress(NotFound):
                return await origins.get(target, self.source, byte_range)
        return await origins.walk(self.source, byte_range)

    async def get(self, first: int, stop: int | None) -> Part:
        if self.is_whole and not self.origin.validator:
            # Nothing tells whether another response is of the same version.
            if self.is_requested:
                raise UpstreamUnavailable("The origin did not return the whole source.")
            self.is_requested = True
        wanted = None if self.is_whole else f"{first}-{(stop or 0) - 1}"
        try:
            later, response = await self._send(wanted)
        except Temporary as error:
            # Redirects may lead to another server now.
            self.origin = replace(self.origin, source=self.source)
            raise Busy(str(error), error.retry_after) from error
        begin = 0 if self.is_whole else first
        is_served = later.first == begin and (
            self.is_whole or (later.last is not None and stop is not None and later.last < stop)
        )
        if not (is_served and self.origin.matches(later)):
            response.abort()
            self.sources.unreliable[self.source.canonical] = True
            raise RenderFailed(CHANGED)
        self.origin = replace(self.origin, source=later.source)
        return Part.of(response)
