"""Measures of audio: levels, spectra, purity of a tone, and correlation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.support.audio import Sound

# The side lobes of this Kaiser window are below -280 dB.
_BETA = 38
# Bins around a tone that the window spreads it over.
_LOBE = 16


def level(samples: ArrayLike) -> float:
    """Return the RMS level in dB of full scale, -inf for silence."""
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(np.mean(np.square(samples, dtype=float))))


def peak(samples: ArrayLike) -> float:
    """Return the greatest absolute sample in dB of full scale, -inf for silence."""
    with np.errstate(divide="ignore"):
        return float(20 * np.log10(np.abs(samples).max()))


def strength(samples: ArrayLike, hertz: float, rate: int) -> float:
    """Return the level of a sine at one frequency, in dB of a full-scale sine."""
    turns = hertz / rate * np.arange(np.size(samples))
    share = np.mean(np.asarray(samples) * np.exp(2j * np.pi * turns))
    return float(20 * np.log10(2 * abs(share) + 1e-12))


def correlation(samples: ArrayLike, others: ArrayLike) -> float:
    """Return the correlation of two sounds of equal length: 1 if they differ at most in volume."""
    one, other = np.asarray(samples, float), np.asarray(others, float)
    power = float(one @ one * (other @ other))
    return float(one @ other / np.sqrt(power)) if power else 0.0


def middle(sound: Sound, channel: int = 0) -> NDArray[np.float64]:
    """Return the middle half of a channel, without the edges of a tone."""
    samples = sound.channels[channel].astype(float)
    return samples[len(samples) // 4 : len(samples) * 3 // 4]


def spectrum(samples: ArrayLike, rate: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return frequencies in Hz, and the level at each in dB of a full-scale sine."""
    values = np.asarray(samples, float)
    window = np.kaiser(len(values), _BETA)
    bins = np.abs(np.fft.rfft(values * window)) / (window.sum() / 2)
    return np.fft.rfftfreq(len(values), 1 / rate), 20 * np.log10(bins + 1e-15)


def worst_spur(samples: ArrayLike, rate: int, *hertz: float) -> float:
    """Return the highest level in a spectrum, in dB of a full-scale sine, except at some tones."""
    frequencies, levels = spectrum(samples, rate)
    width = _LOBE * frequencies[1]
    others = np.all([np.abs(frequencies - tone) > width for tone in (0, *hertz)], axis=0)
    return float(levels[others].max())


def without_tone(samples: ArrayLike, hertz: float, rate: int) -> NDArray[np.float64]:
    """Return what is left of a signal without a tone and without its mean."""
    values = np.asarray(samples, float)
    turns = 2 * np.pi * hertz / rate * np.arange(len(values))
    basis = np.stack((np.sin(turns), np.cos(turns), np.ones(len(values))), axis=1)
    rest: NDArray[np.float64] = values - basis @ np.linalg.lstsq(basis, values, rcond=None)[0]
    return rest


def residual(samples: ArrayLike, hertz: float, rate: int) -> float:
    """Return the level of everything but one tone, in dB relative to a full-scale tone."""
    return level(without_tone(samples, hertz, rate)) - level([0.5**0.5])
