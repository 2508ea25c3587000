"""Scratch files that are hashed in a thread while they grow."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase, TestCase

from audioproxy.concurrency.threads import thread_per_call
from audioproxy.files.scratch_files import AnonymousFile
from audioproxy.variants import hashing_scratch_file as hashing_scratch_file_module
from audioproxy.variants.hashing_scratch_file import HashingScratchFile
from tests.support.processes import open_descriptors
from tests.support.strategies import DETERMINISTIC
from tests.support.threads import FakeThreads

LARGE = 5 * 1024**3


def expected(data: bytes, part: int) -> list[str]:
    """Return the SHA-256 of each part; empty data has one part."""
    starts = range(0, len(data), part) or [0]
    return [hashlib.sha256(data[start : start + part]).hexdigest() for start in starts]


class NonBlockingQueue(SimpleQueue[Any]):
    """Queue for a thread that starts only after all messages were sent."""

    would_block = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next message, or fail where a real thread would wait forever."""
        try:
            return super().get_nowait()
        except Empty:
            NonBlockingQueue.would_block = True
            raise


class HashingCase(SynchronousTestCase):
    """A scratch file whose thread runs only when a test runs its threads."""

    def setUp(self) -> None:
        self.before = open_descriptors()
        self.threads = FakeThreads()
        self.patch(hashing_scratch_file_module, "SimpleQueue", NonBlockingQueue)
        NonBlockingQueue.would_block = False

    def tearDown(self) -> None:
        self.assertEqual(self.threads.waiting, 0)
        self.assertFalse(NonBlockingQueue.would_block, "a real thread would wait forever")
        self.assertEqual(open_descriptors(), self.before)

    def make(
        self, data: bytes = b"", part: int = LARGE, grown: int | None = None
    ) -> HashingScratchFile:
        """Return a file that contains this data, and is said to have grown to this size."""
        made = HashingScratchFile(AnonymousFile(), self.threads.in_thread, part)
        os.write(made.descriptor, data)
        made.grown(len(data) if grown is None else grown)
        return made

    def hash(self, file: HashingScratchFile, size: int) -> Deferred[list[str]]:
        """Hash the first bytes of the file, and close it."""
        waiting = Deferred.fromCoroutine(file.hashes(size))
        self.threads.run()
        file.close()
        return waiting


