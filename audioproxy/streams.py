"""Streams of bytes to one consumer, and the push producer that reads one from a file by offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer, IPushProducer
from zope.interface import implementer

from audioproxy.errors import Refusal

# One read and one write, and so one chunk of the response, and what a reader that stalls has in
# memory. Larger ones do not stay in a CPU's cache and are slower, smaller ones cost more calls.
_CHUNK = 64 * 1024


class Readable(Protocol):
    """Bytes at rest that are read by offset."""

    def read(self, offset: int, limit: int) -> bytes:
        """Return 1 to ``limit`` bytes from ``offset``, or none past the end."""
        ...


class Growing(Readable, Protocol):
    """Bytes to which others are added.

    :ivar size: how many there are so far.
    """

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def ended(self) -> bool: ...  # noqa: D102
    @property
    def failure(self) -> Refusal | None: ...  # noqa: D102

    def follow(self, follower: Callable[[], None]) -> Callable[[], None]:
        """Call ``follower`` on every change from now on; returns what ends that."""
        ...


class ByteStream(Protocol):
    """Bytes that go to one consumer, once, from wherever they are. They are sent, or dropped."""

    def send(self, consumer: IConsumer) -> Deferred[None]:
        """Send them as a push producer, at the consumer's pace.

        :returns: fires when everything is written and the producer is unregistered, or fails.
            Cancelling it ends the flow.
        """
        ...

    def drop(self) -> None:
        """Let go of what they would have come from."""


class ConsumerGone(Exception):
    """The consumer went away before it had everything."""


class SendfileConsumer(Protocol):
    """A consumer that can do without what is read for it."""

    def take_file(self, descriptor: int, offset: int, count: int) -> int | None:
        """Take some of the bytes that a file has from ``offset`` on.

        :param count: how many are there.
        :returns: how many were taken; less than all of them, and none, only once the producer is
            paused. None where it takes none of these: they are to be written to it.
        :raises EOFError: where the file has fewer.
        """
        ...


@implementer(IPushProducer)
class FileProducer:
    """Sends one stretch of a file, once, as fast as the consumer takes it and the file grows.

    :ivar done: what `send` returns.
    :ivar sent: how far it has come: the offset of the next byte.
    """

    def __init__(
        self,
        source: Readable | Growing,
        start: int = 0,
        stop: int | None = None,
        *,
        descriptor: int = -1,
    ) -> None:
        """Prepare to send the bytes from ``start`` up to ``stop``.

        :param stop: an offset, or None for a file that grows and is sent to its end.
        :param descriptor: of the file that has the bytes at these offsets, for a consumer that can
            do without what is read; -1 for no such file.
        """
        self.sent = start
        self._source: Readable | None = source
        self._growing = cast(Growing, source) if stop is None else None
        self.done: Deferred[None] = Deferred(lambda _: self.stopProducing())
        self._stop = stop
        self._paused = False
        self._writing = False
        self._leave: Callable[[], None] = lambda: None
        self._descriptor = descriptor
        self._take: Callable[[int, int, int], int | None] | None = None

    def send(self, consumer: IConsumer) -> Deferred[None]:
        """Register with the consumer and send what there is.

        :returns: fires when everything is written, or fails: with the failure of what grows, with
            `ConsumerGone`, or with the error of a read. Cancelling it stops the feed.
        """
        self._consumer = consumer
        if self._descriptor >= 0:
            self._take = getattr(consumer, "take_file", None)
        if self._growing is not None:
            self._leave = self._growing.follow(self._send)
        consumer.registerProducer(self, True)
        self._send()
        return self.done

    def drop(self) -> None:
        """Do nothing: what was not sent holds nothing."""

    def pauseProducing(self) -> None:
        """Hear that the consumer has enough for now."""
        self._paused = True

    def resumeProducing(self) -> None:
        """Hear that the consumer wants more; it may say so while it is being written to."""
        self._paused = False
        self._send()

    def stopProducing(self) -> None:
        """Hear that the consumer is gone."""
        self._end(ConsumerGone())

    def _send(self) -> None:
        if self._writing:
            return
        self._writing = True
        try:
            while self._source is not None and not self._paused and self._send_one():
                pass
        except Exception as error:
            # Whatever is wrong with one reader is no matter of the others, who are told of new
            # bytes in the same turn.
            self._end(error)
        finally:
            self._writing = False

    def _send_one(self) -> bool:
        """Write one chunk; false where there is none to write now, or never again."""
        assert self._source is not None
        if self._take is not None:
            there = self._stop if self._growing is None else self._growing.size
            assert there is not None
            if there > self.sent:
                taken = self._take(self._descriptor, self.sent, there - self.sent)
                if taken is not None:
                    self.sent += taken
                    return True
        limit = _CHUNK if self._stop is None else min(_CHUNK, self._stop - self.sent)
        data = self._source.read(self.sent, limit) if limit else b""
        if data:
            self.sent += len(data)
            self._consumer.write(data)
            return True
        if self._growing is None:
            self._end(None if not limit else EOFError("the file ended early"))
        elif self._growing.ended:
            self._end(self._growing.failure)
        return False

    def _end(self, error: Exception | None) -> None:
        # References are dropped before anyone is told, so that a second end finds nothing.
        if self._source is None:
            return
        self._source = self._growing = None
        leave, self._leave = self._leave, lambda: None
        leave()
        if not isinstance(error, ConsumerGone):
            self._consumer.unregisterProducer()
        if error is None:
            self.done.callback(None)
        else:
            self.done.errback(error)
