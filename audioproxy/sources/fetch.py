"""One run of bytes that is requested from an origin, and written to a far file as it arrives."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer, IProducer, IPushProducer, IReactorTime
from twisted.internet.task import deferLater
from zope.interface import implementer

from audioproxy.concurrency.threads import await_uncancelled
from audioproxy.errors import Refusal, RenderFailed, SourceTooLarge, UpstreamUnavailable
from audioproxy.files.streams import ByteStream, ConsumerGone
from audioproxy.http_client.client import Response
from audioproxy.http_client.errors import TooMuch, TransportError
from audioproxy.observe.log_context import Logger
from audioproxy.sources.blocks import BLOCK

# Bytes that wait for the disk, at most, besides those that are written at the moment.
_MOST_BUFFERED = 1024 * 1024
# Seconds before the attempts that follow one without a byte. One that follows a lost connection,
# which has brought much, begins at once.
_DELAYS = (0.25, 1.0, 2.0, 4.0)
_MUCH = BLOCK
# Attempts without much of a source that comes from its start each time.
_MOST_WHOLE = 2
#: Seconds that an origin may name in Retry-After, and be asked again.
MOST_PATIENCE = 20.0
#: Seconds without a byte after which a connection is given up.
STALL_TIMEOUT = 5.0
#: Why a render fails whose source is of another version now.
CHANGED = "The source changed while it was read."

T = TypeVar("T")

_log = Logger()


class Busy(Exception):
    """The origin has not served a range now, and may do so soon."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a source on their way; those ahead of what is needed are dropped."""

    first: int
    stream: ByteStream

    @classmethod
    def of(cls, response: Response) -> Part:
        found = response.range
        first, size = (0, response.length) if found is None else (found.first, found.size)
        return cls(first, response.stream(size, STALL_TIMEOUT))

    def discard(self) -> None:
        self.stream.discard()


def abandon(coming: Deferred[T] | None, drop: Callable[[T], None]) -> None:
    if coming is not None:
        coming.addCallbacks(drop, lambda failure: None)
        coming.cancel()


class Version(Protocol):
    """One version of a source at its origin.

    :ivar name: the place, for the log.
    :ivar is_whole: the origin serves no ranges of it.
    """

    @property
    def name(self) -> str: ...
    @property
    def is_whole(self) -> bool: ...

    async def get(self, first: int, stop: int | None) -> Part:
        """Request bytes.

        :param stop: behind the last byte; None for all that follow. The origin may serve fewer.
        :raises Busy: where another attempt may succeed.
        :raises Refusal: where it cannot: the source is gone, or has changed.
        """
        ...


