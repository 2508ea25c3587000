"""Far files: blocks arrive on demand, come again after a loss, and are given back."""

from __future__ import annotations

import errno
import os
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NotFound, Refusal, RenderFailed, SourceTooLarge, UpstreamUnavailable
from audioproxy.http_client.errors import TransportError
from audioproxy.sources.blocks import BLOCK, NoHoles
from audioproxy.sources.far_file import FarFile, Reader
from audioproxy.sources.far_files import KEPT_SECONDS, FarFiles
from audioproxy.sources.fetch import MOST_PATIENCE, Busy
from audioproxy.testing import FakeThreads
from tests.support.far_versions import FakeVersion

MIB = 1024 * 1024
LOST = TransportError("cut", is_closed=True)
#: Bytes that differ from block to block, and a last block that is not full.
CONTENT = b"".join(number.to_bytes(4, "little") * 4096 for number in range(640)) + b"end"


class FarFileCase(SynchronousTestCase):
    """One source, whose origin a test plays."""

    most_unknown = 12 * MIB
    most_bytes = 64 * MIB

    def setUp(self) -> None:
        """Create no file yet."""
        self.clock = Clock()
        self.folder: str = self.mktemp()
        os.makedirs(self.folder)
        self.files = self.create_files(self.most_bytes)

    def in_thread(self, work: Any) -> Any:
        """Run disk work at once."""
        return execute(work)

    def create_files(self, most_bytes: int, folder: str = "", **more: Any) -> FarFiles:
        """Return a place for files."""
        where = folder or self.folder
        files = FarFiles(where, self.clock, self.in_thread, self.most_unknown, most_bytes, **more)
        self.addCleanup(files.close)
        return files

    def create(
        self, version: FakeVersion, *, is_sized: bool = True, identity: bytes = b"a\n1"
    ) -> FarFile:
        """Return a file in use."""
        size = len(version.content) if is_sized else None
        file = self.files.create(version, size, identity)
        self.files.use(file)
        return file

    def created(self) -> tuple[FakeVersion, FarFile]:
        """Return a version that is served in ranges, and its file."""
        version = FakeVersion(CONTENT)
        return version, self.create(version)

    def created_whole(self, *, is_sized: bool = True) -> tuple[FakeVersion, FarFile]:
        """Return a version whose one response has begun, and its file."""
        version = FakeVersion(CONTENT, is_whole=True)
        file = self.create(version, is_sized=is_sized)
        file.begin(version.part(0, len(CONTENT)), None)
        return version, file

    def wanted(self, file: FarFile, block: int, reader: Reader | None = None) -> bool:
        """Ask for a block; return whether it is there at once."""
        waiting = file.want(block, reader or Reader())
        waiting.addErrback(lambda failure: None)
        return waiting.called and block in file.blocks

    def refusal(self, waiting: Deferred[None]) -> Refusal:
        """Return why a block cannot be had."""
        error = self.failureResultOf(waiting).value
        assert isinstance(error, Refusal)
        return error

    def assert_content(self, file: FarFile, block: int) -> None:
        """Assert that a block is there, with the bytes of the source."""
        self.assertIn(block, file.blocks)
        place = block * BLOCK
        data = os.pread(file.blocks.readable, BLOCK, place)
        self.assertEqual(CONTENT[place : place + BLOCK], data)


