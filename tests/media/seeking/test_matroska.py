"""Places in Matroska and WebM."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import floor

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.containers import run_reader
from audioproxy.media.reading import Malformed, SourceLength
from audioproxy.media.seek_point import SeekPoint
from audioproxy.media.seeking.matroska import find_in_matroska
from audioproxy.media.seeking.matroska_blocks import find_block, read_blocks
from tests.support.audio import search
from tests.support.flac import flac
from tests.support.flac import frame as flac_frame
from tests.support.matroska import (
    BLOCK,
    CHECKSUM,
    CLUSTER,
    CUE,
    CUE_CLUSTER,
    CUE_POSITIONS,
    CUE_TIME,
    CUE_TRACK,
    CUES,
    DELAY,
    DURATION,
    ENCODINGS,
    FACTOR,
    GROUP,
    INFO,
    MS,
    PRIVATE,
    SCALE,
    SEGMENT,
    SIMPLE_BLOCK,
    TIMESTAMP,
    VOID,
    File,
    block,
    cluster,
    cluster_of,
    cluster_start,
    clusters,
    cue,
    element,
    head,
    number,
    stamps,
    track,
)
from tests.support.probes import Probe, replace
from tests.support.strategies import DETERMINISTIC

LENGTH = SourceLength(0, exact=False)
AC3 = Probe("matroska", "ac3", None, False, sample_rate=48000)
PCM = Probe("matroska", "pcm_u8", None, False, sample_rate=8000, channels=1)
OPUS = Probe("matroska", "opus", None, False, sample_rate=48000)


def seek(file: File | bytes, probe: Probe, first: int, last: int | None = None) -> SeekPoint | None:
    """Return the place for a sample, if there is one."""
    data = bytes(file)
    return search(find_in_matroska(len(data), probe, LENGTH, first, last), data)


def find(file: File | bytes, probe: Probe, first: int, last: int | None = None) -> SeekPoint:
    """Return the place for a sample."""
    point = seek(file, probe, first, last)
    assert point is not None, (probe, first, last)
    return point


#: A minute of AC-3, in clusters of 25 blocks and 0.8 s.
PLAIN = File(clusters(stamps(1875)))
#: The same in blocks of two frames.
LACED = File([(n, cluster(n, block(0, b"\1\x94".ljust(42), flags=6))) for n in stamps(1875)[::2]])


class PlaceTests(SynchronousTestCase):
    """`find_in_matroska`"""

    def test_place(self) -> None:
        """Decoding starts with the last block that has a second of audio ahead of a sample."""
        for first, expected in (
            (1_440_000, 905),
            (1_439_231, 904),
            (937 * 1536, 905),
            (937 * 1536 - 1, 904),
            (932 * 1536, 900),
            (932 * 1536 - 1, 899),
            (50_000, None),
            (57 * 1536 - 1, None),
            (57 * 1536, 25),
        ):
            if expected is None:
                self.assertIsNone(seek(PLAIN, AC3, first))
                continue
            point = find(PLAIN, AC3, first)
            self.assertEqual(point.sample, expected * 1536)
            self.assertEqual(point.offset, PLAIN.block(*divmod(expected, 25)))
            self.assertEqual((point.demuxer, point.end), ("matroska", None))

    def test_head(self) -> None:
        """The decoder gets the headers in a segment without a size, and then a cluster."""
        point = find(PLAIN, AC3, 1_440_000)
        file = bytes(PLAIN)
        start = file.index(bytes.fromhex(SEGMENT))
        self.assertTrue(point.head.startswith(file[: start + 4] + b"\1" + b"\xff" * 7))
        self.assertIn(track(), point.head)
        self.assertNotIn(bytes.fromhex(CUES), point.head)
        self.assertTrue(point.head.endswith(track() + cluster_start(stamps(901)[900])))
        self.assertTrue(file.startswith(bytes.fromhex(SIMPLE_BLOCK), point.offset))

    def test_end(self) -> None:
        """What follows the last needed sample is not read, from the second cluster after it on."""
        for last, expected in ((1_500_000, 41), (1_496_065, 41), (1_496_064, 40)):
            point = find(PLAIN, AC3, 1_440_000, last)
            self.assertEqual(point.end, PLAIN.offset(expected))
        for last in (2_870_000, 9_999_999):
            point = find(PLAIN, AC3, 1_440_000, last)
            self.assertIsNone(point.end)

    def test_cues(self) -> None:
        """Cues may be ahead of the clusters, behind pictures, and in any cluster of a few."""
        expected = find(PLAIN, AC3, 1_440_000)
        picture = element("1941a469", bytes(90_000))
        for file in (
            replace(PLAIN, in_front=True),
            replace(PLAIN, before=picture),
            replace(PLAIN, before=picture, in_front=True),
            replace(PLAIN, points=[(n, None) for n in range(0, 75, 4)]),
        ):
            point = find(file, AC3, 1_440_000)
            self.assertEqual(point.sample, expected.sample)
            self.assertEqual(point.offset, file.block(36, 5))

    def test_middle_of_cluster(self) -> None:
        """A point of the Cues may lead to a block in the middle of a cluster."""
        times = stamps(1875)
        points = [(n // 25, times[n]) for n in range(10, 1875, 25)]
        for place, last, expected in ((942, 977, 910), (941, 976, 899), (937, 972, 899)):
            file = replace(PLAIN, points=points)
            point = find(file, AC3, place * 1536, last * 1536)
            self.assertEqual(point.sample, expected * 1536)
            self.assertEqual(point.offset, file.block(*divmod(expected, 25)))
            self.assertEqual(point.end, PLAIN.offset(40))

    def test_few_reads(self) -> None:
        """A place takes a few reads, whatever the length of the source."""
        reads = []

        async def read(offset: int, count: int) -> bytes:
            reads.append((offset, count))
            return data[offset : offset + count]

        data = bytes(File(clusters(stamps(20_000), data=bytes(768))))
        running = run_reader(
            read, len(data), find_in_matroska(len(data), AC3, LENGTH, 15_000_000, None)
        )
        with self.assertRaises(StopIteration) as ended:
            running.send(None)
        self.assertIsNotNone(ended.exception.value)
        self.assertLessEqual(len(reads), 5)


class BlockTests(SynchronousTestCase):
    """`find_block` and `read_blocks`"""

    def find(self, data: bytes, last: int, at: int = 0) -> tuple[int, int, bytes]:
        """Return the last block up to a time stamp, in the cluster at an offset of the data."""
        reader = find_block(at, len(data), 1, last)
        offset, count = next(reader)
        try:
            reader.send(data[offset : offset + count])
        except StopIteration as ended:
            found: tuple[int, int, bytes] = ended.value
            return found
        raise AssertionError("one read is enough")

    def test_last_block(self) -> None:
        """The last block up to a place is found, with its time stamp and its offset."""
        inner = [block(late) for late in (0, 32, 64)]
        data = bytes(9) + cluster(1000, *inner)
        for last, expected in ((1000, 0), (1031, 0), (1032, 1), (1063, 1), (1064, 2), (9999, 2)):
            place = data.index(inner[expected])
            found = self.find(data, last, at=9)
            self.assertEqual(found, (1000 + 32 * expected, place, cluster_start(1000)))

    def test_lacing(self) -> None:
        """Frames of one block have the sizes that any of the lacings states (RFC 9559, 10.3)."""
        for flags, sizes, expected in (
            (0, b"", [2300]),
            (2, b"\2" + b"\xff\xff\xff\x23" + b"\xff\xf5", [800, 500, 1000]),
            (4, b"\1", [1150, 1150]),
            (6, b"\2" + b"\x43\x20" + b"\x5e\xd3", [800, 500, 1000]),
            (6, b"\2" + b"\x43\x20" + b"\xc9", [800, 810, 690]),
        ):
            data = cluster(0, block(0, sizes + bytes(2300), flags=flags))
            blocks = search(read_blocks(0, len(data), 1), data)
            assert blocks is not None
            self.assertEqual([expected], [[each.size for each in one.frames] for one in blocks])

    def test_other_tracks(self) -> None:
        """Blocks of other tracks and other elements in between do not matter."""
        sought = block(32)
        other = block(5, bytes(9000), track=2), element(VOID, bytes(7)), block(7, track=3)
        data = cluster(1000, *other, block(0), *other, sought, *other, block(64))
        self.assertEqual(self.find(data, 1063)[:2], (1032, data.index(sought)))
        # A block of another track may be later than that of the track which follows.
        data = cluster(1000, block(0), block(2000, track=2), sought)
        self.assertEqual(self.find(data, 1063)[:2], (1032, data.index(sought)))

    def test_groups(self) -> None:
        """The offset of a block in a BlockGroup is that of the group."""
        groups = [
            element(GROUP, number(DURATION, 32), element(BLOCK, block(late)[5:]), element("fb"))
            for late in (0, 32, 64)
        ]
        other = element(GROUP, element(BLOCK, block(0, track=2)[5:]))
        data = cluster(1000, groups[0], other, element(GROUP), groups[1], block(48), groups[2])
        for last, stamp, expected in (
            (1031, 1000, groups[0]),
            (1032, 1032, groups[1]),
            (1063, 1048, block(48)),
            (1064, 1064, groups[2]),
        ):
            self.assertEqual(self.find(data, last)[:2], (stamp, data.index(expected)))

    def test_checksum(self) -> None:
        """The start of the cluster has its time stamp only, not its checksum."""
        data = element(
            CLUSTER, element(CHECKSUM, bytes(4)), element(TIMESTAMP, b"\7"), block(0), block(32)
        )
        start = bytes.fromhex(CLUSTER) + b"\1" + b"\xff" * 7 + element(TIMESTAMP, b"\7")
        self.assertEqual(self.find(data, 39), (39, data.index(block(32)), start))

    def test_end_of_search(self) -> None:
        """A block whose header is cut at the end of the search is not found."""
        for space in range(-60, 10):
            before = cluster(1000, block(0), element(VOID))
            filler = element(VOID, bytes((1 << 20) + space - len(before)))
            for second in (block(32), element(GROUP, element(BLOCK, block(32)[5:]))):
                data = cluster(1000, block(0), filler, second)
                shown = (1 << 20) - data.index(second)
                is_whole = shown >= second.index(b"\x81\0\x20\0") + 4
                stamp, place, _ = self.find(data, 9999)
                self.assertEqual(stamp, 1032 if is_whole else 1000)
                self.assertEqual(place, data.index(second if is_whole else block(0)))

    def test_damage(self) -> None:
        """A cluster that is damaged, or another one than that read before, gives no place."""
        stamp = number(TIMESTAMP, 1000)
        late = cluster(2000, block(0))
        for data in (
            b"",
            b"\x1f",
            bytes(99),
            element(VOID, bytes(99)),
            cluster(1000),
            cluster(1000, block(0, track=2)),
            late,
            element(CLUSTER, block(0)),
            element(CLUSTER, block(0), stamp),
            element(CLUSTER, element(GROUP, element(BLOCK, block(0)[5:])), stamp),
            element(CLUSTER, stamp, stamp, block(0)),
            element(CLUSTER, stamp, block(0), stamp),
            element(CLUSTER, element(TIMESTAMP, bytes(9)), block(0)),
            element(CLUSTER, bytes(9)),
            cluster(1000, block(32), block(0)),
            cluster(1000, block(0), element(SIMPLE_BLOCK, b"\x81\0\0"), block(32)),
            cluster(1000, block(0), element(GROUP, element(BLOCK)), block(32)),
            cluster(1000, block(0), element(GROUP, bytes(9)), block(32)),
            cluster(1000, block(0), bytes(9)),
            cluster(1000, block(0), b"\xa3\xff"),
            bytes.fromhex(CLUSTER) + b"\1" + b"\xff" * 7 + stamp + block(0),
        ):
            with self.assertRaises(Malformed):
                self.find(data, 1999)
        with self.assertRaises(Malformed):
            next(find_block(len(late) + 1, len(late), 1, 1 << 40))


class GridTests(SynchronousTestCase):
    """Numbers of blocks, by their time stamps."""

    @given(
        rate=st.sampled_from((8000, 11025, 22050, 44100, 48000, 96000)),
        samples=st.sampled_from((256, 576, 1024, 1152, 1536, 4096, 4608)),
        unit=st.sampled_from((MS, 10**5, 20832, 22674)),
        is_floor=st.booleans(),
        phase=st.integers(0, 999_999),
        sizes=st.lists(st.integers(1, 9), min_size=8, max_size=20),
        gaps=st.lists(st.integers(0, 3), min_size=20, max_size=20),
        place=st.floats(0, 1),
    )
    @DETERMINISTIC
    def test_numbers(
        self,
        rate: int,
        samples: int,
        unit: int,
        is_floor: bool,
        phase: int,
        sizes: list[int],
        gaps: list[int],
        place: float,
    ) -> None:
        """A rounded time stamp tells the exact number of samples ahead, also behind lost blocks."""
        samples = max(samples, -(-rate // 100))
        # The time stamps of blocks, which count from that of their cluster, have 16 bits.
        longest = max(1, 32_000 * unit * rate // (samples * 10**9))
        numbers: list[list[int]] = []
        at = 0
        for size, gap in zip(sizes, gaps, strict=False):
            numbers.append([at + n for n in range(min(size, longest))])
            at += len(numbers[-1]) + gap

        def stamp(n: int) -> int:
            exact = Fraction(n * samples * 10**9 + phase * rate, rate * unit)
            return floor(exact) if is_floor else round(exact)

        listed = [
            cluster_of([*map(stamp, inner)], [bytes(samples)] * len(inner)) for inner in numbers
        ]
        file = File(listed, info=number(SCALE, unit))
        probe = replace(PCM, sample_rate=rate)
        first = int(place * at * samples)
        ahead = [inner for inner in numbers if inner[0] * samples <= first]
        if len(ahead) == 1:
            self.assertIsNone(seek(file, probe, first))
            return
        point = find(file, probe, first)
        expected = max(n for n in ahead[-1] if n * samples <= first)
        self.assertEqual(point.sample, expected * samples)
        offset = file.block(len(ahead) - 1, ahead[-1].index(expected), len(ahead[-1]))
        self.assertEqual(point.offset, offset)

    def test_codecs(self) -> None:
        """A frame tells how many samples it has, or its codec does, or the private data."""
        ones = [
            ("aac", 44100, b"\x12\x10", b"", 1024),
            ("aac", 48000, b"\x13\x10", b"", 2048),
            ("eac3", 48000, b"", b"\x0b\x77\0\0\x20", 768),
            ("eac3", 24000, b"", b"\x0b\x77\0\0\xc0", 1536),
            ("pcm_s24le", 48000, b"", bytes(6 * 960), 960),
        ]
        for codec, rate, private, data, samples in ones:
            times = stamps(400, samples, rate)
            file = File(clusters(times, 5, data.ljust(20, b"\0")), track(element(PRIVATE, private)))
            probe = replace(AC3, codec=codec, sample_rate=rate)
            point = find(file, probe, 300 * samples)
            preroll = 0 if codec.startswith("pcm") else -(-rate // samples)
            self.assertEqual(point.sample, (300 - preroll) * samples, codec)

    def test_unknown_counts(self) -> None:
        """Frames that do not tell their number of samples give no place."""
        for codec, private in (("aac", b"\x17\x90"), ("aac", b""), ("flac", b"")):
            file = replace(PLAIN, tracks=track(element(PRIVATE, private)))
            self.assertIsNone(seek(file, replace(AC3, codec=codec), 1_440_000), codec)


class DelayTests(SynchronousTestCase):
    """Delays of encoders."""

    def test_opus(self) -> None:
        """The decoder of an excerpt leaves out no samples, and those of the source are counted."""
        private = b"OpusHead\1\2" + (312).to_bytes(2, "little") + bytes(7)
        times = stamps(3000, 960)
        file = File(
            clusters(times, data=b"\x08".ljust(20)),
            track(number(DELAY, 6_500_000), element(PRIVATE, private)),
        )
        point = find(file, OPUS, 1_440_000)
        self.assertEqual(point.sample, 1400 * 960 - 312)
        self.assertIn(number(DELAY, 0), point.head)
        self.assertIn(b"OpusHead\1\2\0\0", point.head)

    def test_contradiction(self) -> None:
        """Two delays of Opus that differ give no place, nor does a header without one."""
        for delay, private in (
            (6_500_000, b"OpusHead\1\2\0\0" + bytes(7)),
            (0, b"OpusHead\1\2" + (312).to_bytes(2, "little") + bytes(7)),
            (0, b"OpusHead\1\2"),
        ):
            fields = number(DELAY, delay) + element(PRIVATE, private)
            file = File(clusters(stamps(3000, 960), data=b"\x08".ljust(20)), track(fields))
            self.assertIsNone(seek(file, OPUS, 1_440_000))

    def test_other_codecs(self) -> None:
        """A delay of other codecs counts where the start of the stream shows it, as in FFmpeg 9."""
        file = replace(PLAIN, tracks=track(number(DELAY, 21_333_333)))
        for start, delay, expected in (("0", 1024, 906), ("-0.021", 0, 905)):
            probe = replace(AC3, start=Decimal(start), first_time_stamp=-21)
            point = find(file, probe, 1_440_000)
            self.assertEqual(point.sample, expected * 1536 - delay)
            self.assertIn(number(DELAY, 0), point.head)


class LacingTests(SynchronousTestCase):
    """Blocks of several frames (RFC 9559, 10.3)."""

    def seek(self, flags: int, sizes: bytes, data: bytes, count: int = 4) -> SeekPoint | None:
        """Return a place in a file with so many frames of a block, in PCM."""
        times = stamps(500, count * 800, 8000)
        laced = [
            (time, cluster(time, block(0, bytes((count - 1,)) + sizes + data, flags=flags)))
            for time in times
        ]
        return seek(File(laced), PCM, 240_000)

    def test_frames(self) -> None:
        """All of their frames are examined, whichever way their sizes are stated."""
        for flags, sizes in ((2, b"\xff\xff\xff\x23" * 3), (4, b""), (6, b"\x43\x20\xbf\x5f\xff")):
            point = self.seek(flags, sizes, bytes(3200))
            self.assertEqual(point and point.sample, 240_000, flags)

    def test_uneven(self) -> None:
        """Frames of several lengths give no place, nor do sizes beyond the block."""
        for flags, sizes in (
            (2, b"\xff\xff\xff\x24" * 3),
            (2, b"\xff"),
            (2, b"\xff" * 4000),
            (6, b"\x43\x20\xbe\xbf"),
            (6, b"\x7f\xff\xbf\xbf"),
            (6, b"\x80\xbf\xbf"),
        ):
            self.assertIsNone(self.seek(flags, sizes, bytes(3200)))

    def test_long_blocks(self) -> None:
        """Of a block that is longer than what is read of its cluster, the first frame is known."""
        times = stamps(60, 40_000, 8000)
        file = File([(time, cluster(time, block(0, bytes(40_000)))) for time in times])
        point = find(file, PCM, 240_000)
        self.assertEqual(point.sample, 240_000)

    def test_cut_blocks(self) -> None:
        """Blocks that begin at the end of what is read of their cluster do not matter."""
        for space in range(32_680, 32_720):
            for second, count in ((block(32), 1), (block(32, b"\1\x94".ljust(42), flags=6), 2)):
                listed = [
                    (time, cluster(time, block(0), element(VOID, bytes(space)), second))
                    for time in stamps(180)[:: 1 + count]
                ]
                point = find(File(listed), AC3, 153 * 1536)
                self.assertEqual(point.sample, 121 * 1536)


class RefusalTests(SynchronousTestCase):
    """Files that are decoded from their start."""

    def refused(self, file: File | bytes, probe: Probe = AC3, first: int = 1_440_000) -> None:
        self.assertIsNone(seek(file, probe, first))

    def test_no_cues(self) -> None:
        """There must be Cues of the track, with times, tracks and places."""
        cluster_only = element(CUE_POSITIONS, number(CUE_CLUSTER, 9))
        track_only = element(CUE_POSITIONS, number(CUE_TRACK, 1))
        for cues in (
            b"",
            element(CUES),
            element(CUES, element(CUE)),
            element(CUES, element(CUE, number(CUE_TIME, 0))),
            element(CUES, element(CUE, number(CUE_TIME, 0), cluster_only)),
            element(CUES, element(CUE, number(CUE_TIME, 0), track_only)),
            element(CUES, bytes(9)),
            element(CUES, element(VOID, bytes(3 << 20))),
        ):
            self.refused(replace(PLAIN, cues=cues))
        self.refused(replace(PLAIN, cue_track=2))
        self.refused(replace(PLAIN, seek_id=INFO))

    def test_tracks(self) -> None:
        """The track must be audio without a second encoding, and its time stamps not scaled."""
        for tracks in (
            b"",
            track(kind=1),
            track(at=0),
            track(at=127),
            track(element(ENCODINGS)),
            track(element(FACTOR, bytes.fromhex("40000000"))),
            bytes(9),
        ):
            self.refused(replace(PLAIN, tracks=tracks))
        scaled = replace(PLAIN, tracks=track(element(FACTOR, bytes.fromhex("3f800000"))))
        self.assertIsNotNone(seek(scaled, AC3, 1_440_000))
        for unit in (0, MS + 1):
            self.refused(replace(PLAIN, info=number(SCALE, unit)))

    def test_headers(self) -> None:
        """Headers must be there, and of a usual size."""
        file = bytes(PLAIN)
        self.refused(file[:-1])
        self.refused(b"")
        self.refused(b"\x1b" + file[1:])
        self.refused(file.replace(bytes.fromhex(INFO), bytes.fromhex("1549a967"), 1))
        self.refused(replace(PLAIN, info=element(VOID, bytes(1 << 20))))
        self.refused(replace(PLAIN, before=element(VOID, bytes(33_000)) * 8))
        self.refused(replace(PLAIN, clusters=(), cues=element(CUES)))
        self.refused(head(b""))
        self.refused(head(b"\x01"))

    def test_time_stamps(self) -> None:
        """All time stamps must be those of whole blocks: a clock may drift, or blocks be late."""
        times = stamps(1875)
        self.refused(File(clusters([round(time * 1.001) for time in times])))
        for late in (900, 901, 1860):
            moved = [*times]
            moved[late] += 10
            self.refused(File(clusters(moved)))
        self.refused(replace(PLAIN, points=[(n, 10 if n == 5 else None) for n in range(75)]))
        self.refused(File(clusters([*times[:905], *times[904:]])))
        self.refused(File(clusters([*times[:1000], *(time + 10 for time in times[1000:])])))

    def test_finer_time_stamps(self) -> None:
        """A file that was in milliseconds before has a place, if no part of it may be joined."""
        times = [time * 50 for time in stamps(1875, 1024)]
        tracks = track(element(PRIVATE, b"\x11\x90"))
        for codec, data, expected in (("aac", b"a", True), ("pcm_u8", bytes(2048), False)):
            file = File(clusters(times, 10, data), tracks, info=number(SCALE, MS // 50))
            probe = replace(AC3, codec=codec, channels=2)
            self.assertEqual(seek(file, probe, 960_000) is not None, expected, codec)

    def test_numbers_of_frames(self) -> None:
        """FLAC frames state their numbers, which must be those of the time stamps."""
        times, file = stamps(600, 4096, 44100), track(element(PRIVATE, flac()))
        probe = replace(AC3, codec="flac", sample_rate=44100)
        for numbers, expected in (
            (range(600), True),
            (range(7, 607), True),
            ((*range(300), *range(300)), False),
            ((0, *range(2, 601)), False),
        ):
            frames = [flac_frame(chr(number).encode()) for number in numbers]
            found = seek(File(clusters(times, 9, frames), file), probe, 400 * 4096)
            self.assertEqual(found is not None, expected)

    @given(
        changes=st.dictionaries(st.integers(0, 2000), st.binary(min_size=1, max_size=8)),
        is_at_end=st.booleans(),
        file=st.sampled_from(("plain", "laced")),
    )
    @DETERMINISTIC
    def test_any_bytes(self, changes: dict[int, bytes], is_at_end: bool, file: str) -> None:
        """No file is an error, whatever its bytes."""
        data = bytearray(bytes(PLAIN if file == "plain" else LACED))
        for offset, change in changes.items():
            at = len(data) - offset - 8 if is_at_end else offset
            data[at : at + len(change)] = change
        point = seek(bytes(data), AC3, 1_440_000, 1_500_000)
        if point is not None:
            self.assertLessEqual(point.sample, 1_440_000)

    def test_much_to_copy(self) -> None:
        """An excerpt has at most 64 MiB; a place that needs more of the source gives none."""
        filler = (64 << 20) - (len(bytes(PLAIN)) - PLAIN.block(36, 5)) - len(element(VOID))
        for extra, expected in ((0, True), (1, False)):
            *ahead, (time, last) = PLAIN.clusters
            long = replace(
                PLAIN, clusters=[*ahead, (time, last + element(VOID, bytes(filler + extra)))]
            )
            data = bytes(long)
            self.assertEqual(seek(data, AC3, 1_440_000) is not None, expected)
            # What is ahead of the place, or after the last needed sample, is not copied.
            self.assertIsNotNone(seek(data, AC3, 1_440_000, 1_500_000))
            self.assertIsNotNone(seek(data, AC3, 1_500_000))

    def test_order(self) -> None:
        """Points must be in order, and lead to the clusters of their times."""
        self.refused(replace(PLAIN, points=[(n, None) for n in (*range(38), 20, *range(38, 75))]))
        self.refused(replace(PLAIN, points=[(min(n + 3, 74), n * 800) for n in range(75)]))

    def test_long_steps(self) -> None:
        """Points must be closer than ten minutes, and no place is found after six hours."""
        for step, count, expected in ((160, 120, True), (320, 30, False), (160, 240, False)):
            times = [n * step * 1000 for n in range(count)]
            found = seek(File(clusters(times, 1)), AC3, (count - 2) * step * 48000)
            self.assertEqual(found is not None, expected)

    def test_short_blocks(self) -> None:
        """Blocks of less than ten milliseconds are too short for their time stamps to tell."""
        for samples, expected in ((80, True), (79, False)):
            times = stamps(5000, samples, 8000)
            file = File(clusters(times, 50, bytes(samples)))
            self.assertEqual(seek(file, PCM, 100_000) is not None, expected)

    def test_uneven_blocks(self) -> None:
        """All blocks but the last one must have the same number of samples."""
        times = stamps(500, 800, 8000)
        for odd, size in ((1, 801), (300, 801), (301, 799), (309, 801)):
            frames = [bytes(size if n == odd else 800) for n in range(500)]
            self.refused(File(clusters(times, 10, frames)), PCM, 240_000)

    def test_clusters(self) -> None:
        """A point must lead to a cluster with a time stamp and blocks of the track."""
        other = element(VOID, bytes(99))
        for place in (
            other,
            element(CLUSTER, block(0)),
            cluster(PLAIN.clusters[36][0]),
            cluster(PLAIN.clusters[36][0], block(0, track=2)),
            cluster(PLAIN.clusters[36][0], block(0, b"")),
            cluster(PLAIN.clusters[36][0], element(SIMPLE_BLOCK)),
            bytes.fromhex(CLUSTER) + b"\x01" + b"\xff" * 7,
            bytes.fromhex(CLUSTER) + bytes(9),
        ):
            listed = [*PLAIN.clusters]
            listed[36] = listed[36][0], place
            self.refused(replace(PLAIN, clusters=listed))
        start = bytes(PLAIN).index(bytes.fromhex(SEGMENT)) + 8
        places = [PLAIN.offset(n) - start for n in range(75)]
        # Those of the track are examined, and not only those of another one.
        for tracks, expected in ((lambda n: 1, True), (lambda n: 1 if n % 27 == 1 else 2, False)):
            listed = [cue(n // 24 * 800, places[n // 24], tracks(n)) for n in range(1800)]
            file = replace(PLAIN, cues=element(CUES, *listed))
            self.assertEqual(seek(file, AC3, 1_440_000) is not None, expected)
        at_the_end = element(CUES, *(cue(n * 800, 1 << 30) for n in range(75)))
        self.refused(replace(PLAIN, cues=at_the_end))
