"""Lengths of mp3 files."""

from __future__ import annotations

from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.info_document import SourceInfo
from audioproxy.media.lengths.mp3 import Stated, read_duration, read_encoder_header
from audioproxy.media.lengths.mpeg_frame import FrameHeader
from audioproxy.media.reading import SourceLength
from tests.support.audio import find_length_of, search
from tests.support.mpeg import ID3, MPEG_1, MPEG_2, crc, frames, tagged, vbri
from tests.support.probes import Probe


def found(file: bytes, rate: int = 44100) -> SourceLength | None:
    return find_length_of(file, Probe("mp3", "mp3", None, False, sample_rate=rate))


def stated(samples: int, block: int = 1152) -> SourceLength:
    """Return a length that a header states; only such a file can be sought in."""
    return SourceLength(samples, is_stated_only=True, block=block)


class DurationTests(SynchronousTestCase):
    """`read_duration`"""

    def read(self, file: bytes, duration: str | None) -> SourceInfo | None:
        """Return the description of a file for which ffprobe reports a duration."""
        seconds = None if duration is None else Decimal(duration)
        info = SourceInfo(duration=seconds, bitrate=128_000)
        probe = Probe("mp3", "mp3", seconds, True, sample_rate=44100, description=info)
        described = search(read_duration(len(file), probe), file)
        return None if described is None else described.description

    def test_other(self) -> None:
        """A duration that is not that of the header's frames remains."""
        for file, duration in (
            (tagged(MPEG_1, 100), "2.576508"),
            (tagged(MPEG_1, 100), "2.7"),
            (tagged(MPEG_1, 100), None),
            (tagged(MPEG_1, 0), "0"),
            (frames(MPEG_1, 100), "2.612245"),
            (b"no audio" * 40, "2.612245"),
            (b"", "2.612245"),
        ):
            self.assertIsNone(self.read(file, duration), duration)


class EncoderHeaderTests(SynchronousTestCase):
    """`read_encoder_header`"""

    def read(self, file: bytes) -> Stated | None:
        """Return what the header of a file states; None where that is unknown."""
        return search(read_encoder_header(len(file)), file)

    def test_stated(self) -> None:
        """The first frame of audio is behind the header.

        Some programs state a delay and a padding, of which the decoder's own 529 samples are a
        part.
        """
        size = MPEG_1.length
        delay, samples = 576 + 529, 100 * 1152 - 576 - 1000
        for file, expected in (
            (tagged(MPEG_1, 100), Stated(size, delay, 100, samples)),
            (ID3 + tagged(MPEG_1, 100, name=b"Xing"), Stated(len(ID3) + size, delay, 100, samples)),
            (tagged(MPEG_1, 100, delays=b"Gogo\0\0\0\0\0"), Stated(size, 0, 100, 115_200)),
            # ffmpeg takes the numbers as they are stated.
            (tagged(MPEG_1, 100, stated=7, checksum=1), Stated(size, delay, 7, 7 * 1152 - 1576)),
            (vbri(100, 10), Stated(size, 0, 100, 115_200)),
            (frames(MPEG_1, 100), Stated(0)),
            (ID3 + frames(MPEG_1, 100), Stated(len(ID3))),
        ):
            self.assertEqual(self.read(file), expected, file[:60])

    def test_unknown(self) -> None:
        """A header frame that ffmpeg may decode is no known start, nor is anything but a frame."""
        vbri_of_two = vbri(100, 10).replace(b"VBRI\0\1", b"VBRI\0\2")
        for file in (tagged(MPEG_1, 100, flags=1), vbri_of_two, bytes(999), b""):
            self.assertIsNone(self.read(file), file[:60])