class FetchTests(FarFileCase):
    """Requests to the origin."""

    def test_reading_on(self) -> None:
        """A reader that reads on gets one request for all that follows, up to what is there."""
        version, file = self.created()
        file.begin(None, 4 * BLOCK)
        file.prefetch(len(CONTENT) - 1)
        version.run()
        reader = Reader()
        self.assertFalse(self.wanted(file, 4, reader))
        version.run()
        self.assert_content(file, 4)
        last = len(CONTENT) // BLOCK * BLOCK
        self.assertEqual(
            [(0, 4 * BLOCK), (last, len(CONTENT)), (4 * BLOCK, last)], version.requests
        )

    def test_estimated_stop(self) -> None:
        """A reader that will stop early gets a request up to there, which keeps its connection.

        If it reads on all the same, it gets the rest.
        """
        version, file = self.created()
        reader = Reader(10 * BLOCK + 1)
        for block in (0, 9):
            self.wanted(file, block, reader)
            version.run()
        self.assert_content(file, 10)
        self.wanted(file, 11, reader)
        self.assertEqual([(0, 11 * BLOCK), (11 * BLOCK, len(CONTENT))], version.requests)

    def test_bound(self) -> None:
        """The origin waits for a reader that has not come near; more is let in as it reads on."""
        version, file = self.created()
        reader = Reader()
        self.wanted(file, 0, reader)
        version.run()
        first = version.streams[0].first
        self.assertLess(first, 2 * MIB)
        self.assertTrue(version.streams[0].is_paused)
        block = next(each for each in range(100) if each not in file.blocks)
        self.wanted(file, block, reader)
        version.run()
        self.assertGreater(version.streams[0].first, first + MIB)
        self.assertEqual(1, len(version.requests))

    def test_jump(self) -> None:
        """A reader that jumps gets a short range there, and one for the rest if it reads on."""
        version, file = self.created()
        reader = Reader()
        self.wanted(file, 20, reader)
        version.run()
        self.assert_content(file, 23)
        self.assertNotIn(24, file.blocks)
        self.wanted(file, 24, reader)
        self.assertEqual([(20 * BLOCK, 24 * BLOCK), (24 * BLOCK, len(CONTENT))], version.requests)

    def test_index(self) -> None:
        """A jump to a place near the end gets all up to the end: it is for an index."""
        version, file = self.created()
        block = (len(CONTENT) - MIB) // BLOCK
        self.wanted(file, block)
        self.assertEqual([(block * BLOCK, len(CONTENT))], version.requests)

    def test_shared(self) -> None:
        """Two readers of one place share a request, which ends when both are gone."""
        version, file = self.created()
        one, two = Reader(), Reader()
        self.wanted(file, 0, one)
        self.wanted(file, 1, two)
        self.assertEqual(1, len(version.requests))
        file.leave(one)
        self.assertTrue(version.streams[0].is_open)
        file.leave(two)
        self.assertFalse(version.streams[0].is_open)

    def test_short_rest(self) -> None:
        """A request whose rest is short goes on without readers, so that its connection is kept."""
        version, file = self.created()
        reader = Reader()
        self.wanted(file, 20, reader)
        file.leave(reader)
        self.assertTrue(version.streams[0].is_open)

    def test_shorter_answers(self) -> None:
        """An origin that serves less than it was asked for is asked for the rest."""
        version = FakeVersion(CONTENT)
        version.most = 100_000
        file = self.create(version)
        self.wanted(file, 20)
        version.run()
        self.assert_content(file, 23)
        self.assertEqual(3, len(version.requests))


class LossTests(FarFileCase):
    """What is lost on the way."""

    def test_lost_connection(self) -> None:
        """Behind a lost connection, the rest is requested at once, and nothing twice."""
        version, file = self.created()
        waiting = file.want(20, Reader())
        version.streams[0].arrive(70_000)
        version.streams[0].lose(LOST)
        self.clock.advance(0)
        version.run()
        self.successResultOf(waiting)
        self.assert_content(file, 20)
        self.assertEqual((20 * BLOCK + 70_000, 24 * BLOCK), version.requests[1])

    def test_progress(self) -> None:
        """Losses are counted anew after each block. Few bytes at a time are not enough."""
        version, file = self.created()
        waiting = file.want(20, Reader())
        for _ in range(3):
            version.streams[-1].arrive(BLOCK)
            version.streams[-1].lose(LOST)
            self.clock.advance(0)
        self.successResultOf(waiting)
        waiting = file.want(90, Reader())
        for delay in (0.25, 1, 2, 4, 0):
            version.streams[-1].arrive(1000)
            version.streams[-1].lose(LOST)
            requests = len(version.requests)
            self.clock.advance(delay)
            self.assertEqual(requests + bool(delay), len(version.requests))
        self.assertIsInstance(self.refusal(waiting), UpstreamUnavailable)

    def test_few_bytes(self) -> None:
        """An origin that serves a byte at a time is given up."""
        version = FakeVersion(CONTENT)
        version.most = 1
        file = self.create(version)
        waiting = file.want(20, Reader())
        for _ in range(5):
            version.run()
            self.clock.advance(4)
        self.assertIsInstance(self.refusal(waiting), UpstreamUnavailable)
        self.assertEqual(5, len(version.requests))

    def test_gone(self) -> None:
        """A source that has vanished, or changed, has no more blocks; what is there is read."""
        for kind in (NotFound, RenderFailed):
            version = FakeVersion(CONTENT)
            file = self.create(version)
            self.wanted(file, 20)
            version.run()
            version.faults = [kind("gone")]
            self.assertIsInstance(self.refusal(file.want(90, Reader())), kind)
            self.assertIsInstance(self.refusal(file.want(3, Reader())), kind)
            self.assertTrue(self.wanted(file, 20))
            self.assertIsNone(self.files.find(b"a\n1"))

    def test_nobody_waits(self) -> None:
        """A failure that nobody waits for is none."""
        version = FakeVersion(CONTENT)
        version.faults = [Busy("503", MOST_PATIENCE + 1)]
        file = self.create(version)
        file.prefetch(len(CONTENT) - 1)
        self.assertIsNone(file.failure)

    def test_full_disk(self) -> None:
        """On a full disk, unused blocks of others go; if that is in vain, the render fails."""
        other = FakeVersion(CONTENT)
        unused = self.create(other, identity=b"b\n1")
        self.wanted(unused, 20)
        other.run()
        self.files.release(unused)
        version, file = self.created()
        full = OSError(errno.ENOSPC, "full")
        with patch.object(file.blocks, "write", side_effect=[full, *[1 << 40] * 20]):
            waiting = file.want(20, Reader())
            version.run()
        self.successResultOf(waiting)
        self.assertIsNone(self.files.find(b"b\n1"))
        with patch.object(file.blocks, "write", side_effect=full):
            waiting = file.want(90, Reader())
            version.run()
        self.assertIsInstance(self.refusal(waiting), RenderFailed)


