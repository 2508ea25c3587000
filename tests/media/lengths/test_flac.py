"""Lengths of flac files."""

from __future__ import annotations

import struct

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.reading import SourceLength
from tests.support.audio import find_length_of
from tests.support.flac import BLOCK, flac, frame
from tests.support.probes import Probe


def found(file: bytes) -> int | None:
    """Return the number of samples that is found."""
    length = find_length_of(file, Probe("flac", "flac", None, False, sample_rate=44100))
    if length is None:
        return None
    # Without a stated number, the file may consist of two.
    at = file.index(b"fLaC")
    is_unstated = not int.from_bytes(file[at + 18 : at + 26], "big") & 0xFFFF_FFFF
    shortest, longest = struct.unpack_from(">HH", file, at + 8)
    frame_samples = shortest if shortest == longest else 0
    expected = SourceLength(
        length.samples,
        is_stated_only=is_unstated,
        frame_samples=frame_samples,
        seekable=not is_unstated,
    )
    assert length == expected
    return length.samples


class FlacTests(SynchronousTestCase):
    """`read_flac`"""

    def test_last_frame(self) -> None:
        """The last frame tells the length, in all its forms; a stated one has to agree."""
        for frames, samples in (
            ((frame(b"\0"),), BLOCK),
            ((frame(b"\0"), frame(b"\x01", 6, b"\x63")), BLOCK + 100),
            ((frame(b"\0"), frame(b"\x01", 7, b"\x03\xe7")), BLOCK + 1000),
            ((frame(b"\0"), frame(b"\x01", 1)), BLOCK + 192),
            ((frame(b"\0"), frame(b"\x01", 2, rate=13, more=b"\xac\x44")), BLOCK + 576),
            ((frame(b"\0"), frame(b"\xc4\x80")), 257 * BLOCK),
            # Blocks of several sizes have the number of their first sample.
            ((frame(b"\0", sync=0xF9), frame(b"\xe1\x80\x80", sync=0xF9)), 4096 + BLOCK),
        ):
            for total in (0, samples):
                self.assertEqual(found(flac(*frames, total=total)), samples)
            self.assertIsNone(found(flac(*frames, total=samples + 1)))

    def test_form(self) -> None:
        """A file whose last frame has another rate, depth or number of channels is a joined one."""
        for rate, more, form, is_one in (
            *((0, b"", 0, True), (13, b"\xac\x44", 0x08, True), (14, b"\x11\x3a", 0x08, True)),
            *((10, b"", 0x08, False), (12, b"\x2c", 0x08, False), (9, b"", 0x18, False)),
            *((9, b"", 0xA8, False), (9, b"", 0x0C, False)),
        ):
            last = frame(b"\x01", more=more, rate=rate, form=form)
            file = flac(frame(b"\0"), last, total=2 * BLOCK)
            self.assertEqual(found(file), 2 * BLOCK if is_one else None, (rate, form))
            first = frame(b"\0", more=more, rate=rate, form=form)
            file = flac(first, frame(b"\x01"), total=2 * BLOCK)
            self.assertEqual(found(file), 2 * BLOCK if is_one else None, (rate, form))

    def test_room(self) -> None:
        """Where no other file of the same length fits behind a seek point, none is there."""
        frames = [frame(bytes((number,))) for number in range(8)]
        size, total = len(frames[0]), 8 * BLOCK
        point = struct.pack(">QQH", 7 * BLOCK, 7 * size, BLOCK)
        empty = b"\xff" * 8 + bytes(10)
        for points in (b"", point, point + empty, struct.pack(">QQH", 0, 0, BLOCK) + point + empty):
            table = b"\x83" + len(points).to_bytes(3, "big") + points
            # The largest frame is three times as large as all others.
            whole = flac(*frames, total=total, blocks=table, largest=3 * size)
            self.assertEqual(found(whole), total)
            self.assertEqual(found(whole + b"".join(frames)), None if points else total)
        # A table too large to be read is skipped.
        large = b"\x83\x01\x00\x08" + point + bytes(65536 + 8 - len(point))
        self.assertEqual(found(flac(*frames, total=total, blocks=large, largest=3 * size)), total)

    def test_numbers(self) -> None:
        """A file that was joined of two is found by the numbers of the frames inside."""

        def file(count: int) -> bytes:
            return b"".join(frame(bytes((number,))) + bytes(3000) for number in range(count))

        last = frame(b"\x7f")
        self.assertEqual(found(flac(file(127), last)), 128 * BLOCK)
        for first in (3, 20, 60, 127):
            self.assertIsNone(found(flac(file(first), file(127), last)), first)
            joined = flac(file(first), file(127), last, total=128 * BLOCK)
            self.assertIsNone(found(joined), first)
        # No frame is near a place.
        self.assertIsNone(found(flac(frame(b"\0"), bytes(400_000), last)))

    def test_surroundings(self) -> None:
        """Tags at both ends and further blocks of metadata are skipped."""
        tag = b"ID3\4\0\0" + bytes((0, 0, 1, 2)) + bytes(130)
        with_footer = b"ID3\4\0\x10" + bytes((0, 0, 0, 3)) + bytes(13)
        picture = b"\x06\0\0\x05abcde\x81\0\0\0"
        ape = b"APETAGEX" + struct.pack("<IIII", 2000, 40, 1, 1 << 31) + bytes(8)
        file = flac(frame(b"\0"), blocks=picture, largest=100)
        for before in (b"", tag, tag + with_footer):
            for after in (b"", b"TAG" + bytes(125), ape + bytes(8) + ape, bytes(20)):
                self.assertEqual(found(before + file + after), BLOCK)

    def test_broken(self) -> None:
        """A file that was cut, or does not begin at its first sample, has no known length."""
        first, last = frame(b"\0"), frame(b"\x01")
        for file in (
            *(b"", b"fLaC", b"RIFF" + bytes(50), flac(), flac(last), flac(first)[:60]),
            *(flac(first, last)[:-3], flac(first, last + b"\1"), flac(first, bytes(20) + b"\1")),
            # Reserved values, and numbers that are not coded correctly.
            *(flac(frame(number)) for number in (b"\x80", b"\xff", b"\xc2A", b"\xe1\x80")),
            *(flac(frame(b"\0", 0)), flac(frame(b"\0", sync=0xFA))),
            flac(blocks=b"\x06\0\0\0" * 130),
            flac(frame(b"\0"), largest=3),
            (b"ID3\4" + bytes(6)) * 9 + flac(first),
            # A tag that covers the audio.
            flac(first) + b"APETAGEX" + struct.pack("<IIII", 2000, 9000, 1, 0) + bytes(8),
            # More candidates than are checked.
            flac(first, *[frame(b"\1")[:-3]] * 9),
        ):
            self.assertIsNone(found(file), file)
