"""The exact number of samples of an output, and the report of a source that has another number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.exact_length import length_tolerance, length_warning, resampled_count
from audioproxy.media.reading import SourceLength
from tests.support.probes import Probe
from tests.support.strategies import DETERMINISTIC

RATES = st.integers(1, 384_000)
TAIL = b"frame:0    pts:%d pts_time:0.5\naudioproxy.tail=1\n"


class CountTests(SynchronousTestCase):
    """`resampled_count`"""

    def test_rounded(self) -> None:
        """The number of samples is rounded, and at least 1."""
        for count, rate, output, samples in (
            *((44100, 44100, 48000, 48000), (441, 44100, 8000, 80), (1, 44100, 8000, 1)),
            *((3, 2, 1, 2), (5, 2, 1, 3), (100_001, 44100, 44100, 100_001)),
        ):
            self.assertEqual(resampled_count(0, count, rate, output), samples)

    @DETERMINISTIC
    @given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 10**9), RATES, RATES)
    def test_consecutive(self, start: int, one: int, other: int, rate: int, output: int) -> None:
        """The lengths of consecutive ranges add up, so that they join without a gap (D57)."""
        parts = resampled_count(start, one, rate, output)
        parts += resampled_count(start + one, other, rate, output)
        whole = resampled_count(start, one + other, rate, output)
        # Only ranges shorter than a sample of the output are longer.
        self.assertTrue(whole <= parts <= whole + (2 if min(one, other) < rate / output else 0))


class WarningTests(SynchronousTestCase):
    """`length_warning`"""

    def test_differences(self) -> None:
        """A warning says how an output differs from its stated length, but for rounding errors."""
        silent = "the source lacks 0.500 seconds, which are silent at the end"
        too_many = (
            "the source lacks more than 1 second of the samples that it states, so the header"
            " states too many"
        )
        for stderr, samples, warning in (
            (TAIL % 8000, 80_000, None),
            (b"other lines\n" + TAIL % 7936, 80_000, None),
            (TAIL % 100, 100, None),
            (TAIL % 4000, 80_000, silent),
            (TAIL % 0, 4000, silent),
            (b"", 80_000, too_many),
        ):
            self.assertEqual(length_warning(stderr, samples, 8000), warning)

    def test_blocks(self) -> None:
        """A difference of less than a block of Vorbis, or a frame of mp3, is no loss (D57)."""
        vorbis = Probe("ogg", "vorbis", None, False, 44100)
        self.assertEqual(length_tolerance(vorbis, 44100), 64)
        for block, rate, tolerance in ((0, 8000, 64), (2048, 44100, 2048), (2048, 8000, 372)):
            known = vorbis.with_length(SourceLength(90_000, block=block))
            self.assertEqual(length_tolerance(known, rate), tolerance)
        for count, silent in ((7628, False), (7627, True)):
            warning = length_warning(TAIL % count, 80_000, 8000, 372)
            self.assertEqual(warning is not None, silent)