@implementer(IConsumer)
@dataclass(eq=False, repr=False)
class Fetch:
    """Bytes of one version, from a place on. What is lost on the way is requested again.

    :ivar write_blocks: writes whole blocks at `position`, and moves it. The end of a source counts
        as a whole block.
    :ivar bound: the place at which the fetch pauses, until `extend` moves it; None for none.
    :ivar most: the most bytes that a source may have whose size is not known.
    :ivar position: all bytes ahead of it are written.
    """

    version: Version
    clock: IReactorTime
    position: int
    stop: int | None
    write_blocks: Callable[[Fetch, bytearray], Coroutine[Any, Any, None]]
    bound: int | None = None
    most: int | None = None
    is_needed: bool = True

    def __post_init__(self) -> None:
        # All bytes ahead of this place have arrived; the last ones are not written yet.
        self._arrived = self.position
        self._batch = bytearray()
        self._writing: Deferred[None] | None = None
        self._error: Exception | None = None
        self._producer: IPushProducer | None = None
        self._sending: Deferred[None] | None = None
        self._is_paused = False
        self._skipped = 0
        self._needed: Deferred[None] | None = None

    @property
    def _is_too_large(self) -> bool:
        return self.most is not None and self._arrived > self.most

    @property
    def _is_ahead(self) -> bool:
        return self.bound is not None and self._arrived >= self.bound

    async def run(self, begun: Part | Deferred[Part] | None = None) -> None:
        """Fetch all of it; a response may have begun already, or is coming, or fails."""
        failures, part = 0, None if isinstance(begun, Deferred) else begun
        if isinstance(begun, Deferred):
            # Otherwise it is requested as all others.
            with suppress(Refusal, Busy):
                part = await begun
        while part is not None or self.stop is None or self._arrived < self.stop:
            before = self._arrived
            error: Busy | None = None
            try:
                if part is None:
                    while self._is_ahead:
                        # An origin that was left waiting has closed its connection.
                        self._needed = Deferred()
                        await self._needed
                    part = await self.version.get(self._arrived, self.stop)
                current, part = part, None
                await self._receive(current)
                if self.stop is None:
                    self.stop = self._arrived
                    break
            except Busy as busy:
                part, error = None, busy
            if self.stop is None or self._arrived < self.stop:
                failures = 0 if self._arrived - before >= _MUCH else failures + 1
                if failures or error is not None:
                    await self._wait(error or Busy("it serves few bytes of a range"), failures)
        # The end of a source is no whole block.
        await self._write_batches()
        if self._error is not None:
            raise self._error

    async def _wait(self, error: Busy, failures: int) -> None:
        """Wait before another attempt, after failures since one that has brought much."""
        name, wanted = self.version.name, error.retry_after or 0.0
        most = _MOST_WHOLE if self.version.is_whole else len(_DELAYS)
        if failures > most or wanted > MOST_PATIENCE or not self.is_needed:
            _log.warn("the origin {name} does not return a source: {why}", name=name, why=error)
            raise UpstreamUnavailable("The origin did not return the whole source.") from error
        log = _log.warn if failures > 1 else _log.debug
        log("the origin {name} is asked again for a source: {why}", name=name, why=error)
        await deferLater(self.clock, max(wanted, _DELAYS[failures - 1] if failures else 0.0))

    def extend(self, bound: int) -> None:
        if self.bound is not None and bound > self.bound:
            self.bound = bound
            self._adjust()
            needed, self._needed = self._needed, None
            if needed is not None:
                needed.callback(None)

    async def _receive(self, part: Part) -> None:
        self._skipped = self._arrived - part.first
        self._is_paused = False
        try:
            self._sending = part.stream.send(self)
            if self._error is not None:
                # It has failed within the call.
                self._sending.cancel()
            await self._sending
        except ConsumerGone as error:
            self._batch.clear()
            raise self._error or CancelledError() from error
        except TooMuch as error:
            # What has come may be of another place.
            raise RenderFailed(CHANGED) from error
        except TransportError as error:
            raise Busy(str(error)) from error
        finally:
            self._sending = None
            # A thread may still write.
            if self._writing is not None:
                await await_uncancelled(self._writing)
        if self._error is not None:
            raise self._error
        if self._skipped:
            raise RenderFailed(CHANGED)

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        self._producer = cast(IPushProducer, producer)

    def unregisterProducer(self) -> None:
        self._producer = None

    def write(self, data: bytes) -> None:
        if self._error is not None:
            return
        skipped = min(self._skipped, len(data))
        self._skipped -= skipped
        rest = len(data) if self.stop is None else skipped + self.stop - self._arrived
        self._batch += data[skipped:rest]
        self._arrived += max(0, min(rest, len(data)) - skipped)
        if self._is_too_large:
            # What is accepted of it can still be probed.
            assert self.most is not None
            del self._batch[self.most - self._arrived :]
        if self._writing is None:
            writing = Deferred.fromCoroutine(self._write_batches())
            self._writing = None if writing.called else writing
        self._adjust()

    async def _write_batches(self) -> None:
        try:
            while self._error is None:
                is_end = self._arrived == self.stop or self._is_too_large
                count = len(self._batch) if is_end else len(self._batch) // BLOCK * BLOCK
                if not count:
                    break
                batch = self._batch[:count]
                del self._batch[:count]
                self._adjust()
                await self.write_blocks(self, batch)
            if self._is_too_large and self._error is None:
                raise SourceTooLarge(
                    f"The source has more than {self.most} bytes, and no more are accepted."
                )
        except Exception as error:
            self._error = error
            self._batch.clear()
            if self._sending is not None:
                self._sending.cancel()
        finally:
            self._writing = None

    def _adjust(self) -> None:
        should_pause = self._is_ahead or len(self._batch) >= _MOST_BUFFERED
        if self._producer is None or should_pause == self._is_paused:
            return
        self._is_paused = should_pause
        if should_pause:
            self._producer.pauseProducing()
        else:
            self._producer.resumeProducing()
