"""Places in WavPack: each block states the number of its first sample, and stands alone."""

from __future__ import annotations

from audioproxy.media.lengths.ends import end_before_tags, skip_id3
from audioproxy.media.lengths.wavpack import Block, find_block, find_last_block, read_block
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength
from audioproxy.media.seek_point import SeekPoint, estimate_place

# Bytes by which a search begins ahead of the estimated place.
_AHEAD = 64 * 1024
_MOST_STEPS = 12
# Blocks that are followed to the place: those of silence are small.
_MOST_BLOCKS = 1024


def find_in_wavpack(
    size: int, probe: Probe, length: SourceLength, first: int, last: int | None
) -> Reader[SeekPoint]:
    """Return the place from which decoding gives a sample, given a length that the ends confirm."""
    start = yield from skip_id3()
    low = yield from read_block(start)
    end = yield from find_last_block(start, (yield from end_before_tags(size)))
    if not length.seekable or not low.number <= first < end.number:
        raise Malformed
    # The first block behind this offset has a later sample.
    until, number = end.start, end.number
    for step in range(_MOST_STEPS):
        place = estimate_place(step, until - low.start, first - low.number, number - low.number)
        begin = low.start + max(0, place - _AHEAD)
        found = yield from find_block(begin, end)
        if not low.number <= found.number <= number:
            raise Malformed
        if found.number > first:
            until, number = begin, found.number
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
            if following is not block and following.number != block.number + block.samples:
                raise Malformed
            if following.number > first:
                break
            block = following
        following = yield from read_block(following.end)
    return block, following
