"""Conversions of sample rates and formats."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.conversion import SOXR, SWRESAMPLE, convert_samples, resample


class ConversionTests(SynchronousTestCase):
    """`resample` and `convert_samples`"""

    def test_resample(self) -> None:
        """A change of rate is a filter with all settings of its resampler (D60)."""
        for resampler, settings in (
            (SOXR, "resampler=soxr:precision=28:internal_sample_fmt=dblp"),
            (SWRESAMPLE, "filter_size=160:phase_shift=10:kaiser_beta=12:internal_sample_fmt=dblp"),
        ):
            found = resample(44100, 48000, resampler)
            self.assertEqual(found, [f"aresample=48000:{settings}"])
            self.assertEqual(resample(44100, 44100, resampler), [])

    def test_working_format(self) -> None:
        """Stages compute samples in double precision, at a rate that the filter states (D60)."""
        self.assertEqual(convert_samples(22050), "aformat=sample_fmts=dblp:sample_rates=22050")
