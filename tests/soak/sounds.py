"""Sources of a run, copies of them for attacks, and their references."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from audioproxy.media.waveform import SAMPLE, Reduction, serialize
from audioproxy.media.waveform_spec import WaveformSpec
from tests.support import audio
from tests.support.service import generate_audio

TONE, SPEECH, LONG = "tone.flac", "speech.wav", "long.flac"

_WARBLE = "aevalsrc='{}':s={}:d={}"


class Sounds:
    """The folder of the sources."""

    def __init__(self, root: Path, long: float) -> None:
        """Create every source.

        :param long: duration of the long source in seconds.
        """
        self.root = root
        self._numbers = count(1)
        _make(root / TONE, "0.5*sin(440*2*PI*t)|0.4*sin(663*2*PI*t)", 44100, 2)
        _make(root / SPEECH, "0.4*sin(200*2*PI*t)*sin(3*t)+0.05*random(0)", 48000, 5)
        # The left tone is frequency-modulated. The right tone is constant, so the source is never
        # silent.
        _make(root / LONG, "0.3*sin(300*2*PI*t+9*sin(5*t))|0.3*sin(2111*2*PI*t)", 44100, long)

    def path(self, source: str) -> Path:
        """Return the path of a source."""
        return self.root / source

    def copy(self, source: str) -> str:
        """Copy a source; return the name of the copy, which identifies the child reading it.

        All names of one file share its probe, so a link would let an attack on a probe reach other
        requests.
        """
        name = f"attacked-{next(self._numbers)}-{source}"
        shutil.copyfile(self.root / source, self.root / name)
        return name

    def remove(self, name: str) -> None:
        """Remove a file that `copy` created."""
        (self.root / name).unlink()


def _make(path: Path, formula: str, rate: int, seconds: float) -> None:
    generate_audio(path, "-f", "lavfi", "-i", _WARBLE.format(formula, rate, seconds))


# References: made with the service's ffmpeg arguments, but not its pipeline


def render(source: Path, segments: str) -> bytes:
    """Render a source with ffmpeg.

    :param segments: options as a URL spells them.
    """
    data, options = source.read_bytes(), audio.options_of(segments)
    output = audio.render(data, segments)
    if options.f != "peaks":
        return output
    spec = WaveformSpec.of(options, audio.probe(data))
    with TemporaryFile() as spool:
        reduction = Reduction(spec, spool)
        reduction.add(np.frombuffer(output, SAMPLE))
        return b"".join(serialize(reduction.finish(), spec))


def document(source: Path) -> dict[str, object]:
    """Return the info document of a source."""
    data = source.read_bytes()
    return audio.probe(data).description.document(len(data))
