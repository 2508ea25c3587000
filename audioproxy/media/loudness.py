"""Loudness, loudness range and true peak of audio (EBU R 128, ITU-R BS.1770-4, EBU Tech 3342).

ffmpeg's ``ebur128`` filters the samples, and prints the loudness of overlapping blocks. The gates
and the percentiles are computed here, because those of several sources together need the blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

from audioproxy.errors import NothingDecoded, UndecodableSource
from audioproxy.media.conversion import convert_samples, resample

# ffmpeg prints peaks as amplitudes with three decimals. Amplified samples have more of them.
_AMPLIFICATION = 60
# Blocks begin every tenth of a second. The first complete block of 0.4 s ends with the fourth
# report, and the first of 3 s with the thirtieth.
_BLOCKS_PER_SECOND = 10
_FIRST_MOMENTARY = 3
_FIRST_SHORT_TERM = 29
# Gates in LUFS, and in LU below the loudness of the blocks above it (BS.1770-4, Annex 1; Tech 3342,
# 2.2).
_ABSOLUTE_GATE = -70
_INTEGRATED_GATE = -10
_RANGE_GATE = -20
# Percentiles of the short-term loudness (Tech 3342, 2.2).
_LOW, _HIGH = 0.10, 0.95

# BS.1770-4 defines the K-weighting at 48 kHz. At 8 kHz, ffmpeg's deviates by up to 0.4 dB; from
# 44.1 kHz on, by less than 0.03. Samples of lower rates are converted, and so are those of rates
# without a whole number of samples in a tenth of a second.
_LOWEST_RATE = 44_100
_DEFINED_RATE = 48_000

_REPORT = re.compile(rb"lavfi\.r128\.(M|S|true_peaks)[_ch\d]*=(\S+)\n")
# The time stamp of padding that no samples precede.
_NO_SAMPLES = b"pts:NOPTS"

# A gain has two decimals. Dither and the rounding of a peak may add less than the margin, in dB.
_GAIN_STEP = Decimal("0.01")
_PEAK_MARGIN = Decimal("0.01")


def loudness_filters(rate: int, layout: str | None, resampler: str) -> list[str]:
    """Return the filters that print the loudness of each block to stdout.

    The padding makes ffmpeg report the peak of the last samples too: it reports complete tenths of
    a second only.
    """
    is_measurable = rate >= _LOWEST_RATE and rate % _BLOCKS_PER_SECOND == 0
    measured = rate if is_measurable else _DEFINED_RATE
    return [
        *resample(rate, measured, resampler),
        convert_samples(measured, layout),
        "asetpts=N",
        f"volume=volume={_AMPLIFICATION}dB:precision=double:eval=once",
        f"apad=pad_len={measured // _BLOCKS_PER_SECOND}",
        "ebur128=peak=true:metadata=1",
        "ametadata=mode=print:file=pipe\\\\:1",
    ]


@dataclass(frozen=True, slots=True)
class Loudness:
    """The loudness of a programme: LUFS, LU and dBTP.

    Each is None for silence, the first also for less than 0.4 s, and the second for less than 3 s.
    """

    integrated: float | None
    range: float | None
    true_peak: float | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The blocks of a measured programme.

    :ivar momentary: LUFS of each complete block of 0.4 s.
    :ivar short_term: LUFS of each complete block of 3 s.
    :ivar peak: the highest true peak of all channels, as an amplitude.
    """

    momentary: tuple[float, ...]
    short_term: tuple[float, ...]
    peak: float

    @classmethod
    def combine(cls, measurements: Iterable[Measurement]) -> Measurement:
        """Return the measurement of several programmes as if they were one, such as an album."""
        parts = list(measurements)
        return cls(
            tuple(block for part in parts for block in part.momentary),
            tuple(block for part in parts for block in part.short_term),
            max((part.peak for part in parts), default=0),
        )

    @property
    def loudness(self) -> Loudness:
        peak = 20 * math.log10(self.peak) if self.peak else None
        return Loudness(_integrate(self.momentary), _loudness_range(self.short_term), peak)