class WholeTests(FarFileCase):
    """Sources whose origin serves no ranges, or states no size."""

    def test_in_order(self) -> None:
        """All of it comes with one response; what lies ahead waits for it."""
        version, file = self.created_whole()
        reader = Reader()
        late, early = file.want(100, reader), file.want(1, reader)
        version.streams[0].arrive(2 * BLOCK)
        self.successResultOf(early)
        self.assertNoResult(late)
        self.assertTrue(file.is_partial)
        version.run()
        self.successResultOf(late)
        self.assertTrue(file.is_complete)
        self.assertEqual([], version.requests)

    def test_unknown_size(self) -> None:
        """A source without a size has one at its end."""
        version, file = self.created_whole(is_sized=False)
        past = file.want(len(CONTENT) // BLOCK + 5, Reader())
        version.run()
        self.assertEqual(len(CONTENT), file.size)
        self.assertEqual(len(CONTENT), os.fstat(file.blocks.readable).st_size)
        self.successResultOf(past)
        self.assert_content(file, len(CONTENT) // BLOCK)

    def test_too_large(self) -> None:
        """One without a size that has more bytes than sources may have is a 413, at the byte."""
        for more, kind in ((0, None), (1, SourceTooLarge)):
            version = FakeVersion(bytes(self.most_unknown + more), is_whole=True)
            file = self.create(version, is_sized=False)
            file.begin(version.part(0, len(version.content)), None)
            completing = file.complete()
            version.run()
            if kind is None:
                self.successResultOf(completing)
            else:
                self.assertIsInstance(self.refusal(completing), kind)
            self.files.release(file)


class SpaceTests(FarFileCase):
    """The bound of all blocks, and how long they are kept."""

    most_bytes = 4 * MIB

    def test_larger_than_the_bound(self) -> None:
        """Of a source that is larger than the bound, the blocks that came first are given back.

        They come again when they are read again.
        """
        self.files = self.create_files(self.most_bytes, least_kept=MIB)
        version, file = self.created()
        for block in range(len(CONTENT) // BLOCK + 1):
            if not self.wanted(file, block):
                version.run()
            self.assert_content(file, block)
            self.assertLessEqual(file.blocks.used, self.most_bytes)
        self.assertNotIn(0, file.blocks)
        used = os.fstat(file.blocks.readable).st_blocks * 512
        self.assertLessEqual(used, self.most_bytes + MIB)
        self.wanted(file, 0)
        version.run()
        self.assert_content(file, 0)

    def test_unused_first(self) -> None:
        """Files that nobody reads go first, the one of longest ago ahead of the others."""
        for identity in (b"a\n1", b"b\n1", b"c\n1"):
            version = FakeVersion(CONTENT)
            file = self.create(version, identity=identity)
            self.wanted(file, 0)
            version.run()
            self.files.release(file)
        version = FakeVersion(CONTENT)
        file = self.create(version, identity=b"d\n1")
        reader = Reader()
        for block in range(40):
            if not self.wanted(file, block, reader):
                version.run()
        self.assertIsNone(self.files.find(b"a\n1"))
        self.assertIsNotNone(self.files.find(b"d\n1"))

    def test_whole_ones_stay(self) -> None:
        """What cannot be requested again is not given back, even beyond the bound."""
        version, file = self.created_whole()
        version.run()
        for block in range(len(CONTENT) // BLOCK + 1):
            self.assert_content(file, block)

    def test_no_holes(self) -> None:
        """On a file system without holes, files stay as they are until nobody reads them."""
        version, file = self.created()
        reader = Reader()
        with patch.object(file.blocks, "punch", side_effect=NoHoles(errno.EOPNOTSUPP, "no")):
            for block in range(len(CONTENT) // BLOCK):
                if not self.wanted(file, block, reader):
                    version.run()
        self.assertFalse(file.can_punch)
        self.assert_content(file, 150)

    def test_kept(self) -> None:
        """A file is found again for a while after its last use; one that lacks bytes is not."""
        _version, file = self.created()
        self.files.release(file)
        self.clock.advance(KEPT_SECONDS - 1)
        self.assertIs(file, self.files.find(b"a\n1"))
        self.assertTrue(self.files.knows(b"a"))
        self.files.use(file)
        self.clock.advance(10)
        self.files.release(file)
        self.clock.advance(KEPT_SECONDS + 1)
        self.assertIsNone(self.files.find(b"a\n1"))
        self.assertFalse(self.files.knows(b"a"))
        whole = FakeVersion(CONTENT, is_whole=True)
        file = self.create(whole)
        file.begin(whole.part(0, len(CONTENT)), None)
        self.files.release(file)
        self.assertIsNone(self.files.find(b"a\n1"))
        self.assertFalse(whole.streams[0].is_open)

    def test_no_file(self) -> None:
        """Where no file can be created, the render fails."""
        files = self.create_files(MIB, "/nowhere")
        with self.assertRaises(RenderFailed):
            files.create(FakeVersion(b"x"), 1, None)


#: What happens to a file: its name, a number, and the number of a reader or of a response.
STEPS = st.tuples(
    st.tuples(st.just("want"), st.integers(0, 9) | st.integers(0, len(CONTENT) // BLOCK))
    | st.tuples(st.just("arrive"), st.integers(1, 6 * BLOCK))
    | st.tuples(st.just("give back"), st.integers(1, 16))
    | st.tuples(st.sampled_from(("leave", "lose", "thread", "complete")), st.just(0)),
    st.integers(0, 2),
)


class AnyOrderTests(FarFileCase):
    """Reads, losses, slow disk work and blocks that are given back, in any order"""

    def setUp(self) -> None:
        """Run work of the disk when the test asks for it."""
        self.threads = FakeThreads()
        super().setUp()

    def in_thread(self, work: Any) -> Any:
        """Queue disk work."""
        return self.threads.in_thread(work)

    def take(self, file: FarFile, version: FakeVersion, steps: Any) -> list[Deferred[None]]:
        """Take steps, and return all that they wait for."""
        readers, waiting, losses = [Reader() for _ in range(3)], list[Deferred[None]](), 0
        for (kind, count), number in steps:
            streams = [each for each in version.streams if each.is_open]
            if kind == "want":
                waiting.append(file.want(count, readers[number]))
            elif kind == "leave":
                file.leave(readers[number])
            elif kind == "complete":
                waiting.append(file.complete())
            elif kind == "give back":
                Deferred.fromCoroutine(file.give_back(count))
            elif kind == "thread" and self.threads.waiting:
                self.threads.run_next()
            elif kind == "arrive" and streams:
                streams[number % len(streams)].arrive(count)
            elif kind == "lose" and streams and losses < 4:
                losses += 1
                streams[number % len(streams)].lose(LOST)
                self.clock.advance(4)
        return waiting

    @settings(max_examples=100, deadline=None)
    @given(st.lists(STEPS, min_size=10, max_size=40))
    @example([(("want", 0), 0), (("want", 9), 0), (("want", 33), 0)])
    def test_any_order(self, steps: list[Any]) -> None:
        """A reader that waits for a block gets it, and all blocks equal the source."""
        self.files = self.create_files(20 * BLOCK, least_kept=4 * BLOCK)
        version, file = self.created()
        waiting = self.take(file, version, steps)
        for _ in range(100):
            version.run()
            self.threads.run()
            self.clock.advance(4)
        for each in waiting:
            self.successResultOf(each)
        if any(kind == "complete" for (kind, _), _ in steps):
            self.assertTrue(file.is_complete)
        for block in range(len(CONTENT) // BLOCK + 1):
            if block in file.blocks:
                self.assert_content(file, block)
        self.files.close()
        self.threads.run()
