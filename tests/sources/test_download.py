"""Downloads to files: complete, at the pace of the disk, and safe to close."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer, IPushProducer
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from audioproxy.files.scratch_files import AnonymousFile
from audioproxy.files.streams import ConsumerGone
from audioproxy.http_client.errors import TransportError
from audioproxy.sources import download as download_module
from audioproxy.sources.download import FileConsumer, LimitExceeded
from tests.support.processes import open_descriptors
from tests.support.strategies import DETERMINISTIC
from tests.support.threads import FakeThreads

BATCH = 1024 * 1024
PIECE = 64 * 1024


@implementer(IPushProducer)
class FakeStream:
    """Byte stream whose bytes and end are controlled by a test.

    :ivar paused: whether the consumer has paused the stream.
    :ivar gone: whether the consumer has stopped the stream.
    :param early: bytes that are sent before `send` returns.
    """

    def __init__(self, early: bytes = b"", whole: bool = False) -> None:
        self.paused = self.gone = False
        self._early, self._whole = early, whole
        self._done: Deferred[None] = Deferred(lambda _: self.stopProducing())

    def send(self, consumer: IConsumer) -> Deferred[None]:
        self._consumer: Any = consumer
        consumer.registerProducer(self, True)
        if self._early:
            self.push(self._early)
        if self._whole:
            self.end()
        return self._done

    def push(self, data: bytes) -> None:
        """Send some bytes."""
        if not self.gone:
            self._consumer.write(data)

    def end(self, error: Exception | None = None) -> None:
        """End the stream, with an error if one is given."""
        self._consumer.unregisterProducer()
        if error is None:
            self._done.callback(None)
        else:
            self._done.errback(error)

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False

    def stopProducing(self) -> None:
        if not self._done.called:
            self.gone = True
            self._done.errback(ConsumerGone())


class DownloadCase(SynchronousTestCase):
    """A download whose disk writes run when a test runs its threads."""

    def setUp(self) -> None:
        self.before = open_descriptors()
        self.file = AnonymousFile()
        self.threads = FakeThreads()

    def tearDown(self) -> None:
        self.assertEqual(self.threads.waiting, 0, "a thread still uses the file descriptor")
        self.file.close()
        self.assertEqual(open_descriptors(), self.before)

    def receive(
        self, stream: FakeStream, limit: int = 10**9, in_thread: Any = None
    ) -> Deferred[int]:
        """Start to download a stream into a new file."""
        self.file.close()
        self.file = AnonymousFile()
        self.stream = stream
        run_in_thread = in_thread or self.threads.in_thread
        consumer = FileConsumer(self.file.descriptor, limit, run_in_thread)
        return Deferred.fromCoroutine(consumer.receive(stream))

    def push(self, *sizes: int) -> None:
        """Send pieces of the stream."""
        for size in sizes:
            self.stream.push(bytes(size))

    @property
    def written(self) -> bytes:
        """The bytes in the file."""
        return os.pread(self.file.descriptor, 100 * BATCH, 0)


class ReceiveTests(DownloadCase):
    """`FileConsumer.receive`"""

    def test_not_before(self) -> None:
        """A download ends only after its last byte is in the file.

        This also applies to a stream that ends before `send` returns.
        """
        for early in (False, True):
            receiving = self.receive(FakeStream(b"hello" * early, whole=early))
            if not early:
                self.stream.push(b"hello")
                self.stream.end()
            self.assertNoResult(receiving)
            self.assertEqual(self.written, b"")
            self.threads.run()
            self.assertEqual((self.successResultOf(receiving), self.written), (5, b"hello"))

    @DETERMINISTIC
    @given(st.lists(st.one_of(st.none(), st.binary(min_size=1, max_size=30)), max_size=20))
    def test_any_pace(self, steps: list[bytes | None]) -> None:
        """At any pace of the disk and the stream, the file gets all bytes in order.

        It is never written by two threads at the same time.
        """
        self.assertTrue(verifyObject(IConsumer, FileConsumer(-1, 0, self.threads.in_thread)))
        self.patch(download_module, "_BATCH_SIZE", 16)
        receiving = self.receive(FakeStream())
        for step in steps:
            if step is None:
                self.threads.run()
            else:
                self.stream.push(step)
            self.assertLessEqual(self.threads.waiting, 1)
        self.stream.end()
        self.threads.run()
        data = b"".join(step for step in steps if step is not None)
        self.assertEqual((self.successResultOf(receiving), self.written), (len(data), data))

    def test_short_writes(self) -> None:
        """After a short write, the rest of the data is written."""
        write = os.write
        self.patch(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
        data = bytes(range(256))
        receiving = self.receive(FakeStream(data, whole=True))
        self.threads.run()
        self.assertEqual((self.successResultOf(receiving), self.written), (256, data))

    def test_slow_disk(self) -> None:
        """During a write, one more batch is buffered, and then the stream is paused."""
        receiving = self.receive(FakeStream())
        pushed = 0
        for _ in range(6):
            self.threads.run()
            self.assertFalse(self.stream.paused)
            while not self.stream.paused and pushed < 100 * BATCH:
                self.push(PIECE)
                pushed += PIECE
            self.assertEqual((pushed - len(self.written), self.threads.waiting), (2 * BATCH, 1))
        self.stream.end()
        self.threads.run()
        self.assertEqual(self.successResultOf(receiving), pushed)


class FailureTests(DownloadCase):
    """Failures of `FileConsumer.receive`."""

    def test_limit(self) -> None:
        """A stream of exactly the limit is written; one more byte stops the stream.

        This also applies to a stream that exceeds the limit before `send` returns, or during a
        write, for which the download waits.
        """
        for pieces in ((10,), (1,) * 10):
            receiving = self.receive(FakeStream(), 10)
            self.push(*pieces)
            self.stream.end()
            self.threads.run()
            self.assertEqual(self.successResultOf(receiving), 10)
            receiving = self.receive(FakeStream(), 9)
            self.push(*pieces)
            self.assertTrue(self.stream.gone)
            self.threads.run()
            self.failureResultOf(receiving, LimitExceeded)
        for whole in (True, False):
            receiving = self.receive(FakeStream(b"x" * 11, whole), 10)
            self.assertTrue(self.stream.gone or whole)
            self.threads.run()
            self.failureResultOf(receiving, LimitExceeded)
        receiving = self.receive(FakeStream(), BATCH)
        self.push(BATCH, 1)
        self.assertTrue(self.stream.gone)
        self.assertNoResult(receiving)
        self.threads.run()
        self.failureResultOf(receiving, LimitExceeded)

    def test_full_disk(self) -> None:
        """A full disk stops the stream and raises the system's OSError.

        Buffered bytes are not written after a failed write.
        """
        tried: list[int] = []

        def fail(descriptor: int, data: memoryview) -> int:
            tried.append(len(data))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        self.patch(os, "write", fail)
        for pieces, ends in (
            ((5,), True),
            *product(((BATCH,), (BATCH, BATCH), (BATCH, PIECE)), (False, True)),
        ):
            tried.clear()
            receiving = self.receive(FakeStream())
            self.push(*pieces)
            if ends:
                self.stream.end()
            self.threads.run()
            self.assertEqual(self.failureResultOf(receiving, OSError).value.errno, errno.ENOSPC)
            self.assertTrue(self.stream.gone or ends)
            self.assertEqual(tried, [pieces[0]])

    def test_no_thread(self) -> None:
        """If no thread can be started, the download fails with the system's OSError."""

        def no_thread(work: Callable[[], Any]) -> Deferred[Any]:
            raise OSError(errno.EAGAIN, "can't start new thread")

        for size in (5, BATCH):
            receiving = self.receive(FakeStream(), in_thread=no_thread)
            self.push(size)
            if not self.stream.gone:
                self.stream.end()
            self.assertEqual(self.failureResultOf(receiving, OSError).value.errno, errno.EAGAIN)

    def test_stream_that_fails(self) -> None:
        """If the stream fails, the download fails with the same error after the running write.

        Buffered bytes are not written, since the file is closed next.
        """
        for pieces, written in (((5,), 0), ((BATCH,), BATCH), ((BATCH, PIECE), BATCH)):
            receiving = self.receive(FakeStream())
            self.push(*pieces)
            error = TransportError("broken off")
            self.stream.end(error)
            if written:
                self.assertNoResult(receiving)
            self.threads.run()
            self.assertIs(self.failureResultOf(receiving).value, error)
            self.assertEqual(written, len(self.written))

    def test_cancelled(self) -> None:
        """A cancelled download stops its stream, and waits for a thread that writes.

        This also applies if it is cancelled twice, or after the stream's end.
        """
        for pieces, times, ended in (
            ((5,), 1, False),
            *(((BATCH,), times, False) for times in (1, 2)),
            ((BATCH, 5), 1, True),
        ):
            receiving = self.receive(FakeStream())
            self.push(*pieces)
            if ended:
                self.stream.end()
            for _ in range(times):
                receiving.cancel()
            self.assertTrue(self.stream.gone or ended)
            if pieces[0] == BATCH:
                self.assertNoResult(receiving)
                self.threads.run()
            self.failureResultOf(receiving, CancelledError)
            self.assertEqual(self.threads.waiting, 0)
