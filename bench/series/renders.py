"""Whole renders of an hour, beside the same work by bare ffmpeg."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TypeVar

from bench.bare import commands, heard, whole
from bench.client import Fetched, fetch
from bench.figures import Figure, Results
from bench.programs import AUDIOWAVEFORM, FFMPEG, Service, move, service, settled
from bench.settings import CLIENT, SERVER, Bench

T = TypeVar("T")

# For each format, the targets over bare ffmpeg and over audiowaveform.
_PEAKS = {"wav": (0.5, 0.9), "flac": (1.05, 1.3), "mp3": (1.05, 0.7)}

_MINUTE = 60
_TOGETHER = (
    "mono, 16 kHz, as for speech; music takes several times as long, and as much CPU; both sides"
    " run at the same time, each on its own core, and exchange cores after every round"
)


def encoded(bench: Bench) -> Results:
    """Measure renders that keep a core busy, by the service and by bare ffmpeg side by side."""
    results = Results()
    folder = bench.folder("encoded")
    with service(folder, {"AP_LOCAL_ROOT": str(bench.sounds)}) as ours:
        for name in ("mp3", "opus", "aac"):
            work = f"MISS, whole render, 1-hour FLAC to {name}"
            took = results.figure(
                work,
                "wall time over bare `ffmpeg`",
                "s",
                target=1.03,
                peer="ffmpeg",
                remark=_TOGETHER,
                reason="the service's own CPU shares the core of its encoder here",
            )
            used = results.figure(work, "service's CPU", "s", target=1.5)
            bare = commands(bench.sounds, ours.path(f"f:{name}", "spoken.flac")).ffmpeg
            for number in range(bench.few):
                # A new URL for each round: a request could join a render whose last client has just
                # left.
                path = ours.path(f"f:{name}/cb:{number}", "spoken.flac")
                cores = (SERVER, CLIENT) if number % 2 else (CLIENT, SERVER)
                _side_by_side(ours, path, bare, cores, took, used)
    return results


def _side_by_side(
    ours: Service,
    path: str,
    bare: Sequence[str],
    cores: tuple[int, int],
    took: Figure,
    used: Figure,
) -> None:
    """Render with the service and with ffmpeg alone, at the same time.

    The reader of an output runs on the core of its writer, so it costs both sides the same.
    """
    move(ours, cores[0])
    before = ours.cpu_seconds()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(_on, cores[0], lambda: fetch(ours.port, path))
        second = pool.submit(_on, cores[1], lambda: heard(bare))
        fetched, (alone, size) = first.result(), second.result()
    settled(ours)
    _compare(fetched, size)
    took.add(fetched.last, alone)
    used.add(ours.cpu_seconds() - before)


def _on(core: int, work: Callable[[], T]) -> T:
    """Call a function on one core; processes that it starts inherit the core."""
    os.sched_setaffinity(0, {core})
    return work()


def _compare(fetched: Fetched, size: int) -> None:
    """Require that both sides have the same output, except that ours has chunk headers."""
    if not size <= fetched.size <= 1.05 * size:
        raise RuntimeError(f"{fetched.size} bytes through the service, {size} without it")


def uncompressed(bench: Bench) -> Results:
    """Measure a render of many bytes without encoding, one side after the other."""
    results = Results()
    folder = bench.folder("uncompressed")
    work = "MISS, whole render, 1-hour FLAC to wav"
    took = results.figure(
        work,
        "wall time over bare `ffmpeg`",
        "s",
        target=1.04,
        peer="ffmpeg",
        remark="stereo",
        reason="a file takes the encoder longer to write than a pipe, and a client reads over TCP",
    )
    used = results.figure(work, "service's CPU for each GB", "s", target=2.2)
    with service(folder, {"AP_LOCAL_ROOT": str(bench.sounds)}) as ours:
        bare = commands(bench.sounds, ours.path("f:wav", "hour.flac")).ffmpeg
        for number in range(bench.rounds):
            path = ours.path(f"f:wav/cb:{number}", "hour.flac")
            before = ours.cpu_seconds()
            fetched = fetch(ours.port, path)
            settled(ours)
            after = ours.cpu_seconds()
            alone, size = heard(bare)
            _compare(fetched, size)
            took.add(fetched.last, alone)
            used.add((after - before) / size * 1e9)
    return results


def converted(bench: Bench) -> Results:
    """Measure what clean conversions of sample rates and formats cost a whole render."""
    results = Results()
    with rooted(bench, "converted") as ours:
        for name in ("mp3", "opus", "aac"):
            figure = results.figure(
                f"MISS, whole render, 3-minute FLAC to {name}",
                "over the same with ffmpeg's default conversions",
                "s",
                target=1.03,
                peer="ffmpeg",
                remark="stereo, 44.1 kHz; both sides are bare `ffmpeg`, one after the other",
                reason="opus needs another sample rate, which libsoxr converts without aliases; the"
                " others differ by less than the machine's own changes between the rounds",
            )
            command = commands(bench.sounds, ours.path(f"f:{name}", "three.flac")).ffmpeg
            for _ in range(bench.rounds):
                figure.add(whole(command)[0], whole(_with_defaults(command))[0])
    return results


def _with_defaults(command: Sequence[str]) -> list[str]:
    """Return a command of ffmpeg without the options that select how samples are converted."""
    words = list(command)
    for option in ("-resampler", "-precision", "-internal_sample_fmt", "-sample_fmt"):
        at = words.index(option)
        del words[at : at + 2]
    return [re.sub(r"aformat=sample_fmts=\w+:sample_rates=\d+,", "", word) for word in words]


def speeds(bench: Bench) -> Results:
    """Measure the speed of each encoder for one minute, as a multiple of real time."""
    results = Results()
    with rooted(bench, "speeds") as ours:
        for name, options in {
            **{name: f"f:{name}" for name in ("wav", "flac", "opus", "ogg", "mp3", "aac", "m4a")},
            "enhance": "f:mp3/enhance:voice",
            "norm": "f:mp3/norm:ebu",
        }.items():
            path = ours.path(f"{options}/t:0:{_MINUTE}", "three.flac")
            bare = commands(bench.sounds, path).ffmpeg
            took = [whole(bare)[0] for _ in range(bench.few)]
            results.facts[f"speed of {name}"] = _MINUTE / median(took)
    return results


@contextmanager
def rooted(bench: Bench, name: str) -> Iterator[Service]:
    """Run the service with the benchmark's audio files as its root, and no other settings."""
    with service(bench.folder(name), {"AP_LOCAL_ROOT": str(bench.sounds)}) as ours:
        yield ours


