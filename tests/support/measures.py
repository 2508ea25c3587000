"""Measures of audio: level, peak, strength of a frequency, and correlation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


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
