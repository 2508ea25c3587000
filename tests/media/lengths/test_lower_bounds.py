"""Lower bounds of lengths."""

from __future__ import annotations

from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.reading import SourceLength
from tests.support.audio import find_length_of
from tests.support.mpeg import adts
from tests.support.probes import Probe, replace


def found(file: bytes) -> SourceLength | None:
    return find_length_of(file, Probe("aac", "aac", None, False, sample_rate=44100))


def matroska(size: bytes) -> bytes:
    """Return a header, and a segment of 50 bytes with a coded size."""
    return b"\x1a\x45\xdf\xa3\x83abc\x18\x53\x80\x67" + size + bytes(50)


class LowerBoundTests(SynchronousTestCase):
    """`read_adts` and `read_matroska`"""

    def test_adts(self) -> None:
        """The least length is that of a stream at the highest bit rate."""

        def stream(channels: int, size: int = 300, rate: int = 4) -> bytes:
            return adts(size, rate_index=rate, channels=channels) * 200

        for channels, largest in ((1, 777), (2, 1545), (6, 4617), (7, 6153), (0, 6153)):
            bound = SourceLength((60_000 // largest - 2) * 1024, exact=False)
            self.assertEqual(found(stream(channels)), bound)
        # The decoder doubles the rate of HE-AAC.
        doubled = SourceLength((60_000 // 1545 - 2) * 2048, exact=False)
        self.assertEqual(found(stream(2, rate=7)), doubled)
        for file in (
            b"",
            bytes(99),
            stream(2) + bytes(9000),
            stream(2, rate=13),
            stream(2)[:305],
            stream(2, size=7),
        ):
            self.assertIsNone(found(file))

    def test_matroska(self) -> None:
        """The least length is the stated duration less a second, if the segment is whole."""
        stated = Probe("matroska", "opus", Decimal("10.5"), True, sample_rate=48000)
        bound = SourceLength(456_000, exact=False)
        for size in (b"\xb2", b"\x40\x32", b"\x01\0\0\0\0\0\0\x32"):
            self.assertEqual(find_length_of(matroska(size), stated), bound)
        for file in (matroska(b"\xb3"), matroska(b"\xff"), matroska(b"\x00"), bytes(99), b""):
            self.assertIsNone(find_length_of(file, stated))
        for change in ({"exact": False}, {"duration": None}, {"duration": Decimal("0.9")}):
            self.assertIsNone(find_length_of(matroska(b"\xb2"), replace(stated, **change)))
