"""Doubles for far files: an origin that serves ranges, and the reactor's sockets."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer

from audioproxy.files.streams import ConsumerGone
from audioproxy.sources.fetch import Part


class FakeStream:
    """A body whose bytes are sent when a test says so.

    :ivar first: the place of the next byte.
    :ivar stop: behind the last one.
    :ivar is_paused: whether the consumer takes no more now.
    """

    def __init__(self, content: bytes, first: int, stop: int) -> None:
        self.first, self.stop = first, stop
        self.is_paused = False
        self.is_discarded = False
        self._content = content
        self._consumer: Any = None
        self.done: Deferred[None] = Deferred(lambda _: self.stopProducing())

    def send(self, consumer: IConsumer) -> Deferred[None]:
        """Register with the consumer."""
        self._consumer = consumer
        cast(Any, consumer).registerProducer(self, True)
        return self.done

    def discard(self) -> None:
        """Note that nobody reads it."""
        self.is_discarded = True

    @property
    def is_open(self) -> bool:
        """Whether somebody reads it."""
        return self._consumer is not None and not self.done.called

    def arrive(self, count: int | None = None) -> None:
        """Send bytes, by default as many as the consumer takes; at the end, end."""
        while self.is_open and not self.is_paused and self.first < self.stop and count != 0:
            piece = min(16 * 1024, self.stop - self.first, count or 1 << 30)
            count = None if count is None else count - piece
            data = self._content[self.first : self.first + piece]
            self.first += piece
            self._consumer.write(data)
        if self.is_open and self.first == self.stop:
            self._consumer.unregisterProducer()
            self.done.callback(None)

    def lose(self, error: Exception) -> None:
        """Lose the connection."""
        self._consumer.unregisterProducer()
        self.done.errback(error)

    def pauseProducing(self) -> None:
        """Pause."""
        self.is_paused = True

    def resumeProducing(self) -> None:
        """Resume."""
        self.is_paused = False

    def stopProducing(self) -> None:
        """End."""
        if not self.done.called:
            self.done.errback(ConsumerGone())


class FakeVersion:
    """One version of a source, at an origin that a test plays.

    :ivar requests: the ranges that were requested.
    :ivar streams: the bodies of the responses.
    :ivar faults: raised by the next requests, in order; None for none.
    :ivar is_prompt: bytes arrive as they are requested.
    """

    name = "origin.test"

    def __init__(self, content: bytes, *, is_whole: bool = False, is_prompt: bool = True) -> None:
        self.content = content
        self.is_whole = is_whole
        self.is_prompt = is_prompt
        self.requests: list[tuple[int, int | None]] = []
        self.streams: list[FakeStream] = []
        self.faults: list[Exception | None] = []
        #: The most bytes of a response.
        self.most = 1 << 40

    async def get(self, first: int, stop: int | None) -> Part:
        """Return a response."""
        self.requests.append((first, stop))
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault
        begin = 0 if self.is_whole else first
        return self.part(begin, len(self.content) if stop is None else stop)

    def part(self, first: int, stop: int) -> Part:
        """Return a response with a range."""
        stream = FakeStream(self.content, first, min(stop, first + self.most))
        self.streams.append(stream)
        return Part(first, stream)

    def run(self) -> None:
        """Let all bytes arrive that are taken."""
        is_busy = True
        while is_busy:
            before = [stream.first for stream in self.streams], len(self.streams)
            for stream in list(self.streams):
                stream.arrive()
            is_busy = before != ([stream.first for stream in self.streams], len(self.streams))


class FakeReaders:
    """The part of a reactor that reads sockets, when a test says so."""

    def __init__(self) -> None:
        self.readers: list[Any] = []

    def addReader(self, reader: Any) -> None:
        """Add a socket."""
        if reader not in self.readers:
            self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        """Remove a socket."""
        with suppress(ValueError):
            self.readers.remove(reader)

    def run(self) -> None:
        """Read what has come."""
        for reader in list(self.readers):
            if reader in self.readers:
                reader.doRead()
