"""Programmes for measurements of loudness: the signals of the EBU, and varied synthetic ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyloudnorm import Meter

from tests.support.audio import Sound, write_wav

_RATE = 48_000
# The mask of a wav file with L, R, C, Ls and Rs.
_FIVE_CHANNELS = 0x37


class Signal(NamedTuple):
    """A wav file with a test signal of the EBU, by document and number, and its measure."""

    case: str
    file: bytes
    expected: float


def tones(*parts: tuple[float, float]) -> Sound:
    """Return tones of 1 kHz in phase on two channels, as pairs of seconds and a level in dBFS."""
    level = np.concatenate(
        [np.full(round(seconds * _RATE), 10 ** (dbfs / 20)) for seconds, dbfs in parts]
    )
    sine = level * np.resize(np.sin(2 * np.pi * 1000 / _RATE * np.arange(48)), len(level))
    return Sound(_RATE, np.tile(sine, (2, 1)).astype(np.float32))


def loudness_signals() -> Iterator[Signal]:
    """Yield the signals for integrated loudness (Tech 3341, 1 to 6)."""
    parts = [
        [(20, -23)],
        [(20, -33)],
        [(10, -36), (60, -23), (10, -36)],
        [(10, -72), (10, -36), (60, -23), (10, -36), (10, -72)],
        [(20, -26), (20.1, -20), (20, -26)],
    ]
    for number, (part, expected) in enumerate(zip(parts, [-23, -33, -23, -23, -23], strict=True)):
        yield Signal(f"3341-{number + 1}", write_wav(tones(*part), "24"), expected)
    levels = (-28, -28, -24, -30, -30)
    channels = np.concatenate([tones((20, level)).channels[:1] for level in levels])
    yield Signal("3341-6", write_wav(Sound(_RATE, channels), "24", _FIVE_CHANNELS), -23)


def range_signals() -> Iterator[Signal]:
    """Yield the signals for the loudness range (Tech 3342, 1 to 4)."""
    levels = {10: (-20, -30), 5: (-20, -15), 20: (-40, -20), 15: (-50, -35, -20, -35, -50)}
    for number, (expected, parts) in enumerate(levels.items(), 1):
        sound = tones(*((20, level) for level in parts))
        yield Signal(f"3342-{number}", write_wav(sound, "24"), expected)


def peak_signals() -> Iterator[Signal]:
    """Yield the signals for true peaks (Tech 3341, 15 to 23), of a second each."""
    sines = [(4, 0, 0.5), (4, 45, 0.5), (6, 60, 0.5), (8, 67.5, 0.5), (4, 45, 1.41)]
    for number, (period, degrees, amplitude) in enumerate(sines, 15):
        turns = np.arange(_RATE) / period + degrees / 360
        sine = _taper(amplitude * np.sin(2 * np.pi * turns))
        expected = -6 if amplitude < 1 else 3
        yield Signal(f"3341-{number}", _stereo_file(sine), expected)
    # A sine with one louder period in its middle, at four times the rate. The louder period begins
    # and ends at phase 0.
    around = np.sin(2 * np.pi * np.arange(24 * 4000) / 24) / 2
    inserted = np.sin(2 * np.pi * np.arange(16) / 16)
    whole = _taper(np.concatenate([around, inserted, around]))
    for offset in range(4):
        yield Signal(f"3341-{20 + offset}", _stereo_file(_every_fourth(whole, offset)), 0)


def _taper(samples: NDArray[np.float64], rate: int = _RATE) -> NDArray[np.float64]:
    ramp = np.minimum(1, np.arange(len(samples)) / (rate // 100))
    return samples * ramp * ramp[::-1]


def _every_fourth(samples: NDArray[np.float64], offset: int) -> NDArray[np.float64]:
    """Return every fourth sample, after an ideal low-pass filter."""
    spectrum = np.fft.rfft(samples)
    spectrum[len(spectrum) // 4 :] = 0
    return np.fft.irfft(spectrum, len(samples))[offset::4]


def _stereo_file(samples: NDArray[np.float64]) -> bytes:
    return write_wav(Sound(_RATE, np.tile(samples, (2, 1)).astype(np.float32)), "32f")


def varied_programmes(count: int) -> Iterator[Sound]:
    """Yield programmes of 4 to 8 s that differ in rate, channels, spectrum, level and dynamics."""
    rates = (8000, 11025, 16000, 22050, 32000, 44100, 48000, 88200, 96000)
    for seed in range(count):
        rng = np.random.default_rng(seed)
        rate, channels = rates[seed % len(rates)], 1 + seed // len(rates) % 2
        # Whole blocks: pyloudnorm also counts an incomplete one.
        length = rng.integers(40, 80) * rate // 10
        rows = [_row(rng, rate, length) for _ in range(channels)]
        samples = np.array(rows) * 10 ** (rng.uniform(-45, 0) / 20)
        yield Sound(rate, samples.astype(np.float32))


def _row(rng: np.random.Generator, rate: int, length: int) -> NDArray[np.float64]:
    """Return one channel: colored noise and a few tones, under a slow envelope with pauses."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    hertz = np.maximum(20, np.fft.rfftfreq(length, 1 / rate))
    # Converters leave nothing just below half of the rate.
    spectrum[hertz > 0.45 * rate] = 0
    samples = np.fft.irfft(spectrum * (hertz / 1000) ** rng.uniform(-1.2, 0.3), length)
    samples /= np.abs(samples).max()
    for frequency in rng.uniform(60, 0.45 * rate, rng.integers(0, 4)):
        samples += rng.uniform(0, 0.5) * np.sin(2 * np.pi * frequency / rate * np.arange(length))
    points = np.maximum(0, rng.uniform(-0.3, 1, rng.integers(4, 20)))
    points[1] = 1
    envelope = np.interp(np.linspace(0, len(points) - 1, length), np.arange(len(points)), points)
    samples *= envelope
    samples /= np.abs(samples).max()
    return _taper(samples, rate)


def true_peak(sounds: Iterable[NDArray[np.float32]]) -> float:
    """Return the highest peak of channels as an amplitude, after oversampling by 16."""
    spectra = ((np.fft.rfft(row), 16 * len(row)) for row in sounds)
    return float(max(np.abs(np.fft.irfft(*spectrum)).max() * 16 for spectrum in spectra))


def independent_loudness(sound: Sound) -> float:
    """Return the integrated loudness after pyloudnorm, with the filters of BS.1770-4.

    At low rates, its filters deviate too, so the sound is converted to 48 kHz.
    """
    channels = sound.channels.astype(np.float64)
    rate, length = sound.rate, len(sound)
    if rate < 44_100:
        rate, length = 48_000, length * 48_000 // rate
        channels = np.fft.irfft(np.fft.rfft(channels), length) * (length / len(sound))
    return float(Meter(rate, filter_class="DeMan").integrated_loudness(channels.T))
