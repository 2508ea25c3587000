"""Trims of real files: the audio at the place that ``t`` names, whatever ffmpeg's seeks do.

`make matrix` has every container and codec.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions, IrregularSource
from tests.matrix.regions import FORMS, Region, find_differences, seeks
from tests.support.audio import (
    Sound,
    convert_all,
    decode,
    decode_all,
    noise,
    probe,
    render,
    render_all,
    render_and_decode,
    render_and_decode_all,
    render_once,
    write_wav,
)
from tests.support.mp4 import add_gapless_tag

RATE = 44100
# Seconds of a source, and a place near its end.
SECONDS, PLACE = 7, Region(6100, 250)
AAC = "-c:a aac -aac_pns 0"
# Of AAC, three seconds.
PACKETS = 130

#: ffmpeg's arguments for sources that are sought in, by the name of the file.
SOUGHT = {"a.flac": "", "a.wv": "", "a.tta": "", "alac.m4a": "-c:a alac", "aac.m4a": AAC}
#: Those that are decoded from their start.
DECODED = {
    "ima.wav": "-c:a adpcm_ima_wav",
    "fragmented.m4a": f"{AAC} -movflags empty_moov",
    "vorbis.webm": "-c:a libvorbis -cluster_time_limit 1000",
    "live.webm": "-c:a libopus -live 1 -cluster_time_limit 1000",
}
#: Those whose first track starts later or earlier than another one.
LATE = {
    "late.m4a": f"{AAC} -map 1:a -map 0:a",
    "late-alac.m4a": "-c:a alac -map 1:a -map 0:a",
    "early.m4a": f"{AAC} -map 0:a -map 1:a",
    "late-fragmented.m4a": f"{AAC} -map 1:a -map 0:a -movflags empty_moov -frag_duration 1000000",
    "late.mka": "-c:a pcm_s16le -map 1:a -map 0:a",
}


@cache
def wav() -> bytes:
    """Return noise, in which every position is unique."""
    return write_wav(noise(RATE, SECONDS * RATE))


@cache
def sources() -> dict[str, bytes]:
    """Return the noise as files of several kinds."""
    return {"a.wav": wav(), **convert_all(wav(), {**SOUGHT, **DECODED})}


@cache
def joined() -> dict[str, bytes]:
    """Return files of 5 and of 4.5 seconds of other noise, one after the other."""
    names = "a.flac a.opus constant.mp3 variable.mp3 vorbis.ogg flac.ogg constant-bare.mp3 adts.aac"
    kinds = {name: FORMS[name] for name in names.split()}
    short = convert_all(write_wav(noise(RATE, 5 * RATE, seed=2)), kinds)
    # Each stream of a joined Ogg file has its own serial number.
    ogg = ("ogg", "opus")
    kinds = {n: f"{k} -serial_offset 9" if n.endswith(ogg) else k for n, k in kinds.items()}
    long = convert_all(write_wav(noise(RATE, 9 * RATE // 2, seed=3)), kinds)
    return {name: short[name] + long[name] for name in kinds}


class PlaceTests(SynchronousTestCase):
    """``t`` against the same place of a full decode, sample by sample"""

    def assert_exact(self, files: Mapping[str, bytes], *, sought: Container[str]) -> None:
        """Require the audio near the end of files, of which some are sought in."""
        sounds = decode_all(files)
        for name, source in files.items():
            self.assertEqual([*find_differences(source, [PLACE], sounds[name])], [], name)
            self.assertIs(seeks(source), name in sought, name)

    def test_decoded(self) -> None:
        """Where nothing is sought, ``t`` is the audio at that time, too.

        `tests.media.test_places_live` has the forms that are sought in.
        """
        self.assert_exact({name: sources()[name] for name in DECODED}, sought=())

    def test_late(self) -> None:
        """If the audio starts later than another track, ``t`` counts from its first sample."""
        files = convert_all(
            wav(), LATE, f"-itsoffset 0.7 -f lavfi -i anoisesrc=d={SECONDS}:r={RATE}:seed=1"
        )
        self.assert_exact(files, sought=("late.m4a", "late-alac.m4a", "early.m4a"))
        offsets = {name: probe(source).file.seek_offset > 0.6 for name, source in files.items()}
        self.assertTrue(offsets["late.m4a"] and offsets["late-alac.m4a"])
        self.assertFalse(offsets["early.m4a"])


class InexactSeekTests(SynchronousTestCase):
    """Seeks that lead to another place than the requested one"""

    def ffmpeg(self, shift: float) -> str:
        """Write an ffmpeg that seeks to a place some seconds later, and return its path."""
        program = Path(self.mktemp())
        # Time stamps count from the requested place.
        program.write_text(
            f"""#!{sys.executable} -IS
import os, sys
words = sys.argv[1:]
if "-ss" in words:
    at = words.index("-ss")
    words[at : at + 2] = ["-itsoffset", "{shift}", "-ss", str(float(words[at + 1]) + {shift})]
