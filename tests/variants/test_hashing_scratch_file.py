"""Digests that are ready when the file is: right for every size, and no thread left behind."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase, TestCase

from audioproxy.scratch_files import AnonymousFile
from audioproxy.threads import thread_per_call
from audioproxy.variants import hashing_scratch_file as hashing_scratch_file_module
from audioproxy.variants.hashing_scratch_file import HashingScratchFile
from tests.support.processes import open_descriptors
from tests.support.strategies import PROMISE
from tests.support.threads import FakeThreads

LARGE = 5 * 1024**3


def expected(data: bytes, part: int) -> list[str]:
    """Return the digests of the parts of some bytes; of nothing there is one."""
    starts = range(0, len(data), part) or [0]
    return [hashlib.sha256(data[start : start + part]).hexdigest() for start in starts]


class Impatient(SimpleQueue[Any]):
    """A queue for threads that begin when everything has been said to them."""

    starved = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the next; where a thread would wait for ever, fail."""
        try:
            return super().get_nowait()
        except Empty:
            Impatient.starved = True
            raise


class DigestedCase(SynchronousTestCase):
    """A file, and a thread that begins when a test says so."""

    def setUp(self) -> None:
        self.before = open_descriptors()
        self.threads = FakeThreads()
        self.patch(hashing_scratch_file_module, "SimpleQueue", Impatient)
        Impatient.starved = False

    def tearDown(self) -> None:
        self.assertEqual(self.threads.waiting, 0)
        self.assertFalse(Impatient.starved, "the thread would not end")
        self.assertEqual(open_descriptors(), self.before)

    def make(self, data: bytes = b"", part: int = LARGE) -> HashingScratchFile:
        """Return a file that has grown in one go."""
        made = HashingScratchFile(AnonymousFile(), self.threads.in_thread, part)
        os.write(made.descriptor, data)
        made.grown(len(data))
        return made

    def digests_of(self, file: HashingScratchFile, size: int) -> list[str]:
        """Return the digests, and close the file."""
        waiting = Deferred.fromCoroutine(file.hashes(size))
        self.threads.run()
        file.close()
        found: list[str] = self.successResultOf(waiting)
        return found


class DigestTests(DigestedCase):
    """`HashingScratchFile.hashes`"""

    def test_one_part(self) -> None:
        """A file that is one part has one digest, however large it is."""
        for size in (0, 1, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 10**6):
            data = os.urandom(size)
            self.assertEqual(self.digests_of(self.make(data), size), expected(data, LARGE))

    def test_parts(self) -> None:
        """Each part has its own; where the file ends with a part there is not one more."""
        data = os.urandom(1000)
        for part in (1000, 999, 500, 334, 333, 1, 1001):
            found = self.digests_of(self.make(data, part), 1000)
            self.assertEqual(found, expected(data, part))
            self.assertEqual(len(found), -(-1000 // part))

    @PROMISE
    @given(
        data=st.binary(max_size=200),
        growth=st.lists(st.integers(0, 200), max_size=8),
        part=st.integers(1, 220),
        chunk=st.integers(1, 50),
    )
    def test_any_growth(self, data: bytes, growth: list[int], part: int, chunk: int) -> None:
        """However a file grows, the digests are those of its parts."""
        self.patch(hashing_scratch_file_module, "_CHUNK_SIZE", chunk)
        file = HashingScratchFile(AnonymousFile(), self.threads.in_thread, part)
        os.write(file.descriptor, data)
        for size in sorted(min(size, len(data)) for size in growth):
            file.grown(size)
        self.assertEqual(self.digests_of(file, len(data)), expected(data, part))

    def test_only_what_is_asked_for(self) -> None:
        """What lies behind the size is nobody's: an encoder may have begun another line."""
        file = HashingScratchFile(AnonymousFile(), self.threads.in_thread, LARGE)
        os.write(file.descriptor, b"hello, and more")
        self.assertEqual(self.digests_of(file, 5), expected(b"hello", LARGE))

    def test_shorter_than_said(self) -> None:
        """A file that is shorter than it was said to be has no digest: that is an error."""
        file = self.make(b"hello")
        waiting = Deferred.fromCoroutine(file.hashes(6))
        self.threads.run()
        file.close()
        self.failureResultOf(waiting, OSError)

    def test_unreadable(self) -> None:
        """A disk that cannot be read is told as the system tells it."""
        file = self.make(b"hello")

        def fail(*_: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        self.patch(os, "preadv", fail)
        waiting = Deferred.fromCoroutine(file.hashes(5))
        self.threads.run()
        file.close()
        self.assertEqual(self.failureResultOf(waiting, OSError).value.errno, errno.EIO)

    def test_cancelled(self) -> None:
        """One who cancels waits for the thread, which uses the file."""
        file = self.make(b"hello")
        waiting = Deferred.fromCoroutine(file.hashes(5))
        waiting.cancel()
        self.assertNoResult(waiting)
        self.threads.run()
        self.failureResultOf(waiting, CancelledError)
        file.close()


class FileTests(DigestedCase):
    """`HashingScratchFile` as a file"""

    def test_read(self) -> None:
        """Its bytes are read by offset, none past the end, and the encoder's place is left."""
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
        """Who closes it without asking for digests ends the thread; again is harmless."""
        file = self.make(b"hello")
        file.close()
        file.close()
        self.threads.run()

    def test_close_of_a_broken_file(self) -> None:
        """Nobody hears of what went wrong with digests that nobody asked for."""
        file = HashingScratchFile(AnonymousFile(), self.threads.in_thread, LARGE)
        file.grown(6)
        file.close()
        self.threads.run()
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_no_thread(self) -> None:
        """Without a thread to be had there is no file, and no descriptor left of it."""

        def no_thread(work: Callable[[], Any]) -> Deferred[Any]:
            raise OSError(errno.EAGAIN, "can't start new thread")

        scratch = AnonymousFile()
        failure = self.assertRaises(OSError, HashingScratchFile, scratch, no_thread, LARGE)
        self.assertEqual(failure.errno, errno.EAGAIN)
        scratch.close()

    def test_no_descriptor(self) -> None:
        """Without a descriptor to be had no thread is begun."""

        def full(descriptor: int) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        scratch = AnonymousFile()
        self.patch(os, "dup", full)
        self.assertRaises(OSError, HashingScratchFile, scratch, self.threads.in_thread, LARGE)
        scratch.close()


def removed_files() -> set[str]:
    """Return the files without a name that this process has open."""
    return {line for line in open_descriptors() if line.endswith("(deleted)")}


class ThreadTests(TestCase):
    """`HashingScratchFile` with a real thread"""

    timeout = 20

    async def test_while_it_grows(self) -> None:
        """A thread hashes beside the encoder, and is done soon after it."""
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
        """A thread ends with its file, and leaves no descriptor."""
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
