"""Whole renders of far sources: of an hour, of several at once, and small hits beside them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from audioproxy.process.starters import NICENESS
from bench.bare import Commands, children_cpu_seconds, commands, heard
from bench.client import Crowd, fetch
from bench.figures import Figure
from bench.load import load
from bench.places import ROUND_TRIP, Place, origin
from bench.programs import Service, service, settled, working_children
from bench.settings import Bench
from bench.stock import SMALL, names, stock

T = TypeVar("T")

# For each source of an hour, the options of its render, and the target.
_HOURS = {"mp3": ("f:mp3", 1.03), "wav": ("f:flac", 1.05)}
# Renders at once, of wav.
_MANY, _OPTIONS = 8, "f:flac"
# The targets of their time, and of the milliseconds that hits beside them may take longer.
_MANY_TARGETS, _LATER = {"wall": 1.2, "CPU": 1.1}, 5
# Connections for hits, the milliseconds between the requests of each, and seconds.
_CONNECTIONS, _PAUSE, _SECONDS = 16, 20, 3

# The peer's encoders have the priority of the service's: the server and the line take CPU, too.
_NICE = ["nice", "-n", str(NICENESS)]
_WHERE = f"https origin, {ROUND_TRIP} ms"
_READING = "the service reads for all encoders, each of which reads for itself on the other side"


def far_renders(bench: Bench) -> list[Figure]:
    """Measure renders of sources at a far https origin."""
    folder = bench.folder("far-renders")
    (folder / "store").mkdir()
    with origin(bench, folder / "origin", ROUND_TRIP) as place, place.line.open():
        settings = place.settings | {
            "AP_LOCAL_ROOT": str(bench.sounds),
            "AP_MAX_CONCURRENCY": str(_MANY),
        }
        with service(folder, settings) as ours:
            figures = [_measure_hour(bench, ours, place, name) for name in bench.some(_HOURS)]
            figures += _measure_many(bench, ours, place)
        settings["AP_VARIANT_STORE"] = f"file://{folder / 'store'}"
        with service(folder, settings) as ours:
            hits = stock(ours, folder / "store", SMALL, "short.wav", names(100)).paths
            return [*figures, *_measure_hits(bench, ours, place, hits)]


def _measure_hour(bench: Bench, ours: Service, place: Place, name: str) -> Figure:
    options, target = _HOURS[name]
    figure = _over_pair(f"1-hour remote {name} to {options[2:]}", target)
    bare = commands(bench.sounds, ours.path(options, f"hour.{name}"))
    for number in range(bench.few):
        source = f"{number}/hour.{name}"
        fetched = fetch(ours.port, ours.path(options, place.source(source)))
        settled(ours)
        took, size = _pair(bare.of(place.url(source)))
        # Both sides have the same output, except that ours has chunk headers.
        if not size <= fetched.size <= 1.05 * size:
            raise RuntimeError(f"{fetched.size} bytes through the service, {size} without it")
        figure.add(fetched.last, took)
    return figure


def _measure_many(bench: Bench, ours: Service, place: Place) -> Iterator[Figure]:
    work = f"{_MANY} at once, 5-minute remote wav to {_OPTIONS[2:]}"
    took, used = (_over_pair(work, most, kind) for kind, most in _MANY_TARGETS.items())
    bare = commands(bench.sounds, ours.path(_OPTIONS, "big.wav"))
    for number in bench.numbers(bench.rounds):
        sources = _sources(bench, number, "big.wav")
        paths = [ours.path(_OPTIONS, place.source(source)) for source in sources]
        before = ours.all_cpu_seconds()
        wall = _at_once(lambda path: fetch(ours.port, path), paths)
        settled(ours)
        cpu = ours.all_cpu_seconds() - before
        before = children_cpu_seconds()
        alone = _at_once(_pair, [bare.of(place.url(source)) for source in sources])
        if number:
            took.add(wall, alone)
            used.add(cpu, children_cpu_seconds() - before)
    yield took
    yield used


def _measure_hits(
    bench: Bench, ours: Service, place: Place, hits: Sequence[str]
) -> Iterator[Figure]:
    work = f"hits of 4 KB beside {_MANY} renders, remote wav to {_OPTIONS[2:]}, {_WHERE}"
    rate = 1000 * _CONNECTIONS // _PAUSE
    later = Figure(
        work,
        "99th percentile of the response times, less that beside renders of local files",
        "ms",
        target=_LATER,
        reason="reading takes CPU: of the server, of the line to it, and of the service",
        remark=f"{rate} requests/s",
    )
    both = Figure(work, "99th percentile over that beside renders of local files", "ms")

    def p99() -> float:
        return load(
            ours,
            hits,
            connections=_CONNECTIONS,
            pause=_PAUSE,
            seconds=bench.count(_SECONDS),
            core=None,
            folder=bench.home,
        ).p99

    for number in bench.numbers(bench.rounds):
        far = [place.source(source) for source in _sources(bench, number, "hour.wav")]
        with _rendering(ours, [ours.path(_OPTIONS, source) for source in far]):
            beside = p99()
        near = [f"{_OPTIONS}/cb:{number}-{n}" for n in range(len(far))]
        with _rendering(ours, [ours.path(options, "hour.wav") for options in near]):
            alone = p99()
        if number:
            later.add(beside - alone)
            both.add(beside, alone)
    yield later
    yield both


@contextmanager
def _rendering(ours: Service, paths: Sequence[str]) -> Iterator[None]:
    """Render variants, each with a client that reads it, for the duration of a block."""
    listeners = [Crowd(ours.port, path, 1) for path in paths]
    for listener in listeners:
        listener.read_headers()
    with ThreadPoolExecutor(len(paths)) as pool:
        for listener in listeners:
            pool.submit(listener.read_all)
        yield
        # Without clients, the service would finish what it stores.
        for pid in working_children(ours.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for listener in listeners:
        listener.leave()
    settled(ours)


def _over_pair(work: str, target: float, kind: str = "wall") -> Figure:
    return Figure(
        f"MISS, whole render, {work}, {_WHERE}",
        f"{kind} time over the bare pair",
        "s",
        target=target,
        remark="ffmpeg has the niceness of the service's encoders",
        reason=_READING,
    )


def _sources(bench: Bench, number: int, name: str) -> list[str]:
    """Return the names of the sources of a round, which are new to the service."""
    return [f"{number * _MANY + n}/{name}" for n in range(bench.count(_MANY))]


def _pair(pair: Commands) -> tuple[float, int]:
    """Return the seconds of both programs, and the bytes of the second."""
    probed, _ = heard(pair.ffprobe)
    encoded, size = heard([*_NICE, *pair.ffmpeg])
    return probed + encoded, size


def _at_once(run: Callable[[T], object], items: Sequence[T]) -> float:
    """Return the seconds of all calls of a function, at once."""
    start = time.perf_counter()
    with ThreadPoolExecutor(len(items)) as pool:
        list(pool.map(run, items))
    return time.perf_counter() - start
