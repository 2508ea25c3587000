"""Real renders of samples whose header misleads ffmpeg, and of encoded audio in their place."""

from __future__ import annotations

import json
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import cycle, product
from typing import Any

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions, UndecodableSource
from audioproxy.media.command.decoding import open_source
from audioproxy.media.ffprobe import probe_arguments
from audioproxy.media.inputs import Input
from audioproxy.media.lengths.wav import MUCH_SPACE
from tests.support.audio import (
    Sound,
    convert,
    convert_all,
    decode,
    decode_all,
    input_of,
    noise,
    probe,
    read_wav,
    render,
    render_all,
    render_and_decode_all,
    run,
    tone,
    write_wav,
)
from tests.support.programs import FFMPEG, FFPROBE
from tests.support.riff import chunk, sphere, wav
from tests.support.service import ServiceCase, fetch, signed

RATE = 48000
SOUND = read_wav(write_wav(noise(RATE, 3 * RATE, 2)))
INFO = chunk(b"LIST", b"INFO" + chunk(b"IART", b"abc\0"))
#: What is rendered of each source, and the samples that it covers.
PARTS = {
    "f:wav/bd:32f": (0, None),
    "f:wav/bd:32f/t:1.2:0.7": (57_600, 91_200),
    "f:flac/bd:24/t:2.5": (120_000, None),
}
FADED = "f:wav/bd:32f/fade:0:0.5"


def stored(depth: str = "16", order: str = "<") -> bytes:
    """Return the sound as samples of a depth and a byte order."""
    samples = write_wav(SOUND, depth)[44:]
    if order == "<":
        return samples
    width = int(depth.rstrip("f")) // 8
    return np.frombuffer(samples, np.uint8).reshape(-1, width)[:, ::-1].tobytes()


def form(bits: int = 16, kind: int = 1, order: str = "<", more: bytes = b"") -> bytes:
    """Return a format chunk of two channels."""
    frame = bits // 4
    fields = struct.pack(f"{order}HHIIHH", kind, 2, RATE, RATE * frame, frame, bits)
    return chunk(b"fmt ", fields + more, order=f"{order}I")


def misstated() -> Iterator[tuple[str, bytes]]:
    """Yield wav files whose sizes mislead ffmpeg."""
    data, sizes = stored(), chunk(b"ds64", bytes(28))
    for size, behind in ((0, INFO + INFO), (0xFFFF_FFFF, b""), (192_001, b""), (192_001, INFO)):
        yield f"{size}, {len(behind)} behind", wav(form(), chunk(b"data", data, size), behind)
    yield "rf64", wav(sizes, form(), chunk(b"data", data, 0xFFFF_FFFF), INFO, name=b"RF64")
    for behind in (bytes(MUCH_SPACE + 8) + data, bytes(3000)):
        yield f"space {len(behind)}", wav(form(), chunk(b"data", data), behind)
    yield "empty chunk", wav(form(), chunk(b"data", b"") + INFO, chunk(b"data", data), INFO)
    floats = chunk(b"data", stored("32f"), 1024)
    yield "floats", wav(form(32, 3), floats, INFO)


def big_endian() -> Iterator[tuple[str, bytes]]:
    """Yield RIFX files."""
    pcm = struct.pack(">HHII", 22, 24, 3, 1) + bytes.fromhex("00001000800000aa00389b71")
    for depth, kind, more in (
        *(("16", 1, b""), ("24", 1, b""), ("32", 1, b"\0\0")),
        *(("32f", 3, b"\0\0"), ("24", 0xFFFE, pcm)),
    ):
        head = form(int(depth.rstrip("f")), kind, ">", more)
        data = chunk(b"data", stored(depth, ">"), order=">I")
        behind = chunk(b"LIST", b"INFO", order=">I")
        yield f"{depth} bits, tag {kind}", wav(head, data, behind, name=b"RIFX")


def spheres() -> Iterator[tuple[str, bytes]]:
    """Yield files of NIST SPHERE."""
    common = {"channel_count": "-i 2", "sample_rate": f"-i {RATE}"}
    for depth, name, order in (("16", "01", "<"), ("24", "10", ">"), ("32", "01", "<")):
        width = int(depth) // 8
        fields = {"sample_n_bytes": f"-i {width}", "sample_byte_format": f"-s2 {name}"}
        fields["sample_count"] = f"-i {len(SOUND)}" if order == ">" else ""
        behind = b"junk" if order == ">" else b""
        yield f"{depth}, {name}", sphere(stored(depth, order) + behind, **common, **fields)


