"""Samples that fill only a part of their containers."""

from __future__ import annotations

import struct
from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.info_document import SourceInfo
from audioproxy.media.lengths.padded import resolve_padding
from audioproxy.media.reading import SourceLength
from tests.support.audio import run_in_memory
from tests.support.mpeg import ID3
from tests.support.probes import Probe, replace
from tests.support.riff import FLOAT, chunk, description, extensible, w64, wav

STATED = SourceInfo(duration=Decimal(3), bitrate=1, bit_depth=32)
PROBE = Probe(
    "wav", "pcm_f24le", Decimal(3), True, sample_rate=1000, bit_depth=32, description=STATED
)
DATA = bytes(8 * 500)


def find(file: bytes, container: str = "wav", codec: str = "pcm_f24le") -> Probe:
    """Return the probe of a file in memory."""
    found = replace(PROBE, container=container, codec=codec)
    return run_in_memory(lambda read: resolve_padding(read, len(file), found), file)


class PaddingTests(SynchronousTestCase):
    """`resolve_padding`"""

    def test_containers(self) -> None:
        """A sample has the bits of its container, of which the valid ones are its depth."""
        data = chunk(b"data", DATA)
        for container, valid in ((32, 24), (32, 20), (32, 16), (24, 16), (16, 8)):
            form = extensible(container, valid)
            for name, file in (
                ("wav", wav(chunk(b"bext", bytes(603)), chunk(b"fmt ", form), data)),
                ("w64", w64((b"fmt ", form), (b"data", DATA))),
                ("w64", w64((b"wave", b"other"), (b"fmt ", form), (b"data", DATA))),
            ):
                found = find(file, name)
                codec = f"pcm_s{container}le"
                self.assertEqual((found.codec, found.audio.decoder), (codec, codec))
                self.assertEqual((found.audio.bit_depth, found.audio.decoded_bits), (valid, valid))
                samples = len(DATA) * 4 // container
                self.assertEqual(found.length and found.length.samples, samples)
                self.assertEqual(found.duration, Decimal(samples) / 1000)

    def test_tagged(self) -> None:
        """ID3v2 tags may precede the container."""
        file = ID3 + wav(chunk(b"fmt ", extensible(32, 24)), chunk(b"data", DATA))
        found = find(file)
        self.assertEqual((found.codec, found.file.demuxer, found.skipped), ("pcm_s32le", "wav", 15))
        self.assertEqual(found.length and found.length.samples, 500)

    def test_core_audio(self) -> None:
        """The size of a packet tells the container in a Core Audio file, with either byte order."""
        data = b"data" + struct.pack(">q", 4 + len(DATA)) + bytes(4) + DATA
        for order, flags in (("le", 2), ("be", 0)):
            found = find(description(8, 24, flags=flags) + data, "caf", f"pcm_s24{order}")
            self.assertEqual((found.codec, found.audio.bit_depth), (f"pcm_s32{order}", 24))
            self.assertEqual(found.length and found.length.samples, 500)
        for head in (
            *(description(8, 32), description(8, 24, b"alaw"), description(8, 24, flags=3)),
            *(description(16, 24, frames=2), description(8, 24, count=0), description(7, 24)),
        ):
            self.assertIsNone(find(head + data, "caf", "pcm_s24le").audio.decoder, head)

    def test_info(self) -> None:
        """The info document has the true duration and bit rate, ffprobe's depth (Info document)."""
        file = wav(chunk(b"fmt ", extensible(32, 24)), chunk(b"data", DATA))
        info = find(file).description
        self.assertEqual((info.duration, info.bit_depth), (Decimal("0.5"), 32))
        self.assertEqual(info.bitrate, len(file) * 8 * 2)

    def test_not_padded(self) -> None:
        """Floats, plain PCM, full containers and broken headers keep the codec of the probe."""
        data = chunk(b"data", DATA)
        for form in (
            *(extensible(32, 32), extensible(32, 33), extensible(32, 0), extensible(40, 24)),
            *(extensible(32, 24, FLOAT), extensible(32, 24, frame=6)),
            *(extensible(24, 24, frame=8), extensible(32, 24, tag=1), extensible(32, 24)[:20]),
        ):
            found = find(wav(chunk(b"fmt ", form), data))
            self.assertEqual(
                (found.codec, found.audio.decoder, found.audio.bit_depth), ("pcm_f24le", None, 32)
            )
            # A float of either kind has 4 bytes.
            self.assertEqual(found.length, SourceLength(500, data_offset=found.length.data_offset))
        for file, container in (
            *((b"", "wav"), (wav(data), "wav"), (wav(*[chunk(b"junk", b"")] * 65), "wav")),
            *((w64((b"data", DATA))[:40] + bytes(64), "w64"), (description(8, 24)[:30], "caf")),
        ):
            found = find(file, container)
            self.assertEqual((found.codec, found.audio.decoder), ("pcm_f24le", None))
        self.assertEqual(find(b"").description, STATED)
