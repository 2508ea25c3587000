"""Whole renders and waveforms, beside the same work by other programs."""

from __future__ import annotations

from pathlib import Path

from bench.bare import commands, heard, whole
from bench.client import fetch
from bench.figures import Figure
from bench.programs import AUDIOWAVEFORM, FFMPEG, settled
from bench.settings import Bench

# For each format, the targets over bare ffmpeg and over audiowaveform.
_PEAKS = {"wav": (0.3, 0.5), "flac": (0.75, 0.75), "mp3": (1.05, 0.7)}
# Sources of short waveforms; that of wav needs no decoder.
_SHORT_PEAKS = ("flac", "mp3")
_MINUTE = 60
_SPEEDS = (
    *("f:wav", "f:flac", "f:opus", "f:ogg", "f:mp3", "f:aac", "f:m4a"),
    *("f:mp3/enhance:voice", "f:mp3/norm:ebu"),
)


# Options of the sites in bench.month, which reads their speeds from the page.
_SHOWN = ("f:mp3/norm:ebu", "f:opus", "f:m4a")


def uncompressed(bench: Bench) -> list[Figure]:
    """Measure a render of many bytes without encoding, one side after the other."""
    work = "MISS, whole render, 1-hour FLAC to wav"
    took = Figure(
        work,
        "wall time over bare `ffmpeg`",
        "s",
        target=1.04,
        reason="a file takes the encoder longer to write than a pipe, and a client reads over TCP",
    )
    used = Figure(work, "service's CPU for each GB", "s", target=2.2, on_page=False)
    forked = Figure(work, "wall time over `AP_WARM_PROGRAMS=0`", "s", target=1.02)
    with (
        bench.service("uncompressed") as ours,
        bench.service("uncompressed-cold", AP_WARM_PROGRAMS="0") as cold,
    ):
        bare = commands(bench.sounds, ours.path("f:wav", "hour.flac")).ffmpeg
        for number in range(bench.rounds):
            path = ours.path(f"f:wav/cb:{number}", "hour.flac")
            before = ours.cpu_seconds()
            fetched = fetch(ours.port, path)
            settled(ours)
            after = ours.cpu_seconds()
            alone, size = heard(bare)
            # Both sides have the same output, except that ours has chunk headers.
            if not size <= fetched.size <= 1.05 * size:
                raise RuntimeError(f"{fetched.size} bytes through the service, {size} without it")
            took.add(fetched.last, alone)
            used.add((after - before) / size * 1e9)
            forked.add(fetched.last, fetch(cold.port, path).last)
            settled(cold)
    return [took, used, forked]


def speeds(bench: Bench) -> list[Figure]:
    """Measure the speed of each encoder for one minute, as a multiple of real time."""
    figures = []
    with bench.service("speeds") as ours:
        for options in bench.some(_SPEEDS):
            figure = Figure(f"FLAC to `{options}`", "speed", "x real time")
            # docs/configuration.md has the speeds of all formats.
            figure.on_page = options in _SHOWN
            path = ours.path(f"{options}/{bench.part(0, _MINUTE)}", "three.flac")
            bare = commands(bench.sounds, path).ffmpeg
            for _ in range(bench.few):
                figure.add(bench.seconds(_MINUTE) / whole(bare))
            figures.append(figure)
    figures[-1].remark = "1 minute of stereo on one core, with the start of ffmpeg"
    return figures


def peaks(bench: Bench) -> list[Figure]:
    """Measure waveforms, which need all samples: of an hour, and of three minutes."""
    long = [row for name in bench.some(_PEAKS) for row in _measure_peaks(bench, name)]
    return [*long, *(_measure_short_peaks(bench, name) for name in bench.some(_SHORT_PEAKS))]


def _measure_short_peaks(bench: Bench, name: str) -> Figure:
    figure = Figure(
        f"peaks of a 3-minute stereo {name}",
        "over `AP_WARM_PROGRAMS=0`",
        "ms",
        target=0.5,
        reason="the decoder takes as long on both sides",
    )
    folder = bench.copies("short-peaks", f"three.{name}", bench.many + 1)
    with (
        bench.service("peaks", AP_LOCAL_ROOT=str(folder)) as ours,
        bench.service("peaks-cold", AP_LOCAL_ROOT=str(folder), AP_WARM_PROGRAMS="0") as cold,
    ):
        for number in bench.numbers(bench.many):
            path = ours.path("f:peaks", f"{number}.{name}")
            took = []
            for side in (ours, cold):
                took.append(1000 * fetch(side.port, path).last)
                settled(side)
            # The first waveform imports modules.
            if number:
                figure.add(*took)
    return figure


def _measure_peaks(bench: Bench, name: str) -> list[Figure]:
    over_ffmpeg, over_peer = _PEAKS[name]
    source = bench.sounds / f"hour.{name}"
    work = f"peaks of a 1-hour stereo {name}, 2 channels"
    figure = Figure(
        work,
        "over bare `ffmpeg` decoding to `-f s16le`",
        "s",
        target=over_ffmpeg,
        reason="the decoder's threads, the pipe and the reduction share two cores",
        on_page=name != "mp3",
    )
    beside = Figure(
        work,
        "over `audiowaveform`, 2 channels",
        "s",
        target=over_peer,
        reason="ffmpeg decodes flac more slowly than libFLAC" if name == "flac" else "",
        remark="" if name == "mp3" else "in parts, on all CPUs; audiowaveform has one thread",
        on_page=name != "mp3",
    )
    bare = [FFMPEG, "-v", "error", "-nostdin", "-i", str(source)]
    bare += ["-map", "0:a:0", "-f", "s16le", "pipe:1"]
    # A decoder takes seconds, of both sides.
    for _ in range(bench.rounds if name == "wav" else bench.few):
        # A new service, to which the source is new.
        with bench.service("peaks") as ours:
            # The first waveform imports modules.
            fetch(ours.port, ours.path("f:peaks", "short.wav"))
            settled(ours)
            drawn = fetch(ours.port, ours.path("f:peaks/ch:2", source.name)).last
        figure.add(drawn, whole(bare))
        if AUDIOWAVEFORM:
            beside.add(drawn, whole(_audiowaveform(bench, source)))
    return [figure, beside] if AUDIOWAVEFORM else [figure]


def _audiowaveform(bench: Bench, source: Path) -> list[str]:
    """Return the command for a waveform of 800 pixels with the channels of the source."""
    samples = round(bench.seconds(3600) * 44100 // 800)
    words = ["--quiet", "--input-filename", str(source), "--split-channels", "--bits", "16"]
    words += ["--zoom", str(samples), "--output-format", "dat", "--output-filename", "-"]
    return [AUDIOWAVEFORM, *words]
