"""The search for the length of a source."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.containers import read_length
from tests.support.audio import find_length_of
from tests.support.flac import flac, frame
from tests.support.probes import Probe, replace
from tests.support.riff import FORMAT, chunk, wav

FLAC = Probe("flac", "flac", None, False, sample_rate=44100)


class FindTests(SynchronousTestCase):
    """`read_length`"""

    def reads(self, file: bytes, probe: Probe = FLAC) -> list[tuple[int, int]]:
        """Return the offset and the size of each read of a search."""
        reads = []

        async def read(offset: int, count: int) -> bytes:
            reads.append((offset, count))
            return file[offset : offset + count]

        finding = read_length(read, len(file), probe)
        self.successResultOf(Deferred.fromCoroutine(finding))
        return reads

    def test_few_reads(self) -> None:
        """A short file is read once, and a long one at its start and at its end."""
        short = flac(frame(b"\0"))
        self.assertEqual(self.reads(short), [(0, len(short))])
        window = 1 << 16
        frames = frame(b"\0"), bytes(1 << 20), frame(b"\x14")
        long = flac(*frames, total=21 * 4096, largest=window)
        self.assertEqual(self.reads(long), [(0, window), (len(long) - window, window)])

    def test_bounded(self) -> None:
        """The number of reads is limited, and none is past the end of the file."""
        boxes = (b"\0\x20\0\0free" + bytes((1 << 21) - 8)) * 20
        self.assertEqual(len(self.reads(boxes, Probe("mov", "aac", None, False))), 16)
        self.assertEqual(self.reads(flac(frame(b"\0"), blocks=b"\x06\xff\xff\xff")), [(0, 68)])

    def test_unknown_containers(self) -> None:
        """Only containers with a reader are read."""
        for container, codec in (
            ("mpc", "musepack7"),
            ("ogg", "speex"),
            ("mov", "ac3"),
            ("", "aac"),
        ):
            self.assertEqual(self.reads(bytes(999), Probe(container, codec, None, False)), [])

    def test_behind_tags(self) -> None:
        """Tags that the service skips are not read, and count in the place of the samples."""
        samples = wav(chunk(b"fmt ", FORMAT), chunk(b"data", bytes(4000)))
        source = b"ID3 and more" + samples
        probe = Probe("wav", "pcm_s16le", None, False, sample_rate=44100, skipped=12)
        self.assertEqual(self.reads(source, probe), [(12, len(samples))])
        found = find_length_of(source, probe)
        assert found is not None
        self.assertEqual((found.samples, found.data_offset), (1000, source.index(b"data") + 8))
        behind = replace(FLAC, skipped=7)
        found = find_length_of(bytes(7) + flac(frame(b"\0")), behind)
        assert found is not None
        self.assertEqual(found.data_offset, 0)

    def test_no_samples(self) -> None:
        """A length of 0 samples is none: the source is measured or refused."""
        self.assertIsNone(find_length_of(flac(frame(b"\0")[:9]), FLAC))
