"""Streams of frames: mp3, ADTS, AC-3 and E-AC-3."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.mpeg_frame import FrameHeader
from audioproxy.media.seek_point import SeekPoint
from audioproxy.media.seeking.frame_index import FrameIndex
from audioproxy.media.seeking.frames import FrameStream, find_offset, find_start, read_stream
from tests.support.audio import search
from tests.support.mpeg import (
    ID3,
    ID3_V1,
    MPEG_1,
    MPEG_2,
    ac3,
    adts,
    counted,
    eac3,
    frames,
    mp3,
    odd_ac3,
    tagged,
)
from tests.support.probes import Probe
from tests.support.strategies import DETERMINISTIC


def find_stream(file: bytes, kind: str = "mp3", rate: int = 44100) -> FrameStream | None:
    """Return the stream of a file, if there is one; the container has the name of the codec."""
    probe = Probe(kind, kind, None, False, sample_rate=rate)
    return search(read_stream(len(file), probe), file)


def read(file: bytes, kind: str = "mp3", rate: int = 44100) -> FrameStream:
    """Return the stream of a file."""
    stream = find_stream(file, kind, rate)
    assert stream is not None, kind
    return stream


def offset_of(file: bytes, stream: FrameStream, number: int) -> int | None:
    """Return the offset of a frame of a stream with one bit rate."""
    assert stream.mean is not None
    return search(find_offset(stream, stream.mean, number), file)


def start_of(file: bytes, stream: FrameStream, number: int) -> SeekPoint | None:
    """Return the last place up to a frame at which decoding may start."""
    index = FrameIndex(stream)
    index.add(file[stream.first :])
    return search(find_start(stream, index.find_offset, number), file)


class FormTests(SynchronousTestCase):
    """`read_stream` and `FrameForm`"""

    def test_forms(self) -> None:
        """The form of frames follows from the first one that is decoded."""
        for file, kind, rate, samples, mean in (
            (mp3(MPEG_1, 50), "mp3", 44100, 1152, Fraction(128000 * 144, 44100)),
            (mp3(MPEG_2, 50), "mp3", 22050, 576, Fraction(64000 * 72, 22050)),
            (adts() * 50, "aac", 44100, 1024, None),
            # With spectral band replication.
            (adts(rate_index=7) * 50, "aac", 44100, 2048, None),
            (adts(channels=7) * 50, "aac", 44100, 1024, None),
            (ac3(768) * 50, "ac3", 48000, 1536, None),
            (odd_ac3(50), "ac3", 44100, 1536, None),
            (ac3(1152, rate_code=2) * 50, "ac3", 32000, 1536, None),
            (eac3() * 50, "eac3", 48000, 1536, None),
            (eac3(blocks=0, rate_code=1) * 50, "eac3", 44100, 256, None),
        ):
            for before, behind in ((b"", b""), (ID3, b""), (b"", ID3_V1)):
                stream = read(before + file + behind, kind, rate)
                self.assertEqual((stream.form.demuxer, stream.form.samples), (kind, samples))
                self.assertEqual((stream.first, stream.delay), (len(before), 0))
                self.assertEqual(stream.end, len(before + file))
                self.assertEqual(stream.form.mean, mean, kind)
                # No file states their number.
                self.assertEqual((stream.mean, stream.samples), (None, None), kind)

    def test_lengths(self) -> None:
        """A frame of the stream has the length that its header states; other bytes have none."""
        mono = bytes(FrameHeader(128, 44100, 1))
        for first, others, wrong in (
            (
                mp3(MPEG_1, 40),
                frames(FrameHeader(320, 44100, 2, 1), 1),
                (mono, bytes(FrameHeader(128, 48000, 2)), b"\xff\xfb\xf4\x44", b"\xff\xfb\x04\x44"),
            ),
            (adts() * 40, adts(8000), (adts(7), adts(rate_index=3), adts(channels=1))),
            (odd_ac3(40), ac3(1952, 31, rate_code=1), (ac3(768), ac3(768, 38, rate_code=1))),
            (eac3() * 40, eac3(4096), (eac3(kind=1), eac3(kind=8), eac3(blocks=2))),
        ):
            kind = {0xFB: "mp3", 0xF1: "aac"}.get(first[1], "ac3" if first[5] < 100 else "eac3")
            rate = 48000 if kind == "eac3" else 44100
            stream = read(first, kind, rate)
            self.assertEqual(stream.form.length(others), len(others), kind)
            for data in (b"", others[:7], bytes(8), *(each.ljust(8, b"\0") for each in wrong)):
                self.assertEqual(stream.form.length(data), 0, (kind, data[:8]))

    def test_unknown(self) -> None:
        """Other bytes than frames of the stream that the probe reports are no such stream."""
        for file, kind, rate in (
            (b"", "mp3", 44100),
            (bytes(10_000), "mp3", 44100),
            (mp3(MPEG_1, 40), "mp3", 48000),
            # The first frame behind an encoder's header.
            (tagged(MPEG_1, 0) + bytes(9000), "mp3", 44100),
            (tagged(MPEG_1, 0) + frames(MPEG_2, 40), "mp3", 44100),
            (bytes(10_000), "aac", 44100),
            (adts() * 40, "aac", 48000),
            (adts(rate_index=13) * 40, "aac", 44100),
            # Several blocks, and channels that are defined inside the blocks.
            (adts(blocks=1) * 40, "aac", 44100),
            (adts(channels=0) * 40, "aac", 44100),
            (adts(sync=b"\xff\xf7") * 40, "aac", 44100),
            (adts(sync=b"\xfe\xf1") * 40, "aac", 44100),
            (bytes(10_000), "ac3", 48000),
            (ac3(768) * 40, "ac3", 44100),
            (ac3(768, bsid=9) * 40, "ac3", 48000),
            (ac3(768, rate_code=3) * 40, "ac3", 48000),
            (ac3(768, code=38) * 40, "ac3", 48000),
            (bytes(10_000), "eac3", 48000),
            (eac3() * 40, "eac3", 44100),
            (eac3(kind=1) * 40, "eac3", 48000),
            (eac3(bsid=10) * 40, "eac3", 48000),
            (eac3(bsid=17) * 40, "eac3", 48000),
            # Half of the rate.
            (eac3(rate_code=3) * 40, "eac3", 24000),
        ):
            self.assertIsNone(find_stream(file, kind, rate), (kind, file[:8]))

    @DETERMINISTIC
    @given(
        st.lists(st.tuples(st.integers(1, 14), st.booleans()), min_size=1, max_size=20),
        st.lists(st.sampled_from((0x00, 0xFF, 0xFB, 0x90, 0x44)), min_size=1, max_size=40),
        st.integers(0, 1100),
    )
    def test_follow(self, kinds: list[tuple[int, bool]], inside: list[int], missing: int) -> None:
        """All frames that follow each other are found, whatever bytes are inside them."""
        stream = read(mp3(MPEG_1, 40))
        parts = []
        for index, padding in kinds:
            header = FrameHeader(MPEG_1.bitrates[index], 44100, 2, int(padding))
            parts.append((bytes(header) + bytes(inside) * 1500)[: header.length])
        data = b"".join(parts)
        data = data[: len(data) - missing]
        ends = list(accumulate(map(len, parts)))
        starts = [0, *ends[:-1]]
        expected = [start for start in starts if start + 8 <= len(data)]
        if not expected:
            self.assertEqual(stream.form.follow(data), ([], 0))
            return
        found, end = stream.form.follow(data)
        self.assertEqual(found, expected)
        self.assertEqual(end, ends[len(expected) - 1])
        # Something else ends the chain.
        more = stream.form.follow(b"".join(parts) + b"other bytes" + parts[0])
        self.assertEqual(more, (starts, ends[-1]))
        self.assertEqual(stream.form.follow(b"\0" + data), ([], 0))


class PlaceTests(SynchronousTestCase):
    """The numbers of frames, and their offsets"""

    def test_numbers(self) -> None:
        """Decoding starts a second ahead of a sample, with a whole frame."""
        plain, delayed = read(mp3(MPEG_1, 400)), read(tagged(MPEG_1, 400))
        for sample, number in (
            (0, 0),
            (44100, 0),
            (45000, 0),
            (46079, 0),
            (46080, 1),
            (460_800, 361),
        ):
            self.assertEqual(plain.number_before(sample, 44100), number, sample)
        self.assertEqual(delayed.number_before(46080 - 1105, 44100), 1)
        self.assertEqual(delayed.number_before(46080 - 1106, 44100), 0)
        for stream, delay, stop in ((plain, 0, None), (delayed, 1105, 400 * 1152 - 1576)):
            expected = SeekPoint(50 * 1152 - delay, 12345, "mp3", stop=stop)
            self.assertEqual(stream.point(50, 12345), expected)

    def test_least_numbers(self) -> None:
        """A stream has all samples if it reaches two frames past them: decoders may drop some."""
        plain, delayed = read(mp3(MPEG_1, 400)), read(tagged(MPEG_1, 400))
        for samples, number in ((0, 2), (1, 3), (1152, 3), (1153, 4), (460_800, 402)):
            self.assertEqual(plain.number_behind(samples), number, samples)
        self.assertEqual(delayed.number_behind(1152 - 1105), 3)
        self.assertEqual(delayed.number_behind(1152 - 1104), 4)

    def test_one_rate(self) -> None:
        """All frames have one bit rate if the number that a header states leads to the last one."""
        loud, quiet = FrameHeader(192, 44100, 2), FrameHeader(64, 44100, 2)
        other = frames(quiet, 1)

        def is_proven(count: int, body: bytes | None = None, stated: int | None = None) -> bool:
            stream = read(counted(MPEG_1, count, body, stated))
            self.assertEqual(stream.frames, count if stated is None else stated)
            return stream.mean is not None

        for count in (16, 18, 400):
            self.assertTrue(is_proven(count), count)
            self.assertTrue(is_proven(count, mp3(MPEG_1, count) + bytes(500)), count)
            for stated in (count - 1, count + 1, 0):
                self.assertFalse(is_proven(count, stated=stated), (count, stated))
        for body in (
            mp3(MPEG_1, 200) + mp3(loud, 200),
            mp3(MPEG_1, 200) + other + mp3(MPEG_1, 199, 200),
            # The first frames differ, or end.
            *(mp3(MPEG_1, count) + other + mp3(MPEG_1, 399 - count) for count in (1, 15)),
            mp3(MPEG_1, 10) + bytes(10) + mp3(MPEG_1, 390),
        ):
            self.assertFalse(is_proven(400, body))
        self.assertFalse(is_proven(10))

    def test_lowest_rate(self) -> None:
        """Silence at the lowest bit rate proves no other one, but the number of frames does."""
        low = FrameHeader(32, 48000, 1)
        for file, is_proven in (
            (tagged(low, 400, flags=3), True),
            (tagged(low, 400, flags=3, stated=401), False),
            (frames(low, 400), False),
        ):
            stream = read(file, rate=48000)
            self.assertEqual(stream.mean is not None, is_proven, file[:60])

    def test_offsets(self) -> None:
        """The place of each frame follows from its number, also where some have more bytes."""
        for file in (counted(MPEG_1, 300), ID3 + counted(MPEG_1, 300) + ID3_V1):
            stream = read(file)
            starts, _ = stream.form.follow(file[stream.first :])
            for number in (1, 2, 3, 100, 101, 102, 250, 297):
                self.assertEqual(offset_of(file, stream, number), stream.first + starts[number])
            # Three frames have to follow each other there.
            for number in (298, 299, 300, 305, 9999):
                self.assertIsNone(offset_of(file, stream, number), number)

    def test_other_bytes(self) -> None:
        """A place of other bytes than three frames is none of a stream with one bit rate."""
        file = counted(MPEG_1, 300)
        stream = read(file)
        starts = [stream.first + at for at in stream.form.follow(file[stream.first :])[0]]
        at = starts[101]
        damaged = file[:at] + bytes(4) + file[at + 4 :]
        for number in (99, 100, 101):
            self.assertIsNone(offset_of(damaged, stream, number), number)
        for number in (98, 102):
            self.assertEqual(offset_of(damaged, stream, number), starts[number])
        # A frame that is a byte or two off.
        for more in (b"", b"\0", b"\0\0"):
            moved = file[:at] + more + file[at:]
            self.assertEqual(offset_of(moved, stream, 101), at + len(more))
        self.assertIsNone(offset_of(file[:at] + bytes(4) + file[at:], stream, 101))

    def test_chance(self) -> None:
        """A frame of another bit rate is at the place of a number by chance."""
        quiet, loud = FrameHeader(64, 48000, 2), FrameHeader(320, 48000, 2)
        # Their lengths are 192 and 960 bytes, so all frames are where one bit rate leads to.
        body = frames(quiet, 50) + frames(loud, 50) + frames(quiet, 50)
        file = counted(quiet, 350, body)
        stream = read(file, rate=48000)
        self.assertEqual((stream.mean, stream.frames), (192, 350))
        # Those with the numbers 47 to 49 are the last ones ahead of the loud ones.
        for number in (40, 47):
            self.assertEqual(offset_of(file, stream, number), stream.first + number * 192)
        for number in (48, 49, 50, 60):
            self.assertIsNone(offset_of(file, stream, number), number)
        # Three loud ones follow each other at the place of a quiet one.
        self.assertIsNone(offset_of(file, stream, 55))


class StartTests(SynchronousTestCase):
    """`FrameStream.may_start` and `find_start`"""

    def start(self, parts: list[bytes], number: int) -> int | None:
        """Return the number of the frame at which decoding starts instead of one."""
        file = b"".join(parts)
        stream = read(file)
        point = start_of(file, stream, number)
        if point is None:
            return None
        found = point.sample // 1152
        self.assertEqual(point, stream.point(found, sum(map(len, parts[:found]))))
        return found

    def test_header_frame(self) -> None:
        """ffmpeg takes a frame with the name of an encoder's header for one, in joined files."""
        frame = frames(MPEG_1, 1)
        for name in (b"Xing", b"Info", b"VBRI"):
            for at, is_start in ((36, False), (188, False), (189, True), (300, True)):
                named = frame[:at] + name + frame[at + 4 :]
                parts = [*[frame] * 50, named, *[frame] * 50]
                self.assertEqual(self.start(parts, 50), 50 if is_start else 49, (name, at))
                self.assertEqual([self.start(parts, each) for each in (49, 51)], [49, 51])

    def test_successor(self) -> None:
        """ffmpeg leaves out a first frame whose successor has other bits than its own."""
        frame = frames(MPEG_1, 1)
        # The mode, its extension, copyright, original, and emphasis.
        for bit in (0x40, 0x30, 0x08, 0x04, 0x03):
            is_start = bit == 0x30
            other = frame[:3] + bytes((frame[3] ^ bit,)) + frame[4:]
            joined = [*[frame] * 50, *[other] * 50]
            expected = [48, 49 if is_start else 48, 50, 51]
            self.assertEqual([self.start(joined, n) for n in (48, 49, 50, 51)], expected, bit)
            # One frame inside.
            single = [*[frame] * 50, other, *[frame] * 50]
            self.assertEqual(self.start(single, 50), 50 if is_start else 48, bit)
        # The rate of bits and the padding may differ.
        for loud in (FrameHeader(320, 44100, 2), FrameHeader(128, 44100, 2, 1)):
            self.assertEqual(self.start([*[frame] * 50, *[frames(loud, 1)] * 50], 49), 49)

    def test_steps(self) -> None:
        """The search tries sixteen frames, and never the first one."""
        frame = frames(MPEG_1, 1)
        other = frame[:3] + bytes((frame[3] ^ 0x40,)) + frame[4:]
        pair = [frame, other]

        def start(ahead: int, changes: int, number: int) -> int | None:
            """Return the start in frames of one mode, then of two modes in turn, then of one."""
            turns = [pair[count % 2] for count in range(changes + 1)]
            return self.start([*[frame] * ahead, *turns, *[turns[-1]] * 50], number)

        # Frames from 50 on are followed by frames of another mode.
        for changes, expected in ((0, 50), (1, 49), (14, 49), (15, 49), (16, None), (30, None)):
            number = 50 + max(0, changes - 1)
            self.assertEqual(start(50, changes, number), expected, changes)
        self.assertIsNone(start(0, 10, 9))
        self.assertEqual(start(0, 10, 10), 10)
        self.assertIsNone(start(1, 10, 10))
        self.assertEqual(start(2, 10, 11), 1)

    def test_other_codecs(self) -> None:
        """Any frame of ADTS and AC-3 may be a start, whatever is in it and behind it."""
        for first, kind in ((adts(content=b"Info"), "aac"), (ac3(768, rate_code=0), "ac3")):
            file = first * 50 + adts(300) * 50 if kind == "aac" else first * 99
            rate = 44100 if kind == "aac" else 48000
            stream = read(file, kind, rate)
            for number in (1, 49, 50):
                point = start_of(file, stream, number)
                self.assertEqual(point, stream.point(number, number * len(first)))
