"""Durations of outputs, as programs that read audio files report them (docs/lengths.md)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import mutagen
from twisted.trial.unittest import SynchronousTestCase

from tests.deploy.balancer import installed
from tests.support.audio import noise, render_all, write_wav
from tests.support.programs import FFPROBE
from tests.support.service import PATIENCE

RATE, SAMPLES = 44100, 105_001
SECONDS = SAMPLES / RATE
# Seconds that readers may count besides: the delay of AAC, or the delay and the padding of mp3 and
# the header frame of a constant bit rate.
PADDING = {"m4a": 1024 / RATE, "mp3": 3 * 1152 / RATE}
TEXTS = {
    "16.wav": "f:wav/bd:16",
    "24.wav": "f:wav/bd:24/ch:1",
    "float.wav": "f:wav/bd:32f",
    "a.flac": "f:flac",
    "a.m4a": "f:m4a",
    "constant.mp3": "f:mp3",
    "variable.mp3": "f:mp3/q:4/ch:1",
}


@cache
def outputs() -> dict[str, bytes]:
    """Return the files by name."""
    rendered = render_all(write_wav(noise(RATE, SAMPLES, 2)), TEXTS.values())
    return {name: rendered[text] for name, text in TEXTS.items()}


def output_of(*words: str, data: bytes | None = None) -> bytes:
    """Return what a program prints."""
    command = (installed(words[0], "AUDIOPROXY_READERS"), *words[1:])
    return subprocess.run(
        command, input=data, capture_output=True, check=True, timeout=PATIENCE
    ).stdout


class ReaderTests(SynchronousTestCase):
    """Programs that read the duration from a header"""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        for name, output in outputs().items():
            (self.folder / name).write_bytes(output)

    def assert_durations(
        self, read: Callable[[str], float], without: tuple[str, ...] = (), rounded: float = 1e-6
    ) -> None:
        """Require the right duration of each file, but for the padding of the codec.

        :param without: names that end so are left out.
        :param rounded: seconds by which the program rounds.
        """
        for name in TEXTS:
            if not name.endswith(without):
                more = read(str(self.folder / name)) - SECONDS
                padding = PADDING.get(name.partition(".")[2], 0)
                self.assertTrue(-rounded <= more <= padding + rounded, (name, more))

    def test_ffprobe(self) -> None:
        """ffprobe reads the duration from files and from a pipe."""
        words = f"{FFPROBE} -v error -show_entries stream=duration -of csv=p=0".split()
        self.assert_durations(lambda path: float(output_of(*words, path)))
        self.assert_durations(
            lambda path: float(output_of(*words, "-", data=Path(path).read_bytes()))
        )

    def test_mutagen(self) -> None:
        """mutagen reads the duration, and that of mp3 without padding."""
        self.assert_durations(lambda path: float(mutagen.File(path).info.length))
        for name in ("constant.mp3", "variable.mp3"):
            length = mutagen.File(self.folder / name).info.length
            self.assertAlmostEqual(length, SECONDS, places=6)

    def test_soxi(self) -> None:
        """soxi of SoX, which reads no m4a, reads the duration."""
        self.assert_durations(
            lambda path: float(output_of("soxi", "-D", path)), without=(".m4a",), rounded=1e-4
        )

    def test_mediainfo(self) -> None:
        """mediainfo reads the duration, in milliseconds."""
        words = ("mediainfo", "--Inform=Audio;%Duration%")
        self.assert_durations(lambda path: int(output_of(*words, path)) / 1000, rounded=1e-3)

    def test_decoders(self) -> None:
        """The decoder of flac finds no error, and mpg123 the samples of the source."""
        output_of("flac", "--test", "--silent", str(self.folder / "a.flac"))
        for name, channels in (("constant.mp3", 2), ("variable.mp3", 1)):
            samples = output_of("mpg123", "--quiet", "--stdout", str(self.folder / name))
            self.assertEqual(len(samples), SAMPLES * channels * 2)
