"""Waveforms as parsed by waveform-data.js, a dependency of peaks.js."""

from __future__ import annotations

import wave
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.browser.node import NodeCase
from tests.support.service import signed

RATE = 44_100
# Number of frames for which the second-to-last pixel is partly filled, and the last is empty.
FRAMES = 3 * RATE + 1234
PIXELS = 600

#: Channels, bits and serialization of each form of a waveform.
FORMS = list(product((1, 2), (8, 16), ("json", "dat")))


def make_samples() -> NDArray[np.int16]:
    """Return two channels of noise at full scale, whose loudness rises and falls differently."""
    random = np.random.default_rng(7)
    swell = np.abs(np.sin(np.linspace(0, 9, FRAMES)))[:, None] * (1, 0.3)
    samples = (random.uniform(-1, 1, (FRAMES, 2)) * swell * 32767).astype(np.int16)
    samples[RATE] = (-32768, 32767)
    samples[2 * RATE] = (32767, 32767)
    # Truncation (to 8 bits, and of the mean) differs from rounding down only below zero.
    samples[FRAMES // 2 : FRAMES // 2 + 2000] = (-1, -256)
    return samples


def write(path: Path, samples: NDArray[np.int16]) -> None:
    """Write samples into a WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setparams((2, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())


def extremes(
    samples: NDArray[np.int16], channels: int, bits: int, scale: int, length: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the minima and maxima of each channel per pixel, computed from the definition."""
    integers = samples.astype(int)
    if channels == 1:
        integers = np.trunc(integers.sum(axis=1, keepdims=True) / 2).astype(int)
    divisor = 256 if bits == 8 else 1
    minima, maxima = [], []
    for channel in integers.T:
        pixels = [channel[at * scale : (at + 1) * scale] for at in range(length)]
        # Pixels past the end are 0.
        pixels = [pixel if len(pixel) else np.zeros(1) for pixel in pixels]
        minima.append([int(pixel.min() / divisor) for pixel in pixels])
        maxima.append([int(pixel.max() / divisor) for pixel in pixels])
    return minima, maxima


class WaveformDataTests(NodeCase):
    """waveform-data.js under node, which fetches waveforms from a service."""

    async def test_reads_every_form(self) -> None:
        """waveform-data.js reads each field and value of every form."""
        samples = make_samples()
        write(self.root / "noise.wav", samples)
        origin = f"http://127.0.0.1:{self.start().port}"
        urls = []
        for channels, bits, serialization in FORMS:
            options = f"pts:{PIXELS}/ch:{channels}/pk_bits:{bits}/pk_fmt:{serialization}"
            urls.append(origin + signed(f"/f:peaks/{options}/plain/local://noise.wav").decode())
        # Frames per pixel, rounded up. D26 allows a scale up to 1 % larger, which the service does
        # not use for so few frames.
        scale = -(-FRAMES // PIXELS)
        for form, found in zip(FORMS, await self.run_script("read.mjs", *urls), strict=True):
            channels, bits, _ = form
            minima, maxima = extremes(samples, channels, bits, scale, PIXELS)
            expected = {
                "bits": bits,
                "channels": channels,
                "duration": PIXELS * scale / RATE,
                "length": PIXELS,
                "sample_rate": RATE,
                "scale": scale,
                "minima": minima,
                "maxima": maxima,
                "at_half": PIXELS // 2,
            }
            self.assertEqual(expected, found, form)
