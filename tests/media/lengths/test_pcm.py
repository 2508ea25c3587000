"""Lengths of uncompressed audio."""

from __future__ import annotations

import struct

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.reading import SourceLength
from tests.support.audio import find_length_of
from tests.support.probes import Probe
from tests.support.riff import FORMAT, chunk, dsf, w64, wav


def found(file: bytes, container: str, codec: str = "pcm_s16le") -> int | None:
    """Return the number of samples that is found; it is always exact."""
    length = find_length_of(file, Probe(container, codec, None, False, sample_rate=44100))
    assert length is None or length == SourceLength(length.samples, data_offset=length.data_offset)
    return None if length is None else length.samples


class WavTests(SynchronousTestCase):
    """RIFF and RF64 files"""

    def test_codecs(self) -> None:
        """The codec tells the bytes of a sample, whatever the header states."""
        file = wav(chunk(b"fmt ", FORMAT), chunk(b"data", bytes(48)))
        for codec, samples in (
            *(("pcm_u8", 24), ("pcm_alaw", 24), ("pcm_mulaw", 24), ("pcm_s24le", 8)),
            *(("pcm_f32be", 6), ("pcm_f64le", 3), ("pcm_f16le", 6), ("pcm_f24le", 6)),
        ):
            self.assertEqual(found(file, "wav", codec), samples)

    def test_64_bits(self) -> None:
        """The size in RF64 and BW64 is that of ds64 (EBU Tech 3306), or to the end of the file."""
        sizes, form = struct.pack("<QQQI", 0, 40, 10, 0), chunk(b"fmt ", FORMAT)
        data = chunk(b"data", bytes(80), 0xFFFF_FFFF)
        for name in (b"RF64", b"BW64"):
            for stated, samples in ((sizes, 10), (bytes(28), 20)):
                file = wav(chunk(b"ds64", stated), form, data, name=name)
                self.assertEqual(found(file, "wav"), samples)
        # The chunk's own size does not count.
        small = chunk(b"data", bytes(80), 4)
        self.assertEqual(found(wav(chunk(b"ds64", sizes), small, name=b"RF64"), "wav"), 10)

    def test_unknown(self) -> None:
        """Files of another form, without samples or with padded samples have no known length."""
        form, data = chunk(b"fmt ", FORMAT), chunk(b"data", bytes(40))
        for file in (
            *(b"", b"RIFF", wav(form), wav(form, chunk(b"data", b""))),
            wav(form, data, name=b"RIFX"),
            wav(*[chunk(b"junk", b"")] * 64, form, data),
        ):
            self.assertIsNone(found(file, "wav"), file[:60])
        for codec in ("adpcm_ms", "pcm_bluray"):
            self.assertIsNone(found(wav(form, data), "wav", codec))


class OtherContainerTests(SynchronousTestCase):
    """w64, aiff, caf, iff and dsf"""

    def test_w64(self) -> None:
        """The length is that of the samples in the data chunk, or to the end of the file."""
        file = w64((b"fmt ", FORMAT), (b"data", bytes(41)))
        self.assertEqual(found(file, "w64"), 10)
        self.assertEqual(found(file[:-20], "w64"), (41 + 7 - 20) // 4)
        for broken in (
            b"\0" * 99,
            w64((b"fmt ", FORMAT)),
            w64(*[(b"fmt ", FORMAT)] * 65),
            file[:56],
        ):
            self.assertIsNone(found(broken, "w64"))
        other = bytes(16) + struct.pack("<Q", 24 + 8) + bytes(8)
        self.assertEqual(found(file[:40] + other + file[40:], "w64"), 10)
        self.assertIsNone(found(file[:40] + bytes(64), "w64"))

    def test_aiff(self) -> None:
        """The length is that of the sound chunk after its offset, or to the end of the file."""
        common = chunk(b"COMM", struct.pack(">HIH", 2, 999, 12) + bytes(10), order=">I")
        for kind in (b"AIFF", b"AIFC"):
            head = b"FORM\0\0\0\0" + kind + common
            sound = chunk(b"SSND", struct.pack(">II", 4, 0) + bytes(44), order=">I")
            self.assertEqual(found(head + sound, "aiff"), 10)
            self.assertEqual(found(head + chunk(b"odd ", b"x", order=">I") + sound, "aiff"), 10)
            self.assertEqual(found((head + sound)[:-6], "aiff"), 8)
            self.assertIsNone(found(head, "aiff"))
            self.assertIsNone(found(head + sound[:16], "aiff"))
        self.assertIsNone(found(b"FORM\0\0\0\x008SVX" + common, "aiff"))
        self.assertIsNone(found(head + chunk(b"free", b"", order=">I") * 64 + sound, "aiff"))

    def test_caf(self) -> None:
        """The length is that of the data chunk, whose size may be unknown."""

        def caf(*chunks: tuple[bytes, bytes, int | None]) -> bytes:
            return b"caff\0\1\0\0" + b"".join(
                name + struct.pack(">q", len(body) if size is None else size) + body
                for name, body, size in chunks
            )

        description = b"desc", struct.pack(">d4sIIIII", 44100, b"lpcm", 2, 4, 1, 2, 16), None
        data = bytes(4 + 40)
        for size in (None, -1, 1000):
            file = caf((b"free", b"", None), description, (b"data", data, size))
            self.assertEqual(found(file, "caf"), 10)
        for file in (
            *(
                b"",
                b"cafe" * 9,
                caf(description),
                caf((b"data", b"", None)),
                caf((b"free", b"", -1)),
            ),
            caf(*[(b"free", b"", None)] * 64, description, (b"data", data, None)),
        ):
            self.assertIsNone(found(file, "caf"))

    def test_iff(self) -> None:
        """The length of 8SVX, 16SV and DSDIFF is that of the samples."""
        header = chunk(b"VHDR", bytes(20), order=">I")
        for kind, codec, samples in (
            (b"8SVX", "pcm_s8_planar", 20),
            (b"16SV", "pcm_s16be_planar", 10),
        ):
            head = b"FORM\0\0\0\0" + kind + header
            body = chunk(b"BODY", bytes(40), order=">I")
            self.assertEqual(found(head + body, "iff", codec), samples)
            self.assertEqual(found((head + body)[:-20], "iff", codec), samples // 2)
            self.assertIsNone(found(head, "iff", codec))
        head = b"FRM8" + bytes(8) + b"DSD " + chunk(b"FVER", bytes(4), order=">Q")
        body = chunk(b"DSD ", bytes(40), order=">Q")
        self.assertEqual(found(head + body, "iff", "dsd_msbf"), 20)
        self.assertIsNone(found(head, "iff", "dsd_msbf"))

    def test_dsf(self) -> None:
        """The length of DSF is the number that it states, of which ffmpeg decodes an eighth."""

        def count(file: bytes) -> int | None:
            probe = Probe("dsf", "dsd_lsbf_planar", None, False, sample_rate=352800)
            length = find_length_of(file, probe)
            assert length is None or length == SourceLength(length.samples)
            return None if length is None else length.samples

        self.assertEqual(count(dsf(8 * 8192)), 8192)
        self.assertEqual(count(dsf(8 * 5000 + 7)), 5000)
        # ffmpeg plays whole blocks, so the number has to be one of the last block.
        whole = dsf(8 * 8192), dsf(8 * 4000)
        for broken in (b"", dsf(8 * 8193), whole[0][:-1], whole[1], dsf(8, name=b"DSD1")):
            self.assertIsNone(count(broken))
