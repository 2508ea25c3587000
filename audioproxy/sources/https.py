"""Sources at https addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cachetools import TTLCache
from twisted.internet.defer import Deferred

from audioproxy.errors import RenderFailed, UpstreamUnavailable
from audioproxy.grammar.sources import HttpsSource
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
from audioproxy.sources.https_origin import Answer, OriginClient
from audioproxy.sources.origin_state import OriginState

# Sources that a node remembers since their origin has contradicted itself, and the seconds for
# which it requests them without a range: one response cannot mix versions.
_MOST_UNRELIABLE = 4096
_UNRELIABLE_SECONDS = 3600

_log = Logger()


class HttpsSources:
    def __init__(self, origins: OriginClient, reading: FarReading) -> None:
        self.origins = origins
        self._reading = reading
        limits = _MOST_UNRELIABLE, _UNRELIABLE_SECONDS, reading.clock.seconds
        # Origins that would send a whole source in the place of its end.
        self._without_ranges: TTLCache[str, bool] = TTLCache(*limits)
        self.unreliable: TTLCache[bytes, bool] = TTLCache(*limits)

    async def open(self, source: HttpsSource, *, reads: bool = True) -> FarSource:
        """Request the start of a source from its origin.

        A source is read in ranges where all of them are certainly of one version: its size must be
        known, ranges must be served, and a validator must distinguish the versions.
        """
        canonical = source.canonical
        is_known = self._reading.files.knows(canonical)
        count = 1 if is_known else START_BYTES if reads else STAT_BYTES
        wanted = None if canonical in self.unreliable and reads else f"0-{count - 1}"
        ending: Deferred[Answer] | None = None
        is_new = reads and not is_known and not self.origins.is_connected(source)
        if is_new and wanted and source.authority not in self._without_ranges:
            # Another connection takes no longer than the first one.
            ending = Deferred.fromCoroutine(self.origins.walk(source, f"-{LAST_BYTES}"))
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
        end = None if ending is None else ending.addCallback(version.accept_end)
        if is_whole and reads and (origin.size is None or origin.size > START_BYTES):
            self._without_ranges[source.authority] = True
        found = Found(
            canonical, origin.validator, origin.size, version, start, end, origin.unreadable
        )
        return self._reading.open(found, reads=reads)

    async def _look_up(self, source: HttpsSource, byte_range: str | None, count: int) -> Answer:
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


def _abort(answer: Answer) -> None:
    answer[1].abort()


@dataclass(eq=False)
class _HttpsVersion:
    """One version of a source; its bytes may have been requested before."""

    sources: HttpsSources
    source: HttpsSource
    origin: OriginState
    is_whole: bool
    is_requested: bool

    @property
    def name(self) -> str:
        return self.source.authority

    def accept_end(self, answer: Answer) -> Part:
        """Return the response to a request for the last bytes, if it has them."""
        later, response = answer
        size = self.origin.size or 0
        is_end = (later.first, later.last) == (size - LAST_BYTES, size - 1)
        if not (is_end and self.origin.matches(later)):
            response.abort()
            raise Busy("it has not returned the last bytes")
        return Part.of(response)

    async def get(self, first: int, stop: int | None) -> Part:
        if self.is_whole and not self.origin.validator:
            # Nothing tells whether another response is of the same version.
            if self.is_requested:
                raise UpstreamUnavailable("The origin did not return the whole source.")
            self.is_requested = True
        wanted = None if self.is_whole else f"{first}-{(stop or 0) - 1}"
        try:
            later, response = await self.sources.origins.walk_again(
                self.source, self.origin.source, wanted
            )
        except Busy:
            # Redirects may lead to another server now.
            self.origin = replace(self.origin, source=self.source)
            raise
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
