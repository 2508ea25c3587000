"""Places in WavPack."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.seek_point import SeekPoint
from audioproxy.media.seeking import wavpack as wavpack_module
from audioproxy.media.seeking.wavpack import find_in_wavpack
from tests.support.audio import find_length_of, search
from tests.support.lossless import FLAGS, TAG, block, wavpack
from tests.support.mpeg import ID3
from tests.support.probes import Probe
from tests.support.strategies import DETERMINISTIC

PROBE = Probe("wv", "wavpack", None, False, sample_rate=44100)


def find(file: bytes, first: int, whole: bytes = b"") -> SeekPoint | None:
    """Return the place for a sample.

    :param whole: the file whose length is known, if that is another one.
    """
    length = find_length_of(whole or file, PROBE)
    assert length is not None
    return search(find_in_wavpack(len(file), PROBE, length, first, None), file)


class WavPackTests(SynchronousTestCase):
    """`find_in_wavpack`"""

    @settings(DETERMINISTIC, max_examples=40)
    @given(
        st.lists(
            st.tuples(st.integers(1, 3000), st.sampled_from((0, 40, 5000, 90_000))),
            min_size=3,
            max_size=40,
        ),
        st.integers(1, 3),
        st.floats(0, 1),
    )
    def test_any_stream(self, sizes: list[tuple[int, int]], parts: int, share: float) -> None:
        """The place is the frame with the sample, whatever the sizes of frames are."""
        total = sum(samples for samples, _ in sizes)
        flags = {1: [3], 2: [1, 2], 3: [1, 0, 2]}[parts]
        pieces, starts, at, offset = [], [], 0, 0
        for samples, size in sizes:
            starts.append((at, offset))
            for part in flags:
                each = block(at, samples, total, FLAGS & ~(3 << 11) | part << 11, size)
                pieces.append(each)
                offset += len(each)
            at += samples
        file = b"".join(pieces)
        first = min(total - 1, int(share * total))
        point = find(file, first)
        if first >= starts[-1][0]:
            self.assertIsNone(point)
            return
        expected = [start for start in starts if start[0] <= first][-1]
        self.assertEqual(point, SeekPoint(*expected, "wv"))

    def test_tags(self) -> None:
        """Tags at both ends of the file, and blocks without samples, are no places."""
        file = ID3 + wavpack() + TAG
        self.assertEqual(find(file, 5500), SeekPoint(5000, len(ID3) + 5 * 232, "wv"))
        other = block(0, samples=0, total=20_000, flags=0)
        file = wavpack(10, total=20_000) + other + wavpack(10, total=20_000, start=10_000)
        for first, number in ((9_999, 9), (10_000, 10), (10_999, 10)):
            place = number * 232 + (number >= 10) * len(other)
            self.assertEqual(find(file, first), SeekPoint(1000 * number, place, "wv"), first)

    def test_no_place(self) -> None:
        """There is none past the last block, or where the file states no length."""
        for first in (19_000, 19_999, 20_000, 1 << 40):
            self.assertIsNone(find(wavpack(), first), first)
        self.assertIsNone(find(wavpack(total=None), 5500))

    def test_contradictions(self) -> None:
        """Numbers that are not those of the samples contradict the search, which ends."""
        whole = wavpack(400, size=4000)
        each = len(whole) // 400
        for begin, count, number, first in (
            # At the first place that is read, also for a sample behind it.
            (180, 18, 500_000, 200_500),
            (180, 18, 1, 200_500),
            # Behind it.
            (230, 1, 100_000, 240_500),
        ):
            at = begin * each
            blocks = b"".join(block(number, total=400_000, size=4000) for _ in range(count))
            changed = whole[:at] + blocks + whole[at + len(blocks) :]
            self.assertIsNone(find(changed, first, whole), (begin, number))

    def test_many_blocks(self) -> None:
        """Many blocks are followed in several steps, of which there is a bounded number."""
        many = b"".join(block(index, 1, 9001, size=0) for index in range(9000))
        file = many + block(9000, 1, 9001, size=900_000)
        self.assertEqual(find(file, 8990), SeekPoint(8990, 8990 * 32, "wv"))
        self.patch(wavpack_module, "_MOST_STEPS", 1)
        self.assertIsNone(find(file, 8990))