def peaks(bench: Bench) -> Results:
    """Measure waveforms of an hour, which need all of its samples."""
    results = Results()
    folder = bench.folder("peaks")
    root = folder / "sources"
    root.mkdir()
    with service(folder, {"AP_LOCAL_ROOT": str(root)}) as ours:
        for name in _PEAKS:
            _measure_peaks(bench, results, ours, root, name)
    if not AUDIOWAVEFORM:
        results.missing["peaks over audiowaveform"] = (
            "AUDIOWAVEFORM does not name the program, which is in no registry"
        )
    return results


def _measure_peaks(bench: Bench, results: Results, ours: Service, root: Path, name: str) -> None:
    """Compare waveforms of two channels, and the default of one, with a decoder and a peer."""
    over_ffmpeg, over_peer = _PEAKS[name]
    source = bench.sounds / f"hour.{name}"
    bare = [FFMPEG, "-v", "error", "-nostdin", "-i", str(source)]
    bare += ["-map", "0:a:0", "-f", "s16le", "pipe:1"]
    for options, work in (
        ("f:peaks/ch:2", f"peaks of a 1-hour stereo {name}, 2 channels"),
        ("f:peaks", f"peaks of a 1-hour stereo {name}, 1 channel mixed from 2"),
    ):
        figure = results.figure(
            work,
            "over bare `ffmpeg` decoding to `-f s16le`",
            "s",
            target=over_ffmpeg,
            peer="ffmpeg",
            remark="each source is new to the service, which probes it first",
            reason="the decoder's threads, the pipe and the reduction share two cores",
        )
        beside = None
        if AUDIOWAVEFORM and options.endswith("ch:2"):
            beside = results.figure(
                work,
                "over `audiowaveform`, 2 channels",
                "s",
                target=over_peer,
                peer="audiowaveform",
                reason="ffmpeg decodes flac more slowly than libFLAC" if name == "flac" else "",
            )
        # A decoder takes seconds. The first round of the others, which imports modules, does not
        # count.
        first, rounds = (1, bench.rounds) if name == "wav" else (0, bench.few)
        for number in range(first + rounds):
            link = f"{options.count('/')}-{number}.{name}"
            (root / link).hardlink_to(source)
            drawn = fetch(ours.port, ours.path(options, link)).last
            settled(ours)
            alone = whole(bare)[0]
            peer = whole(_audiowaveform(source))[0] if beside else 0.0
            if number >= first:
                figure.add(drawn, alone)
                if beside:
                    beside.add(drawn, peer)


def _audiowaveform(source: Path) -> list[str]:
    """Return the command for a waveform of 800 pixels with the channels of the source."""
    samples = 3600 * 44100 // 800
    words = ["--quiet", "--input-filename", str(source), "--split-channels", "--bits", "16"]
    words += ["--zoom", str(samples), "--output-format", "dat", "--output-filename", "-"]
    return [AUDIOWAVEFORM, *words]