def _integrate(momentary: Iterable[float]) -> float | None:
    """Return the gated loudness of blocks of 0.4 s (BS.1770-4, Annex 1)."""
    gated = _gate(momentary, _INTEGRATED_GATE)
    return _mean(gated) if gated else None


def _loudness_range(short_term: Iterable[float]) -> float | None:
    """Return the loudness range of blocks of 3 s (Tech 3342, 2.2)."""
    gated = sorted(_gate(short_term, _RANGE_GATE))
    if not gated:
        return None
    last = len(gated) - 1
    return gated[round(last * _HIGH)] - gated[round(last * _LOW)]


def _gate(blocks: Iterable[float], relative: int) -> list[float]:
    # In digital silence, rounding can make ffmpeg's sum of squares negative. It then prints nan, to
    # which this comparison is false.
    audible = [block for block in blocks if block > _ABSOLUTE_GATE]
    if not audible:
        return []
    threshold = _mean(audible) + relative
    return [block for block in audible if block > threshold]


def _mean(blocks: list[float]) -> float:
    """Return the loudness of the mean power of blocks."""
    return 10 * math.log10(math.fsum(10 ** (block / 10) for block in blocks) / len(blocks))


class LoudnessParser:
    """Parser of the report that `loudness_filters` prints."""

    def __init__(self) -> None:
        self._rest = b""
        self._has_samples = True
        self._blocks: dict[bytes, list[float]] = {b"M": [], b"S": []}
        self._peak = 0.0

    @property
    def seconds(self) -> float:
        return len(self._blocks[b"M"]) / _BLOCKS_PER_SECOND

    def add(self, data: bytes) -> None:
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        self._has_samples = self._has_samples and _NO_SAMPLES not in lines
        for kind, value in _REPORT.findall(lines + newline):
            if kind in self._blocks:
                self._blocks[kind].append(float(value) - _AMPLIFICATION)
            else:
                self._peak = max(self._peak, float(value))

    def finish(self) -> Measurement:
        """Return the measurement."""
        momentary, short_term = self._blocks[b"M"], self._blocks[b"S"]
        if not momentary or not self._has_samples:
            raise NothingDecoded
        if math.isinf(self._peak):
            raise UndecodableSource("The source has infinite samples.")
        # The last report contains the padding.
        return Measurement(
            tuple(momentary[_FIRST_MOMENTARY:-1]),
            tuple(short_term[_FIRST_SHORT_TERM:-1]),
            self._peak / 10 ** (_AMPLIFICATION / 20),
        )


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain that brings a programme to a target.

    :ivar shortfall: LU by which the programme stays below the target because of the ceiling, or 0.
    """

    decibels: Decimal
    shortfall: Decimal


def find_gain(
    measurement: Measurement, target: float | Decimal, ceiling: float | Decimal
) -> Gain | None:
    """Return the gain for a target in LUFS; None for a programme without an integrated loudness.

    :param ceiling: dBTP, which the true peak does not exceed after the gain.
    """
    loudness = measurement.loudness
    if loudness.integrated is None or loudness.true_peak is None:
        return None

    def distance(gain: float) -> float:
        # Of a quiet programme, the gain brings more blocks above the absolute gate.
        after = _integrate(block + gain for block in measurement.momentary)
        return 0 if after is None else float(target) - after

    first = float(target) - loudness.integrated
    wanted = Decimal(first + distance(first)).quantize(_GAIN_STEP, ROUND_HALF_EVEN)
    room = Decimal(ceiling) - _PEAK_MARGIN - Decimal(loudness.true_peak)
    possible = room.quantize(_GAIN_STEP, ROUND_FLOOR)
    if wanted <= possible:
        return Gain(wanted, Decimal(0))
    shortfall = Decimal(distance(float(possible))).quantize(_GAIN_STEP, ROUND_HALF_EVEN)
    return Gain(possible, shortfall)
