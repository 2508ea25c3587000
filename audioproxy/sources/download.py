"""Downloads: a byte stream written to a scratch file, at the pace of the disk."""

from __future__ import annotations

import os
from typing import cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer, IProducer, IPushProducer
from twisted.python.failure import Failure
from zope.interface import implementer

from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled
from audioproxy.files.streams import ByteStream, ConsumerGone

# Bytes of one write. A thread makes each write.
_BATCH_SIZE = 1024 * 1024


class LimitExceeded(Exception):
    """The stream is longer than the limit."""


@implementer(IConsumer)
class FileConsumer:
    """Consumer that writes a stream to a file in batches.

    :ivar size: bytes received so far.
    """

    def __init__(self, descriptor: int, limit: int, run_in_thread: ThreadRunner) -> None:
        self.size = 0
        self._descriptor = descriptor
        self._limit = limit
        self._run_in_thread = run_in_thread
        self._batch = bytearray()
        self._producer: IPushProducer | None = None
        self._writing: Deferred[None] | None = None
        self._sending: Deferred[None] | None = None
        self._error: Exception | None = None

    async def receive(self, stream: ByteStream) -> int:
        """Write the whole stream and return its number of bytes.

        :raises LimitExceeded: for more bytes than the limit.
        :raises OSError: where a write fails.
        :raises Exception: where the stream fails.
        """
        try:
            self._sending = stream.send(self)
            if self._error is not None:
                self._sending.cancel()
            await self._sending
            while self._batch or self._writing is not None:
                await self._write_ended()
                self._write_batch()
        except ConsumerGone as error:
            # A stream that is cancelled fails with ConsumerGone.
            raise self._error or CancelledError() from error
        finally:
            # A thread may still use the descriptor, which the caller closes next.
            await self._write_ended()
        if self._error is not None:
            raise self._error
        return self.size

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Register the stream, which is a push producer."""
        self._producer = cast(IPushProducer, producer)

    def unregisterProducer(self) -> None:
        """Unregister the stream."""
        self._producer = None

    def write(self, data: bytes) -> None:
        """Add bytes to the batch, and write a full batch."""
        self.size += len(data)
        if self.size > self._limit:
            self._fail(LimitExceeded())
            return
        self._batch += data
        if len(self._batch) >= _BATCH_SIZE:
            if self._writing is None:
                self._write_batch()
            elif self._producer is not None:
                self._producer.pauseProducing()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        if self._sending is not None:
            self._sending.cancel()

    def _write_batch(self) -> None:
        batch, self._batch = self._batch, bytearray()
        if not batch:
            return
        try:
            self._writing = self._run_in_thread(lambda: _write_all(self._descriptor, batch))
        except OSError as error:
            self._fail(error)
            return
        self._writing.addBoth(self._on_written)

    def _on_written(self, outcome: object) -> None:
        self._writing = None
        if isinstance(outcome, Failure):
            self._batch.clear()
            self._fail(_as_exception(outcome))
            return
        if len(self._batch) >= _BATCH_SIZE:
            self._write_batch()
        if self._producer is not None:
            self._producer.resumeProducing()

    async def _write_ended(self) -> None:
        if self._writing is not None:
            await await_uncancelled(self._writing)


def _write_all(descriptor: int, data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _as_exception(failure: Failure) -> Exception:
    return failure.value if isinstance(failure.value, Exception) else OSError(str(failure.value))
