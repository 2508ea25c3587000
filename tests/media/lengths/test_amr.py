"""Lengths of AMR files."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.reading import SourceLength
from tests.support.audio import find_length_of
from tests.support.probes import Probe

NARROW, WIDE = b"#!AMR\n", b"#!AMR-WB\n"


def find(file: bytes, codec: str = "amr_nb", rate: int = 8000) -> SourceLength | None:
    return find_length_of(file, Probe("amr", codec, None, exact=False, sample_rate=rate))


class AmrTests(SynchronousTestCase):
    """`read_amr`"""

    def test_frames(self) -> None:
        """Each frame is 20 ms, whether it is speech, a description of silence, or nothing."""
        speech, silence, nothing = b"\x3c" + bytes(31), b"\x44" + bytes(5), b"\x7c"
        file = NARROW + speech * 5000 + silence + nothing * 9
        self.assertEqual(find(file), SourceLength(5010 * 160))
        wide = WIDE + (b"\x14" + bytes(32)) * 7 + b"\x4c" + bytes(5) + nothing
        self.assertEqual(find(wide, "amr_wb", 16000), SourceLength(9 * 320))

    def test_start(self) -> None:
        """The audio begins with the first frame of speech."""
        file = NARROW + (b"\x44" + bytes(5)) * 3 + b"\x7c" + (b"\x04" + bytes(12)) * 2
        self.assertEqual(find(file + b"\x7c"), SourceLength(3 * 160))

    def test_unknown(self) -> None:
        """The end of other files is where the decoder ends, or where they were cut."""
        speech = NARROW + b"\x04" + bytes(12)
        for file in (
            speech,
            # The last byte could be a frame of silence.
            NARROW + b"\x04" + bytes(11) + b"\x7c",
            speech + b"\x44",
            b"",
            NARROW,
            NARROW + b"\x3c",
            b"#!AMR_MC1.0\n" + bytes(90),
        ):
            self.assertIsNone(find(file), file)
