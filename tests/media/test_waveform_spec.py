"""Which waveforms need no decoder."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.reading import SourceLength
from audioproxy.media.probe import Probe
from audioproxy.media.waveform_spec import PcmSamples, may_read_samples, readable_samples
from tests.support.audio import options_of

STEREO = Probe("wav", "pcm_s24le", Decimal(2), True, sample_rate=8000, channels=2)


class PcmTests(SynchronousTestCase):
    """`may_read_samples` and `readable_samples`"""

    def test_options(self) -> None:
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
