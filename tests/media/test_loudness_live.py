"""Measurements of loudness with ffmpeg: the signals of the EBU, and an independent meter."""

from __future__ import annotations

import math
from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NothingDecoded
from audioproxy.media.loudness import Loudness, find_gain
from tests.support.audio import measure_loudness, noise, render_all, silence, tone, write_wav
from tests.support.programmes import (
    independent_loudness,
    loudness_signals,
    peak_signals,
    range_signals,
    true_peak,
    varied_programmes,
)

PROGRAMMES = 10


class LoudnessTests(SynchronousTestCase):
    """`loudness_arguments` and `source_loudness_arguments`"""

    def test_integrated(self) -> None:
        """Integrated loudness is within 0.1 LU of the EBU's signals (Tech 3341, 1 to 6)."""
        for signal in loudness_signals():
            found = measure_loudness(signal.file).loudness.integrated
            self.assertApproximates(found, signal.expected, 0.1, signal.case)

    def test_range(self) -> None:
        """The loudness range is within 1 LU of the EBU's signals (Tech 3342, 1 to 4)."""
        for signal in range_signals():
            found = measure_loudness(signal.file).loudness.range
            self.assertApproximates(found, signal.expected, 1, signal.case)

    def test_true_peak(self) -> None:
        """True peaks are from -0.4 to +0.2 dB of the EBU's signals (Tech 3341, 15 to 23)."""
        for signal in peak_signals():
            found = measure_loudness(signal.file).loudness.true_peak
            assert found is not None
            self.assertTrue(-0.4 <= found - signal.expected <= 0.2, (signal.case, found))

    def test_independent_meter(self) -> None:
        """Loudness is within 0.1 LU of pyloudnorm, and peaks within 0.1 dB of an ideal filter."""
        for sound in varied_programmes(PROGRAMMES):
            found = measure_loudness(write_wav(sound, "32f")).loudness
            self.assertApproximates(found.integrated, independent_loudness(sound), 0.1)
            # ffmpeg oversamples to 192 kHz, which is only twice the highest rates.
            if sound.rate <= 48_000:
                expected = 20 * math.log10(true_peak(sound.channels))
                self.assertApproximates(found.true_peak, expected, 0.1)

    def test_last_samples(self) -> None:
        """The peak of the last samples counts, although their block is incomplete."""
        quiet = tone(48000, 48000 + 2400, 1000.0, amplitude=0.01)
        quiet.channels[0, -100] = 0.5
        found = measure_loudness(write_wav(quiet, "24"))
        self.assertApproximates(found.loudness.true_peak, -6.02, 0.2)
        self.assertEqual(len(found.momentary), 7)

    def test_little_to_measure(self) -> None:
        """Digital silence and short sources have no loudness; a source without samples fails."""
        self.assertEqual(
            measure_loudness(write_wav(silence(44100, 44100))).loudness, Loudness(None, None, None)
        )
        short = measure_loudness(write_wav(tone(44100, 4410, 1000.0))).loudness
        self.assertEqual((short.integrated, short.range), (None, None))
        self.assertApproximates(short.true_peak, -6.02, 0.1)
        empty = write_wav(silence(44100, 0))
        self.assertRaises(NothingDecoded, measure_loudness, empty)

    def test_options(self) -> None:
        """What is measured is what a render encodes, for each option that changes samples."""
        source = write_wav(noise(48000, 4 * 48000, 2, 0.2), "24")
        texts = [
            "bd:24/f:flac",
            "bd:24/ch:1/f:flac/t:1:2.5",
            "bd:24/enhance:voice/f:flac",
            "bd:24/f:flac/norm:ebu",
            "bd:24/f:flac/fade:1:1/gain:-3/sr:44100",
        ]
        for text, output in render_all(source, texts).items():
            before, after = measure_loudness(source, text), measure_loudness(output)
            self.assertEqual(len(before.momentary), len(after.momentary), text)
            for name in ("integrated", "range", "true_peak"):
                pair = (getattr(each.loudness, name) for each in (before, after))
                self.assertApproximates(*(value or 0 for value in pair), 0.01, f"{text} {name}")

    def test_gain(self) -> None:
        """A lossless render with the gain is at the target, with its peak below the ceiling."""
        for sound in list(varied_programmes(3))[::2]:
            source = write_wav(sound, "24")
            plain, gains = measure_loudness(source, "f:flac"), {}
            for target, ceiling in ((-16, -1), (-30, -9)):
                gain = find_gain(plain, target, ceiling)
                assert gain is not None
                reached = Decimal(target) - gain.shortfall
                gains[f"f:flac/gain:{gain.decibels}"] = float(reached), ceiling
            for text, output in render_all(source, gains).items():
                (expected, ceiling), loudness = gains[text], measure_loudness(output).loudness
                self.assertApproximates(loudness.integrated, expected, 0.1)
                assert loudness.true_peak is not None
                self.assertLessEqual(loudness.true_peak, ceiling)
