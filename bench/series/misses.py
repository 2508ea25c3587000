"""New variants of local sources: the time to the first byte, and of a hundred previews."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from audioproxy.media.command.encoders import ENCODERS
from bench.bare import children_cpu_seconds, commands, first_byte, whole
from bench.client import fetch
from bench.figures import Figure
from bench.programs import Service, own_path, service, settled
from bench.settings import Bench

_OVER_PAIR = "first byte over the bare pair"
# Formats on the page: the others start as mp3 does.
_SHOWN = ("mp3", "opus", "m4a")
_HELD = {
    "m4a": "the first fragment of an m4a is one second long and must be encoded before it is sent",
    "opus": "two pages must be encoded first",
    "ogg": "the encoder of Vorbis holds audio back",
}
# For each format, the target over the bare pair.
_TARGETS = {name: 0.25 if name in _HELD else 0.15 for name in ENCODERS if name != "peaks"}
# Seconds after which the times of a file show its changes. Before that, no probe result is cached.
_SETTLED = 4.0
# Sources of an hour, and what each of them is, where that is not its container's usual codec.
_HOURS = {
    "hour.flac": "flac",
    "hour.wav": "wav",
    "hour.ogg": "ogg",
    "hour.opus": "opus",
    "hour.oga": "FLAC in Ogg",
    "hour.m4a": "m4a",
    "hour.mp3": "mp3 of one bit rate",
    "vbr-hour.mp3": "mp3 of variable bit rate",
    "hour.aac": "ADTS",
    "hour.ac3": "AC-3",
    "hour.wv": "WavPack",
    "hour.mka": "FLAC in Matroska",
}
# Sources of half a day, and the most milliseconds to the first byte of the first late preview.
_HALF_DAYS = {"half-day.mp3": "mp3 of one bit rate", "vbr-half-day.mp3": "mp3 of variable bit rate"}
_FIRST_LATE = 2000
# The target of late previews, over early ones.
_LATE = 1.5
_SOONER = "of the time of bare ffprobe and ffmpeg to the first byte of a new variant"

_PREVIEWS = 100


def first_bytes(bench: Bench) -> list[Figure]:
    """Measure a MISS of three minutes, with a new source and with a source that was probed."""
    root = bench.copies("misses", "three.flac", bench.many + 1)
    other = bench.folder("misses-own")
    time.sleep(bench.seconds(_SETTLED))
    settings = {"AP_LOCAL_ROOT": str(root)}
    figures = []
    for name in bench.some(_TARGETS):
        # New services, to which all sources are new again.
        with ExitStack() as stack:
            ours = stack.enter_context(service(root, settings))
            path = own_path()
            own = stack.enter_context(service(other, settings, path=path)) if path else None
            figures += _measure(bench, name, ours, own)
    with service(root, settings) as ours:
        figures.append(_measure_info(bench, ours))
    return figures


def _measure(bench: Bench, name: str, ours: Service, own: Service | None) -> list[Figure]:
    work = f"MISS, 3-minute FLAC to {name}"
    reason = _HELD.get(name, "")
    fresh = Figure(
        work,
        _OVER_PAIR,
        "ms",
        target=_TARGETS[name],
        remark="to the first byte after the container's headers, on both sides",
        reason=reason,
        on_page=name in _SHOWN,
        in_short=name == "mp3",
        headline=_SOONER if name == "mp3" else "",
    )
    known = Figure(
        f"{work}, probed before",
        "first byte over bare `ffmpeg`",
        "ms",
        # It bounds what the service adds, also where ffmpeg is started anew.
        target=1.15,
        reason=reason,
        on_page=False,
    )
    lean = Figure(
        f"{work}, own ffmpeg",
        "first byte over Debian's bare pair",
        "ms",
        target=0.25,
        reason=reason,
        on_page=name == "mp3",
        in_short=name == "mp3",
    )
    # The service holds the container's headers back until there is audio.
    headers = ENCODERS[name].header_bytes
    root = bench.sounds
    bare = commands(root, ours.path(f"f:{name}", "three.flac"))
    other = commands(root, ours.path(f"f:{name}/gain:-1", "three.flac"))
    # The first round does not count: it fills caches and imports modules.
    for number in bench.numbers(bench.many):
        source = f"{number}.flac"
        new = _ask(ours, f"f:{name}", source)
        pair = whole(bare.ffprobe) + first_byte(bare.ffmpeg, headers)
        # Other options of the same source: the source is not probed again.
        again = _ask(ours, f"f:{name}/gain:-1", source)
        single = first_byte(other.ffmpeg, headers)
        quick = _ask(own, f"f:{name}", source) if own else None
        if number:
            fresh.add(1000 * new, 1000 * pair)
            known.add(1000 * again, 1000 * single)
            if quick is not None:
                lean.add(1000 * quick, 1000 * pair)
    return [fresh, known, *([lean] if own else [])]


def _measure_info(bench: Bench, ours: Service) -> Figure:
    figure = Figure("`/info` of a 3-minute FLAC", "over bare `ffprobe`", "ms", target=0.15)
    bare = commands(bench.sounds, ours.path("f:wav", "three.flac")).ffprobe
    for number in bench.numbers(bench.many):
        took = fetch(ours.port, ours.info_path(f"{number}.flac")).last
        settled(ours)
        alone = whole(bare)
        if number:
            figure.add(1000 * took, 1000 * alone)
    return figure


def _ask(program: Service, options: str, source: str) -> float:
    took = fetch(program.port, program.path(options, source), whole=False).first
    # Wait for the encoder, whose only client has left, so that it does not run beside the next one.
    settled(program)
    return took


def previews(bench: Bench) -> list[Figure]:
    """Measure previews from the middle of a source, and a hundred previews of new sources."""
    figures = [_measure_preview(bench, name) for name in bench.some(("flac", "wav", "m4a", "mp3"))]
    with bench.service("previews") as ours:
        for name, kind in bench.some(_HOURS.items()):
            figures.append(
                _measure_late(bench, ours, name, f"50 minutes into a 1-hour {kind}", 3000)
            )
        for name, kind in bench.some(_HALF_DAYS.items()):
            what = f"hour 11.9 of a 12-hour {kind}"
            first = Figure(
                f"preview at {what}, the first of the source",
                "first byte",
                "ms",
                target=_FIRST_LATE,
                remark="the source is in the page cache",
            )
            first.add(1000 * _ask(ours, f"f:mp3/{bench.part(42840, 30)}/cb:first", name))
            figures += [first, _measure_late(bench, ours, name, what, 42840)]
    for form, seconds in bench.some((("wav", 5), ("mp3", 30))):
        figures += _measure_many(bench, form, seconds)
    return figures


def _measure_late(bench: Bench, ours: Service, name: str, what: str, start: float) -> Figure:
    figure = Figure(
        f"preview at {what}",
        "first byte over that at 0",
        "ms",
        target=_LATE,
        on_page=name in ("hour.flac", "hour.ogg", "vbr-hour.mp3"),
        in_short=name == "hour.ogg",
    )
    # The first rounds do not count: they probe the source.
    for number in bench.numbers(bench.rounds):
        late = _ask(ours, f"f:mp3/{bench.part(start, 30)}", name)
        early = _ask(ours, f"f:mp3/{bench.part(0, 30)}", name)
        if number:
            figure.add(1000 * late, 1000 * early)
    return figure


def _measure_preview(bench: Bench, name: str) -> Figure:
    figure = Figure(
        f"preview at 60 seconds into a 3-minute {name}",
        _OVER_PAIR,
        "ms",
        target=0.2,
        on_page=name == "flac",
    )
    root = bench.copies("preview", f"three.{name}", bench.rounds + 1)
    with service(root, {"AP_LOCAL_ROOT": str(root)}) as ours:
        options = f"f:mp3/{bench.part(60, 30)}"
        bare = commands(root, ours.path(options, f"0.{name}"))
        for number in bench.numbers(bench.rounds):
            took = _ask(ours, options, f"{number}.{name}")
            pair = whole(bare.ffprobe) + first_byte(bare.ffmpeg)
            if number:
                figure.add(1000 * took, 1000 * pair)
    return figure


def _measure_many(bench: Bench, form: str, seconds: int) -> Iterator[Figure]:
    """Measure whole previews of many new sources, with as many at a time as there are CPUs."""
    count, at_a_time = bench.count(_PREVIEWS), len(os.sched_getaffinity(0))
    work = f"{count} previews of {seconds} seconds in {form}, {at_a_time} at a time"
    took, used = (
        Figure(
            work,
            f"{measure} over the bare pair by `xargs -P`",
            "s",
            target=0.3,
            remark="each preview is read to its end",
            reason="both sides decode and encode as long",
        )
        for measure in ("wall time", "CPU time")
    )
    root = bench.copies("many", "minute.flac", count + 1)
    options = f"f:{form}/{bench.part(20, seconds)}"
    for _ in range(bench.few):
        # A new service, to which the sources are new.
        with service(root, {"AP_LOCAL_ROOT": str(root)}) as ours:
            # The first render imports modules.
            _ask(ours, options, f"{count}.flac")
            paths = [ours.path(options, f"{number}.flac") for number in range(count)]
            bare = commands(root, paths[0])
            cpu, start = ours.all_cpu_seconds(), time.perf_counter()
            with ThreadPoolExecutor(at_a_time) as pool:
                list(pool.map(lambda path: fetch(ours.port, path), paths))
            wall = time.perf_counter() - start
            settled(ours)
            cpu = ours.all_cpu_seconds() - cpu
        pair = f"{shlex.join(bare.ffprobe)} && {shlex.join(bare.ffmpeg)}"
        command = ["xargs", "-P", str(at_a_time), "-I{}"]
        command += ["sh", "-c", pair.replace("0.flac", "{}.flac")]
        before, start = children_cpu_seconds(), time.perf_counter()
        subprocess.run(
            command,
            input="".join(f"{number}\n" for number in range(count)).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        took.add(wall, time.perf_counter() - start)
        used.add(cpu, children_cpu_seconds() - before)
    yield took
    yield used
