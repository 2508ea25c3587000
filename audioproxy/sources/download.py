"""A body that is written into a file as it comes, no faster than the disk takes it."""

from __future__ import annotations

import os
from typing import cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer, IProducer, IPushProducer
from twisted.python.failure import Failure
from zope.interface import implementer

from audioproxy.streams import ByteStream, ConsumerGone
from audioproxy.threads import InThread, await_uncancelled

# Bytes that are written at a time, by a thread.
_BATCH = 1024 * 1024


class TooMuch(Exception):
    """More came than there may be."""


@implementer(IConsumer)
class FileConsumer:
    """Takes what comes, and writes it in batches.

    :ivar size: bytes so far.
    """

    def __init__(self, descriptor: int, limit: int, in_thread: InThread) -> None:
        self.size = 0
        self._descriptor = descriptor
        self._limit = limit
        self._in_thread = in_thread
        self._batch = bytearray()
        self._producer: IPushProducer | None = None
        self._writing: Deferred[None] | None = None
        self._flowing: Deferred[None] | None = None
        self._trouble: Exception | None = None

    async def take(self, flow: ByteStream) -> int:
        """Write everything and return how many bytes that are.

        :raises TooMuch: for more than the limit.
        :raises OSError: where the disk takes no more.
        :raises Exception: where the flow fails.
        """
        try:
            self._flowing = flow.send(self)
            if self._trouble is not None:
                self._flowing.cancel()
            await self._flowing
            while self._batch or self._writing is not None:
                await self._written()
                self._write()
        except ConsumerGone as error:
            # That is how a flow calls it when it is cancelled.
            raise self._trouble or CancelledError() from error
        finally:
            # A thread may still use the descriptor, which is closed next.
            await self._written()
        if self._trouble is not None:
            raise self._trouble
        return self.size

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Get to know the flow, which is a push producer."""
        self._producer = cast(IPushProducer, producer)

    def unregisterProducer(self) -> None:
        """Forget it."""
        self._producer = None

    def write(self, data: bytes) -> None:
        """Take some bytes."""
        self.size += len(data)
        if self.size > self._limit:
            self._fail(TooMuch())
            return
        self._batch += data
        if len(self._batch) >= _BATCH:
            if self._writing is None:
                self._write()
            elif self._producer is not None:
                self._producer.pauseProducing()

    def _fail(self, error: Exception) -> None:
        self._trouble = self._trouble or error
        if self._flowing is not None:
            self._flowing.cancel()

    def _write(self) -> None:
        batch, self._batch = self._batch, bytearray()
        if not batch:
            return
        try:
            self._writing = self._in_thread(lambda: _write_all(self._descriptor, batch))
        except OSError as error:
            self._fail(error)
            return
        self._writing.addBoth(self._wrote)

    def _wrote(self, outcome: object) -> None:
        self._writing = None
        if isinstance(outcome, Failure):
            self._batch.clear()
            self._fail(_as_exception(outcome))
            return
        if len(self._batch) >= _BATCH:
            self._write()
        if self._producer is not None:
            self._producer.resumeProducing()

    async def _written(self) -> None:
        if self._writing is not None:
            await await_uncancelled(self._writing)


def _write_all(descriptor: int, data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _as_exception(failure: Failure) -> Exception:
    return failure.value if isinstance(failure.value, Exception) else OSError(str(failure.value))
