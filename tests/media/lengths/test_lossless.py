"""Lengths of TTA, Monkey's Audio and TAK files, and joined files."""

from __future__ import annotations

from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import UndecodableSource
from audioproxy.media.reading import SourceLength
from tests.support.audio import find_length_of
from tests.support.lossless import TAG, ape, tak, tta
from tests.support.mpeg import ID3, ID3_V1
from tests.support.probes import Probe


def find(file: bytes, container: str) -> SourceLength | None:
    seconds = Decimal(100_000) / 44100
    return find_length_of(file, Probe(container, container, seconds, True, sample_rate=44100))


class LosslessTests(SynchronousTestCase):
    """`read_tta`, `read_ape` and `read_tak`"""

    def test_whole(self) -> None:
        """The bytes that the header states confirm the length; tags may follow them."""
        for tags in (b"", TAG, ID3_V1, TAG + ID3_V1):
            for front in (b"", ID3):
                expected = SourceLength(100_000, seekable=True)
                self.assertEqual(find(front + tta() + tags, "tta"), expected)
                expected = SourceLength(2 * 73_728 + 5000, is_stated_only=True)
                self.assertEqual(find(front + ape() + tags, "ape"), expected)
                expected = SourceLength(100_000, is_stated_only=True)
                self.assertEqual(find(front + tak() + tags, "tak"), expected)

    def test_joined(self) -> None:
        """ffmpeg plays the first one of joined files alone: they are refused, also behind tags."""
        for container, file in (("tta", tta()), ("ape", ape()), ("tak", tak())):
            for tags in (b"", TAG, ID3_V1, TAG + ID3):
                error = self.assertRaises(UndecodableSource, find, file + tags + file, container)
                self.assertIn("several files", error.message)

    def test_malformed(self) -> None:
        """Other bytes, truncated files and unknown bytes at the end give no length."""
        for file in (
            *(b"", b"TTA1", tta()[:-1], tta() + b"junk" * 9, tta() + TAG[:40], tta(rate=0)),
            tta() + 5 * ID3_V1,
            *(b"TTA2" + tta()[4:], tta(1 << 31), tta(1 << 31, rate=1)),
        ):
            self.assertIsNone(find(file, "tta"), file[:30])
        for file in (b"MAC ", ape()[:-1], ape(version=3970), b"MACF" + ape()[4:]):
            self.assertIsNone(find(file, "ape"), file[:30])
        endless = b"tBaK" + b"\5\0\0\0" * 99
        for file in (b"tBaK", tak()[:-1], tak(99_000), tak(last_frame=False), endless):
            self.assertIsNone(find(file, "tak"), file[:30])
