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

    def receive(self, stream: FakeStream, limit: int = 10**9) -> Deferred[int]:
        """Start to download a stream into the file."""
        self.stream = stream
        consumer = FileConsumer(self.file.descriptor, limit, self.threads.in_thread)
        return Deferred.fromCoroutine(consumer.receive(stream))

    def renew_file(self) -> None:
        """Replace the file by an empty one."""
        self.file.close()
        self.file = AnonymousFile()

    @property
    def written(self) -> bytes:
        """The bytes in the file."""
        return os.pread(self.file.descriptor, 100 * BATCH, 0)


class ReceiveTests(DownloadCase):
    """`FileConsumer.receive`"""

    def test_interface(self) -> None:
        """`FileConsumer` implements Twisted's `IConsumer`."""
        self.assertTrue(verifyObject(IConsumer, FileConsumer(-1, 0, self.threads.in_thread)))

    def test_bytes(self) -> None:
        """When a download ends, the file contains all bytes."""
        for size in (0, 1, PIECE, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH):
            self.renew_file()
            data = os.urandom(size)
            receiving = self.receive(FakeStream())
            for start in range(0, size, PIECE):
                self.stream.push(data[start : start + PIECE])
                if self.stream.paused:
                    self.threads.run()
            self.stream.end()
            self.threads.run()
            self.assertEqual(self.successResultOf(receiving), size)
            self.assertEqual(self.written, data)

    def test_not_before(self) -> None:
        """A download ends only after its last byte is in the file.

        This also applies to a stream that ends before `send` returns.
        """
        for early in (False, True):
            self.renew_file()
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
        self.patch(download_module, "_BATCH_SIZE", 16)
        self.renew_file()
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
        while not self.stream.paused:
            self.stream.push(bytes(PIECE))
            pushed += PIECE
        self.assertEqual((pushed, self.threads.waiting), (2 * BATCH, 1))
        for _ in range(5):
            self.threads.run()
            self.assertFalse(self.stream.paused)
            while not self.stream.paused:
                self.stream.push(bytes(PIECE))
                pushed += PIECE
            self.assertLessEqual(pushed - len(self.written), 2 * BATCH)
            self.assertEqual(self.threads.waiting, 1)
        self.stream.end()
        self.threads.run()
        self.assertEqual(self.successResultOf(receiving), pushed)


class FailureTests(DownloadCase):
    """Failures of `FileConsumer.receive`."""

    def test_limit(self) -> None:
        """A stream of exactly the limit is written; one more byte stops the stream."""
        for pieces in ([b"x" * 10], [b"x"] * 10):
            self.renew_file()
            for limit in (10, 9):
                receiving = self.receive(FakeStream(), limit=limit)
                for piece in pieces:
                    self.stream.push(piece)
                self.assertIs(self.stream.gone, limit == 9)
                if limit == 10:
                    self.stream.end()
                self.threads.run()
                if limit == 10:
                    self.assertEqual(self.successResultOf(receiving), 10)
                else:
                    self.failureResultOf(receiving, LimitExceeded)

    def test_limit_at_once(self) -> None:
        """A stream that exceeds the limit before `send` returns fails, complete or not."""
        for whole in (True, False):
            receiving = self.receive(FakeStream(b"x" * 11, whole), limit=10)
            self.assertTrue(self.stream.gone or whole)
            self.threads.run()
            self.failureResultOf(receiving, LimitExceeded)

    def test_limit_while_writing(self) -> None:
        """If the limit is exceeded during a write, the download waits for the thread and fails."""
        receiving = self.receive(FakeStream(), limit=BATCH)
        self.stream.push(bytes(BATCH))
        self.stream.push(b"x")
        self.assertTrue(self.stream.gone)
        self.assertNoResult(receiving)
        self.threads.run()
        self.failureResultOf(receiving, LimitExceeded)

    def test_full_disk(self) -> None:
        """A full disk stops the stream and raises the system's OSError."""
        with open("/dev/full", "wb", buffering=0) as full:
            for size, ends in ((5, True), *product((BATCH, 2 * BATCH), (False, True))):
                stream = FakeStream()
                consumer = FileConsumer(full.fileno(), 10**9, self.threads.in_thread)
                receiving = Deferred.fromCoroutine(consumer.receive(stream))
                for _ in range(size // BATCH or 1):
                    stream.push(bytes(min(size, BATCH)))
                if ends:
                    stream.end()
                self.threads.run()
                self.assertEqual(self.failureResultOf(receiving, OSError).value.errno, errno.ENOSPC)
                self.assertTrue(stream.gone or ends)

    def test_full_disk_and_more(self) -> None:
        """After a failed write, buffered bytes are not written."""
        tried: list[int] = []

        def fail(descriptor: int, data: memoryview) -> int:
            tried.append(len(data))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        self.patch(os, "write", fail)
        receiving = self.receive(FakeStream())
        self.stream.push(bytes(BATCH))
        self.stream.push(bytes(PIECE))
        self.stream.end()
        self.threads.run()
        self.failureResultOf(receiving, OSError)
        self.assertEqual(tried, [BATCH])

    def test_no_thread(self) -> None:
        """If no thread can be started, the download fails with the system's OSError."""

        def no_thread(work: Callable[[], Any]) -> Deferred[Any]:
            raise OSError(errno.EAGAIN, "can't start new thread")

        for size in (5, BATCH):
            stream = FakeStream()
            receiving = Deferred.fromCoroutine(
                FileConsumer(self.file.descriptor, 10**9, no_thread).receive(stream)
            )
            stream.push(bytes(size))
            if not stream.gone:
                stream.end()
            self.assertEqual(self.failureResultOf(receiving, OSError).value.errno, errno.EAGAIN)

    def test_stream_that_fails(self) -> None:
        """If the stream fails, the download fails with the same error after the running write.

        Buffered bytes are not written, since the file is closed next.
        """
        for size in (5, BATCH, BATCH + PIECE):
            self.renew_file()
            receiving = self.receive(FakeStream())
            for start in range(0, size, BATCH):
                self.stream.push(bytes(min(size - start, BATCH)))
            error = TransportError("broken off")
            self.stream.end(error)
            if size >= BATCH:
                self.assertNoResult(receiving)
            self.threads.run()
            self.assertIs(self.failureResultOf(receiving).value, error)
            self.assertEqual((0, size // BATCH * BATCH), (self.threads.waiting, len(self.written)))


class CancelledTests(DownloadCase):
    """Cancellation of `FileConsumer.receive`."""

    def test_idle(self) -> None:
        """If no thread is writing, a cancelled download stops its stream and ends at once."""
        receiving = self.receive(FakeStream())
        self.stream.push(b"hello")
        receiving.cancel()
        self.assertTrue(self.stream.gone)
        self.failureResultOf(receiving, CancelledError)
        self.assertEqual(self.threads.waiting, 0)

    def test_while_writing(self) -> None:
        """A cancelled download waits for the thread that uses the file descriptor.

        This also applies if it is cancelled twice, or after the stream's end.
        """
        for times, ended in ((1, False), (2, False), (1, True)):
            receiving = self.receive(FakeStream())
            self.stream.push(bytes(BATCH))
            if ended:
                self.stream.push(b"hello")
                self.stream.end()
            for _ in range(times):
                receiving.cancel()
            self.assertTrue(self.stream.gone or ended)
            self.assertNoResult(receiving)
            self.threads.run()
            self.failureResultOf(receiving, CancelledError)
            self.assertEqual(self.threads.waiting, 0)
