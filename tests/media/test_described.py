"""The duration in an info document, where ffprobe has none or a wrong one."""

from __future__ import annotations

from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.described import describe, is_doubtful
from audioproxy.media.info_document import SourceInfo
from audioproxy.media.reading import SourceLength
from tests.media.lengths.test_musepack import musepack
from tests.support.audio import run_in_memory
from tests.support.mpeg import MPEG_1, tagged
from tests.support.ogg import PACKET, opus, page
from tests.support.probes import Probe, replace
from tests.support.riff import chunk


def probe_of(kind: str, stated: str | None, rate: int = 48000) -> Probe:
    """Return a probe whose description has a duration."""
    container, codec = kind.split("/")
    description = SourceInfo(duration=None if stated is None else Decimal(stated), bitrate=77)
    return Probe(container, codec, None, False, sample_rate=rate, description=description)


def describe_file(file: bytes, probe: Probe) -> tuple[str, int | None]:
    """Return the duration and the bit rate that are described."""
    found = run_in_memory(lambda read: describe(read, len(file), probe), file)
    assert not is_doubtful(found)
    return str(found.description.duration), found.description.bitrate


class DescribedTests(SynchronousTestCase):
    """`is_doubtful` and `describe`"""

    def test_doubtful(self) -> None:
        """A source is read only if ffprobe may have misread it, or lacks its exact duration."""
        for kind, stated, doubtful in (
            *(("wav/pcm_s16le", "9", False), ("wav/pcm_s16le", None, True)),
            *(("iff/pcm_s8_planar", None, True), ("dsf/dsd_lsbf_planar", None, True)),
            *(("ogg/opus", "9", True), ("ogg/vorbis", "9", False), ("ogg/vorbis", None, True)),
            *(("mpc8/musepack8", "9", True), ("aac/aac", None, False)),
            *(("mp3/mp3", None, False), ("flac/flac", None, True)),
            *(("matroska/opus", None, False), ("loas/aac_latm", None, False)),
        ):
            probe = probe_of(kind, stated)
            self.assertIs(is_doubtful(probe), doubtful, (kind, stated))
            self.assertFalse(is_doubtful(replace(probe, is_described=True)))

    def test_missing(self) -> None:
        """A duration that ffprobe lacks is that of the samples (D71)."""
        file = b"FORM\0\0\0\x008SVX" + chunk(b"BODY", bytes(16_000), order=">I")
        probe = replace(probe_of("iff/pcm_s8_planar", None, 8000), channels=1)
        self.assertEqual(describe_file(file, probe), ("2.000000", 64_080))
        self.assertEqual(describe_file(file[:12], probe), ("None", 77))
        known = replace(probe, length=SourceLength(4000))
        self.assertEqual(describe_file(b"", known)[0], "0.500000")

    def test_wrong(self) -> None:
        """Opus is described by its pages where the last position contradicts them."""
        first = page(48_000, *[PACKET] * 50)
        for granule, stated, described in (
            (48_960, "1.020000", "1.020000"),
            (100, "0.002083", "0.993500"),
        ):
            file = opus(first, page(granule, PACKET, flags=4))
            duration, bitrate = describe_file(file, probe_of("ogg/opus", stated))
            self.assertEqual(duration, described)
            self.assertEqual(bitrate, 77 if stated == described else 8 * len(file) * 48000 // 47688)

    def test_musepack(self) -> None:
        """ffprobe rounds the duration of Musepack down to whole packets."""
        found = describe_file(musepack(89_082), probe_of("mpc8/musepack8", "1.671837", 44100))
        self.assertEqual(found[0], "2.020000")

    def test_padding(self) -> None:
        """The delay and the padding of mp3 are subtracted once, where ffprobe has counted them."""
        file = tagged(MPEG_1, 100)
        probe = replace(probe_of("mp3/mp3", "2.612245", 44100), may_count_padding=True)
        counted = replace(probe, duration=Decimal("2.612245"))
        self.assertTrue(is_doubtful(counted))
        self.assertEqual(describe_file(file, counted)[0], "2.576508")
        self.assertEqual(describe_file(b"", counted)[0], "2.612245")
