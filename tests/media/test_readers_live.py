"""Durations of outputs, as programs that read audio files report them (docs/browsers.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import mutagen
from twisted.trial.unittest import SkipTest, SynchronousTestCase

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


def output_of(path: Path, *words: str, piped: bool = False) -> bytes:
    """Return what a program prints about a file, which it reads from a pipe if ``piped``."""
    if shutil.which(words[0]) is None:
        if os.environ.get("AUDIOPROXY_READERS") == "required":
            raise AssertionError(f"{words[0]} is not installed")
        raise SkipTest(f"{words[0]} is not installed; `make test` installs it")
    data = path.read_bytes() if piped else None
    source = [] if piped else [str(path)]
    words = (*words, *source)
    return subprocess.run(
        words, input=data, capture_output=True, check=True, timeout=PATIENCE
    ).stdout


def ffprobe(path: Path, *, piped: bool = False) -> float:
    fields = [FFPROBE, "-v", "error", "-show_entries", "stream=duration", "-of", "csv=p=0"]
    return float(output_of(path, *fields, *(["-"] if piped else []), piped=piped))


class ReaderTests(SynchronousTestCase):
    """Programs that read the duration from a header"""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for name, output in outputs().items():
            (self.folder / name).write_bytes(output)
        self.files = [self.folder / name for name in TEXTS]

    def assert_durations(
        self, read: Callable[[Path], float], without: tuple[str, ...] = (), rounded: float = 1e-6
    ) -> None:
        """Require the right duration of each file, but for the padding of the codec.

        :param without: names that end so are left out.
        :param rounded: seconds by which the program rounds.
        """
        for file in self.files:
            if not file.name.endswith(without):
                more = read(file) - SECONDS
                padding = PADDING.get(file.suffix[1:], 0)
                self.assertTrue(-rounded <= more <= padding + rounded, (file.name, more))

    def test_ffprobe(self) -> None:
        """ffprobe reads the duration from files and from a pipe."""
        self.assert_durations(ffprobe)
        self.assert_durations(lambda path: ffprobe(path, piped=True))

    def test_mutagen(self) -> None:
        """mutagen reads the duration, and that of mp3 without padding."""

        def read(path: Path) -> float:
            length: float = mutagen.File(path).info.length
            return length

        self.assert_durations(read)
        for file in self.files:
            if file.suffix == ".mp3":
                self.assertAlmostEqual(read(file), SECONDS, places=6)

    def test_soxi(self) -> None:
        """soxi of SoX, which reads no m4a, reads the duration."""
        self.assert_durations(
            lambda path: float(output_of(path, "soxi", "-D")), without=(".m4a",), rounded=1e-4
        )

    def test_mediainfo(self) -> None:
        """mediainfo reads the duration, in milliseconds."""
        self.assert_durations(
            lambda path: int(output_of(path, "mediainfo", "--Inform=Audio;%Duration%")) / 1000,
            rounded=1e-3,
        )

    def test_flac(self) -> None:
        """The reference decoder of flac finds no error."""
        (file,) = (file for file in self.files if file.suffix == ".flac")
        output_of(file, "flac", "--test", "--silent")

    def test_mpg123(self) -> None:
        """mpg123 decodes mp3 to exactly the samples of the source."""
        for name, channels in (("constant.mp3", 2), ("variable.mp3", 1)):
            samples = output_of(self.folder / name, "mpg123", "--quiet", "--stdout")
            self.assertEqual(len(samples), SAMPLES * channels * 2)