class Mp3Tests(SynchronousTestCase):
    """`read_mp3`"""

    def test_header(self) -> None:
        """An encoder's header tells the length; ffmpeg skips the delays of these encoders only."""
        for name in (b"Info", b"Xing"):
            for flags in (3, 7, 15):
                file = tagged(MPEG_1, 100, name=name, flags=flags)
                self.assertEqual(found(file), stated(115200 - 576 - 1000))
        for writer in (b"Lavf\0\0\0\0\0", b"Lavc59.37"):
            file = tagged(MPEG_2, 100, delays=writer)
            self.assertEqual(found(file, 22050), stated(57600 - 576 - 1000, 576))
        for writer in (b"Gogo\0\0\0\0\0", None):
            self.assertEqual(found(tagged(MPEG_1, 100, delays=writer)), stated(115200))
        self.assertEqual(found(vbri(100, 10)), stated(115200))

    def test_sizes(self) -> None:
        """The size may include the header frame or not, and never includes tags."""
        tag = b"ID3\4\0\0\0\0\0\5abcde"
        for size in (100 * MPEG_1.length, 101 * MPEG_1.length):
            file = tag + tagged(MPEG_1, 100, size=size) + b"TAG" + bytes(125)
            self.assertEqual(found(file), stated(115200 - 1576))

    def test_checksum(self) -> None:
        """A header that was changed without its checksum states no length.

        ffmpeg computes the checksum of 190 bytes, also where fewer are ahead of it. Other programs
        leave it out.
        """
        known, other = tagged(MPEG_2, 100), tagged(MPEG_2, 100, checksum=1, name=b"Xing")
        at = known.index(b"LAME") + 34
        whole = crc((known[:at] + bytes(2)).ljust(190, b"\0"))
        for checksum in (0, whole):
            file = tagged(MPEG_2, 100, checksum=checksum)
            self.assertEqual(found(file, 22050), found(known, 22050))
        for file in (other, tagged(MPEG_2, 100, checksum=whole + 1)):
            length = found(file, 22050)
            assert length is not None
            self.assertIs(length.exact, False)

    def test_table(self) -> None:
        """The table of VBRI has entries for all frames."""
        for entries, is_exact in ((9, True), (10, True), (11, True), (5, False), (20, False)):
            length = found(vbri(100, entries))
            assert length is not None
            self.assertEqual(length.exact, is_exact, entries)

    def test_ends(self) -> None:
        """No length is known where the frames at both ends are not those of one stream."""
        faster, mono = FrameHeader(192, 44100, 2), FrameHeader(128, 44100, 1)
        other = FrameHeader(128, 48000, 2)
        self.assertTrue(self.is_exact(frames(MPEG_1, 40)))
        for more in (frames(mono, 40), frames(other, 40), frames(MPEG_1, 2) + bytes(600)):
            self.assertFalse(self.is_exact(more))
        # Frames of another bit rate.
        self.assertTrue(self.is_exact(frames(faster, 40)))
        constant = frames(faster, 1) + frames(FrameHeader(64, 44100, 2), 1)
        self.assertFalse(self.is_exact(constant, name=b"Info", stated=102))

    def is_exact(self, more: bytes, *, name: bytes = b"Xing", stated: int = 140) -> bool:
        """Return whether a length is known of a hundred frames and more of them."""
        length = found(tagged(MPEG_1, 100, name=name, stated=stated, more=more))
        return length is not None and length.exact

    def test_few_frames(self) -> None:
        """A file of few frames is compared up to its end, and another one at its beginning."""
        for count in (2, 3, 15, 16, 17, 18):
            self.assertEqual(found(tagged(MPEG_1, count)), stated(count * 1152 - 1576))
        file = tagged(MPEG_1, 3, stated=43, more=frames(FrameHeader(128, 44100, 1), 40))
        length = found(file)
        self.assertTrue(length is not None and not length.exact)

    def test_bytes_behind(self) -> None:
        """Bytes behind the last frame do not count for the lower bound."""
        loud = FrameHeader(320, 44100, 2)
        expected = SourceLength(37 * 1152, exact=False)
        self.assertEqual(found(frames(loud, 40) + bytes(3000)), expected)

    def test_lower_bound(self) -> None:
        """Without a header that fits the file, the length is that of the highest bit rate."""
        size = 100 * MPEG_1.length
        for file in (
            *(
                frames(MPEG_1, 101),
                tagged(MPEG_1, 100, size=size + 1),
                tagged(MPEG_1, 100, flags=1),
            ),
            # The number of frames cannot be that of the bytes.
            *(tagged(MPEG_1, 100, stated=stated) for stated in (99, 101, 110)),
            *(tagged(MPEG_1, 100, stated=stated, name=b"Xing") for stated in (10, 1000)),
        ):
            bound = ((size + MPEG_1.length) // 1045 - 2) * 1152
            self.assertEqual(found(file), SourceLength(bound, exact=False))

    def test_unknown(self) -> None:
        """Other files, and files whose end is no audio, have no known length."""
        layer_2 = bytes((0xFF, 0xFD, 0x90, 0x04)).ljust(417, b"\0")
        for file in (
            *(b"", bytes(999), layer_2 * 9, frames(MPEG_1, 100) + bytes(9000)),
            *(frames(MPEG_2, 9), frames(MPEG_1, 1), frames(MPEG_1, 40) + frames(MPEG_2, 90)),
            tagged(MPEG_1, 0) + bytes(500),
            tagged(MPEG_1, 0) + frames(MPEG_2, 9),
        ):
            self.assertIsNone(found(file), file[:40])
