"""Streams of frames: mp3, ADTS, AC-3 and E-AC-3."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.containers import run_reader
from audioproxy.media.lengths.mpeg_frame import FrameHeader
from audioproxy.media.probe import Probe
from audioproxy.media.seeking.frames import FrameStream, find_offset, read_stream
from audioproxy.media.seeking.point import SeekPoint
from tests.media.lengths.test_mp3 import MPEG_1, MPEG_2, frames, tagged, vbri
from tests.support.audio import run_in_memory
from tests.support.strategies import DETERMINISTIC

ID3 = b"ID3\4\0\0\0\0\0\5hello"
ID3_V1 = b"TAG" + bytes(125)


def mp3(header: FrameHeader, count: int, first: int = 0) -> bytes:
    """Return frames of one bit rate, some of which are longer by one byte."""
    mean = Fraction(header.samples * header.kbps * 1000, 8 * header.rate)
    parts = []
    for index in range(first, first + count):
        size = int((index + 1) * mean) - int(index * mean)
        padding = size - header.length_at(header.kbps)
        each = FrameHeader(header.kbps, header.rate, header.channels, padding)
        parts.append(bytes(each).ljust(size, b"\0"))
    return b"".join(parts)


def adts(
    size: int = 200,
    *,
    rate_index: int = 4,
    channels: int = 2,
    blocks: int = 0,
    content: bytes = b"",
    sync: bytes = b"\xff\xf1",
) -> bytes:
    """Return a frame of ADTS; by default at 44.1 kHz."""
    header = sync + bytes(
        (
            1 << 6 | rate_index << 2 | channels >> 2,
            (channels & 3) << 6 | size >> 11,
            size >> 3 & 0xFF,
            (size & 7) << 5 | 0x1F,
            0xFC | blocks,
        )
    )
    return (header + content).ljust(size, b"\0")[: max(size, 7)]


def ac3(size: int, code: int = 20, *, rate_code: int = 0, bsid: int = 8) -> bytes:
    """Return a frame of AC-3; code 20 stands for 192 kbps, 768 bytes at 48 kHz."""
    header = bytes((0x0B, 0x77, 1, 2, rate_code << 6 | code, bsid << 3, 2 << 5, 0))
    return header.ljust(size, b"\0")


def eac3(
    size: int = 400, *, rate_code: int = 0, blocks: int = 3, bsid: int = 16, kind: int = 0
) -> bytes:
    """Return a frame of E-AC-3.

    :param kind: of the substream, and its number.
    """
    words = size // 2 - 1
    header = (kind << 3 | words >> 8, words & 0xFF, rate_code << 6 | blocks << 4 | 4, bsid << 3)
    return (b"\x0b\x77" + bytes(header)).ljust(size, b"\0")


def read(file: bytes, kind: str = "mp3", rate: int = 44100) -> FrameStream | None:
    """Return the stream of a file; the container has the name of the codec."""
    size, probe = len(file), Probe(kind, kind, None, False, sample_rate=rate)
    return run_in_memory(lambda read: run_reader(read, size, read_stream(size, probe)), file)


def offset_of(file: bytes, stream: FrameStream, number: int) -> int | None:
    """Return the offset of a frame of a stream with one bit rate."""
    assert stream.mean is not None
    finding = find_offset(stream, stream.mean, number)
    return run_in_memory(lambda read: run_reader(read, len(file), finding), file)


def odd_ac3(count: int) -> bytes:
    """Return frames of AC-3 with 64 kbps at 44.1 kHz, of which some are longer by two bytes."""
    mean = Fraction(1536 * 64000, 16 * 44100)
    parts = []
    for index in range(count):
        words = int((index + 1) * mean) - int(index * mean)
        parts.append(ac3(2 * words, 8 + (words > int(mean)), rate_code=1))
    return b"".join(parts)


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
            (ac3(768) * 50, "ac3", 48000, 1536, Fraction(768)),
            (odd_ac3(50), "ac3", 44100, 1536, Fraction(1536 * 64000, 8 * 44100)),
            (ac3(1152, rate_code=2) * 50, "ac3", 32000, 1536, Fraction(1152)),
            (eac3() * 50, "eac3", 48000, 1536, Fraction(400)),
            (eac3(blocks=0, rate_code=1) * 50, "eac3", 44100, 256, Fraction(400)),
        ):
            for before, behind in ((b"", b""), (ID3, b""), (b"", ID3_V1)):
                stream = read(before + file + behind, kind, rate)
                assert stream is not None, kind
                self.assertEqual((stream.form.demuxer, stream.form.samples), (kind, samples))
                self.assertEqual((stream.first, stream.delay), (len(before), 0))
                self.assertEqual(stream.end, len(before + file))
                self.assertEqual(stream.mean, mean, kind)

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
            assert stream is not None, kind
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
            self.assertIsNone(read(file, kind, rate), (kind, file[:8]))

    def test_encoder_header(self) -> None:
        """The frame of an encoder's header is none of the stream, and states the delay of it."""
        file = tagged(MPEG_1, 100)
        stream = read(file)
        assert stream is not None
        self.assertEqual((stream.first, stream.delay), (MPEG_1.length, 576 + 529))
        stream = read(vbri(100, 10))
        assert stream is not None
        self.assertEqual((stream.first, stream.delay), (MPEG_1.length, 0))

    @DETERMINISTIC
    @given(
        st.lists(st.tuples(st.integers(1, 14), st.booleans()), min_size=1, max_size=20),
        st.lists(st.sampled_from((0x00, 0xFF, 0xFB, 0x90, 0x44)), min_size=1, max_size=40),
        st.integers(0, 1100),
    )
    def test_follow(self, kinds: list[tuple[int, bool]], inside: list[int], missing: int) -> None:
        """All frames that follow each other are found, whatever bytes are inside them.

        The last one is that whose successor has not all of its header in the data.
        """
        stream = read(mp3(MPEG_1, 40))
        assert stream is not None
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
        assert plain is not None and delayed is not None
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
        self.assertEqual(delayed.point(50, 12345), SeekPoint(50 * 1152 - 1105, 12345, "mp3"))

    def test_least_numbers(self) -> None:
        """A stream has all samples if it reaches two frames past them: decoders may drop some."""
        plain, delayed = read(mp3(MPEG_1, 400)), read(tagged(MPEG_1, 400))
        assert plain is not None and delayed is not None
        for samples, number in ((0, 2), (1, 3), (1152, 3), (1153, 4), (460_800, 402)):
            self.assertEqual(plain.number_behind(samples), number, samples)
        self.assertEqual(delayed.number_behind(1152 - 1105), 3)
        self.assertEqual(delayed.number_behind(1152 - 1104), 4)

    def assert_proven(self, file: bytes, *, proven: bool, kind: str = "mp3") -> None:
        """Require a stream whose frames have one bit rate, or do not."""
        stream = read(file, kind)
        assert stream is not None
        self.assertEqual(stream.mean is not None, proven)
        self.assertEqual(stream.frames > 0, proven)

    def test_one_rate(self) -> None:
        """All frames have one bit rate if those at the start do, and the last is at its place."""
        loud, quiet = FrameHeader(192, 44100, 2), FrameHeader(64, 44100, 2)
        other = frames(quiet, 1)
        for file, proven in (
            (mp3(MPEG_1, 400), True),
            (mp3(MPEG_1, 18), True),
            # No whole number of frames leads to the last one.
            (mp3(MPEG_1, 200) + mp3(loud, 201), False),
            (mp3(MPEG_1, 200) + other + mp3(MPEG_1, 200, 200), False),
            # The first frames differ, or end.
            *((mp3(MPEG_1, count) + other + mp3(MPEG_1, 200), False) for count in (1, 15)),
            (mp3(MPEG_1, 10) + bytes(10) + mp3(MPEG_1, 20), False),
            (mp3(MPEG_1, 10), False),
        ):
            self.assert_proven(file, proven=proven)
        for count in (18, 400):
            stream = read(mp3(MPEG_1, count) + bytes(500))
            assert stream is not None
            self.assertEqual(stream.frames, count)
        self.assert_proven(odd_ac3(400), proven=True, kind="ac3")
        self.assert_proven(odd_ac3(200) + ac3(700, 18, rate_code=1) * 9, proven=False, kind="ac3")

    def test_stated_number(self) -> None:
        """An encoder's header that states another number of frames contradicts one bit rate."""
        exact = FrameHeader(128, 48000, 2)

        def is_proven(stated: int) -> bool:
            stream = read(tagged(exact, 400, stated=stated), rate=48000)
            assert stream is not None
            return stream.mean is not None

        self.assertEqual([is_proven(count) for count in (399, 400, 401)], [False, True, False])

    def test_offsets(self) -> None:
        """The place of each frame follows from its number, also where some have more bytes."""
        for file, kind in ((ID3 + mp3(MPEG_1, 300), "mp3"), (odd_ac3(300) + ID3_V1, "ac3")):
            stream = read(file, kind)
            assert stream is not None
            starts, _ = stream.form.follow(file[stream.first :])
            for number in (1, 2, 3, 100, 101, 102, 250, 297):
                self.assertEqual(offset_of(file, stream, number), stream.first + starts[number])
            # Three frames have to follow each other there.
            for number in (298, 299, 300, 305, 9999):
                self.assertIsNone(offset_of(file, stream, number), number)

    def test_other_bytes(self) -> None:
        """A place of other bytes than three frames is none of a stream with one bit rate."""
        file = mp3(MPEG_1, 300)
        stream = read(file)
        assert stream is not None
        starts, _ = stream.form.follow(file)
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

    def test_compared(self) -> None:
        """Some frames ahead are compared, too, in mp3 whose frames nobody has counted."""
        for file, kind, numbers in (
            (mp3(MPEG_1, 400), "mp3", (25, 50, 75, 100)),
            (tagged(MPEG_1, 400), "mp3", (100,)),
            (odd_ac3(400), "ac3", (100,)),
        ):
            stream = read(file, kind)
            assert stream is not None
            self.assertEqual(stream.compared(100), numbers, kind)

    def test_chance(self) -> None:
        """A frame of another bit rate is at the place of a number by chance."""
        quiet, loud = FrameHeader(64, 48000, 2), FrameHeader(320, 48000, 2)
        # Their lengths are 192 and 960 bytes, so all frames are where one bit rate leads to.
        file = frames(quiet, 50) + frames(loud, 50) + frames(quiet, 50)
        stream = read(file, rate=48000)
        assert stream is not None
        self.assertEqual((stream.mean, stream.frames), (192, 350))
        # Those with the numbers 47 to 49 are the last ones ahead of the loud ones.
        for number in (40, 47):
            self.assertEqual(offset_of(file, stream, number), number * 192)
        for number in (48, 49, 50, 60, 290):
            self.assertIsNone(offset_of(file, stream, number), number)

    def test_lowest_rate(self) -> None:
        """Silence at the start proves nothing about the bit rate, unless an encoder has counted."""
        low, lower = FrameHeader(32, 48000, 1), FrameHeader(8, 24000, 1)
        counted = tagged(low, 400, flags=3)
        for file, header, proven in (
            (frames(low, 400), low, False),
            (frames(lower, 400), lower, False),
            (counted, low, True),
        ):
            stream = read(file, rate=header.rate)
            assert stream is not None
            self.assertEqual(stream.mean is not None, proven, (header, proven))
