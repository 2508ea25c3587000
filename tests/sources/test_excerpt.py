"""Excerpts of sources in scratch files."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from typing import Any, NoReturn
from unittest.mock import patch

from twisted.internet.defer import CancelledError, Deferred, execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.threads import ThreadRunner
from audioproxy.errors import RenderFailed, RenderTimeout, UpstreamUnavailable
from audioproxy.files.scratch_files import AnonymousSpace
from audioproxy.media.inputs import SOURCE_DESCRIPTOR
from audioproxy.media.seek_point import SeekPoint
from audioproxy.sources import excerpt
from audioproxy.sources.excerpt import open_excerpt
from audioproxy.sources.interfaces import SourceFile
from audioproxy.testing import FakeThreads
from tests.support.http import Log
from tests.support.processes import open_descriptors, opened_since
from tests.support.stores import FakeSource

KIB = 1024
#: Bytes that differ from place to place.
CONTENT = b"".join(number.to_bytes(4, "big") for number in range(1024 * KIB))
HEAD = b"the headers"
LOST = UpstreamUnavailable("The connection was lost.")


def refuse(*_: object) -> NoReturn:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class ExcerptTests(SynchronousTestCase):
    """`open_excerpt`"""

    def setUp(self) -> None:
        self.log = Log(self)
        self.clock, self.threads = Clock(), FakeThreads()
        self.source = FakeSource(len(CONTENT), CONTENT)
        self.source.is_far = True
        self.before = open_descriptors()

    def tearDown(self) -> None:
        self.assertEqual(opened_since(self.before), set())

    def open(
        self,
        point: SeekPoint,
        use: Callable[[SourceFile], Any],
        *,
        skipped: int = 0,
        run_in_thread: ThreadRunner = execute,
    ) -> Deferred[Any]:
        """Open an excerpt, and return what a function returns for it."""
        space = AnonymousSpace()
        deadline = Deadline(self.clock, 100, RenderTimeout)

        async def run() -> Any:
            async with open_excerpt(
                self.source, point, skipped, space, run_in_thread, deadline
            ) as opened:
                return use(opened)

        return Deferred.fromCoroutine(run())

    def copy(self, point: SeekPoint, skipped: int = 0) -> bytes:
        """Return the bytes of an excerpt, as a child reads them."""
        copied: bytes = self.successResultOf(self.open(point, read, skipped=skipped))
        return copied

    def assert_failed(self, opening: Deferred[Any]) -> None:
        """Require a refusal with the status 500, and a warning that names TMPDIR."""
        refusal = self.failureResultOf(opening, RenderFailed).value
        self.assertEqual(refusal.status, 500)
        (text,) = self.log.texts
        self.assertIn("TMPDIR: No space left on device", text)

    def test_whole(self) -> None:
        """A decoder reads the headers, and the source from the place on to its end."""
        for offset, skipped in ((1000, 0), (1000, 500), (len(CONTENT) - 1, 0)):
            point = SeekPoint(0, offset, "ogg", HEAD)
            expected = HEAD + CONTENT[offset + skipped :]
            self.assertEqual(self.copy(point, skipped), expected)
        at_end = SeekPoint(0, len(CONTENT), "ogg", HEAD)
        self.assertEqual(self.copy(at_end), HEAD)

    def test_end(self) -> None:
        """The copy ends soon behind the last needed sample, wherever the bytes with it begin.

        They may begin in one piece and end in the next one.
        """
        mark = b"END!" * 4000
        for at in (0, 100 * KIB, 128 * KIB - 8000, 384 * KIB - 1, 700 * KIB, 2000 * KIB):
            self.source.content = CONTENT[:at] + mark + CONTENT[at + len(mark) :]
            point = SeekPoint(0, 0, "ogg", HEAD, is_end=lambda data: mark in data)
            copied = self.copy(point)
            needed = at + len(mark)
            self.assertEqual(copied, (HEAD + self.source.content)[: len(copied)])
            self.assertGreaterEqual(len(copied), len(HEAD) + needed)
            self.assertLessEqual(len(copied), len(HEAD) + max(128 * KIB, 2 * needed + 128 * KIB))

    def test_known_end(self) -> None:
        """The copy ends where the place says, or with the source."""
        for end, skipped in ((1001, 0), (500_000, 0), (500_000, 300), (len(CONTENT) + 1, 0)):
            copied = self.copy(SeekPoint(0, 1000, "matroska", HEAD, end=end), skipped)
            self.assertEqual(copied, HEAD + CONTENT[1000 + skipped : end + skipped])

    def test_complete(self) -> None:
        """A source of which all is there is copied in one thread, without the service's reads."""
        with tempfile.TemporaryFile() as file:
            file.write(CONTENT)
            file.flush()
            self.source = FakeSource(len(CONTENT), descriptor=file.fileno())
            point = SeekPoint(0, 1000, "ogg", HEAD, is_end=lambda data: b"\1\0\0" in data, least=9)
            copied = self.copy(point)
            self.assertEqual(copied, (HEAD + CONTENT[1000:])[: len(copied)])
            self.assertLess(len(copied), len(CONTENT) // 2)
            opening = self.open(point, read, run_in_thread=self.threads.in_thread)
            self.threads.run_next()
            self.assertEqual(self.successResultOf(opening), copied)

    def test_unreadable(self) -> None:
        """A source that the system cannot read is a 502, and TMPDIR is not to blame."""
        folder = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
        self.addCleanup(os.close, folder)
        self.before = open_descriptors()
        self.source = FakeSource(len(CONTENT), descriptor=folder)
        opening = self.open(SeekPoint(0, 0, "ogg", HEAD), read)
        self.failureResultOf(opening, UpstreamUnavailable)
        (text,) = self.log.texts
        self.assertIn("a source cannot be read: Is a directory", text)

    def test_least(self) -> None:
        """The end is not searched ahead of what is surely needed."""
        examined: list[int] = []

        def is_end(data: bytes) -> bool:
            examined.append(len(data))
            return True

        for least, size in ((0, 128 * KIB), (3_000_000, 3_000_000 + 128 * KIB)):
            copied = self.copy(SeekPoint(0, 0, "ogg", HEAD, is_end=is_end, least=least))
            self.assertEqual(copied, HEAD + CONTENT[:size])
        self.assertEqual(len(examined), 2)

    def test_stopped(self) -> None:
        """A copy in a thread ends soon after its render."""
        with tempfile.TemporaryFile() as file:
            file.write(CONTENT)
            file.flush()
            self.source = FakeSource(len(CONTENT), descriptor=file.fileno())
            reads: list[int] = []
            pread = os.pread

            def read_and_cancel(descriptor: int, count: int, offset: int) -> bytes:
                reads.append(offset)
                opening.cancel()
                return pread(descriptor, count, offset)

            self.patch(os, "pread", read_and_cancel)
            point = SeekPoint(0, 0, "matroska", HEAD)
            opening = self.open(point, read, run_in_thread=self.threads.in_thread)
            self.threads.run()
            self.failureResultOf(opening, CancelledError)
            self.assertEqual(reads, [0])

    def test_much(self) -> None:
        """A copy that does not end where it should is given up, before it fills the disk."""
        self.patch(excerpt, "_MOST_COPIED", 1_000_000)
        point = SeekPoint(0, 0, "ogg", HEAD, is_end=lambda data: False)
        self.failureResultOf(self.open(point, read), RenderFailed)

    def test_shorter(self) -> None:
        """A source that has become shorter is copied as it is; the render notices that."""
        for left in (300_000, 128 * KIB, 500):
            self.source.content = CONTENT[:left]
            self.assertEqual(self.copy(SeekPoint(0, 1000, "ogg", HEAD)), HEAD + CONTENT[1000:left])

    def test_short_writes(self) -> None:
        """The system may write less than it is given."""
        write = os.write
        self.patch(os, "write", lambda descriptor, data: write(descriptor, data[:100_000]))
        point = SeekPoint(0, 1000, "ogg", HEAD)
        self.assertEqual(self.copy(point), HEAD + CONTENT[1000:])

    def test_full(self) -> None:
        """A disk without space for bytes, or for a file, is a 500; the warning names TMPDIR."""
        for owner, name in ((os, "write"), (AnonymousSpace, "create")):
            with patch.object(owner, name, refuse):
                self.assert_failed(self.open(SeekPoint(0, 0, "ogg", HEAD), read))
            self.log.events.clear()

    def test_cancelled(self) -> None:
        """A render that is cancelled waits for the thread that writes, and then closes the file."""
        point = SeekPoint(0, 0, "ogg", HEAD)
        for done in (0, 1, 2):
            opening = self.open(point, read, run_in_thread=self.threads.in_thread)
            for _ in range(done):
                self.threads.run_next()
            opening.cancel()
            self.assertNoResult(opening)
            self.assertEqual(self.threads.waiting, 1)
            self.threads.run()
            self.failureResultOf(opening, CancelledError)
            self.assertEqual(opened_since(self.before), set())

    def test_deadline(self) -> None:
        """The copy takes no longer than the render may."""
        opening = self.open(
            SeekPoint(0, 0, "ogg", HEAD), read, run_in_thread=self.threads.in_thread
        )
        self.clock.advance(100)
        self.threads.run()
        self.failureResultOf(opening, RenderTimeout)

    def test_failed_source(self) -> None:
        """The refusal of a source that cannot be read is raised."""
        self.source.content = LOST
        opening = self.open(SeekPoint(0, 0, "ogg", HEAD), read)
        self.assertIs(self.failureResultOf(opening).value, LOST)

    def test_failure(self) -> None:
        """The excerpt has the failure of its source."""

        def fail(opened: SourceFile) -> list[Any]:
            before = opened.failure
            self.source.failure = LOST
            return [before, opened.failure]

        opening = self.open(SeekPoint(0, 0, "ogg", HEAD), fail)
        self.assertEqual(self.successResultOf(opening), [None, LOST])


def read(opened: SourceFile) -> bytes:
    """Return the bytes that a child reads: it opens the descriptor anew, from the start on."""
    with (
        opened.inherit() as descriptors,
        open(f"/dev/fd/{descriptors[SOURCE_DESCRIPTOR]}", "rb") as file,
    ):
        return file.read()
