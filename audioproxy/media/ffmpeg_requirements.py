"""What an ffmpeg must be built with, and how to find out (D34)."""

from __future__ import annotations

import re

_ENCODERS = "libmp3lame libopus libvorbis aac flac pcm_s16le pcm_s24le pcm_f32le".split()
_FILTERS = (
    "aformat aresample atrim asetpts apad channelmap pan volume afade loudnorm"
    " highpass afftdn deesser acompressor alimiter"
).split()

# A line of `-encoders` or `-filters`: flags, a name, a description.
_LISTED = re.compile(rb"^ [A-Z.|]{2,6} +(\S+)", re.MULTILINE)

#: Each list that ffmpeg is asked for, with what must be on it.
LISTS: tuple[tuple[str, str, list[str]], ...] = (
    ("-encoders", "encoder", _ENCODERS),
    ("-filters", "filter", _FILTERS),
)


def list_arguments(ffmpeg: str, flag: str) -> list[str]:
    """Return the command line that prints one list."""
    return [ffmpeg, "-hide_banner", "-v", "error", flag]


def missing_from(listing: bytes, needed: list[str]) -> list[str]:
    """Return what a list does not name."""
    listed = {match.decode("ascii", "replace") for match in _LISTED.findall(listing)}
    return [name for name in needed if name not in listed]
