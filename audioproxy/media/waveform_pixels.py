"""The length of a pixel of a waveform, which is a function of the numbers of frames and pixels.

A player that zooms asks for tiles, which are waveforms of neighboring parts of a source. Where
pixels divide the frames of a tile evenly, each has exactly its share of them, so tiles join without
a gap. Elsewhere a pixel has a whole number of blocks. They are so short that it is at most 1 %
longer than necessary (D26), and so long that few of them cover the source, since a decoder tells
the number of its frames only at its end.
"""

from __future__ import annotations

# If a pixel has at least this many blocks, rounding it up to whole blocks makes it at most 1 %
# longer.
_BLOCKS_IN_PIXEL = 100
# The least capacity, in blocks. A waveform of few pixels gets more blocks than it needs: with fewer
# merges, the blocks stay short.
_LEAST_CAPACITY = 256 * 1024


class CoarseBlocks(Exception):
    """A pixel is no whole number of blocks, so it takes another pass over the counted frames."""

    def __init__(self, frames: int) -> None:
        self.frames = frames
        super().__init__()


def block_capacity(pixels: int) -> int:
    """Return how many blocks a waveform may have before they are merged.

    The number is even, so that every block has a neighbor to be merged with.
    """
    return max(2 * _BLOCKS_IN_PIXEL * pixels, _LEAST_CAPACITY)


def frames_per_pixel(frames: int, pixels: int) -> int:
    """Return the format's ``samples_per_pixel``; 0 where there are no frames.

    It does not depend on whether the number of frames was known ahead of the decoder (D78).
    """
    share, rest = divmod(frames, pixels)
    if not rest:
        return share
    capacity, block = block_capacity(pixels), 1
    while capacity * block <= frames:
        block *= 2
    return -(-(share + 1) // block) * block
