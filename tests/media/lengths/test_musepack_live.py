"""Musepack files, beside the format's own decoder."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from tests.media.lengths.test_positions_live import describe_source
from tests.media.test_readers_live import output_of
from tests.support.audio import noise, probe, read_wav, render_and_decode_all, write_wav
from tests.support.mpeg import ID3


class MusepackTests(SynchronousTestCase):
    """Stream version 8"""

    def test_samples(self) -> None:
        """Each sample is where Musepack's own decoder has it, also behind tags (D11, D71)."""
        for rate, samples, channels in (
            (44100, 176_400, 2),
            (48000, 144_001, 2),
            (32000, 40_000, 1),
        ):
            folder = Path(self.mktemp())
            folder.mkdir()
            files = [str(folder / name) for name in ("in.wav", "a.mpc", "out.wav")]
            Path(files[0]).write_bytes(write_wav(noise(rate, samples, channels)))
            output_of("mpcenc", "--silent", "--quality", "5", *files[:2])
            output_of("mpcdec", *files[1:])
            source, decoded = Path(files[1]).read_bytes(), read_wav(Path(files[2]).read_bytes())
            self.assertEqual(len(decoded), samples)
            texts = "f:wav/bd:32f", "f:wav/bd:32f/t:0.3:0.5", "f:flac/fade:0:0.1"
            for file in (source, ID3 + source, ID3 + bytes(99) + source):
                whole, part, faded = render_and_decode_all(file, texts).values()
                self.assertEqual((len(whole), len(faded)), (samples, samples))
                self.assertEqual(part, whole.part(round(0.3 * rate), round(0.8 * rate)))
                # mpcdec writes 16 bits.
                heard = decoded.channels[: len(whole.channels)]
                self.assertLess(np.abs(whole.channels - heard).max(), 3 / 32768)
                self.assertEqual(probe(file).container, "mpc8")
                described = describe_source(file).duration
                self.assertEqual(described, round(Decimal(samples) / rate, 6))
