"""Audio files for the benchmarks, made once from two synthetic minutes and kept."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.programs import FOLDER

# Tones whose levels change, over a noise floor: the encoder input is neither silence nor only
# noise.
_TONES = (
    "0.2*sin(440*2*PI*t)*(1+sin(2*PI*t/3))",
    "0.15*sin(1870*2*PI*t+3*sin(5*t))+0.2*sin(110*2*PI*t)*sin(2*PI*t/7)",
)
_SECONDS = 120

#: Seconds of the source on which encoders are measured whose start must not count.
LONG_ENOUGH = 1200

#: For each file: its source, the number of repetitions, its seconds, and ffmpeg's arguments.
#: Formats that can be cut anywhere are repeated without encoding them again.
_RECIPES: dict[str, tuple[str, int, int, str]] = {
    "short.wav": ("stereo.wav", 0, 1, "-c copy"),
    "three.flac": ("stereo.wav", 2, 180, "-c:a flac"),
    "three.wav": ("stereo.wav", 2, 180, "-c copy"),
    "three.mp3": ("stereo.wav", 2, 180, "-c:a libmp3lame -b:a 128k"),
    "three.ogg": ("stereo.wav", 2, 180, "-c:a libvorbis"),
    # Its moov box is at the end.
    "three.m4a": ("stereo.wav", 2, 180, "-c:a aac"),
    "hour.wav": ("stereo.wav", 30, 3600, "-c copy"),
    # Repeated without encoding, it would have steps in its time stamps, and seeks would be inexact.
    "hour.m4a": ("stereo.wav", 30, 3600, "-c:a aac"),
    "hour.flac": ("stereo.wav", 30, 3600, "-c:a flac"),
    "twenty.flac": ("stereo.wav", LONG_ENOUGH // _SECONDS, LONG_ENOUGH, "-c:a flac"),
    "long.flac": ("mono.wav", 120, 14400, "-c:a flac"),
    "two.mp3": ("stereo.wav", 0, 120, "-c:a libmp3lame -b:a 128k"),
    "two.ogg": ("stereo.wav", 0, 120, "-c:a libvorbis"),
    "two.opus": ("stereo.wav", 0, 120, "-c:a libopus"),
    "hour.mp3": ("two.mp3", 30, 3600, "-c copy"),
    "hour.ogg": ("two.ogg", 30, 3600, "-c copy"),
    "hour.opus": ("two.opus", 30, 3600, "-c copy"),
    # 50 MB of PCM, for downloads.
    "big.wav": ("stereo.wav", 3, 284, "-c copy"),
    # Source of 5 MB of 24-bit output, without any encoding.
    "five.wav": ("stereo.wav", 0, 29, "-c copy"),
}


def long_enough() -> Path:
    """Return the source of `LONG_ENOUGH` seconds, which is created if it is missing."""
    folder = _folder()
    _derive(folder, "twenty.flac")
    return folder / "twenty.flac"


def _folder() -> Path:
    """Return the folder of the sources, with the one that most others are made of."""
    folder = FOLDER / "sounds"
    folder.mkdir(parents=True, exist_ok=True)
    _make(folder / "stereo.wav", *_synthesis())
    return folder


def sounds() -> Path:
    """Create missing audio files and return their folder."""
    folder = _folder()
    _make(folder / "mono.wav", "-i", folder / "stereo.wav", "-ac", "1")
    for wave in (("stereo", "mono"), ("two",)):
        rows = {n: row for n, row in _RECIPES.items() if (row[0].partition(".")[0] in wave)}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for job in [pool.submit(_derive, folder, name) for name in rows]:
                job.result()
    return folder


def _synthesis() -> list[str]:
    voices = f"aevalsrc='{'|'.join(_TONES)}':s=44100:d={_SECONDS}"
    noise = f"anoisesrc=r=44100:d={_SECONDS}:color=pink:amplitude=0.05:seed=1"
    graph = f"{voices}[a];{noise},pan=stereo|c0=c0|c1=c0[b];[a][b]amix=normalize=0"
    return ["-filter_complex", graph, "-c:a", "pcm_s16le"]


def _derive(folder: Path, name: str) -> None:
    source, times, seconds, words = _RECIPES[name]
    loop = ["-stream_loop", str(times - 1)] if times else []
    _make(folder / name, *loop, "-i", folder / source, "-t", str(seconds), *words.split())


def _make(path: Path, *words: str | Path) -> None:
    if path.exists():
        return
    part = path.with_stem(f"{path.stem}.part")
    command = ["ffmpeg", "-v", "error", "-nostdin", "-y", *words, "-bitexact", part]
    # ffmpeg warns of the time stamps of repeated packets, and then corrects them.
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    part.rename(path)
