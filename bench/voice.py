"""Measurements of each stage of ``enhance:voice``, for docs/quality.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from audioproxy.media.command.presets import PRESET_RATE, PRESETS
from audioproxy.media.conversion import SOXR
from bench.settings import Bench
from tests.support.audio import Sound, chord, convert, noise, read_wav, tone, write_wav
from tests.support.measures import level, middle

# The stages of the preset, by their positions in its chain.
_HIGH_PASS, _DENOISE, _DE_ESS, _COMPRESS = slice(1, 2), slice(2, 6), slice(6, 7), slice(7, 8)
_RATES = (22050, 32000, 44100, 48000, 88200, 96000, 192000)


def tables(bench: Bench) -> dict[str, Iterator[str]]:
    """Return the lines of each table."""
    levels = (-40, -30, -20, -15, -10, -5, 0)
    return {
        "high-pass": _row("Hz", bench.some((20, 40, 80, 160, 1000)), _high_passed),
        "denoise": _row("noise, dBFS", bench.some((-70, -60, -50, -40, -30)), _denoised),
        "de-ess": _rates(bench.some(_RATES)),
        "compress": _row("tone, dBFS", bench.some(levels), _compressed),
    }


def _row(label: str, values: Sequence[int], measure: Callable[[int], float]) -> Iterator[str]:
    """Yield a table of the change of a level, in one row."""
    yield f"| {label} | {' | '.join(map(str, values))} |"
    yield "|---" * (len(values) + 1) + "|"
    yield f"| change, dB | {' | '.join(_decibels(measure(value)) for value in values)} |"


def _decibels(change: float) -> str:
    """Return a change with its sign; the sign of a change that is rounded to zero is positive."""
    return f"{round(change, 1) + 0.0:+.1f}"


def _stage(sound: Sound, which: slice) -> Sound:
    """Return a sound after one stage of the preset."""
    chain = ",".join(PRESETS["voice"](PRESET_RATE, "mono", SOXR)[which])
    return read_wav(convert(write_wav(sound, "32f"), f"-af {chain} -c:a pcm_f32le -f wav"))


def _change(before: Sound, after: Sound) -> float:
    return level(middle(after)) - level(middle(before))


def _high_passed(hertz: int) -> float:
    sound = tone(PRESET_RATE, 2 * PRESET_RATE, hertz)
    return _change(sound, _stage(sound, _HIGH_PASS))


def _denoised(decibels: int) -> float:
    full = noise(PRESET_RATE, 3 * PRESET_RATE)
    scale = 10 ** ((decibels - level(full.channels)) / 20)
    sound = Sound(full.rate, (full.channels * scale).astype(np.float32))
    return _change(sound, _stage(sound, _DENOISE))


def _compressed(decibels: int) -> float:
    sound = tone(PRESET_RATE, 3 * PRESET_RATE, 500, amplitude=10 ** (decibels / 20))
    return _change(sound, _stage(sound, _COMPRESS))


def _rates(rates: Sequence[int]) -> Iterator[str]:
    """Yield the table of sibilants and vowels by the sample rate."""
    yield "| Hz | " + " | ".join(map(str, rates)) + " |"
    yield "|---" * (len(rates) + 1) + "|"
    for name, hertz in (("vowels", range(150, 3600, 173)), ("sibilants", range(5000, 9500, 231))):
        sounds = [chord(rate, 3 * rate, hertz, 0.015) for rate in rates]
        changes = [_change(sound, _stage(sound, _DE_ESS)) for sound in sounds]
        yield f"| {name}, change in dB | {' | '.join(map(_decibels, changes))} |"
