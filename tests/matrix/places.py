"""Comparison of what ``t`` renders with the same place of a full decode."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import numpy as np

from audioproxy.media.command.trim import trim_range
from tests.support.audio import Sound, convert, find_point, find_probe, options_of, read_wav, render
from tests.support.probes import replace

#: Seconds at which the compared regions start; decoding starts 1 s or more before each.
PLACES = ("2", "4.3", "7.25", "10.5")
#: Seconds of a source with these places.
SECONDS = 12

_DURATION = "0.25"


def spread(count: int) -> list[str]:
    """Return places that are spread over a source, each at another part of a second."""
    step = Decimal(SECONDS - 1) / count
    return [f"{number * step + Decimal('0.1'):.3f}" for number in range(count)]


def find_differences(
    source: bytes, places: Iterable[str] = PLACES, whole: Sound | None = None
) -> list[str]:
    """Render regions of a source, and describe those that differ from its full decode.

    Every sample is compared. The source has to be noise, in which every position is unique.

    :param whole: the full decode, where it is known.
    """
    whole = whole or decode_whole(source)
    compared = (find_difference(render(source, region(at)), at, whole) for at in places)
    return [difference for difference in compared if difference]


def region(place: str) -> str:
    """Return the options of a variant that has the audio at a place."""
    return f"f:wav/bd:32f/t:{place}:{_DURATION}"


def find_difference(output: bytes, place: str, whole: Sound) -> str:
    """Describe how a rendered region differs from the same place of a full decode, if it does."""
    heard, start = read_wav(output), round(float(place) * whole.rate)
    if heard == whole.part(start, start + round(float(_DURATION) * whole.rate)):
        return ""
    offset = _find_offset(whole, heard, start)
    return f"t:{place}: {'not found' if offset is None else f'{offset:+} samples'}"


def decode_whole(source: bytes) -> Sound:
    """Decode a file with ffmpeg, also DTS in wav, which looks like uncompressed audio."""
    return read_wav(convert(source, *"-map 0:a:0 -c:a pcm_f32le -f wav".split()))


def seeks(source: bytes) -> bool:
    """Return whether a render of the second place does not decode the source from its start."""
    options = options_of(f"f:wav/t:{PLACES[1]}")
    found = find_probe(source, options)
    placed = replace(found, seek_point=find_point(source, options, found))
    return trim_range(options, placed).seek > 0


def _find_offset(whole: Sound, heard: Sound, start: int) -> int | None:
    """Return the position of a region, relative to a sample of the whole sound."""
    sound, part = whole.channels[0].astype(np.float64), heard.channels[0].astype(np.float64)
    if not part.any():
        return None
    size = len(sound) + len(part)
    product = np.fft.rfft(sound, size) * np.conj(np.fft.rfft(part, size))
    position = int(np.fft.irfft(product, size)[: len(sound)].argmax())
    found = sound[position : position + len(part)]
    likeness = np.corrcoef(found, part[: len(found)])[0, 1] if len(found) > 1 else 0
    return position - start if likeness > 0.9 else None
