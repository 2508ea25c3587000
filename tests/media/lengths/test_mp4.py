"""Lengths of AAC and ALAC in MP4."""

from __future__ import annotations

import struct
from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.reading import SourceLength
from tests.support.audio import find_length_of
from tests.support.mp4 import box, configuration, description, edits, full_box, mp4, tables, track
from tests.support.probes import Probe, replace


def find(
    file: bytes, codec: str = "aac", gapless: str = "", start: str = "0"
) -> SourceLength | None:
    """Find the length of a file, whose audio ffprobe reports to start at a number of seconds."""
    probe = Probe("mov", codec, None, False, sample_rate=44100)
    return find_length_of(file, replace(probe, gapless=gapless, start=Decimal(start)))


def found(
    file: bytes,
    codec: str = "aac",
    gapless: str = "",
    start: str = "0",
    *,
    even: bool = True,
    packet: int = 1024,
) -> int | None:
    """Return the number of samples that is found; the padding of a packet may follow them."""
    length = find(file, codec, gapless, start)
    if length is None:
        return None
    assert length == SourceLength(length.samples, ends_in_padding=True, block=packet, seekable=even)
    return length.samples


class Mp4Tests(SynchronousTestCase):
    """`read_mp4`"""

    def test_samples(self) -> None:
        """The length is that of all packets of the first audio track."""
        for version in (0, 1):
            sound = track((10, 1024), (1, 500), version=version)
            other = track((9, 9), handler=b"text", rate=600)
            for tracks in ((sound,), (other, sound), (sound, track((1, 1)))):
                self.assertEqual(found(mp4(*tracks, version=version)), 10740)
        self.assertEqual(found(mp4(track((3, 4096))), "alac", packet=4096), 12288)

    def test_tables(self) -> None:
        """A length is known only where all tables have as many packets, and the file has them."""
        for more in (
            tables(11, (1, 8), (2, 3)),
            tables(11, (1, 8), (2, 3), long=True),
            tables(10, (1, 5), offsets=(0, 0)) + tables(10, (1, 5)),
            full_box(b"stz2", struct.pack(">II", 16, 10)),
        ):
            count = 10 if b"stz2" in more or more.count(b"stsz") == 2 else 11
            self.assertEqual(found(mp4(track((count, 1024), more=more))), count * 1024)
        for more in (
            tables(12, (1, 8), (2, 3)),
            tables(11, (1, 8), (2, 2)),
            tables(11, (1, 11)),
            tables(11, (1, 8), (2, 3), offsets=(0, 9999)),
            tables(11, (1, 8), (2, 3), offsets=(0, 1 << 40), long=True),
        ):
            self.assertIsNone(found(mp4(track((11, 1024), more=more))))
        # A table too large to be read tells nothing.
        much = tables(11, *[(1, 8)] * 6000)
        self.assertEqual(found(mp4(track((11, 1024), more=much))), 11 * 1024)

    def test_edit_list(self) -> None:
        """The edit list tells where the audio starts and ends."""
        for movie_rate, duration, samples in (
            (44100, 8000, 8000),
            (44100, 9999, 10240 - 1024),
            # It is rounded to a millisecond, so the packets tell the end.
            (1000, 208, 10240 - 1024),
            (1000, 209, 10240 - 1024),
            (1000, 200, 8820),
            (1000, 0, 10240 - 1024),
        ):
            for version in (0, 1):
                sound = track((10, 1024), edits=edits((duration, 1024), version=version))
                self.assertEqual(found(mp4(sound, rate=movie_rate)), samples, duration)

    def test_gapless(self) -> None:
        """Without an edit list, a consistent ``iTunSMPB`` tells the delay and the padding."""
        file, start = mp4(track((10, 1024))), "0.047891"
        rest = " 00000000" * 8
        for gapless, samples in (
            (f" 00000000 00000840 00000064 0000000000001F5C{rest}", 10240 - 2112 - 100),
            ("0 840 64 1f5c", 10240 - 2112 - 100),
            (f" 00000000 00000840 00000064 0000000000001F5D{rest}", 10240 - 2112),
            (f" 00000000 00000840 7FFFFFFF 0000000000001F5C{rest}", 10240 - 2112),
            *((each, 10240 - 2112) for each in ("", "hello", " 00000000 00000840", "0 840 64 -1")),
        ):
            self.assertEqual(found(file, gapless=gapless, start=start), samples, gapless)
        # ffmpeg does not skip the delay of a track before the last one.
        self.assertEqual(found(file, gapless="0 840 64 1f5c"), 10240 - 100)

    def test_two_delays(self) -> None:
        """If ``iTunSMPB`` contradicts the edit list, the length is unknown."""
        file = mp4(track((10, 1024), edits=edits((0, 2112))))
        for gapless in ("0 840 64 1f5c", "0 0 64 0", "0 4000 64 1f5c", "hello"):
            self.assertEqual(found(file, gapless=gapless), 10240 - 2112, gapless)
        self.assertIsNone(found(file, gapless="0 400 64 1f5c"))

    def test_late(self) -> None:
        """After an empty edit, nothing but the position of the samples is certain."""
        for version in (0, 1):
            late = edits((700, -1), (200, 1024), version=version)
            found = find(mp4(track((10, 1024), edits=late)))
            self.assertEqual(found, SourceLength(0, exact=False, block=1024, seekable=True))

    def test_last_packet(self) -> None:
        """The last packet may be shorter than the others; no silence follows it."""
        for table, samples in (
            (((5, 1024), (4, 1024)), 9216),
            (((1, 1024), (1, 7)), 1031),
            (((5, 1024), (1, 50_000)), 6144),
        ):
            self.assertEqual(found(mp4(track(*table))), samples)

    def test_gaps(self) -> None:
        """Packets that begin late have silence ahead of them (D70); the file is not sought in."""
        jump = 601 * 44100
        for table, samples in (
            (((5, 1024), (1, 50_000), (4, 1024)), 59_216),
            (((5, 1024), (1, 1536), (4, 1024)), 10_752),
            (((5, 1024), (3, 50_000), (9, 1024)), 164_336),
            # More than ten minutes are a damaged time stamp.
            (((5, 1024), (1, jump), (3, 1024), (1, 2048), (4, 1024)), 15_360),
        ):
            length = find(mp4(track(*table)))
            expected = SourceLength(samples, ends_in_padding=True, block=1024, has_gaps=True)
            self.assertEqual(length, expected, table)
        # The first packet of AAC is the encoder's delay.
        late = track((1, 50_000), (9, 1024), description=description(b"mp4a", configuration(2, 4)))
        self.assertEqual(found(mp4(late), even=False, packet=1024), 10_240)

    def test_uneven(self) -> None:
        """A file in which packets begin a little early or late is not sought in."""
        for table in (((5, 1024), (2, 1000)), ((9, 1024), (1, 1023), (1, 1024))):
            samples = sum(count * duration for count, duration in table)
            self.assertEqual(found(mp4(track(*table)), even=False), samples)

    def test_wrong_spacing(self) -> None:
        """Where the time stamps cut more than a packet, no more than a least length is known."""
        aac = description(b"mp4a", configuration(2, 4))
        for spacing, edit, least in (
            (1010, b"", 98 * 1024),
            (1036, b"", 98 * 1024),
            # Half of the speed.
            (2048, b"", 98 * 1024),
            (512, edits((0, 512)), 97 * 1024),
        ):
            table = (99, spacing), (1, min(spacing, 1024))
            length = find(mp4(track(*table, edits=edit, description=aac)))
            assert length is not None
            self.assertLessEqual(length.samples, least, spacing)
            self.assertGreater(length.samples, least - 3 * 1024, spacing)
            self.assertEqual(length, SourceLength(length.samples, exact=False), spacing)
        short = track((3, 1010), description=aac)
        self.assertIsNone(find(mp4(track((1, 1), (1, 1), description=aac))))
        self.assertIsNotNone(find(mp4(short)))

    def test_frames(self) -> None:
        """The samples of a packet are those of the codec, if the file describes it."""
        for codec, entry, frame in (
            ("aac", description(b"mp4a", configuration(2, 4)), 1024),
            # Frames of 960 samples.
            ("aac", description(b"mp4a", configuration(2, 4, flags=4)), 960),
            # The core of HE-AAC has half of the rate.
            ("aac", description(b"mp4a", configuration(5, 7)), 2048),
            ("aac", description(b"mp4a", configuration(2, 7)), 2048),
            # Low delay, and a rate that is spelled out: the first packet decides.
            ("aac", description(b"mp4a", configuration(23, 4)), 900),
            ("aac", description(b"mp4a", configuration(2, 15)), 900),
            ("aac", description(b"mp4a", b""), 900),
            ("alac", description(b"alac", box(b"alac", bytes(4), struct.pack(">I", 4096))), 4096),
            ("mp3", description(b".mp3", b""), 1152),
        ):
            length = find(mp4(track((99, 900), description=entry)), codec)
            right = find(mp4(track((9, frame), description=entry)), codec)
            expected = SourceLength(9 * frame, ends_in_padding=True, block=frame, seekable=True)
            self.assertEqual(right, expected, (codec, frame))
            self.assertIs(length is not None and length.exact, frame == 900, (codec, frame))

    def test_half_rate(self) -> None:
        """The time of HE-AAC may be that of its core, with half of the rate."""
        entry = description(b"mp4a", configuration(5, 7))

        def half(edits: bytes = b"", **more: str) -> SourceLength | None:
            sound = track((10, 1024), rate=22050, edits=edits, description=entry)
            return find(mp4(sound, rate=44100), **more)

        whole = SourceLength(20480, ends_in_padding=True, block=2048)
        self.assertEqual(half(), whole)
        self.assertEqual(half(edits((9000, 1500))), replace(whole, samples=9000, first_stamp=0))
        self.assertEqual(
            half(edits((0, 1500))), replace(whole, samples=20480 - 3000, first_stamp=0)
        )
        # Versions of ffmpeg skip half of the delay of the tag, or all of it.
        tag = "0 400 64 239C"
        for start, first in (("0.023220", 1024), ("0.046440", 0)):
            self.assertEqual(
                half(gapless=tag, start=start),
                replace(whole, samples=20480 - 2048 - 200, first_stamp=first),
            )
        self.assertIsNone(half(gapless="0 400 64 1", start="0.023220"))
        self.assertEqual(half(gapless=tag), replace(whole, samples=20480 - 200))

    def test_more_bytes(self) -> None:
        """Bytes after the last box, such as a tag, are no audio."""
        whole = mp4(track((10, 1024)))
        for tail in (b"\0", bytes(300), b"TAG" + bytes(125), b"\0\0\1\0free"):
            self.assertEqual(found(whole + tail), 10240, tail)
        # A box of audio that was cut.
        for name in (b"mdat", b"moov", b"moof"):
            self.assertIsNone(found(whole + b"\0\0\1\0" + name), name)
        start = whole[: whole.index(b"mdat") - 4]
        self.assertIsNone(found(start + bytes(300)))

    def test_unknown(self) -> None:
        """Files that are cut or fragmented, and edits of other kinds, have no known length."""
        sound = track((10, 1024))
        whole = mp4(sound)
        to_the_end = whole.replace(struct.pack(">I4s", 98, b"mdat"), b"\0\0\0\0mdat")
        for file in (
            *(b"", b"\0\0\0\7free", mp4(), mp4(track((10, 1024), handler=b"vide")), whole[:-1]),
            *(to_the_end, mp4(sound, rate=0), whole + box(b"free") * 64),
            *(whole.replace(b"free", b"moof"), whole.replace(b"mdhd", b"xxxx")),
            *(mp4(track((10, 1024), rate=11025)), mp4(track())),
            *(whole.replace(b"stts", b"xxxx"), whole.replace(b"mvhd", b"xxxx")),
            *(
                mp4(track((10, 1024), edits=each))
                for each in (
                    *(edits((9, 0), count=2), edits((9, -1)), edits((9, 0), rate=1 << 15)),
                    *(edits(count=0), edits((9, 0), (9, 9)), edits((9, -1), (9, 0), (9, 9))),
                )
            ),
            mp4(track((10, 1024), edits=box(b"edts", b""))),
            mp4(track(*[(1, 1)] * 9000)),
        ):
            self.assertIsNone(found(file), file[:80])

    def test_skipped_silence(self) -> None:
        """A whole file of AMR has the stated length at least, since decoders skip silence (D70)."""
        whole = mp4(track((480, 160), rate=8000))
        stated = Probe("mov", "amr_nb", Decimal("9.6"), exact=True, sample_rate=8000)
        expected = SourceLength(76_800, exact=False, has_gaps=True)
        self.assertEqual(find_length_of(whole, stated), expected)
        self.assertIsNone(find_length_of(whole[:-1], stated))
        self.assertIsNone(find_length_of(whole, replace(stated, exact=False)))
