"""Regions that ``t`` names, against the same samples of a whole render or decode."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from typing import NamedTuple

import numpy as np

from audioproxy.media.command.trim import trim_range
from tests.support.audio import (
    Sound,
    convert_all,
    find_point,
    find_probe,
    noise,
    options_of,
    read_wav,
    render,
    render_all,
    write_wav,
)
from tests.support.probes import replace

#: Seconds of a source.
SECONDS = 20
#: Seconds of a source of a kind.
KIND_SECONDS = 12
_RATE = 48000
#: A variant that has all samples as the decoder outputs them.
WHOLE = "f:wav/bd:32f"

#: ffmpeg's arguments for sources of all forms in which a region is sought, or its place is found:
#: bit rates that change or do not, pages of many sizes, rates, and numbers of channels.
FORMS = {
    "vorbis.ogg": "-c:a libvorbis -ac 2 -ar 44100",
    "small-pages.ogg": "-c:a libvorbis -q:a 0 -ac 1 -ar 22050 -page_duration 10000",
    "large-pages.ogg": "-c:a libvorbis -q:a 6 -ac 2 -ar 48000 -page_duration 4000000",
    "a.opus": "-c:a libopus -b:a 96k -ac 2",
    "small-pages.opus": "-c:a libopus -b:a 24k -ac 1 -frame_duration 60 -page_duration 60000",
    "large-pages.opus": "-c:a libopus -b:a 256k -ac 2 -frame_duration 2.5 -page_duration 3000000",
    "flac.ogg": "-c:a flac -ac 2 -ar 44100 -page_duration 300000",
    "constant.mp3": "-b:a 128k -ac 2 -ar 44100",
    "variable.mp3": "-q:a 4 -ac 2 -ar 48000",
    "average.mp3": "-abr 1 -b:a 96k -ac 2 -ar 44100",
    "low.mp3": "-b:a 40k -ac 1 -ar 22050",
    "bare.mp3": "-q:a 6 -ac 1 -ar 22050 -write_xing 0",
    "constant-bare.mp3": "-b:a 160k -ac 2 -ar 44100 -write_xing 0",
    "adts.aac": "-c:a aac -aac_pns 0 -ac 2 -ar 44100",
    # Frames that are longer by two bytes.
    "odd.ac3": "-c:a ac3 -b:a 96k -ac 2 -ar 44100",
    "a.eac3": "-c:a eac3 -ac 6 -ar 48000",
    "surround.wv": "-c:a wavpack -ac 6 -ar 44100",
    "opus.webm": "-c:a libopus -b:a 64k -ac 2 -cluster_time_limit 1000",
    "flac.mka": "-c:a flac -ac 1 -ar 48000 -cluster_time_limit 1000 -cues_to_front 1",
    "aac.mka": "-c:a aac -aac_pns 0 -ac 2 -ar 44100 -cluster_time_limit 700",
    "pcm.mka": "-c:a pcm_s16le -ac 2 -cluster_time_limit 1000 -reserve_index_space 4096",
    "a.flac": "-c:a flac -ac 2 -ar 96000",
    "a.tta": "-c:a tta -ac 2 -ar 44100",
    "a.wav": "-c:a pcm_s24le -ac 2 -ar 8000",
    "a.w64": "-c:a pcm_s24le -ac 2 -ar 44100",
    "a.aiff": "-c:a pcm_alaw -ac 2 -ar 44100",
    "a.caf": "-c:a pcm_f32le -ac 2 -ar 44100",
    "a.m4a": "-c:a aac -aac_pns 0 -ac 2 -ar 44100",
    "alac.m4a": "-c:a alac -ac 2 -ar 44100",
}


class Region(NamedTuple):
    """A region of a source, in thousandths of a second.

    :ivar duration: None for all up to the end of the source.
    """

    start: int
    duration: int | None

    @property
    def text(self) -> str:
        """The options of a variant of this region."""
        seconds = [f"{count / 1000:.3f}" for count in self if count is not None]
        return f"{WHOLE}/t:{':'.join(seconds)}"

    def part(self, whole: Sound) -> Sound:
        """Return the samples of the region."""
        end = None if self.duration is None else self.start + self.duration
        return whole.part(
            _round(self.start, whole.rate), None if end is None else _round(end, whole.rate)
        )


#: Regions of `KIND_SECONDS`; decoding starts 1 s or more before each.
PLACES = tuple(Region(start, 250) for start in (2000, 4300, 7250, 10_500))


def spread(count: int) -> list[Region]:
    """Return regions that are spread over a source, each at another part of a second."""
    return [Region(n * 1000 * (KIND_SECONDS - 1) // count + 100, 250) for n in range(count)]


def random_regions(seed: str, count: int) -> list[Region]:
    """Return regions that are drawn at random, each of at least a hundredth of a second."""
    draw = random.Random(seed)
    return [
        Region(draw.randrange(1000 * SECONDS - 200), draw.choice((10, 333, 5000, None)))
        for _ in range(count)
    ]


@cache
def sources() -> dict[str, bytes]:
    """Return a sound of loud and of quiet noise, in which each place is unique, in all forms."""
    sound = noise(_RATE, SECONDS * _RATE, 2)
    levels = np.repeat(np.array([1, 0.02, 0.5, 0, 1, 0.1, 0.001, 0.7], np.float32), _RATE)
    sound.channels[:] *= np.resize(levels, len(sound))
    return convert_all(write_wav(sound), FORMS)


@cache
def wholes() -> dict[str, Sound]:
    """Return all samples of each source, as the service renders them."""
    return {name: read_wav(render(source, WHOLE)) for name, source in sources().items()}


def find_wrong(regions: Mapping[str, Sequence[Region]]) -> Iterator[str]:
    """Yield a complaint about each region that differs.

    :param regions: by the names of the sources.
    """
    for name, found in regions.items():
        for complaint in find_differences(sources()[name], found, wholes()[name]):
            yield f"{name} {complaint}"


def find_differences(source: bytes, regions: Sequence[Region], whole: Sound) -> Iterator[str]:
    """Render regions of a source, and yield a complaint about each that differs from the whole."""
    outputs = render_all(source, [each.text for each in regions])
    for each in regions:
        heard, expected = read_wav(outputs[each.text]), each.part(whole)
        apart = _difference(heard, expected)
        # In silence, the filter of the Opus decoder keeps the smallest numbers that a float can
        # have, as they round to themselves. Behind another start, they are 0.
        if apart >= np.finfo(np.float32).tiny:
            place = each.text.removeprefix(f"{WHOLE}/")
            yield f"{place}: {len(heard)} of {len(expected)} samples, up to {apart:.2g} apart"


def seeks(source: bytes) -> bool:
    """Return whether a render from the second place on does not decode the source's start."""
    options = options_of(Region(PLACES[1].start, None).text)
    found = find_probe(source, options)
    placed = replace(found, seek_point=find_point(source, options, found))
    return trim_range(options, placed).seek > 0


def _difference(one: Sound, other: Sound) -> float:
    """Return the largest difference of two samples at the same place."""
    if (one.rate, one.channels.shape) != (other.rate, other.channels.shape):
        return np.inf
    return float(np.abs(one.channels - other.channels).max(initial=0))


def _round(thousandths: int, rate: int) -> int:
    return int((Decimal(thousandths) * rate / 1000).to_integral_value(ROUND_HALF_UP))
