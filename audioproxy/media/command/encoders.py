"""Bit rates that an encoder accepts at one sample rate and channel count, in kbps.

The bounds in `FORMATS` apply at every sample rate and channel count. At some of them, two encoders
have narrower bounds (measured on libvorbis 1.3.7 and libopus 1.3.1). The narrower bounds depend on
the output's rate and channels, which may be known only after the probe.
"""

from __future__ import annotations

from typing import NamedTuple

from audioproxy.grammar.formats import FORMATS

_OPUS_MONO = (6, 256)


class _Band(NamedTuple):
    first_rate: int
    mono: tuple[int, int] | None
    stereo: tuple[int, int] | None


# Bounds of libvorbis for mono and for stereo, by bands of sample rates. A band starts at its
# `first_rate`. At a rate where two bands of libvorbis meet, the row lists what both accept.
_VORBIS = (
    _Band(0, None, None),
    _Band(8000, (8, 42), (12, 84)),
    _Band(9000, (12, 42), (16, 84)),
    _Band(9001, (12, 50), (16, 100)),
    _Band(15000, (16, 50), (24, 100)),
    _Band(15001, (16, 100), (24, 200)),
    _Band(19000, (16, 90), (30, 180)),
    _Band(26000, (30, 90), (36, 180)),
    _Band(26001, (30, 190), (36, 380)),
    _Band(40000, (32, 190), (45, 380)),
    _Band(40001, (32, 240), (45, 500)),
    _Band(50001, None, None),
)


def bitrate_bounds(token: str, rate: int, channels: int) -> tuple[int, int] | None:
    """Return the lowest and highest bit rate of a format, or None where no bit rate can be set.

    :param rate: of the output, in Hz.
    :param channels: of the output, 1 or 2.
    """
    general = FORMATS[token].br
    if general is None:
        return None
    if token == "opus" and channels == 1:
        return _OPUS_MONO
    if token == "ogg":
        return _vorbis_bounds(rate, channels, general)
    return general


def _vorbis_bounds(rate: int, channels: int, general: tuple[int, int]) -> tuple[int, int] | None:
    band = next(row for row in reversed(_VORBIS) if row.first_rate <= rate)
    bounds = band.mono if channels == 1 else band.stereo
    return None if bounds is None else (max(bounds[0], general[0]), bounds[1])
