"""Byte streams to one consumer, and the push producer that reads a file by offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer, IPushProducer
from zope.interface import implementer

from audioproxy.errors import Refusal

# Bytes of one read and one write, of a chunk of the response, and of memory that a stalled reader
# holds. Larger reads do not fit into a CPU's cache and are slower; smaller reads cost more calls.
_CHUNK_SIZE = 64 * 1024
# Bytes that are prefetched at a time: enough for the switch to a thread to cost little.
_PREFETCH_SIZE = 1024 * 1024


class Readable(Protocol):
    def read(self, offset: int, limit: int) -> bytes:
        """Return 1 to ``limit`` bytes from ``offset``, or ``b""`` at the end."""
        ...


class GrowingFile(Readable, Protocol):
    """A file that is still being written, and why its writer failed."""

    @property
    def size(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    @property
    def failure(self) -> Refusal | None: ...

    def follow(self, follower: Callable[[], None]) -> Callable[[], None]:
        """Call ``follower`` on every change from now on; return a function that ends the calls."""
        ...


class ByteStream(Protocol):
    """Bytes for one consumer, which are sent once or discarded."""

    def send(self, consumer: IConsumer) -> Deferred[None]:
        """Send the bytes as a push producer, at the consumer's pace.

        The Deferred fires when the producer is unregistered. Cancelling it ends the stream.
        """
        ...

    def discard(self) -> None:
        """Release the source of the bytes without sending them."""


class ConsumerGone(Exception):
    """The consumer stopped the producer before everything was written."""


@implementer(IPushProducer)
class FileProducer:
    """Push producer that sends one byte range of a file, at the pace of consumer and writer.

    If the source has a ``descriptor``, it is given to a consumer with a method ``take_file``.

    :param stop: the offset after the last byte, or None for a `GrowingFile` that is sent to its
        end.
    :param prefetch: called with an offset and a number of bytes before they are read, until
        ``stop``. The returned Deferred fires when reading them does not block.
    """

    def __init__(
        self,
        source: Readable | GrowingFile,
        start: int = 0,
        stop: int | None = None,
        *,
        prefetch: Callable[[int, int], Deferred[object]] | None = None,
    ) -> None:
        self.sent = start
        self.done: Deferred[None] = Deferred(lambda _: self.stopProducing())
        self._source: Readable | None = source
        self._growing = cast(GrowingFile, source) if stop is None else None
        self._stop = stop
        self._paused = False
        self._writing = False
        self._unfollow: Callable[[], None] = lambda: None
        self._prefetch = prefetch
        self._prefetched = start
        self._prefetching = False
        self._take_file: Callable[[int, int, int], int | None] | None = None

    def send(self, consumer: IConsumer) -> Deferred[None]:
        """Send the bytes as a `ByteStream`.

        :raises ConsumerGone, Refusal, OSError, EOFError: of the consumer, the growing file, a read,
            and a file that was shortened.
        """
        self._consumer = consumer
        if self._descriptor >= 0:
            self._take_file = getattr(consumer, "take_file", None)
        if self._growing is not None:
            self._unfollow = self._growing.follow(self._send)
        consumer.registerProducer(self, True)
        self._send()
        return self.done

    def discard(self) -> None:
        """Do nothing: a producer that was not started holds nothing."""

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        # The consumer may call this from inside `write`.
        self._paused = False
        self._send()

    def stopProducing(self) -> None:
        self._end(ConsumerGone())

    def _send(self) -> None:
        if self._writing:
            return
        self._writing = True
        try:
            while self._source is not None and not self._paused:
                if not (self._is_prefetched() and self._send_chunk()):
                    break
        except Exception as error:
            # An error of one reader must not reach the others, which are notified of new bytes in
            # the same turn.
            self._end(error)
        finally:
            self._writing = False

    def _is_prefetched(self) -> bool:
        """Return whether reading the next bytes does not block; otherwise prefetch them."""
        if self._prefetch is None or self._stop is None or self.sent == self._stop:
            return True
        if self.sent == self._prefetched and not self._prefetching:
            self._prefetching = True
            size = min(_PREFETCH_SIZE, self._stop - self.sent)
            prefetching = self._prefetch(self.sent, size)
            prefetching.addCallback(lambda _: self._on_prefetched(size))
            prefetching.addErrback(lambda failure: self._end(failure.value))
        return self.sent < self._prefetched

    def _on_prefetched(self, size: int) -> None:
        self._prefetching = False
        self._prefetched += size
        self._send()

    def _send_chunk(self) -> bool:
        """Write one chunk; return False if there is none yet, or the end is reached."""
        assert self._source is not None
        available = max(0, self._available - self.sent)
        if available and self._take_file is not None:
            taken = self._take_file(self._descriptor, self.sent, available)
            if taken is not None:
                self.sent += taken
                return True
        data = self._source.read(self.sent, min(_CHUNK_SIZE, available)) if available else b""
        if data:
            self.sent += len(data)
            self._consumer.write(data)
            return True
        if self._growing is None:
            self._end(_shortened(self.sent) if available else None)
        elif self._growing.ended:
            lost = self.sent < self._growing.size
            self._end(self._growing.failure or (_shortened(self.sent) if lost else None))
        return False

    @property
    def _descriptor(self) -> int:
        descriptor: int = getattr(self._source, "descriptor", -1)
        return descriptor

    @property
    def _available(self) -> int:
        if self._growing is not None:
            return self._growing.size
        assert self._stop is not None
        return self._stop if self._prefetch is None else self._prefetched

    def _end(self, error: BaseException | None) -> None:
        # References are cleared before the Deferred fires, so that a second call does nothing.
        if self._source is None:
            return
        self._source = self._growing = None
        unfollow, self._unfollow = self._unfollow, lambda: None
        unfollow()
        if not isinstance(error, ConsumerGone):
            self._consumer.unregisterProducer()
        if error is None:
            self.done.callback(None)
        else:
            self.done.errback(error)


def _shortened(size: int) -> EOFError:
    return EOFError(f"the file was shortened to {size} bytes or less")
