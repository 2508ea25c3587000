"""The index of the frames of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, cycle

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.seeking import frame_index
from audioproxy.media.seeking.frame_index import FrameIndex
from tests.media.seeking.test_frames import read
from tests.support.audio import search
from tests.support.mpeg import ID3, ID3_V1, adts
from tests.support.strategies import DETERMINISTIC

#: The sizes of frames, some of which have others inside them.
SIZES = (9, 30, 11, 200, 8, 50)


def stream_of(count: int, sizes: Sequence[int] = SIZES) -> tuple[bytes, list[int]]:
    """Return frames of ADTS, and their offsets."""
    listed = [size for size, _ in zip(cycle(sizes), range(count), strict=False)]
    parts = [adts(size, content=adts(12)[:9] * 9) for size in listed]
    return b"".join(parts), [0, *accumulate(listed)][:count]


def index_of(file: bytes) -> FrameIndex:
    """Return the index of a file, of which nothing is read yet."""
    return FrameIndex(read(file, "aac"))


def extend(index: FrameIndex, file: bytes, pieces: Sequence[int] = (1 << 20,)) -> None:
    """Read all frames in pieces of some sizes, over and over."""
    for piece in cycle(pieces):
        if index.is_over:
            return
        count = index.left(piece)
        index.add(file[index.offset :][:count])


def find(index: FrameIndex, file: bytes, number: int) -> int | None:
    """Return the offset of a frame, or None where the file has changed."""
    return search(index.find_offset(number), file)


class FrameIndexTests(SynchronousTestCase):
    """`FrameIndex`"""

    @settings(DETERMINISTIC, max_examples=40)
    @given(
        st.integers(2, 1100),
        st.lists(st.sampled_from((8, 9, 31, 200, 900)), min_size=1, max_size=9),
        st.lists(st.integers(8, 20_000), min_size=1, max_size=9),
    )
    def test_pieces(self, count: int, sizes: list[int], pieces: list[int]) -> None:
        """The offset of each frame is the same, however the bytes are cut into pieces."""
        frames, offsets = stream_of(count, sizes)
        file = ID3 + frames + ID3_V1
        index = index_of(file)
        extend(index, file, pieces)
        self.assertEqual((index.frames, index.offset), (count, len(file) - len(ID3_V1)))
        for number in {0, 1, 255, 256, 257, 511, 512, 1023, count // 2, count - 1}:
            if number < count:
                expected = len(ID3) + offsets[number]
                self.assertEqual(find(index, file, number), expected, number)

    def test_end(self) -> None:
        """The index ends where less than a header is left, also in the middle of a frame."""
        frames, _ = stream_of(20)
        for more, count in (
            (b"", 20),
            (b"\xff\xf1", 20),
            (adts(300)[:8], 21),
            (adts(300)[:200], 21),
        ):
            file = frames + more
            index = index_of(file)
            extend(index, file)
            self.assertEqual(index.frames, count, more)
        # Only a tag is behind the first header.
        file = frames[:9] + b"APETAGEX" + bytes(4) + (40).to_bytes(4, "little") + bytes(16)
        self.assertTrue(index_of(file).is_over)

    def test_other_bytes(self) -> None:
        """The index ends at something else than a frame."""
        file, _ = stream_of(600)
        for other in (bytes(8), bytes(3000), adts(20, channels=1)):
            changed = file + other + file
            index = index_of(changed)
            extend(index, changed, (1000,))
            self.assertEqual((index.frames, index.offset), (600, len(file)))
            self.assertTrue(index.is_over)

    def test_shorter(self) -> None:
        """The index of a file that has become shorter ends, and finds what is left."""
        file, offsets = stream_of(600)
        for left in (20_000, offsets[300]):
            index = index_of(file)
            shorter = file[:left]
            extend(index, shorter, (9000,))
            self.assertTrue(index.is_over)
            self.assertLess(index.frames, 600)
            self.assertEqual(find(index, shorter, 200), offsets[200])
        whole = index_of(file)
        extend(whole, file)
        self.assertIsNone(find(whole, file[: offsets[300]], 500))

    def test_changed(self) -> None:
        """No offset is found in a file that has changed."""
        file, offsets = stream_of(600)
        index = index_of(file)
        extend(index, file)
        at = offsets[300]
        changed = file[:at] + bytes(8) + file[at + 8 :]
        self.assertEqual(find(index, changed, 299), offsets[299])
        self.assertIsNone(find(index, changed, 300))
        self.assertIsNone(find(index, changed, 511))
        self.assertEqual(find(index, changed, 512), offsets[512])

    def test_limit(self) -> None:
        """An index has a limit; the frames behind it have no place."""
        self.patch(frame_index, "_MOST_ENTRIES", 2)
        file, _ = stream_of(2000)
        index = index_of(file)
        extend(index, file, (1000,))
        self.assertTrue(index.is_over)
        self.assertTrue(257 <= index.frames < 600, index.frames)
