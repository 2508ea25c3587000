"""What a waveform is rendered from, and which waveforms need no decoder."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.options import VariantOptions
from audioproxy.media.lengths.reading import SourceLength
from audioproxy.media.probe import Probe
from audioproxy.media.waveform_spec import (
    PcmSamples,
    WaveformSpec,
    may_read_samples,
    readable_samples,
)
from tests.support.audio import options_of

STEREO = Probe("wav", "pcm_s24le", Decimal(2), True, sample_rate=8000, channels=2)


class WaveformSpecTests(SynchronousTestCase):
    """`WaveformSpec.of`, `may_read_samples` and `readable_samples`"""

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

    def test_unchanged(self) -> None:
        """Only a waveform of unchanged samples needs no decoder."""
        for text, expected in (
            *(("f:peaks", True), ("f:peaks/ch:2/pts:9/pk_bits:8/pk_fmt:dat", True)),
            *(("f:wav", False), ("f:peaks/t:0:1", False), ("f:peaks/gain:1", False)),
            *(("f:peaks/fade:1", False), ("f:peaks/norm:ebu", False)),
        ):
            self.assertEqual(may_read_samples(options_of(text), STEREO), expected, text)

    def test_sources(self) -> None:
        """Only uncompressed samples need no decoder, with as many channels as are requested."""
        for changes, text, expected in (
            ({"codec": "pcm_f32be"}, "ch:1", True),
            ({"channels": 1}, "ch:1", True),
            ({"codec": "flac"}, "ch:1", False),
            ({"codec": "pcm_mulaw"}, "ch:1", False),
            ({"channels": 1}, "ch:2", False),
            ({"channels": 6}, "ch:2", False),
            ({"channels": 6}, "ch:1", False),
        ):
            probe = replace(STEREO, **changes)
            found = may_read_samples(options_of(f"f:peaks/{text}"), probe)
            self.assertEqual(found, expected, (changes, text))

    def test_samples(self) -> None:
        """The samples are found where the end of the file confirms their number."""
        options = options_of("f:peaks")
        known = STEREO.with_length(SourceLength(16000, data_offset=44))
        self.assertEqual(readable_samples(options, known), PcmSamples("pcm_s24le", 44, 16000, 2))
        for length in (None, SourceLength(16000)):
            self.assertIsNone(readable_samples(options, replace(STEREO, length=length)))
        self.assertIsNone(readable_samples(options_of("f:wav"), known))
