"""Lengths of TTA, Monkey's Audio and TAK files, and joined files."""

from __future__ import annotations

import struct
from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import UndecodableSource
from audioproxy.media.reading import SourceLength
from tests.media.lengths.test_wavpack import TAG
from tests.support.audio import find_length_of
from tests.support.probes import Probe

ID3V2 = b"ID3\4\0\0\0\0\0\5hello"
ID3V1 = b"TAG" + bytes(125)


def tta(samples: int = 100_000, rate: int = 44100) -> bytes:
    """Return a TTA file of three frames, as it is with 100,000 samples at 44.1 kHz."""
    head = b"TTA1" + struct.pack("<HHHIII", 1, 2, 16, rate, samples, 0)
    return head + struct.pack("<4I", 300, 301, 302, 0) + bytes(903)


def ape(frames: int = 3, last: int = 5000, version: int = 3990) -> bytes:
    """Return a Monkey's Audio file whose frames have 73,728 samples."""
    sizes = 24, 4 * frames, 44, 1000 * frames, 0, 7
    head = b"MAC " + struct.pack("<HHIIIIIII", version, 0, 52, *sizes) + bytes(16)
    head += struct.pack("<HHIIIHHI", 2000, 0, 73_728, last, frames, 16, 2, 44100)
    return head + bytes(sum(sizes) - 24)


def tak(samples: int = 100_000, *, last_frame: bool = True) -> bytes:
    """Return a TAK file of 1100 bytes of frames."""

    def block(kind: int, data: bytes) -> bytes:
        return bytes((kind,)) + len(data).to_bytes(3, "little") + data

    stream = (samples << 14 | 0x1234).to_bytes(10, "little") + bytes(3)
    place = (1000).to_bytes(5, "little") + (100).to_bytes(3, "little") + bytes(3)
    blocks = block(1, stream) + block(5, bytes(20)) + (block(7, place) if last_frame else b"")
    return b"tBaK" + blocks + block(0x80, b"") + bytes(1100)


def find(file: bytes, container: str) -> SourceLength | None:
    seconds = Decimal(100_000) / 44100
    return find_length_of(file, Probe(container, container, seconds, True, sample_rate=44100))


class LosslessTests(SynchronousTestCase):
    """`read_tta`, `read_ape` and `read_tak`"""

    def test_whole(self) -> None:
        """The bytes that the header states confirm the length; tags may follow them."""
        for tags in (b"", TAG, ID3V1, TAG + ID3V1):
            for front in (b"", ID3V2):
                expected = SourceLength(100_000, seekable=True)
                self.assertEqual(find(front + tta() + tags, "tta"), expected)
                expected = SourceLength(2 * 73_728 + 5000, is_stated_only=True)
                self.assertEqual(find(front + ape() + tags, "ape"), expected)
                expected = SourceLength(100_000, is_stated_only=True)
                self.assertEqual(find(front + tak() + tags, "tak"), expected)

    def test_joined(self) -> None:
        """ffmpeg plays the first one of joined files alone: they are refused, also behind tags."""
        for container, file in (("tta", tta()), ("ape", ape()), ("tak", tak())):
            for tags in (b"", TAG, ID3V1, TAG + ID3V2):
                error = self.assertRaises(UndecodableSource, find, file + tags + file, container)
                self.assertIn("several files", error.message)

    def test_malformed(self) -> None:
        """Other bytes, truncated files and unknown bytes at the end give no length."""
        for file in (
            *(b"", b"TTA1", tta()[:-1], tta() + b"junk" * 9, tta() + TAG[:40], tta(rate=0)),
            tta() + 5 * ID3V1,
            *(b"TTA2" + tta()[4:], tta(1 << 31), tta(1 << 31, rate=1)),
        ):
            self.assertIsNone(find(file, "tta"), file[:30])
        for file in (b"MAC ", ape()[:-1], ape(version=3970), b"MACF" + ape()[4:]):
            self.assertIsNone(find(file, "ape"), file[:30])
        endless = b"tBaK" + b"\5\0\0\0" * 99
        for file in (b"tBaK", tak()[:-1], tak(99_000), tak(last_frame=False), endless):
            self.assertIsNone(find(file, "tak"), file[:30])