os.execvp("ffmpeg", ["ffmpeg", *words])
"""
        )
        program.chmod(0o755)
        return str(program)

    def test_inexact(self) -> None:
        """The audio is that of the requested place, wherever decoding starts.

        If decoding starts after the requested place, the source is decoded from its start.
        """
        text = PLACE.text
        for name in ("a.wav", "a.flac", "aac.m4a", "alac.m4a"):
            source = sources()[name]
            expected = render_all(source, [text])
            for shift in (-0.5, 1, 1.15, 1.5):
                program = self.ffmpeg(shift)
                if shift == 1.5:
                    self.assertRaises(
                        IrregularSource, render_once, source, [text], program, irregular=False
                    )
                self.assertEqual(render_all(source, [text], program), expected, (name, shift))


class DamagedTests(SynchronousTestCase):
    """Sources that are damaged inside a region"""

    def test_damaged(self) -> None:
        """A region behind a seek keeps its length: samples count, and damage is closed.

        FFmpeg 9 ends WavPack at the damage. Silence replaces less than a second of the region.
        """
        for name in ("a.tta", "a.flac", "a.wv"):
            source = sources()[name]
            at = len(source) * 22 // (10 * SECONDS)
            damaged = source[:at] + bytes(4000) + source[at + 4000 :]
            self.assertTrue(seeks(damaged) or name == "a.flac", name)
            whole = decode(damaged)
            for seconds in ("0.25", "1"):
                heard = render_and_decode(damaged, f"f:wav/bd:32f/t:2:{seconds}")
                end = 2 * RATE + round(float(seconds) * RATE)
                expected = whole.part(2 * RATE, end)
                self.assertEqual(heard.part(0, len(expected)), expected, (name, seconds))
                self.assertFalse(heard.channels[:, len(expected) :].any(), (name, seconds))
                self.assertEqual(len(heard), end - 2 * RATE, (name, seconds))


class PastEndTests(SynchronousTestCase):
    """``t`` past an end that nothing confirms (D11)"""

    def assert_rendered(self, name: str, source: bytes, whole: Sound) -> None:
        """Require the audio near the start of a second part, and a refusal after the real end."""
        regions = [Region(5500, 500), Region(3000, None)]
        self.assertEqual([*find_differences(source, regions, whole)], [], name)
        error = self.assertRaises(InvalidOptions, render, source, "t:99")
        seconds = re.findall(r"which is ([0-9.]+) seconds", error.message)
        self.assertAlmostEqual(float(seconds[0]), len(whole) / whole.rate, 3, name)

    def test_joined(self) -> None:
        """The audio of joined files is rendered, although a header states an earlier end.

        Places are sought where frames are counted one by one.
        """
        for name, whole in decode_all(joined()).items():
            self.assert_rendered(name, joined()[name], whole)
            self.assertIs(seeks(joined()[name]), name in ("constant-bare.mp3", "adts.aac"), name)

    def test_without_a_length(self) -> None:
        """All audio is rendered of flac that states a second, and of files without a length."""
        flac = sources()["a.flac"]
        length = int.from_bytes(flac[18:26], "big") >> 36 << 36 | RATE
        false = flac[:18] + length.to_bytes(8, "big") + flac[26:]
        for source in (false, sources()["fragmented.m4a"], sources()["ima.wav"]):
            self.assert_rendered("a file without a true length", source, decode(source))


@cache
def gapless() -> dict[str, bytes]:
    """Return m4a files with and without an edit list, of whole packets: 1024 samples ahead."""
    forms = {"tag.m4a": f"{AAC} -bitexact -use_editlist 0", "edit.m4a": f"{AAC} -bitexact"}
    return convert_all(write_wav(noise(RATE, PACKETS * 1024)), forms)


class GaplessTests(SynchronousTestCase):
    """AAC whose delay and padding only the tag ``iTunSMPB`` states"""

    def assert_gapless(self, source: bytes, delay: int, samples: int) -> None:
        """Require the samples between the delay and the padding, and no silence."""
        expected = decode(gapless()["tag.m4a"]).part(delay, delay + samples)
        texts = [f"f:wav/bd:32f{more}" for more in ("", "/t:0:99", "/t:2", "/fade:0:0.1")]
        sounds = render_and_decode_all(source, [*texts, "f:m4a"]).values()
        whole, region, later, faded, m4a = sounds
        self.assertEqual((whole, region), (expected, expected))
        self.assertEqual(later, expected.part(2 * RATE))
        self.assertEqual(faded.part(0, samples - 5000), expected.part(0, samples - 5000))
        self.assertEqual((len(faded), faded.channels[0, -1].round(2)), (samples, 0))
        # The encoder of the service adds a packet ahead, and fills the last one.
        self.assertEqual(len(m4a), samples + 1024 + -samples % 1024)

    def test_short_end(self) -> None:
        """The padding of the last packet is no audio, also where the source is measured (D13)."""
        sound = noise(RATE, 2 * RATE)
        forms = {"a.m4a": AAC, "a.mov": "-c:a libmp3lame", "a.mp4": "-c:a alac"}
        for name, source in convert_all(write_wav(sound), forms).items():
            for text in ("f:wav/t:1.95", "f:wav/t:1.95/norm:ebu", "f:flac/t:1.95/enhance:voice"):
                self.assertEqual(len(render_and_decode(source, text)), RATE // 20, (name, text))

    def test_delay(self) -> None:
        """The output has the samples of the packets, less the delay and less the padding."""
        samples = PACKETS * 1024
        for delay, padding in ((1024, 0), (2112, 300)):
            left = samples + 1024 - delay - padding
            tag = f" 00000000 {delay:08X} {padding:08X} {left:016X}" + " 00000000" * 8
            self.assert_gapless(add_gapless_tag(gapless()["tag.m4a"], tag), delay, left)
