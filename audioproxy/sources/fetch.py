"""One run of bytes that is requested from an origin, and written to a far file as it arrives."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer, IProducer, IPushProducer, IReactorTime
from twisted.internet.task import deferLater
from zope.interface import implementer

from audioproxy.concurrency.threads import await_uncancelled
from audioproxy.errors import Refusal, UpstreamUnavailable
from audioproxy.files.streams import ByteStream, ConsumerGone
from audioproxy.http_client.client import Response
from audioproxy.http_client.errors import TransportError
from audioproxy.observe.log_context import Logger

# Bytes that wait for the disk, at most, besides those that are written at the moment.
_MOST_BUFFERED = 1024 * 1024
# Seconds before the attempts that follow one without a byte. One that follows a lost connection,
# which has brought much, begins at once.
_DELAYS = (0.25, 1.0, 2.0, 4.0)
_MUCH = 64 * 1024
#: Seconds that an origin may name in Retry-After, and be asked again.
MOST_PATIENCE = 20.0
#: Seconds without a byte after which a connection is given up.
STALL_TIMEOUT = 15.0

_log = Logger()


class Busy(Exception):
    """The origin has not served a range now, and may do so soon.

    :ivar retry_after: seconds, where it has stated them.
    """

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a source on their way.

    :ivar first: the place of the first one. Those ahead of what is needed are dropped.
    """

    first: int
    stream: ByteStream

    @classmethod
    def of(cls, response: Response) -> Part:
        """Return the body of a response, which must have as many bytes as its headers state."""
        found = response.range
        first, size = (0, response.length) if found is None else (found.first, found.size)
        return cls(first, response.stream(size, STALL_TIMEOUT))


def drop(coming: Deferred[Part]) -> None:
    """Give up a response that is not needed."""
    coming.addCallbacks(lambda part: part.stream.discard(), lambda failure: None)
    coming.cancel()


class Version(Protocol):
    """One version of a source at its origin.

    :ivar name: of the origin, for the log.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    async def get(self, first: int, stop: int | None) -> Part:
        """Request bytes.

        :param stop: behind the last byte; None for all that follow. The origin may serve fewer.
        :raises Busy: where another attempt may succeed.
        :raises Refusal: where it cannot: the source is gone, or has changed.
        """
        ...


@implementer(IConsumer)
class Fetch:
    """Bytes of one version, from a place on. What is lost on the way is requested again.

    :ivar position: all bytes ahead of it are written.
    :ivar stop: behind the last byte; None where the source's size is not known.
    """

    def __init__(
        self,
        version: Version,
        clock: IReactorTime,
        start: int,
        stop: int | None,
        write: Callable[[int, bytearray], Coroutine[Any, Any, None]],
        bound: int | None = None,
    ) -> None:
        """Prepare a fetch that has not begun.

        :param write: writes bytes to a place; `position` follows it.
        :param bound: the place at which the fetch pauses, until `extend` moves it; None for none.
        """
        self.position = start
        self.stop = stop
        self._version = version
        self._clock = clock
        self._write = write
        self._bound = bound
        self._received = start
        self._batch = bytearray()
        self._writing: Deferred[None] | None = None
        self._error: Exception | None = None
        self._producer: IPushProducer | None = None
        self._sending: Deferred[None] | None = None
        self._is_paused = False
        self._skipped = 0

    async def run(self, begun: Part | Deferred[Part] | None = None) -> None:
        """Fetch all of it.

        :param begun: a response that has begun already, or is coming, or fails.
        :raises Refusal: where the origin does not serve it.
        :raises OSError: where it cannot be written.
        """
        failures, part = 0, None if isinstance(begun, Deferred) else begun
        if isinstance(begun, Deferred):
            # Otherwise it is requested as all others.
            with suppress(Refusal, Busy):
                part = await begun
        while part is not None or self.stop is None or self.position < self.stop:
            before = self.position
            try:
                if part is None:
                    part = await self._version.get(self.position, self.stop)
                current, part = part, None
                await self._receive(current)
                if self.stop is None:
                    self.stop = self.position
                elif self.position == before:
                    raise Busy("it serves no byte of a range")
            except Busy as error:
                part = None
                failures = 1 if self.position > before else failures + 1
                await self._wait(error, 0 if self.position - before >= _MUCH else failures)

    async def _wait(self, error: Busy, failures: int) -> None:
        wanted = error.retry_after or 0.0
        if failures > len(_DELAYS) or wanted > MOST_PATIENCE:
            _log.warn(
                "the origin {name} does not serve a range: {why}",
                name=self._version.name,
                why=error,
            )
            raise UpstreamUnavailable("The origin did not return the whole source.") from error
        delay = max(wanted, _DELAYS[failures - 1] if failures else 0.0)
        _log.debug(
            "a range of {name} is requested again: {why}", name=self._version.name, why=error
        )
        await deferLater(self._clock, delay)

    def extend(self, bound: int) -> None:
        """Fetch on up to a later place."""
        if self._bound is not None and bound > self._bound:
            self._bound = bound
            self._adjust()

    async def _receive(self, part: Part) -> None:
        self._skipped = self.position - part.first
        self._is_paused = False
        try:
            self._sending = part.stream.send(self)
            await self._sending
        except ConsumerGone as error:
            raise self._error or CancelledError() from error
        except TransportError as error:
            raise Busy(str(error)) from error
        finally:
            self._sending = None
            # A thread may still write.
            if self._writing is not None:
                await await_uncancelled(self._writing)
        if self._error is not None:
            raise self._error

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Register the stream, which is a push producer."""
        self._producer = cast(IPushProducer, producer)

    def unregisterProducer(self) -> None:
        """Unregister the stream."""
        self._producer = None

    def write(self, data: bytes) -> None:
        """Write bytes soon, in order."""
        if self._skipped:
            skipped = min(self._skipped, len(data))
            self._skipped -= skipped
            data = data[skipped:]
        self._batch += data
        self._received += len(data)
        if self._batch and self._writing is None:
            writing = Deferred.fromCoroutine(self._write_batches())
            self._writing = None if writing.called else writing
        self._adjust()

    async def _write_batches(self) -> None:
        try:
            while self._batch and self._error is None:
                batch, self._batch = self._batch, bytearray()
                self._adjust()
                await self._write(self.position, batch)
                self.position += len(batch)
        except Exception as error:
            self._error = error
            self._batch.clear()
            if self._sending is not None:
                self._sending.cancel()
        finally:
            self._writing = None

    def _adjust(self) -> None:
        """Pause or resume the stream."""
        is_ahead = self._bound is not None and self._received >= self._bound
        should_pause = is_ahead or len(self._batch) >= _MOST_BUFFERED
        if self._producer is None or should_pause == self._is_paused:
            return
        self._is_paused = should_pause
        if should_pause:
            self._producer.pauseProducing()
        else:
            self._producer.resumeProducing()
