"""The encoders of the formats, and their bit rates by sample rate and channel count."""

from __future__ import annotations

from itertools import product

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.formats import FORMATS
from audioproxy.media.command.encoders import ENCODERS, bitrate_bounds


class BitrateTests(SynchronousTestCase):
    """`bitrate_bounds`"""

    def test_fixed_bounds(self) -> None:
        """Bounds are fixed (D6), Opus has them by channels (D13), lossless formats none (D7)."""
        for tokens, mono, stereo in (
            ("mp3", (8, 320), (8, 320)),
            ("aac m4a", (8, 512), (8, 512)),
            ("opus", (6, 256), (6, 510)),
            ("flac wav peaks", None, None),
        ):
            for token, rate in product(tokens.split(), (8000, 44100, 48000, 96000)):
                found = bitrate_bounds(token, rate, 1), bitrate_bounds(token, rate, 2)
                self.assertEqual(found, (mono, stereo), (token, rate))

    def test_vorbis(self) -> None:
        """Vorbis has bounds for each band of rates; in some bands no bit rate can be set (D13)."""
        for rate, mono, stereo in (
            (1, None, None),
            (7999, None, None),
            (8000, (32, 42), (32, 84)),
            (9000, (32, 42), (32, 84)),
            (9001, (32, 50), (32, 100)),
            (15000, (32, 50), (32, 100)),
            (15001, (32, 100), (32, 200)),
            (18999, (32, 100), (32, 200)),
            (19000, (32, 90), (32, 180)),
            (26000, (32, 90), (36, 180)),
            (26001, (32, 190), (36, 380)),
            (40000, (32, 190), (45, 380)),
            (40001, (32, 240), (45, 500)),
            (50000, (32, 240), (45, 500)),
            (50001, None, None),
            (200000, None, None),
        ):
            self.assertEqual(bitrate_bounds("ogg", rate, 1), mono, rate)
            self.assertEqual(bitrate_bounds("ogg", rate, 2), stereo, rate)


class EncodersTests(SynchronousTestCase):
    """`ENCODERS`"""

    def test_formats(self) -> None:
        """Every format has an encoder for each of its depths; for peaks it outputs raw samples."""
        self.assertEqual(list(ENCODERS), list(FORMATS))
        self.assertEqual(ENCODERS["peaks"].muxer, ("-f", "s16le"))
        for token, encoder in ENCODERS.items():
            for depth in FORMATS[token].depths or ("",):
                self.assertIn(depth, encoder.encoders)

    def test_encoded_nothing(self) -> None:
        """An empty output has no audio, and neither has FLAC output of headers only (D11)."""
        for token, encoder in ENCODERS.items():
            self.assertTrue(encoder.encoded_nothing(0, {}))
            self.assertIs(encoder.encoded_nothing(1, {}), token == "flac")
            self.assertIs(encoder.encoded_nothing(encoder.header_bytes + 1, {}), False)
