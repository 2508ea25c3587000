"""Audio files for the benchmarks, made once from two synthetic minutes and kept."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.programs import FFMPEG
from bench.settings import Bench

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
    "hour.wv": ("stereo.wav", 30, 3600, "-c:a wavpack"),
    "hour.oga": ("stereo.wav", 30, 3600, "-c:a flac -f ogg"),
    "hour.mka": ("stereo.wav", 30, 3600, "-c:a flac"),
    # Repeated without encoding, it would have steps in its time stamps, and seeks would be inexact.
    "hour.m4a": ("stereo.wav", 30, 3600, "-c:a aac"),
    "hour.flac": ("stereo.wav", 30, 3600, "-c:a flac"),
    "twenty.flac": ("stereo.wav", LONG_ENOUGH // _SECONDS, LONG_ENOUGH, "-c:a flac"),
    "long.flac": ("mono.wav", 120, 14400, "-c:a flac"),
    "two.mp3": ("stereo.wav", 0, 120, "-c:a libmp3lame -b:a 128k"),
    "vbr-two.mp3": ("stereo.wav", 0, 120, "-c:a libmp3lame -q:a 4"),
    "two.aac": ("stereo.wav", 0, 120, "-c:a aac"),
    "two.ac3": ("stereo.wav", 0, 120, "-c:a ac3"),
    "two.ogg": ("stereo.wav", 0, 120, "-c:a libvorbis"),
    "two.opus": ("stereo.wav", 0, 120, "-c:a libopus"),
    "hour.mp3": ("two.mp3", 30, 3600, "-c copy"),
    "vbr-hour.mp3": ("vbr-two.mp3", 30, 3600, "-c copy"),
    "hour.aac": ("two.aac", 30, 3600, "-c copy"),
    "hour.ac3": ("two.ac3", 30, 3600, "-c copy"),
    "half-day.mp3": ("two.mp3", 360, 43200, "-c copy"),
    "vbr-half-day.mp3": ("vbr-two.mp3", 360, 43200, "-c copy"),
    "hour.ogg": ("two.ogg", 30, 3600, "-c copy"),
    "hour.opus": ("two.opus", 30, 3600, "-c copy"),
    # 50 MB of PCM, for downloads.
    "big.wav": ("stereo.wav", 3, 284, "-c copy"),
    # Source of 5 MB of 24-bit output, without any encoding.
    "five.wav": ("stereo.wav", 0, 29, "-c copy"),
    # Sources of previews, of which there are many copies.
    "minute.flac": ("stereo.wav", 0, 60, "-c:a flac"),
}


def long_enough(bench: Bench) -> Path:
    """Return the source of `LONG_ENOUGH` seconds, which is created if it is missing."""
    _make_first(bench)
    _derive(bench, "twenty.flac")
    return bench.sounds / "twenty.flac"


def make_sounds(bench: Bench) -> None:
    """Create missing audio files."""
    _make_first(bench)
    stereo = bench.sounds / "stereo.wav"
    _make(bench.sounds / "mono.wav", "-i", stereo, "-ac", "1")
    for wave in (("stereo", "mono"), ("two", "vbr-two")):
        rows = {n: row for n, row in _RECIPES.items() if (row[0].partition(".")[0] in wave)}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for job in [pool.submit(_derive, bench, name) for name in rows]:
                job.result()


def _make_first(bench: Bench) -> None:
    """Create the file that most others are made of."""
    bench.sounds.mkdir(parents=True, exist_ok=True)
    _make(bench.sounds / "stereo.wav", *_synthesis(bench.seconds(_SECONDS)))


def _synthesis(seconds: float) -> list[str]:
    voices = f"aevalsrc='{'|'.join(_TONES)}':s=44100:d={seconds}"
    noise = f"anoisesrc=r=44100:d={seconds}:color=pink:amplitude=0.05:seed=1"
    graph = f"{voices}[a];{noise},pan=stereo|c0=c0|c1=c0[b];[a][b]amix=normalize=0"
    return ["-filter_complex", graph, "-c:a", "pcm_s16le"]


def _derive(bench: Bench, name: str) -> None:
    source, times, seconds, words = _RECIPES[name]
    loop = ["-stream_loop", str(times - 1)] if times else []
    # Some series render a second, on any scale.
    length = str(max(1, bench.seconds(seconds)))
    folder = bench.sounds
    _make(folder / name, *loop, "-i", folder / source, "-t", length, *words.split())


def _make(path: Path, *words: str | Path) -> None:
    if path.exists():
        return
    part = path.with_stem(f"{path.stem}.part")
    command = [FFMPEG, "-v", "error", "-nostdin", "-y", *words, "-bitexact", part]
    # ffmpeg warns of the time stamps of repeated packets, and then corrects them.
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    part.rename(path)
