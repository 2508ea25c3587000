"""What a waveform is rendered from, and which waveforms need no decoder."""

from __future__ import annotations

from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.options import VariantOptions
from audioproxy.media.reading import SourceLength
from audioproxy.media.waveform_spec import (
    PcmSamples,
    WaveformSpec,
    expected_frames,
    readable_samples,
)
from tests.support.audio import options_of
from tests.support.probes import Probe, replace

STEREO = Probe("wav", "pcm_s24le", Decimal(2), True, sample_rate=8000, channels=2)


class WaveformSpecTests(SynchronousTestCase):
    """`WaveformSpec.of`, `expected_frames` and `readable_samples`"""

    def test_options(self) -> None:
        """Every option of peaks has an effect and a default (Peaks options)."""
        default = WaveformSpec(8000, 2, 1, 800, 16, "json")
        rows = {
            "f:peaks/pts:5/pk_fmt:dat/pk_bits:8/ch:2": WaveformSpec(8000, 2, 2, 5, 8, "dat"),
            "f:peaks/ch:1/gain:1": replace(default, decoded_channels=1),
        }
        for text, spec in rows.items():
            self.assertEqual(WaveformSpec.of(options_of(text), STEREO), spec, text)
        for options in (options_of("f:peaks"), VariantOptions(f="peaks")):
            for rate in (1, 7919, 8000, 384_000, 5_644_800):
                found = WaveformSpec.of(options, replace(STEREO, sample_rate=rate))
                self.assertEqual(found, replace(default, sample_rate=rate))

    def test_samples(self) -> None:
        """The samples are found where the end of the file confirms their number."""
        options = options_of("f:peaks")
        known = STEREO.with_length(SourceLength(16000, data_offset=44))
        self.assertEqual(readable_samples(options, known), PcmSamples("pcm_s24le", 44, 16000, 2))
        for length in (None, SourceLength(16000)):
            self.assertIsNone(readable_samples(options, replace(STEREO, length=length)))
        self.assertIsNone(readable_samples(options_of("f:wav"), known))

    def test_part_of_the_samples(self) -> None:
        """``t`` selects the samples that are read, up to the end of the source."""
        known = STEREO.with_length(SourceLength(16000, data_offset=44))
        for text, offset, frames in (
            *(("t:0:1", 44, 8000), ("t:0.5", 44 + 6 * 4000, 12000), ("t:1.5:9", 72044, 4000)),
        ):
            found = readable_samples(options_of(f"f:peaks/{text}"), known)
            self.assertEqual(found, PcmSamples("pcm_s24le", offset, frames, 2), text)
        # A stated duration may be longer than what the source has.
        past = options_of("f:peaks/t:2:1")
        self.assertIsNone(readable_samples(past, known))

    def test_expected_frames(self) -> None:
        """The number of frames follows from the length of the source, and from ``t``."""
        exact, least = SourceLength(12000), SourceLength(12000, exact=False)
        unknown = replace(STEREO, duration=None)
        for text, probe, length, frames in (
            *(("f:peaks", STEREO, exact, 12000), ("f:peaks", STEREO, None, None)),
            *(("f:peaks", STEREO, least, None), ("f:peaks/t:1", STEREO, exact, 4000)),
            *(("f:peaks/t:0.5:0.25", STEREO, None, 2000), ("f:peaks/t:1:1", STEREO, exact, 4000)),
            # Nothing tells where a source ends whose stated end precedes that of ``t``.
            *(("f:peaks/t:1:2", STEREO, least, None), ("f:peaks/t:1:2", unknown, None, 16000)),
            ("f:peaks/t:1.5", STEREO, exact, None),
        ):
            found = expected_frames(options_of(text), probe, length)
            self.assertEqual(found, frames, (text, length))