def read_by_ffprobe(path: str, opened: Input) -> tuple[dict[str, Any], int]:
    """Return what ffprobe finds in a file, and how many bytes it reads."""
    # The counts of a process include those of its children.
    script = 'exec 3<"$0" && "$@" && exec cat /proc/self/io'
    words = ["/bin/sh", "-c", script, path, *probe_arguments(FFPROBE, opened)]
    output = subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout
    document, _, counts = output.rpartition(b"}\n")
    return json.loads(document + b"}"), int(counts.split()[1])


class WavTests(SynchronousTestCase):
    """wav and NIST SPHERE"""

    def assert_exact(self, files: Mapping[str, bytes], sound: Sound = SOUND) -> None:
        """Require that every sample is rendered, from any place, and that lengths are true."""
        for name, source in files.items():
            outputs = render_all(source, [*PARTS, FADED, "f:opus", "f:peaks/ch:2"])
            self.assertEqual(probe(source).description.duration, 3, name)
            # The samples of a waveform, of 16 bits.
            self.assertEqual(len(outputs.pop("f:peaks/ch:2")), 3 * RATE * 4, name)
            sounds = decode_all(outputs)
            for text, bounds in PARTS.items():
                heard, expected = sounds[text], sound.part(*bounds)
                self.assertEqual(len(heard), len(expected), (name, text))
                error = float(np.abs(heard.channels - expected.channels).max())
                self.assertLess(error, 2e-5 if "16" not in name else 1e-9, (name, text))
            # The length is known in all formats, and a fade-out ends there.
            faded = sounds[FADED]
            self.assertEqual((len(sounds["f:opus"]), len(faded)), (3 * RATE, 3 * RATE), name)
            self.assertLess(float(np.abs(faded.channels[:, -9:]).max()), 1e-3, name)
            error = self.assertRaises(InvalidOptions, render, source, "f:wav/t:3")
            self.assertIn("which is 3 seconds", error.message)

    def test_wrong_sizes(self) -> None:
        """All samples play, and nothing else, whatever sizes a file states (D57)."""
        self.assert_exact(dict(misstated()))

    def test_byte_order(self) -> None:
        """RIFX is big-endian, with integers and floats of each depth, plain or extended."""
        self.assert_exact(dict(big_endian()))

    def test_laws(self) -> None:
        """A-law and µ-law sound alike in RIFX, in NIST SPHERE and in RIFF."""
        fields = {"channel_count": "-i 2", "sample_rate": f"-i {RATE}", "sample_n_bytes": "-i 1"}
        for kind, codec, name in ((6, "alaw", "alaw"), (7, "mulaw", "ulaw")):
            riff = convert(write_wav(SOUND), f"-c:a pcm_{codec} -f wav")
            data = riff[-2 * len(SOUND) :]
            rifx = wav(form(8, kind, ">"), chunk(b"data", data, order=">I"), name=b"RIFX")
            fields |= {"sample_coding": f"-s4 {name}", "sample_count": f"-i {len(SOUND)}"}
            self.assert_exact({"rifx": rifx, "sphere": sphere(data, **fields)}, decode(riff))

    def test_sphere(self) -> None:
        """NIST SPHERE is rendered, of both byte orders, up to its count of samples."""
        self.assert_exact(dict(spheres()))

    def test_other_codecs(self) -> None:
        """A wav file of another codec plays as a whole, too, whatever size it states."""
        codecs = {"adpcm": "-c:a adpcm_ms -f wav", "mp3": "-c:a libmp3lame -f wav"}
        for name, source in convert_all(write_wav(SOUND), codecs).items():
            at = source.index(b"data") + 4
            right = struct.unpack_from("<I", source, at)[0]
            for size in (right // 3, 0):
                wrong = source[:at] + struct.pack("<I", size) + source[at + 4 :]
                for text in ("f:wav", "f:wav/t:1:1", "f:wav/fade:0:1"):
                    same = read_wav(render(source, text)) == read_wav(render(wrong, text))
                    self.assertTrue(same, (name, size, text))

    def test_reserved_space(self) -> None:
        """Space behind the samples, which recorders reserve, is not read by the probe.

        Otherwise ffprobe reads all of it, 8 bytes at a time.
        """
        for seconds in (0.1, 3):
            with tempfile.NamedTemporaryFile() as file:
                file.write(wav(form(), chunk(b"data", stored()[: int(seconds * 192_000)])))
                file.truncate(64 * MUCH_SPACE)
                output, count = read_by_ffprobe(file.name, Input(forward=True))
            self.assertEqual(float(output["format"]["duration"]), seconds)
            self.assertLess(count, 8 * MUCH_SPACE)

    def test_few_samples(self) -> None:
        """Of certainly uncompressed samples, few are examined, and found out the same."""
        names = "wav", "wav, 24 bits", "wav, floats", "aiff", "au"
        forms = {name: CONTAINERS[name] for name in names} | {"rf64": "-f wav -rf64 always"}
        loud = write_wav(noise(RATE, 8 * RATE, 2))
        for name, source in convert_all(loud, forms).items():
            found = probe(source)
            self.assertTrue(found.file.is_pcm, name)
            with tempfile.NamedTemporaryFile() as file:
                file.write(source)
                file.flush()
                few, usual = (
                    read_by_ffprobe(file.name, Input(is_pcm=is_pcm)) for is_pcm in (True, False)
                )
            self.assertEqual(few[0], usual[0], name)
            self.assertLess(few[1], usual[1], name)
            sums = set()
            for opened in (input_of(found), replace(input_of(found), is_pcm=False)):
                words = [*open_source(FFMPEG, opened, found), "-c:a", "pcm_f64le", "-f", "md5", "-"]
                sums.add(run(words, source).stdout)
            self.assertEqual(len(sums), 1, name)


MUSIC = write_wav(tone(48000, 6 * 48000, 440, 440, amplitude=0.1))
#: Encoded audio as a digital output sends it, and DTS as on a CD.
ENCODED = {
    "AC-3": "-c:a ac3 -b:a 448k -f spdif",
    "E-AC-3": "-c:a eac3 -b:a 192k -f spdif",
    "DTS": "-c:a dca -strict -2 -b:a 754500 -f spdif",
    "TrueHD": "-c:a truehd -strict -2 -f spdif",
    "MPEG audio": "-c:a libmp3lame -b:a 192k -f spdif",
}
DTS_CD = "-c:a dca -strict -2 -b:a 1411200 -f dts"
#: Containers and forms of samples. 16-bit words are the upper ones of others.
CONTAINERS = {
    "wav": "-f wav",
    "wav, 24 bits": "-c:a pcm_s24le -f wav",
    "wav, floats": "-c:a pcm_f32le -f wav",
    "w64": "-f w64",
    "aiff": "-f aiff",
    "aifc": "-c:a pcm_s16le -f aiff",
    "caf": "-c:a pcm_s24be -f caf",
    "au": "-f au",
    "mov": "-c:a pcm_s16le -f mov",
    "flac": "-c:a flac -f flac",
    "flac, fast": "-c:a flac -compression_level 0 -f flac",
    "flac, best": "-c:a flac -compression_level 12 -f flac",
    "flac, 24 bits": "-c:a flac -sample_fmt s32 -f flac",
}


@cache
def encoded() -> dict[str, bytes]:
    """Return music in the place of samples, little-endian, by its codec."""
    made = convert_all(MUSIC, ENCODED)
    return made | {"DTS of a CD": swapped(convert(MUSIC, DTS_CD))}


def swapped(data: bytes) -> bytes:
    """Return words with their bytes in the other order."""
    return np.frombuffer(data[: len(data) // 2 * 2], "<u2").byteswap().tobytes()


def contain(data: bytes, words: str) -> bytes:
    """Return samples in a container; no demuxer looks at what they are."""
    return convert_all(data, {"out": words}, given="-f s16le -ar 48000 -ac 2")["out"]


class EncodedTests(ServiceCase):
    """Encoded audio in the place of samples"""

    def test_refused(self) -> None:
        """It is refused after zeros, in every container, by the probe that all requests share."""
        for (name, data), zeros in zip(encoded().items(), cycle((0.5, 3)), strict=False):
            source = contain(bytes(int(192_000 * zeros) // 4 * 4) + data, CONTAINERS["wav"])
            error = self.assertRaises(UndecodableSource, probe, source)
            self.assertIn(name.split()[0], error.message)
        orders = cycle((encoded()["AC-3"], swapped(encoded()["AC-3"])))
        for container, words in CONTAINERS.items():
            source = contain(bytes(96_000) + next(orders), words)
            error = self.assertRaises(UndecodableSource, probe, source)
            self.assertIn("AC-3", error.message, container)

    def test_flac(self) -> None:
        """In flac, encoded audio of each codec is refused, and loud music is not."""
        for zeros, (name, data) in product((0, 0.5), encoded().items()):
            source = contain(bytes(int(192_000 * zeros) // 4 * 4) + data, CONTAINERS["flac"])
            error = self.assertRaises(UndecodableSource, probe, source)
            self.assertIn(name.split()[0], error.message)
        # A recording may begin inside a burst, and 24 bits may hold words.
        for (name, data), zeros in product(encoded().items(), (0, 4 * 6999)):
            if name != "TrueHD":
                source = contain(bytes(zeros) + data[4 * 77 :], CONTAINERS["flac, 24 bits"])
                error = self.assertRaises(UndecodableSource, probe, source)
                self.assertIn(name.split()[0], error.message)
        loud = noise(48000, 48000, 2, 1)
        for words in (text for name, text in CONTAINERS.items() if name.startswith("flac")):
            source = contain(write_wav(loud)[44:], words)
            self.assertEqual(len(read_wav(render(source, "f:wav"))), 48000)

    def test_clipped(self) -> None:
        """Clipped audio, whose samples are words of a sync, plays in all depths and containers."""
        values = np.random.default_rng(1).normal(0, 60000, 96_000).clip(-32767, 32766)
        square = np.where(np.arange(96_000) // 100 % 2, 32766, -32767)
        for sound, (name, words) in zip(cycle((values, square)), CONTAINERS.items(), strict=False):
            source = contain(sound.astype("<i2").tobytes(), words)
            self.assertEqual(len(read_wav(render(source, "f:wav"))), 48000, name)

    def test_decoded(self) -> None:
        """What a wav file begins with is decoded where ffmpeg detects it: ``t`` is its cut."""
        for name in ("AC-3", "DTS", "DTS of a CD"):
            source = contain(encoded()[name], CONTAINERS["wav"])
            texts = ("f:wav/bd:32f", "f:wav/bd:32f/t:4:1")
            whole, part = render_and_decode_all(source, texts).values()
            self.assertEqual(part, whole.part(4 * 48000, 5 * 48000), name)
            level = float(np.sqrt((whole.channels**2).mean()))
            self.assertApproximates(level, 0.0707, 0.001, name)

    def test_music_first(self) -> None:
        """Samples that precede encoded audio decide: ``t`` is the cut of the whole (D11)."""
        music = MUSIC[44:][: 192_000 * 3]
        for data, container in product(
            (encoded()["DTS of a CD"], encoded()["AC-3"]), ("wav", "w64", "aiff")
        ):
            source = contain(music + data, CONTAINERS[container])
            texts = ("f:wav", "f:wav/t:4.5:2")
            whole, part = render_and_decode_all(source, texts).values()
            self.assertEqual(part, whole.part(216_000, 312_000), container)

    async def test_waveforms(self) -> None:
        """A waveform that needs no decoder has the same samples, and ends with them (D26)."""
        port = self.start(max_probe_concurrency=32).port
        behind, rifx = dict(misstated()), dict(big_endian())
        for name, source, plain in (
            ("rifx", rifx["24 bits, tag 1"], write_wav(SOUND, "24")),
            ("info", behind[f"0, {2 * len(INFO)} behind"], write_wav(SOUND)),
            ("space", behind[f"space {MUCH_SPACE + 8 + 192_000 * 3}"], write_wav(SOUND)),
        ):
            bodies = set()
            for kind, content in (("odd", source), ("plain", plain)):
                self.add(f"{name}-{kind}", content)
                path = f"/f:peaks/ch:2/pts:700/plain/local://{name}-{kind}"
                response = await fetch(port, signed(path))
                bodies.add((response.status, response.body))
            self.assertEqual([status for status, _ in bodies], [200], name)
