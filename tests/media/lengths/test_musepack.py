"""Lengths of Musepack files of stream version 8."""

from __future__ import annotations

import struct
from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.reading import SourceLength
from tests.support.audio import find_length_of
from tests.support.probes import Probe


def number(value: int) -> bytes:
    """Return a number in groups of 7 bits."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F | 0x80)
    return bytes(reversed(groups))


def musepack(samples: int = 970_000, silence: int = 0, version: int = 8) -> bytes:
    """Return a file with a header, some audio and an end."""
    fields = bytes((version,)) + number(samples) + number(silence) + b"\x3b\x15"
    fields = struct.pack(">I", crc32(fields)) + fields
    header = b"SH" + number(3 + len(fields)) + fields
    return b"MPCK" + header + b"AP\x90\0" + bytes(2000) + b"SE\3"


def find(file: bytes) -> SourceLength | None:
    return find_length_of(file, Probe("mpc8", "musepack8", None, False, sample_rate=44100))


class MusepackTests(SynchronousTestCase):
    """`read_musepack`"""

    def test_samples(self) -> None:
        """The header states the samples, and the silence ahead of them is no part of the audio."""
        tag = b"TAG" + bytes(125)
        for samples in (1, 127, 128, 970_000, 1 << 33):
            for file in (musepack(samples), musepack(samples) + tag):
                expected = SourceLength(
                    samples, ends_in_padding=True, is_stated_only=True, block=481 + 1152, delay=481
                )
                self.assertEqual(find(file), expected)
        found = find(musepack(5000, silence=300))
        assert found is not None
        self.assertEqual((found.samples, found.delay), (4700, 781))

    def test_malformed(self) -> None:
        """Other bytes, other versions, truncated files and changed headers give no length."""
        whole = musepack()
        endless = b"MPCKSH\x08" + struct.pack(">I", crc32(b"\x08")) + b"\x08"
        endless += b"\xff" * 40 + b"SE\3"
        changed = whole.replace(number(970_000), number(970_001))
        self.assertNotEqual(changed, whole)
        broken = whole[:-1], musepack(version=7), b"MP+\7" + whole[4:], endless, changed
        for file in (b"", b"MPCK", *broken):
            self.assertIsNone(find(file), file[:30])
