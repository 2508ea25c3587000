"""`python -m bench.readers`: what programs that read audio files make of each output format.

It writes the tables of docs/lengths.md: durations, and how decoded samples lie beside the source's.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import mutagen
import numpy as np
import soundfile
import taglib
from numpy.typing import NDArray

from bench.blocks import fill
from bench.machine import printed, today
from bench.programs import FFMPEG, PROJECT
from tests.support.audio import Sound, convert, decode, noise, render_all, write_wav
from tests.support.programs import FFPROBE

_PAGE = PROJECT / "docs" / "lengths.md"
_RATE = 48000
#: Options of the columns.
_FORMATS = {
    "wav": "f:wav",
    "flac": "f:flac",
    "mp3": "f:mp3",
    "mp3, `q`": "f:mp3/q:4",
    "m4a": "f:m4a",
    "aac": "f:aac",
    "opus": "f:opus",
    "ogg": "f:ogg",
}
# A source of unknown length that is too large to be measured first, and a small one.
_LONG, _SHORT = 60, 10

_PROBE = (FFPROBE, "-v", "error", "-show_entries", "format=duration", "-of", "csv=p=0")
_READERS: dict[str, Callable[[Path], float]] = {
    "ffprobe": lambda path: float(_output(*_PROBE, path)),
    "mutagen": lambda path: float(mutagen.File(path).info.length),
    "TagLib": lambda path: float(taglib.File(str(path)).length),
    "libsndfile": lambda path: float(soundfile.info(str(path)).duration),
    "soxi": lambda path: float(_output("soxi", "-D", path)),
    "mediainfo": lambda path: int(_output("mediainfo", "--Inform=Audio;%Duration%", path)) / 1000,
}
_DECODERS: dict[str, Callable[[Path], NDArray[np.float64]]] = {
    "ffmpeg": lambda path: decode(path.read_bytes()).channels[0],
    "libsndfile": lambda path: soundfile.read(str(path), always_2d=True)[0][:, 0],
    "SoX": lambda path: _first_channel(_output("sox", path, "-t", "wav", "-")),
    "flac": lambda path: _first_channel(_output("flac", "-dcs", path)),
    "mpg123": lambda path: np.frombuffer(_output("mpg123", "-q", "-s", path), "<i2")[::2] / 2**15,
}


def _output(*words: str | Path) -> bytes:
    return subprocess.run(words, capture_output=True, check=True).stdout


def _first_channel(wav: bytes) -> NDArray[np.float64]:
    samples: NDArray[np.float64] = soundfile.read(io.BytesIO(wav), always_2d=True)[0][:, 0]
    return samples


def _sweep(seconds: int) -> Sound:
    """Return a sound of which no part resembles another one."""
    times = np.arange(seconds * _RATE) / _RATE
    phase = 2 * np.pi * 100 * seconds / np.log(40) * (40 ** (times / seconds) - 1)
    return Sound(_RATE, 0.5 * np.sin(phase) + 0.05 * noise(_RATE, len(times), 2).channels)


def _duration(read: Callable[[Path], float], path: Path, seconds: int) -> str:
    try:
        found = read(path)
    except Exception:
        return "none"
    return f"{found:.3f}" if 0 < found < 1000 * seconds else "none"


def _alignment(
    read: Callable[[Path], NDArray[np.float64]], path: Path, source: NDArray[np.float64]
) -> str:
    """Return by how many samples the decoded audio is later, and longer, than the source."""
    try:
        decoded = read(path)
    except (subprocess.CalledProcessError, soundfile.LibsndfileError, ValueError):
        return "no"
    if len(decoded) < _RATE:
        return "no"
    # Half a second of the sweep, in the first second of what was decoded.
    piece = source[_RATE // 4 : 3 * _RATE // 4]
    late = int(np.argmax(np.correlate(decoded[:_RATE], piece, "valid"))) - _RATE // 4
    longer = len(decoded) - len(source)
    return f"{late:+d}, {longer:+d}" if late or longer else "exact"


def _table(first: str, cell: Callable[[str, str], str], names: Mapping[str, object]) -> str:
    lines = [f"| {first} | {' | '.join(_FORMATS)} |", f"|---|{'---|' * len(_FORMATS)}"]
    for name in names:
        lines.append(f"| {name} | {' | '.join(cell(name, form) for form in _FORMATS)} |")
    return "\n".join(lines)


def measure() -> dict[str, str]:
    """Render the files, and return the contents of the page's blocks."""
    sound = _sweep(_SHORT)
    unknown = convert(write_wav(_sweep(_LONG)), "-c:a pcm_s16le -f matroska")
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for kind, source in (("known", write_wav(sound)), ("unknown", unknown)):
            outputs = render_all(source, _FORMATS.values())
            for name, text in _FORMATS.items():
                path = Path(folder, f"{kind}-{text.replace('/', '-')}.{text[2:].partition('/')[0]}")
                path.write_bytes(outputs[text])
                paths[kind, name] = path
        versions = {
            "ffmpeg": printed([FFMPEG, "-version"], r"version (\S+)"),
            "mutagen": version("mutagen"),
            "TagLib of pytaglib": version("pytaglib"),
            "libsndfile": soundfile.__libsndfile_version__,
            "SoX": printed(["sox", "--version"], r"v(\S+)"),
            "mediainfo": printed(["mediainfo", "--version"], r"v(\S+)"),
            "flac": printed(["flac", "--version"], r"flac (\S+)"),
            "mpg123": printed(["mpg123", "--version"], r"mpg123 (\S+)"),
        }
        return {
            "durations": _table(
                "Program",
                lambda name, form: _duration(_READERS[name], paths["known", form], _SHORT),
                _READERS,
            ),
            "durations of unknown lengths": _table(
                "Program",
                lambda name, form: _duration(_READERS[name], paths["unknown", form], _LONG),
                _READERS,
            ),
            "alignment": _table(
                "Decoder",
                lambda name, form: _alignment(
                    _DECODERS[name], paths["known", form], sound.channels[0]
                ),
                _DECODERS,
            ),
            "readers": f"Measured on {today()}, with "
            + ", ".join(f"{name} {number}" for name, number in versions.items())
            + ".",
        }


def main() -> int:
    """Write the tables of the page."""
    _PAGE.write_text(fill(_PAGE.read_text(), measure()))
    print(f"{_PAGE.relative_to(PROJECT)} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
