"""What the samples of an uncompressed source are, where ffprobe is wrong about them."""

from __future__ import annotations

import struct
from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NothingDecoded, UndecodableSource
from audioproxy.media.info_document import SourceInfo
from audioproxy.media.inputs import RawSamples
from audioproxy.media.lengths.wav import MUCH_SPACE
from audioproxy.media.probe import Check
from audioproxy.media.reading import SourceLength
from audioproxy.media.samples import Start, check_samples, examine_start, probe_samples
from tests.media.test_bursts import SYNCS, bursts_of, pack
from tests.media.test_flac_frames import BLOCK, NOISE, SILENCE
from tests.support.audio import run_in_memory, search
from tests.support.mpeg import ID3
from tests.support.probes import Probe, replace
from tests.support.riff import FORMAT, INFO, SOUND, START, chunk, extensible, sphere, stating, wav

INFO_OF_FFPROBE = SourceInfo(
    format="wav", duration=Decimal(1), bitrate=1, tags={"title": "x"}, bit_depth=16
)
PROBE = Probe(
    "wav",
    "pcm_s16le",
    Decimal(1),
    True,
    sample_rate=8000,
    unchecked=True,
    first_byte=START,
    stream_bitrate=1,
    description=INFO_OF_FFPROBE,
)
BURSTS = pack(bursts_of(SYNCS["AC-3"]), "pcm_s16le")
SAMPLES = len(SOUND) // 4


def check(file: bytes, probe: Probe = PROBE, decoded: dict[int, bytes] | None = None) -> Probe:
    """Check the samples of a file in memory.

    :param decoded: what ffmpeg decodes, by the number of samples ahead of it.
    """

    async def decode(start: int) -> bytes:
        return (decoded or {})[start]

    return run_in_memory(lambda read: check_samples(read, len(file), probe, decode), file)


