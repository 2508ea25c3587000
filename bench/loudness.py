"""What formats add to loudness and true peaks, for docs/quality.md."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from audioproxy.media.loudness import Loudness, find_gain
from bench.settings import Bench
from tests.support.audio import Sound, measure_loudness, render_all, write_wav
from tests.support.programmes import varied_programmes

# Number of programmes that are rendered.
_RENDERED = 40
# A target that the ceiling keeps every programme from.
_TARGET, _CEILING = -5, -1
# Hz. Encoders of low bit rates keep no more.
_BANDWIDTH = 12_000
_FORMATS = ("flac", "wav", "mp3", "mp3/br:96", "opus", "opus/br:64", "ogg", "aac", "m4a")


def measure_formats(bench: Bench) -> list[str]:
    """Return the lines of the table."""
    rows: dict[str, list[tuple[float, float]]] = {form: [] for form in bench.some(_FORMATS)}
    for source in _stereo_sources(bench.count(_RENDERED)):
        gain = find_gain(measure_loudness(source, "f:flac"), _TARGET, _CEILING)
        assert gain is not None
        texts = {f"f:{form}/gain:{gain.decibels}": form for form in rows}
        for text, output in render_all(source, texts).items():
            found = measure_loudness(output).loudness
            rows[texts[text]].append(_deviations(found, _TARGET - float(gain.shortfall)))
    lines = [
        "| Format | Loudness: highest difference | Peak: median above the ceiling | Highest |",
        "|---|---|---|---|",
    ]
    for form, deviations in rows.items():
        loudness, peaks = zip(*deviations, strict=True)
        name = f"`f:{form}`"
        lines.append(
            f"| {name} | {max(map(abs, loudness)):.2f} LU | {median(peaks):+.2f} dB |"
            f" {max(peaks):+.2f} dB |"
        )
    return lines


def _stereo_sources(count: int) -> Iterator[bytes]:
    """Yield programmes of 44.1 and 48 kHz, without the highest frequencies that encoders drop."""
    found = (s for s in varied_programmes(9 * count) if s.rate in (44_100, 48_000))
    for _, sound in zip(range(count), found, strict=False):
        spectrum = np.fft.rfft(sound.channels)
        spectrum[:, spectrum.shape[1] * 2 * _BANDWIDTH // sound.rate :] = 0
        channels = np.fft.irfft(spectrum, len(sound)).astype(np.float32)
        yield write_wav(Sound(sound.rate, channels), "24")


def _deviations(found: Loudness, target: float) -> tuple[float, float]:
    assert found.integrated is not None and found.true_peak is not None
    return found.integrated - target, found.true_peak - _CEILING
