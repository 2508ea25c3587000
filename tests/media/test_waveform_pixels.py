"""The length of a pixel: exact where pixels divide the frames, else at most 1 % too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.waveform_pixels import block_capacity, frames_per_pixel
from tests.support.strategies import DETERMINISTIC
from tests.support.waveforms import bounds

FRAMES = st.one_of(st.integers(1, 10_000), st.integers(1, 2**40))
PIXELS = st.integers(1, 65536)


class PixelTests(SynchronousTestCase):
    """`frames_per_pixel` and `block_capacity`"""

    @DETERMINISTIC
    @given(frames=FRAMES, pixels=PIXELS)
    def test_bounds(self, frames: int, pixels: int) -> None:
        """The pixels hold all frames, and none is more than 1 % longer than necessary (D26)."""
        least, most = bounds(frames, pixels)
        found = frames_per_pixel(frames, pixels)
        self.assertTrue(least <= found <= most, found)

    @DETERMINISTIC
    @given(share=FRAMES, pixels=PIXELS)
    def test_even(self, share: int, pixels: int) -> None:
        """Where pixels divide the frames evenly, each has exactly its share."""
        self.assertEqual(frames_per_pixel(share * pixels, pixels), share)

    @DETERMINISTIC
    @given(spp=st.integers(1, 10**6), tiles=st.lists(st.integers(1, 2000), min_size=1, max_size=9))
    def test_tiles(self, spp: int, tiles: list[int]) -> None:
        """Tiles of whole pixels have the pixels of the whole, so they join."""
        whole = frames_per_pixel(spp * sum(tiles), sum(tiles))
        self.assertEqual({frames_per_pixel(spp * pixels, pixels) for pixels in tiles}, {whole})

    @DETERMINISTIC
    @given(frames=FRAMES, pixels=PIXELS)
    def test_blocks(self, frames: int, pixels: int) -> None:
        """A pass of unknown length has blocks that fit a pixel, unless pixels divide the frames.

        The blocks of a pass are as long as it takes to hold all frames.
        """
        block = 1
        while block_capacity(pixels) * block <= frames:
            block *= 2
        fits = frames_per_pixel(frames, pixels) % block == 0
        self.assertTrue(fits or frames % pixels == 0)

    def test_by_hand(self) -> None:
        """Ten minutes at 44100 Hz have pixels of 0.6 s; a frame more takes whole blocks."""
        for frames, pixels, expected in (
            *((0, 800, 0), (1, 1, 1), (1, 65536, 1), (5, 4, 2), (26_460_000, 1000, 26_460)),
            *((26_460_001, 1000, 26_496), (26_459_999, 1000, 26_496)),
            # An hour, in pixels that no player asks for.
            (158_760_000, 799, 199_680),
        ):
            self.assertEqual(frames_per_pixel(frames, pixels), expected, (frames, pixels))