class DigestTests(HashingCase):
    """`HashingScratchFile.hashes`"""

    @DETERMINISTIC
    @given(
        data=st.binary(max_size=200),
        growth=st.lists(st.integers(0, 200), max_size=8),
        part=st.integers(1, 220),
        chunk=st.integers(1, 50),
    )
    @example(data=b"", growth=[], part=1, chunk=1)
    @example(data=bytes(range(100)), growth=[], part=50, chunk=30)
    @example(data=bytes(range(100)), growth=[], part=101, chunk=30)
    def test_any_growth(self, data: bytes, growth: list[int], part: int, chunk: int) -> None:
        """Each part has its own hash, which does not depend on how the file grows.

        A file that ends with a full part has no additional hash.
        """
        self.patch(hashing_scratch_file_module, "_CHUNK_SIZE", chunk)
        file = self.make(data, part, grown=0)
        for size in sorted(min(size, len(data)) for size in growth):
            file.grown(size)
        hashes = self.successResultOf(self.hash(file, len(data)))
        self.assertEqual(hashes, expected(data, part))
        self.assertEqual(len(hashes), max(1, -(-len(data) // part)))

    def test_only_what_is_asked_for(self) -> None:
        """Bytes after the given size are not hashed, since the encoder may have written more."""
        hashing = self.hash(self.make(b"hello, and more", grown=0), 5)
        self.assertEqual(self.successResultOf(hashing), expected(b"hello", LARGE))

    def test_unreadable(self) -> None:
        """A file that is shorter than the given size raises OSError, as does a read error."""
        self.failureResultOf(self.hash(self.make(b"hello"), 6), OSError)

        def fail(*_: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        self.patch(os, "preadv", fail)
        error = self.failureResultOf(self.hash(self.make(b"hello"), 5), OSError).value
        self.assertEqual(error.errno, errno.EIO)

    def test_cancelled(self) -> None:
        """A cancelled `hashes` waits for the thread that uses the file."""
        file = self.make(b"hello")
        waiting = Deferred.fromCoroutine(file.hashes(5))
        waiting.cancel()
        self.assertNoResult(waiting)
        self.threads.run()
        self.failureResultOf(waiting, CancelledError)
        file.close()


class FileTests(HashingCase):
    """`HashingScratchFile` as a file."""

    def test_read(self) -> None:
        """Bytes are read by offset up to the end, without moving the encoder's position."""
        file = self.make(b"hello, world")
        for offset, limit, data in (
            (0, 5, b"hello"),
            (7, 99, b"world"),
            (12, 1, b""),
            (99, 1, b""),
        ):
            self.assertEqual(file.read(offset, limit), data)
        os.write(file.descriptor, b"!")
        self.assertEqual(file.read(0, 99), b"hello, world!")
        file.close()
        self.threads.run()

    def test_close(self) -> None:
        """Closing a file without hashes ends the thread; closing it twice is harmless.

        A hashing error is not logged if the hashes are not asked for.
        """
        for grown in (5, 6):
            file = self.make(b"hello", grown=grown)
            file.close()
            file.close()
            self.threads.run()
            self.assertEqual(self.flushLoggedErrors(), [], grown)

    def test_no_thread(self) -> None:
        """If no thread can be started, the constructor raises OSError and leaks nothing."""

        def no_thread(work: Callable[[], Any]) -> Deferred[Any]:
            raise OSError(errno.EAGAIN, "can't start new thread")

        scratch = AnonymousFile()
        failure = self.assertRaises(OSError, HashingScratchFile, scratch, no_thread, LARGE)
        self.assertEqual(failure.errno, errno.EAGAIN)
        scratch.close()

    def test_no_descriptor(self) -> None:
        """If no file descriptor is available, no thread is started."""

        def full(descriptor: int) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        scratch = AnonymousFile()
        self.patch(os, "dup", full)
        self.assertRaises(OSError, HashingScratchFile, scratch, self.threads.in_thread, LARGE)
        scratch.close()


def removed_files() -> set[str]:
    """Return the open descriptors of this process whose files have been removed."""
    return {line for line in open_descriptors() if line.endswith("(deleted)")}


class ThreadTests(TestCase):
    """`HashingScratchFile` with a real thread."""

    timeout = 20

    async def test_while_it_grows(self) -> None:
        """A thread hashes the file while it grows, and leaves no descriptor open."""
        before = removed_files()
        file = HashingScratchFile(AnonymousFile(), thread_per_call(reactor), 100_000)
        data = os.urandom(1_000_000)
        for start in range(0, len(data), 7_919):
            piece = data[start : start + 7_919]
            os.write(file.descriptor, piece)
            file.grown(start + len(piece))
        self.assertEqual(await file.hashes(len(data)), expected(data, 100_000))
        file.close()
        self.assertEqual(removed_files(), before)

    async def test_closed(self) -> None:
        """The thread ends when its file is closed, and leaves no descriptor open."""
        ended: Deferred[None] = Deferred()
        begin = thread_per_call(reactor)

        def in_thread(work: Callable[[], Any]) -> Deferred[Any]:
            running = begin(work)
            running.addBoth(lambda outcome: ended.callback(None) or outcome)
            return running

        before = removed_files()
        file = HashingScratchFile(AnonymousFile(), in_thread, 100_000)
        os.write(file.descriptor, b"hello")
        file.grown(5)
        file.close()
        await ended
        self.assertEqual(removed_files(), before)
