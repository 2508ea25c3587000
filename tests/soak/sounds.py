"""The sources of a run: sound ones, broken ones, ones that change, and ones that are attacked."""

from __future__ import annotations

import os
import random
from itertools import count
from pathlib import Path

from tests.support.service import make_sound

TONE, SPEECH, LONG, CHANGING = "tone.flac", "speech.wav", "long.flac", "changing.wav"
NOISE, STUMP, FILM, MISSING = "noise.mp3", "stump.flac", "film.mkv", "missing.flac"

_WARBLE = "aevalsrc='{}':s={}:d={}"


class Sounds:
    """The folder of the sources.

    :ivar versions: the two contents of the source that changes.
    """

    def __init__(self, root: Path, attic: Path, long: float) -> None:
        """Make every source.

        :param attic: keeps what is copied and linked from, out of the service's reach.
        :param long: seconds of the long source.
        """
        self.root = root
        self._attic = attic
        self._numbers = count(1)
        _make(root / TONE, "0.5*sin(440*2*PI*t)|0.4*sin(663*2*PI*t)", 44100, 2)
        _make(root / SPEECH, "0.4*sin(200*2*PI*t)*sin(3*t)+0.05*random(0)", 48000, 5)
        # Wide enough to keep an encoder busy, and never silent.
        _make(root / LONG, "0.3*sin(300*2*PI*t+9*sin(5*t))|0.3*sin(2111*2*PI*t)", 44100, long)
        paths = [attic / "one.wav", attic / "two.wav"]
        for path, pitch in zip(paths, (500, 1700), strict=True):
            _make(path, f"0.5*sin({pitch}*2*PI*t)", 44100, 40)
        self.versions = tuple(path.read_bytes() for path in paths)
        (root / CHANGING).write_bytes(self.versions[0])
        (root / NOISE).write_bytes(random.Random(7).randbytes(50_000))
        # The signature and the rest of a FLAC, without the header between them.
        (root / STUMP).write_bytes(b"fLaC" + (root / TONE).read_bytes()[3000:9000])
        picture = ("-f", "lavfi", "-i", "testsrc=duration=1:size=64x64:rate=5")
        sound = ("-f", "lavfi", "-i", "sine=duration=1")
        make_sound(root / FILM, *picture, *sound, "-c:v", "mpeg4")

    def path(self, source: str) -> Path:
        """Return where a source lies."""
        return self.root / source

    def link(self, source: str) -> str:
        """Give a source one more name, and return it: a child that reads it is known by that."""
        name = f"victim-{next(self._numbers)}-{source}"
        os.link(self.root / source, self.root / name)
        return name

    def unlink(self, name: str) -> None:
        """Take a name away again."""
        (self.root / name).unlink()

    def write_half(self, version: int, half: int) -> None:
        """Write one half of a version into the source that changes, in place.

        The time between the two halves has to be longer than a tick of the file system's clock:
        a reader between them could not tell that anything changed.
        """
        data = self.versions[version]
        middle = len(data) // 2
        start, stop = (0, middle) if half == 0 else (middle, len(data))
        with open(self.root / CHANGING, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), data[start:stop], start)


def _make(path: Path, formula: str, rate: int, seconds: float) -> None:
    make_sound(path, "-f", "lavfi", "-i", _WARBLE.format(formula, rate, seconds))
