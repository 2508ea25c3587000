"""Measures of audio: level, peak, strength of a frequency, and correlation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import mul


def level(samples: Sequence[float]) -> float:
    """Return the RMS level in dB of full scale, -inf for silence."""
    power = math.fsum(map(mul, samples, samples)) / len(samples)
    return 10 * math.log10(power) if power else -math.inf


def peak(samples: Iterable[float]) -> float:
    """Return the greatest absolute sample in dB of full scale."""
    highest = max(map(abs, samples))
    return 20 * math.log10(highest) if highest else -math.inf


def strength(samples: Sequence[float], hertz: float, rate: int) -> float:
    """Return the level of a sine at one frequency, in dB of a full-scale sine."""
    turn = 2 * math.pi * hertz / rate
    real = math.fsum(value * math.cos(turn * n) for n, value in enumerate(samples))
    imaginary = math.fsum(value * math.sin(turn * n) for n, value in enumerate(samples))
    return 20 * math.log10(2 * math.hypot(real, imaginary) / len(samples) + 1e-12)


def correlation(samples: Sequence[float], others: Sequence[float]) -> float:
    """Return the correlation of two sounds of equal length: 1 if they differ at most in volume."""
    power = math.fsum(map(mul, samples, samples)) * math.fsum(map(mul, others, others))
    return math.fsum(map(mul, samples, others)) / math.sqrt(power) if power else 0.0
