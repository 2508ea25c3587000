"""Places in sources, and the indexes that are kept for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import RenderFailed, UpstreamUnavailable
from audioproxy.media.lengths.mpeg_frame import FrameHeader
from audioproxy.media.reading import SourceLength
from audioproxy.media.seek_point import SeekPoint
from audioproxy.render.seek_points import SeekPoints
from audioproxy.testing import FakeThreads
from tests.support.audio import options_of
from tests.support.http import Log
from tests.support.lossless import wavpack
from tests.support.mpeg import MPEG_1, adts, counted, frames, mp3, tagged
from tests.support.probes import Probe
from tests.support.stores import FakeSource

KIB = 1024
#: Frames of 1024 samples: three minutes, and seven seconds.
FRAME = adts(400)
LONG, SHORT = FRAME * 8000, FRAME * 300
ADTS = Probe("aac", "aac", None, exact=False, sample_rate=44100)
MP3 = Probe("mp3", "mp3", None, exact=False, sample_rate=44100)
FLAC = Probe("flac", "flac", None, exact=False, sample_rate=44100)
#: Samples that a decoder leaves out at both ends of `counted` frames.
DELAY, PADDING = 576 + 529, 1000 - 529
T = TypeVar("T")

LOST = UpstreamUnavailable("The connection was lost.")


class ReadSource(FakeSource):
    """Source of a certain identity that notes what is read of it for an index.

    :ivar reads: the offset and the number of bytes of each of these reads.
    :ivar waiting: Deferred for which each of them waits, if set.
    """

    def __init__(self, content: bytes, identity: bytes = b"a") -> None:
        super().__init__(len(content), content)
        self.identity, self.certain = identity, True
        self.reads: list[tuple[int, int]] = []
        self.waiting: Deferred[None] | None = None

    async def read(self, offset: int, count: int) -> bytes:
        # The start and the end of a source, and the frames between two entries of an index, are
        # read in parts of other sizes.
        if count not in (64 * KIB, 256 * len(FRAME) + 8):
            self.reads.append((offset, count))
            if self.waiting is not None:
                await self.waiting
        return await super().read(offset, count)

    @property
    def pieces(self) -> list[int]:
        """The numbers of bytes."""
        return [count for _, count in self.reads]


class SeekPointsCase(SynchronousTestCase):
    """No index, and threads whose work waits."""

    def setUp(self) -> None:
        self.log = Log(self)
        self.threads = FakeThreads()
        self.error: OSError | None = None
        self.points = SeekPoints(self.in_thread)

    def in_thread(self, work: Callable[[], T]) -> Deferred[T]:
        """Run work in a thread, unless none can be started."""
        return self.threads.in_thread(work) if self.error is None else defer.fail(self.error)

    def source(self, content: bytes = LONG, identity: bytes = b"a") -> ReadSource:
        """Return a source, which is closed at the end of the test."""
        source = ReadSource(content, identity)
        self.addCleanup(source.close)
        return source

    def begin(
        self, source: FakeSource, text: str = "t:100:1", probe: Probe = ADTS
    ) -> Deferred[SeekPoint | None]:
        """Start to find a place."""
        return Deferred.fromCoroutine(self.points.find(source, options_of(text), probe))

    def find(
        self, source: FakeSource, text: str = "t:100:1", probe: Probe = ADTS
    ) -> SeekPoint | None:
        """Find a place."""
        finding = self.begin(source, text, probe)
        self.threads.run()
        return self.successResultOf(finding)

    def place(self, seconds: int) -> SeekPoint:
        """Return the place in a stream of frames of ADTS, a second ahead."""
        number = seconds * 44100 // 1024 - 44
        return SeekPoint(number * 1024, number * len(FRAME), "aac")


class FindTests(SeekPointsCase):
    """`SeekPoints.find`"""

    def test_pieces(self) -> None:
        """Frames are read up to the place, in pieces of 128 KiB to 1 MiB."""
        near, far = self.source(), self.source(identity=b"b")
        self.assertEqual(self.find(near, "t:8"), self.place(8))
        self.assertEqual(near.pieces, [128 * KIB])
        self.assertEqual(self.find(far, "t:180"), self.place(180))
        sizes = [128 * KIB, 256 * KIB, 512 * KIB, 1024 * KIB]
        self.assertEqual(far.pieces, [*sizes, 1024 * KIB, len(LONG) - far.reads[-1][0]])
        # Whole frames.
        self.assertTrue(all(offset % len(FRAME) == 0 for offset, _ in far.reads))

    def test_kept(self) -> None:
        """The index of a version of a source is read once, and other versions have their own."""
        first, again, other = self.source(), self.source(), self.source(identity=b"b")
        self.find(first)
        self.assertEqual(self.find(again, "t:50:1"), self.place(50))
        self.assertEqual(again.reads, [])
        self.assertEqual(self.find(other), self.place(100))
        self.assertEqual(other.reads, first.reads)
        # It grows where a later render needs more.
        self.assertEqual(self.find(again, "t:150"), self.place(150))
        self.assertGreater(again.reads[0][0], first.reads[-1][0])

    def test_uncertain(self) -> None:
        """No index is kept of a source whose identity is uncertain."""
        sources = [self.source() for _ in range(2)]
        for source in sources:
            source.certain = False
            self.assertEqual(self.find(source), self.place(100))
        self.assertEqual(sources[0].reads, sources[1].reads)

    def test_shared(self) -> None:
        """Two renders of a source read each piece once, and take turns."""
        one, two = self.source(), self.source()
        near, far = self.begin(one, "t:50:1"), self.begin(two, "t:150")
        self.threads.run()
        self.assertEqual(self.successResultOf(near), self.place(50))
        self.assertEqual(self.successResultOf(far), self.place(150))
        reads = sorted(one.reads + two.reads)
        self.assertTrue(one.reads and two.reads)
        self.assertEqual(len(reads), len({offset for offset, _ in reads}))

    def test_cancelled(self) -> None:
        """A render that is cancelled leaves its index usable, for those that wait for it, too."""
        one, two, three = (self.source() for _ in range(3))
        first, second, third = (self.begin(source) for source in (one, two, three))
        second.cancel()
        self.failureResultOf(second, CancelledError)
        # Its thread changes the index.
        first.cancel()
        self.assertNoResult(first)
        self.threads.run()
        self.failureResultOf(first, CancelledError)
        self.assertEqual(self.successResultOf(third), self.place(100))
        self.assertEqual(one.pieces, [128 * KIB])
        self.assertEqual(two.reads, [])
        self.assertEqual(self.find(self.source()), self.place(100))

    def test_failed_read(self) -> None:
        """Without a source, or a thread, a render fails; a later one reads the same piece."""
        source = self.source()
        source.waiting = Deferred()
        finding = self.begin(source)
        source.waiting.errback(LOST)
        self.assertIs(self.failureResultOf(finding).value, LOST)
        self.error = OSError("no more threads")
        self.failureResultOf(self.begin(self.source()), RenderFailed)
        self.error = None
        again = self.source()
        self.assertEqual(self.find(again), self.place(100))
        self.assertEqual(again.reads[0], source.reads[0])

    def test_shorter(self) -> None:
        """A source that has become shorter has no place, and the search ends."""
        source = self.source()
        source.content = LONG[:1_000_000]
        self.assertIsNone(self.find(source))
        self.assertLess(len(source.reads), 6)

    def test_other_bytes(self) -> None:
        """No place is behind something else than frames."""
        broken = FRAME * 3000 + bytes(999) + FRAME * 3000
        self.assertIsNone(self.find(self.source(broken)))
        self.assertEqual(self.find(self.source(broken, b"b"), "t:50:1"), self.place(50))

    def test_one_rate(self) -> None:
        """No index is read of mp3 with one bit rate whose frames an encoder has counted."""
        whole = counted(MPEG_1, 8000)
        source = self.source(whole)
        point = self.find(source, probe=MP3)
        number = (100 * 44100 + DELAY) // 1152 - 39
        offset = MPEG_1.length + len(mp3(MPEG_1, number))
        expected = SeekPoint(
            number * 1152 - DELAY, offset, "mp3", stop=8000 * 1152 - DELAY - PADDING
        )
        self.assertEqual((point, self.threads.waiting), (expected, 0))
        self.assertEqual(source.reads, [])
        # Frames at the place that do not follow each other.
        changed = self.source(whole[:offset] + bytes(4) + whole[offset + 4 :], b"b")
        self.assertIsNone(self.find(changed, probe=MP3))
        self.assertIn(128 * KIB, changed.pieces)

    def test_padding(self) -> None:
        """The padding that a decode of the whole leaves out is cut behind a place, too.

        A region that goes on past it has a place only where the file confirms that it is the end,
        with the number of its frames.
        """
        samples = 8000 * 1152 - DELAY - PADDING
        end = samples * 1000 // 44100 / 1000
        whole = counted(MPEG_1, 8000)
        wrong_size = tagged(MPEG_1, 0, stated=8000, size=1000, more=mp3(MPEG_1, 8000))
        joined = whole + whole
        quiet = FrameHeader(32, 44100, 2)
        variable = frames(quiet, 4000) + mp3(MPEG_1, 4000)
        right, wrong = (
            tagged(MPEG_1, 0, name=b"Xing", stated=8000, more=more)
            for more in (variable, variable + mp3(MPEG_1, 500))
        )
        measured = MP3.with_decoded_samples(samples)
        longer = MP3.with_decoded_samples(2 * samples)
        for number, (file, probe, is_confirmed) in enumerate(
            (
                (whole, MP3, True),
                (wrong_size, MP3, False),
                (joined, MP3, False),
                (wrong_size, measured, True),
                (whole, longer, False),
                (right, MP3, True),
                (wrong, MP3, False),
            )
        ):
            for text, is_past in (
                ("t:100:1", False),
                (f"t:100:{end - 100:.3f}", False),
                (f"t:100:{end - 99.999:.3f}", True),
                ("t:100:500", True),
                ("t:100", True),
            ):
                point = self.find(self.source(file, b"%d" % number), text, probe)
                self.assertEqual(point is not None, is_confirmed or not is_past, (number, text))
                if point is not None:
                    self.assertEqual(point.stop, samples)

    def test_tag(self) -> None:
        """Bytes ahead of the container are not part of it."""
        skipped = b"a tag" * 100
        source = self.source(skipped + LONG)
        probe = Probe("aac", "aac", None, exact=False, sample_rate=44100, skipped=500)
        self.assertEqual(self.find(source, probe=probe), self.place(100))
        self.assertEqual(source.reads[0][0], 500)

    def test_no_point(self) -> None:
        """Near the start, in a source of unknown size, and in other bytes there is no place."""
        source = self.source()
        for text in ("f:mp3", "t:0:9", "t:1.999"):
            self.assertIsNone(self.find(source, text), text)
        self.assertEqual(source.reads, [])
        source.size = None
        self.assertIsNone(self.find(source))
        self.assertIsNone(self.find(self.source(bytes(10_000))))
        self.assertIsNone(self.find(self.source(), probe=FLAC))

    def test_positions(self) -> None:
        """In containers that state positions, no index is read."""
        file = wavpack(400)
        expected = SeekPoint(220_000, 220 * 232, "wv")
        probe = Probe("wv", "wavpack", None, exact=False, sample_rate=44100)
        length = SourceLength(400_000, is_stated_only=True, seekable=True)
        for known in (probe, probe.with_length(length), probe.with_decoded_samples(400_000)):
            source = self.source(file)
            self.assertEqual(self.find(source, "t:5:1", known), expected)
            self.assertEqual(self.threads.waiting, 0)
        self.assertIsNone(self.find(self.source(file[:-1]), "t:5:1", probe))


class SamplesTests(SeekPointsCase):
    """`SeekPoints.has_samples`"""

    def has(self, source: FakeSource, samples: int, probe: Probe = ADTS) -> bool:
        """Return whether a source has at least so many samples."""
        finding = Deferred.fromCoroutine(self.points.has_samples(source, probe, samples))
        self.threads.run()
        return self.successResultOf(finding)

    def test_index(self) -> None:
        """Frames are read as far as needed: two more than those of the samples."""
        source = self.source()
        self.assertTrue(self.has(source, 100 * 1024))
        self.assertEqual(source.pieces, [128 * KIB])
        # The index is the one with which places are found.
        self.assertEqual(self.find(source, "t:5:1"), self.place(5))
        self.assertEqual(source.pieces, [128 * KIB])
        for samples, has in ((7998 * 1024, True), (7998 * 1024 + 1, False), (1 << 40, False)):
            self.assertIs(self.has(source, samples), has, samples)

    def test_one_rate(self) -> None:
        """A header tells how many frames of one bit rate there are."""
        source = self.source(counted(MPEG_1, 1000))
        for samples, has in ((998 * 1152 - DELAY, True), (998 * 1152 - DELAY + 1, False)):
            self.assertIs(self.has(source, samples, MP3), has, samples)
        self.assertEqual((source.reads, self.threads.waiting), ([], 0))

    def test_unknown(self) -> None:
        """Nothing shows that of other sources, of other bytes, and of a source still arriving."""
        self.assertFalse(self.has(self.source(), 1, FLAC))
        self.assertFalse(self.has(self.source(bytes(9000)), 1))
        source = self.source()
        source.size = None
        self.assertFalse(self.has(source, 1))


class IndexTests(SeekPointsCase):
    """`SeekPoints.index_meanwhile`"""

    def render(
        self, source: FakeSource, text: str = "f:mp3", probe: Probe = ADTS
    ) -> tuple[Deferred[None], Deferred[None]]:
        """Start to render a source; return the Deferred that ends that, and the one of its end."""
        rendering: Deferred[None] = Deferred()

        async def run() -> None:
            async with self.points.index_meanwhile(source, options_of(text), probe):
                await rendering

        return rendering, Deferred.fromCoroutine(run())

    def assert_indexed(self, *, indexed: bool, identity: bytes = b"a") -> None:
        """Require that a place near the end of a source needs no read, or some."""
        source = self.source(identity=identity)
        self.assertEqual(self.find(source, "t:150"), self.place(150))
        self.assertEqual(source.reads == [], indexed)

    def test_whole(self) -> None:
        """A source that is rendered whole is indexed to its end meanwhile."""
        source = self.source()
        rendering, ended = self.render(source)
        self.threads.run()
        self.assertNoResult(ended)
        self.assertEqual(sum(source.reads[-1]), len(LONG))
        rendering.callback(None)
        self.successResultOf(ended)
        self.assert_indexed(indexed=True)

    def test_end(self) -> None:
        """The indexing ends with the render, and what was read is kept."""
        source = self.source()
        rendering, ended = self.render(source)
        self.threads.run_next()
        reads = len(source.reads)
        rendering.callback(None)
        self.successResultOf(ended)
        source.close()
        self.threads.run()
        self.assertEqual(len(source.reads), reads)
        self.assertEqual(self.find(self.source(), "t:8"), self.place(8))
        self.assert_indexed(indexed=False)
        self.assertEqual(self.log.errors, [])

    def test_other_renders(self) -> None:
        """No other source is read: a part, one that may lack blocks, or one with one bit rate."""
        far = self.source()
        far.is_far = True
        uncertain = self.source()
        uncertain.certain = False
        cases: Iterable[tuple[ReadSource, str, Probe]] = (
            (self.source(), "t:100:1", ADTS),
            (far, "f:mp3", ADTS),
            (uncertain, "f:mp3", ADTS),
            (self.source(), "f:mp3", FLAC),
            (self.source(counted(MPEG_1, 4000)), "f:mp3", MP3),
            (self.source(bytes(100_000)), "f:mp3", MP3),
        )
        for source, text, probe in cases:
            rendering, ended = self.render(source, text, probe)
            self.assertEqual((source.reads, self.threads.waiting), ([], 0))
            rendering.callback(None)
            self.successResultOf(ended)

    def test_failure(self) -> None:
        """A failure of the indexing is logged, and the render goes on; a refusal is not logged."""
        for error, logged in ((ZeroDivisionError(), 1), (LOST, 0)):
            source = self.source()
            source.content = error
            rendering, ended = self.render(source)
            self.assertNoResult(ended)
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), logged)
            rendering.callback(None)
            self.successResultOf(ended)
