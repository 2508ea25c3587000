"""The parts of a waveform that several decoders decode side by side.

Each part begins with a pixel, so the pixels of all parts are those of the whole. They have the same
values only if a decoder outputs the same samples wherever it starts, and if no stage has a memory.
So the parts of most lossy sources differ, as do faded ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from operator import sub

from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.values import Trim
from audioproxy.media.command.needs import SHORTEST_PART, Needs
from audioproxy.media.command.trim import FOUND, bounds, expected_range, seeks_exactly
from audioproxy.media.probe import Probe
from audioproxy.media.reading import SourceLength
from audioproxy.media.waveform_pixels import frames_per_pixel


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a waveform. The last one has the pixels past the end, too."""

    t: Trim
    frames: int
    pixels: int


def split_waveform(
    options: VariantOptions, probe: Probe, length: SourceLength | None, pixels: int, most: int
) -> list[Part]:
    """Return the parts of a waveform, at most so many, in order; none where it takes one pass."""
    if length is None or not length.exact or not Needs.of(options, probe).parts:
        return []
    covered, rate = expected_range(options, probe, length), probe.sample_rate
    is_found = probe.kind in FOUND
    is_placed = is_found or seeks_exactly(probe.with_time_stamps(length))
    if not covered or not is_placed:
        return []
    pixel = frames_per_pixel(len(covered), pixels)
    filled = -(-len(covered) // pixel)
    count = min(most, filled, len(covered) // (SHORTEST_PART * rate))
    if count < 2:
        return []
    firsts = [filled * number // count for number in range(count)]
    starts = [covered.start + pixel * first for first in firsts]
    seconds = [Decimal(start) / rate for start in starts]
    # The last part ends as the whole does. So it also has what the source has beyond its length.
    ends = [*seconds[1:], bounds(options)[1]]
    return [
        Part(Trim(start, None if end is None else end - start), frames, number)
        for start, end, frames, number in zip(
            seconds,
            ends,
            map(sub, (*starts[1:], covered.stop), starts),
            map(sub, (*firsts[1:], pixels), firsts),
            strict=True,
        )
    ]
