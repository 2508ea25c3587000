"""Places in WavPack: each block states the number of its first sample, and stands alone."""

from __future__ import annotations

from audioproxy.media.lengths.reading import (
    Malformed,
    Reader,
    SourceLength,
    end_before_tags,
    skip_id3,
)
from audioproxy.media.lengths.wavpack import Block, find_block, find_last_block, read_block
from audioproxy.media.probe import Probe
from audioproxy.media.seeking.point import SeekPoint

# Bytes by which a search begins ahead of the estimated place, twice as many with each step.
_AHEAD, _MOST_STEPS = 64 * 1024, 6
# Blocks that are followed to the place: those of all channels of a few frames.
_MOST_BLOCKS = 32


def find_in_wavpack(
    size: int, probe: Probe, length: SourceLength, first: int, last: int | None
) -> Reader[SeekPoint]:
    """Return the place from which decoding gives a sample.

    :param length: which the ends of the file confirm.
    :param first: the sample.
    :param last: without effect: the decoder reads the source itself.
    :raises Malformed: where the numbers of samples contradict each other, or none is near.
    """
    start = yield from skip_id3()
    low = yield from read_block(start)
    high = end = yield from find_last_block(start, (yield from end_before_tags(size)))
    if not length.seekable or not low.number <= first < end.number:
        raise Malformed
    for step in range(_MOST_STEPS):
        share = (high.start - low.start) * (first - low.number) // (high.number - low.number)
        found = yield from find_block(max(low.start, low.start + share - (_AHEAD << step)), end)
        if not low.number <= found.number <= high.number:
            raise Malformed
        if found.number > first:
            high = found
            continue
        low, following = yield from _follow(found, first)
        if following.number > first:
            return SeekPoint(low.number, low.start, "wv")
    raise Malformed


def _follow(block: Block, first: int) -> Reader[tuple[Block, Block]]:
    """Return the first blocks of two frames that follow each other, near a sample.

    The second frame begins behind the sample, or is one of many that precede it.
    """
    following = block
    for _ in range(_MOST_BLOCKS):
        if following.begins_frame:
            if following.number > first:
                break
            block = following
        following = yield from read_block(following.end)
    return block, following