class CheckTests(SynchronousTestCase):
    """`check_samples`"""

    def test_plain(self) -> None:
        """Samples that ffmpeg finds itself are opened as before, and their length is known."""
        found = check(stating(len(SOUND), INFO))
        stored = SourceLength(SAMPLES, data_offset=START)
        self.assertEqual(found, replace(PROBE, unchecked=False, decoder="pcm_s16le", stored=stored))
        wide = replace(PROBE, codec="pcm_s24le")
        self.assertIsNone(check(stating(len(SOUND)), wide).audio.decoder)

    def test_raw(self) -> None:
        """Samples that ffmpeg does not find are opened without the container.

        The info document has their duration and bit rate (Info document).
        """
        for file in (
            *(stating(16), stating(16, INFO), stating(0, INFO), stating(0xFFFF_FFFF, INFO)),
            stating(len(SOUND), bytes(MUCH_SPACE + 1)),
        ):
            found = check(file)
            self.assertEqual(found.file.raw, RawSamples("s16le", START, 8000, 2))
            length = SourceLength(SAMPLES, ends_in_padding=True, data_offset=START)
            self.assertEqual((found.length, found.stored), (length, length))
            self.assertEqual((found.audio.decoder, found.audio.bitrate), (None, None))
            self.assertEqual((found.duration, found.measured), (Decimal(SAMPLES) / 8000, True))
            expected = replace(INFO_OF_FFPROBE, duration=found.duration, bitrate=256_000)
            self.assertEqual(found.description, expected)
        for behind in (b"", INFO, INFO + INFO):
            empty = wav(chunk(b"fmt ", FORMAT), chunk(b"data", b""), behind)
            self.assertRaises(NothingDecoded, check, empty)

    def test_padded(self) -> None:
        """Padded samples are those of their containers, also where their size is wrong."""
        form = chunk(b"fmt ", extensible(32, 24))
        padded = replace(PROBE, codec="pcm_f24le", may_be_padded=True)
        found = check(wav(form, chunk(b"data", SOUND, 16)), padded)
        self.assertEqual((found.codec, found.audio.bit_depth), ("pcm_s32le", 24))
        self.assertEqual(found.file.raw and found.file.raw.form, "s32le")
        self.assertNotIn(Check.PADDED_SAMPLES, found.pending)
        # ffmpeg has no demuxer for these.
        floats = replace(PROBE, codec="pcm_f24le")
        self.assertIsNone(check(wav(form, chunk(b"data", SOUND, 16)), floats).file.raw)

    def test_tagged(self) -> None:
        """Behind ID3v2 tags, samples are what they are without, whether ffprobe skips them."""
        rifx = stating(len(SOUND), name=b"RIFX")
        rifx = rifx.replace(FORMAT, struct.pack(">HHIIHH", 1, 2, 44100, 176400, 4, 16))
        for file in (stating(len(SOUND), INFO), stating(16, INFO), rifx):
            bare = check(file)
            for count in (1, 2):
                start = count * len(ID3)
                for skipped in (0, len(ID3), start):
                    probe = replace(PROBE, skipped=skipped, first_byte=START + start)
                    found = check(count * ID3 + file, probe)
                    assert found.stored is not None
                    self.assertEqual(found.stored, bare.stored and bare.stored.moved(start))
                    self.assertEqual(found.length, bare.length and found.stored)
                    raw = bare.file.raw and replace(bare.file.raw, offset=START + start)
                    self.assertEqual((found.file.raw, found.codec), (raw, bare.codec))
                    if raw is None:
                        self.assertEqual(
                            (found.skipped, found.audio.first_byte), (skipped, START + start)
                        )
        file = ID3 + wav(chunk(b"fmt ", FORMAT), chunk(b"data", BURSTS))
        for probe in (PROBE, replace(PROBE, first_byte=None), replace(PROBE, skipped=len(ID3))):
            self.assertRaises(UndecodableSource, check, file, probe)
        two = ID3 + stating(len(SOUND), INFO, chunk(b"data", SOUND))
        second = replace(PROBE, first_byte=len(two) - len(SOUND))
        self.assertRaises(UndecodableSource, check, two, second)

    def test_big_endian(self) -> None:
        """RIFX has the byte order of its name, or it is a 415; it keeps the tags of ffprobe."""
        file = stating(len(SOUND), name=b"RIFX")
        found = check(file.replace(FORMAT, struct.pack(">HHIIHH", 1, 2, 44100, 176400, 4, 16)))
        self.assertEqual((found.codec, found.sample_rate), ("pcm_s16be", 44100))
        self.assertEqual(found.description.tags, {"title": "x"})
        self.assertRaises(UndecodableSource, check, file)

    def test_two_chunks(self) -> None:
        """A second data chunk, which ffmpeg plays alone, is a 415."""
        file = stating(len(SOUND), INFO, chunk(b"data", SOUND))
        second = replace(PROBE, first_byte=len(file) - len(SOUND))
        for probe in (second, replace(second, codec="adpcm_ms")):
            error = self.assertRaises(UndecodableSource, check, file, probe)
            self.assertIn("more than one data chunk", error.message)
        self.assertIsNotNone(check(file).stored)

    def test_other_codecs(self) -> None:
        """Of other codecs, a size that is too small is ignored, and the duration is unknown."""
        probe = replace(PROBE, codec="adpcm_ms")
        found = check(stating(16), probe)
        self.assertEqual(
            (found.file.ignore_length, found.duration, found.exact), (True, None, False)
        )
        self.assertEqual(found.description, replace(probe.description, duration=None, bitrate=None))
        for file in (stating(len(SOUND), INFO), stating(0, INFO), b"RIFF"):
            self.assertEqual(check(file, probe), replace(probe, unchecked=False))

    def test_bursts(self) -> None:
        """Encoded audio in the place of samples is a 415 that names it, in every container."""
        file = wav(chunk(b"fmt ", FORMAT), chunk(b"data", BURSTS))
        shifted = bytes(99) + BURSTS
        for source, probe in (
            (file, PROBE),
            (shifted, replace(PROBE, container="aiff", first_byte=99)),
            (shifted, replace(PROBE, container="w64", first_byte=99)),
        ):
            error = self.assertRaises(UndecodableSource, check, source, probe)
            self.assertIn("AC-3", error.message)
        for container, decoder in (("w64", "pcm_s16le"), ("caf", None)):
            other = replace(PROBE, container=container)
            for first in (99, None):
                found = check(bytes(99) + SOUND, replace(other, first_byte=first))
                self.assertEqual(
                    (found.audio.decoder, found.stored, found.file.raw), (decoder, None, None)
                )

    def test_mono(self) -> None:
        """Bursts have two channels, so one channel is audio."""
        file = bytes(99) + BURSTS
        mono = replace(PROBE, container="caf", first_byte=99, channels=1)
        self.assertNotIn(Check.SAMPLES, check(file, mono).pending)

    def test_long_silence(self) -> None:
        """However long a source is silent, the other checks are made."""
        data = bytes(11 * 384_000 * 4) + 2 * SOUND
        form = struct.pack("<HHIIHH", 1, 2, 384_000, 1_536_000, 4, 16)
        probe = replace(PROBE, sample_rate=384_000)
        found = check(
            wav(chunk(b"fmt ", form), chunk(b"data", data, len(data) - len(SOUND))), probe
        )
        self.assertEqual(found.length and found.length.samples, len(data) // 4)

    def test_flac(self) -> None:
        """Encoded audio that flac holds is a 415 too: what looks like noise is decoded."""
        flac = replace(PROBE, container="flac", codec="flac", first_byte=99)
        file = bytes(99) + SILENCE + NOISE
        bursts = pack(bursts_of(SYNCS["AC-3"]), "pcm_s32le")
        error = self.assertRaises(UndecodableSource, check, file, flac, {BLOCK: bursts})
        self.assertIn("AC-3", error.message)
        for decoded in (b"", SOUND):
            self.assertNotIn(Check.SAMPLES, check(file, flac, {BLOCK: decoded}).pending)
        # Nothing of these is decoded.
        for source, probe in (
            (bytes(99) + SILENCE, flac),
            (file, replace(flac, channels=1)),
            (file, replace(flac, first_byte=None)),
            (file[:99] + bytes(99), flac),
        ):
            self.assertEqual(check(source, probe), replace(probe, unchecked=False))

    def test_detected(self) -> None:
        """What ffmpeg detects in wav is decoded if it begins at once, and else a 415."""
        for codec, name in (("dts", "DTS"), ("ac3", "AC-3")):
            probe = replace(PROBE, codec=codec)
            for zeros, is_refused in ((0, False), (20_000, False), (40_000, True)):
                file = wav(chunk(b"fmt ", FORMAT), chunk(b"data", bytes(zeros) + BURSTS))
                if is_refused:
                    error = self.assertRaises(UndecodableSource, check, file, probe)
                    self.assertIn(name, error.message)
                else:
                    self.assertEqual(check(file, probe), replace(probe, unchecked=False))


class StartTests(SynchronousTestCase):
    """`examine_start`"""

    def examine(self, file: bytes) -> Start | None:
        """Return what the start of a file tells; None for other files."""
        return search(examine_start(len(file)), file)

    def test_samples(self) -> None:
        """Samples are certainly uncompressed if the form says so, and they encode nothing."""
        adpcm = chunk(b"fmt ", struct.pack("<HHIIHH", 2, 2, 8000, 4000, 1024, 4))
        data = chunk(b"data", SOUND)
        for file, expected in (
            (stating(len(SOUND)), Start(is_pcm=True)),
            (wav(chunk(b"fmt ", FORMAT), chunk(b"data", bytes(9999) + SOUND)), Start(is_pcm=True)),
            (wav(chunk(b"fmt ", FORMAT), chunk(b"data", BURSTS)), Start(is_pcm=False)),
            (
                wav(chunk(b"fmt ", FORMAT), chunk(b"data", bytes(9999 * 4) + BURSTS)),
                Start(is_pcm=False),
            ),
            (wav(adpcm, data), Start(is_pcm=False)),
            (stating(len(SOUND), bytes(MUCH_SPACE + 1)), Start(is_pcm=True, has_space=True)),
            (b"FORM\0\0\0\0AIFFCOMM", Start(is_pcm=True)),
            (b"FORM\0\0\0\0AIFCCOMM", None),
            (b".snd" + bytes(11) + b"\3", Start(is_pcm=True)),
            (b".snd" + bytes(11) + b"\x17", None),
            (ID3 + stating(len(SOUND)), None),
            (b"RIFF", None),
        ):
            self.assertEqual(self.examine(file), expected, file[:16])


class ProbeTests(SynchronousTestCase):
    """`probe_samples`"""

    def probe(self, file: bytes) -> Probe | None:
        """Probe a file in memory."""
        return run_in_memory(lambda read: probe_samples(read, len(file)), file)

    def test_extended(self) -> None:
        """RIFX with an extended format is read, which ffmpeg refuses."""
        form = struct.pack(">HHIIHH", 3, 2, 8000, 64000, 8, 32) + b"\0\0"
        parts = chunk(b"fmt ", form, order=">I"), chunk(b"data", bytes(80), order=">I")
        file = wav(*parts, name=b"RIFX")
        found, tagged = self.probe(file), self.probe(ID3 + file)
        assert found is not None and found.file.raw is not None and tagged is not None
        moved = replace(found.file.raw, offset=found.file.raw.offset + len(ID3))
        self.assertEqual((tagged.file.raw, tagged.description), (moved, found.description))
        self.assertEqual((found.container, found.codec), ("wav", "pcm_f32be"))
        self.assertEqual(
            (found.audio.bit_depth, found.audio.decoded_bits, found.audio.layout),
            (32, 64, "stereo"),
        )
        expected = SourceInfo(
            format="wav",
            duration=Decimal(10) / 8000,
            sample_rate=8000,
            channels=2,
            bit_depth=32,
            bitrate=512_000,
        )
        self.assertEqual(found.description, expected)

    def test_sphere(self) -> None:
        """NIST SPHERE is read, with the bits of a sample that ffprobe would state."""
        for coding, codec, bits in (("pcm", "pcm_s16le", (16, 16)), ("ulaw", "pcm_mulaw", (8, 16))):
            file = sphere(SOUND, sample_coding=f"-s{len(coding)} {coding}")
            found = self.probe(file)
            assert found is not None
            self.assertEqual((found.container, found.codec), ("nistsphere", codec))
            self.assertEqual((found.audio.bit_depth, found.audio.decoded_bits), bits)
            self.assertEqual(
                (found.audio.layout, found.file.raw and found.file.raw.offset), ("mono", 1024)
            )

    def test_refused(self) -> None:
        """Bursts, absurd rates and other codecs are refused; other files are left to ffprobe."""
        for file in (
            sphere(BURSTS, sample_count="-i 9000", channel_count="-i 2"),
            sphere(sample_rate="-i 99999999"),
            sphere(sample_coding="-s9 shortpack"),
            stating(len(SOUND), name=b"RIFX"),
            sphere(b""),
        ):
            self.assertRaises(UndecodableSource, self.probe, file)
        for file in (b"", stating(len(SOUND)), b"OggS" + bytes(99)):
            self.assertIsNone(self.probe(file))
