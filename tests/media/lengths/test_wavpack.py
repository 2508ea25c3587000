"""Lengths of WavPack files, and joined files."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import UndecodableSource
from audioproxy.media.reading import SourceLength
from tests.support.audio import find_length_of
from tests.support.lossless import FLAGS, TAG, block, wavpack
from tests.support.probes import Probe


def find(file: bytes) -> SourceLength | None:
    return find_length_of(file, Probe("wv", "wavpack", None, False, sample_rate=44100))


class WavPackTests(SynchronousTestCase):
    """`read_wavpack`"""

    def test_whole(self) -> None:
        """The last block confirms the length; tags and blocks without samples may follow it."""
        for file in (
            wavpack(),
            wavpack() + TAG,
            wavpack() + TAG + b"TAG" + bytes(125),
            wavpack() + block(0, samples=0, flags=0),
            block(0, samples=0, total=20_000, flags=0) + wavpack(),
            b"ID3\4\0\0\0\0\0\5hello" + wavpack(),
            wavpack(1),
            # The last frame is searched in a larger part of the end.
            wavpack(4, size=200_000),
        ):
            found = find(file)
            assert found is not None
            expected = SourceLength(found.samples, is_stated_only=True, seekable=True)
            self.assertEqual(found, expected)
            self.assertIn(found.samples, (1000, 4000, 20_000))

    def test_channels(self) -> None:
        """Each frame of several channels has several blocks."""
        first, middle, last = (FLAGS & ~(3 << 11) | part << 11 for part in (1, 0, 2))
        frames = b"".join(
            block(number, total=9000, flags=flags)
            for number in range(0, 9000, 1000)
            for flags in (first, middle | 4, last)
        )
        found = find(frames)
        assert found is not None
        self.assertEqual((found.samples, found.seekable), (9000, True))

    def test_unstated(self) -> None:
        """A file from a pipe has the length that its last block states, and is not sought in."""
        for total in (None, 0):
            self.assertEqual(find(wavpack(total=total)), SourceLength(20_000, is_stated_only=True))

    def test_long(self) -> None:
        """Numbers have 40 bits, of which ffmpeg reads 32: such a file is not sought in."""
        samples = (1 << 32) + 500
        file = block(0, total=samples) + block(samples - 500, 500, samples)
        self.assertEqual(find(file), SourceLength(samples, is_stated_only=True))

    def test_joined(self) -> None:
        """The length of joined files is unknown, so that they are decoded from their start."""
        for file in (
            wavpack(8) + wavpack(30),
            wavpack(30) + wavpack(8),
            wavpack() + wavpack(),
            wavpack(total=None) * 3,
            wavpack(1) * 2,
            # The beginning was cut off.
            wavpack(start=3000, total=20_000),
            wavpack(total=19_000),
        ):
            self.assertIsNone(find(file))

    def test_ends_early(self) -> None:
        """Joined files at whose border ffmpeg ends are refused."""
        mono, wide, fast = FLAGS | 4, FLAGS + 1, FLAGS + (1 << 23)
        for file in (
            *(wavpack() + wavpack(flags=flags) for flags in (mono, wide, fast)),
            # A tag between them; the parameters of the last one agree again.
            wavpack(8) + TAG + wavpack(30),
            wavpack() + TAG + wavpack(),
            wavpack(8) + wavpack(4, flags=mono) + wavpack(30),
        ):
            error = self.assertRaises(UndecodableSource, find, file)
            self.assertIn("several WavPack files", error.message)

    def test_malformed(self) -> None:
        """Other bytes, and files without a whole last block, have no known length."""
        whole = wavpack()
        damaged = whole[:8] + b"\0\1" + whole[10:]
        for file in (b"", b"wvpk", damaged, whole[:-1], whole + bytes(9), block(0, samples=0)):
            self.assertIsNone(find(file), file[:40])

    def test_places(self) -> None:
        """Where no block is near a place inside the file, the length is unknown."""
        small, end = block(0, total=3000, size=10), block(2000, total=3000, size=10)
        for size, is_found in ((100_000, True), (400_000, True), (900_000, False)):
            found = find(small + block(1000, total=3000, size=size) + end)
            self.assertEqual(found and found.samples, 3000 if is_found else None, size)
        # The name of a block in its samples is none.
        fake = small[:32] + b"wvpk" + bytes(6)
        found = find(fake + wavpack(19, start=1000, total=20_000))
        self.assertIsNone(found)

    def test_names(self) -> None:
        """Of names of blocks in the samples, a bounded number is examined."""
        spam = block(0, total=3000)[:32] + b"wvpk" * 50
        middle = block(1000, total=3000, size=100_000)[:32] + b"wvpk" * 25_000
        self.assertIsNone(find(spam + middle + block(2000, total=3000)))
        last = block(2000, total=3000, size=4000)[:32] + b"wvpk" * 1000
        self.assertIsNone(find(spam + block(1000, total=3000) + last))

    def test_many_blocks(self) -> None:
        """Of joined files with very many blocks, the length is unknown."""
        self.assertIsNone(find(wavpack(5000, size=0) + wavpack(2, flags=FLAGS) + wavpack(9)))
