"""Which waveforms need no decoder."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.reading import SourceLength
from audioproxy.media.pcm import PcmSamples, find_samples, may_read_samples
from audioproxy.media.probe import Probe
from tests.support.audio import parse_options

STEREO = Probe("wav", "pcm_s24le", Decimal(2), True, sample_rate=8000, channels=2)


class PcmTests(SynchronousTestCase):
    """`may_read_samples` and `find_samples`"""

    def test_options(self) -> None:
        """Only a waveform of unchanged samples needs no decoder."""
        for text, expected in (
            *(("f:peaks", True), ("f:peaks/ch:2/pts:9/pk_bits:8/pk_fmt:dat", True)),
            *(("f:wav", False), ("f:peaks/t:0:1", False), ("f:peaks/gain:1", False)),
            *(("f:peaks/fade:1", False), ("f:peaks/norm:ebu", False)),
        ):
            self.assertEqual(may_read_samples(parse_options(text), STEREO), expected, text)

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
            found = may_read_samples(parse_options(f"f:peaks/{text}"), probe)
            self.assertEqual(found, expected, (changes, text))

    def test_samples(self) -> None:
        """The samples are found where the end of the file confirms their number."""
        options = parse_options("f:peaks")
        known = STEREO.with_length(SourceLength(16000, data_offset=44))
        self.assertEqual(find_samples(options, known), PcmSamples("pcm_s24le", 44, 16000, 2))
        for length in (None, SourceLength(16000)):
            self.assertIsNone(find_samples(options, replace(STEREO, length=length)))
        self.assertIsNone(find_samples(parse_options("f:wav"), known))
