"""Many clients at a time: of one new URL, and with idle connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.client import Crowd, metric
from bench.figures import Curve, Panel, Results
from bench.programs import Program, Service, own_path, service, settled
from bench.series.renders import rooted
from bench.settings import Bench

_CLIENTS = 200
_IDLE = 1000
_MEGABYTE = 1e6

#: Metric of renders that ran; clients that joined one are not counted.
RENDERS = "audio_proxy_renders_total"


class Watch:
    """Maximum memory of a program while it was watched.

    :ivar before: bytes at the start.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.before = self._most = program.resident_bytes()

    @property
    def added(self) -> float:
        """Added memory in megabytes."""
        self.look()
        return (self._most - self.before) / _MEGABYTE

    def look(self) -> None:
        """Take a sample."""
        self._most = max(self._most, self._program.resident_bytes())


@contextmanager
def watched(program: Program) -> Iterator[Watch]:
    """Sample a program's memory for the duration of a block."""
    watch, over = Watch(program), threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            watch.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


def one_url(bench: Bench) -> Results:
    """Measure renders and memory for 200 clients of one new URL, reading and stalled."""
    results = Results()
    renders = results.figure(
        "200 clients on one cold URL, 5 MB output", "renders", "", target=1, exact=True
    )
    reading = results.figure(
        "200 clients on one cold URL, 5 MB output",
        "resident memory added, all reading",
        "MB",
        target=4,
    )
    stalled = results.figure(
        "200 clients on one cold URL, 5 MB output",
        "resident memory added, all stalled",
        "MB",
        target=4,
        remark="clients read the headers and then nothing until the render has ended",
    )
    for number in range(bench.rounds):
        # A new service for each measurement, since a process does not return its memory.
        with rooted(bench, "crowd") as ours:
            count, _, added = _serve(ours, f"f:wav/gain:-{number + 1}", _CLIENTS)
            reading.add(added)
            renders.add(count)
        with rooted(bench, "crowd") as ours:
            stalled.add(_stall(ours))
    return results


def _warm(ours: Service, options: str = "f:wav/t:0:1") -> None:
    """Render another URL first, so that all modules are loaded before the measurement."""
    crowd = Crowd(ours.port, ours.path(options, "five.wav"), 2)
    crowd.ask()
    crowd.read_all()
    settled(ours)


def _serve(ours: Service, options: str, clients: int) -> tuple[float, float, float]:
    """Return renders, seconds until the last client has all bytes, and added megabytes."""
    _warm(ours)
    before = metric(ours.metrics_port, RENDERS)
    with watched(ours) as watch:
        crowd = Crowd(ours.port, ours.path(options, "five.wav"), clients)
        start = time.perf_counter()
        crowd.ask()
        sizes = crowd.read_all()
        took = time.perf_counter() - start
        added = watch.added
    if min(sizes) < 5_000_000:
        raise RuntimeError(f"one of {clients} clients received only {min(sizes)} bytes")
    settled(ours)
    return metric(ours.metrics_port, RENDERS) - before, took, added


def _stall(ours: Service) -> float:
    _warm(ours)
    with watched(ours) as watch:
        crowd = Crowd(ours.port, ours.path("f:wav", "five.wav"), _CLIENTS)
        crowd.ask()
        crowd.read_headers()
        settled(ours)
        time.sleep(0.2)
        added = watch.added
    crowd.leave()
    return added


def idle_connections(bench: Bench) -> Results:
    """Measure the memory of an idle keep-alive connection."""
    results = Results()
    figure = results.figure(
        "1000 idle keep-alive connections", "resident memory each", "KiB", target=8
    )
    ask = b"GET /health HTTP/1.1\r\nHost: bench\r\n\r\n"
    for _ in range(bench.rounds):
        with ExitStack() as stack, rooted(bench, "idle") as ours:
            _warm(ours)
            before = ours.resident_bytes()
            for _ in range(_IDLE):
                connection = stack.enter_context(
                    socket.create_connection(("127.0.0.1", ours.port), 20)
                )
                connection.sendall(ask)
                if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
                    raise RuntimeError("the service is not healthy")
            figure.add((ours.resident_bytes() - before) / _IDLE / 1024)
    return results


def growing_crowd(bench: Bench) -> Results:
    """Measure one render with an increasing number of clients."""
    results = Results()
    xs = [1, 10, 50, 100, 200, 500]
    took: list[list[float]] = [[] for _ in xs]
    added: list[list[float]] = [[] for _ in xs]
    for number in range(bench.few):
        for place, clients in enumerate(xs):
            with rooted(bench, "growing-crowd") as ours:
                _, seconds, megabytes = _serve(ours, f"f:wav/gain:-{number + 1}", clients)
            took[place].append(seconds)
            added[place].append(megabytes)
    results.curves.append(
        Curve(
            "clients",
            "Clients on one render of 5 MB",
            "clients",
            list(map(float, xs)),
            [
                Panel("seconds until all clients have all bytes", {"the service": took}),
                Panel("memory added (MB)", {"the service": added}),
            ],
            remark="All clients request the same new variant at the same moment.",
        )
    )
    return results


def queue(bench: Bench) -> Results:
    """Measure renders that wait for one slot, with the ffmpeg that starts fastest."""
    results = Results()
    xs = [1, 10, 30, 100]
    took: list[list[float]] = [[] for _ in xs]
    used: list[list[float]] = [[] for _ in xs]
    added: list[list[float]] = [[] for _ in xs]
    settings = {
        "AP_LOCAL_ROOT": str(bench.sounds),
        "AP_MAX_CONCURRENCY": "1",
        "AP_MAX_PROBE_CONCURRENCY": "128",
        "AP_QUEUE_SIZE": "128",
    }
    for place, waiting in enumerate(xs):
        for _ in range(bench.few):
            with service(bench.folder("queue"), settings, path=own_path()) as ours:
                _warm(ours)
                crowds = [
                    Crowd(ours.port, ours.path(f"f:wav/t:0:1/gain:-{n / 10}", "short.wav"), 1)
                    for n in range(1, waiting + 1)
                ]
                with watched(ours) as watch:
                    before, start = ours.cpu_seconds(), time.perf_counter()
                    for crowd in crowds:
                        crowd.ask()
                    for crowd in crowds:
                        crowd.read_headers()
                        crowd.read_all()
                    took[place].append(1000 * (time.perf_counter() - start) / waiting)
                    used[place].append(1000 * (ours.cpu_seconds() - before) / waiting)
                    added[place].append(watch.added)
    results.curves.append(
        Curve(
            "queue",
            "Renders of one second that ask for one slot at the same time",
            "renders",
            list(map(float, xs)),
            [
                Panel("ms for each render", {"until it is served": took, "service's CPU": used}),
                Panel("memory added (MB)", {"the service": added}),
            ],
            remark="Measured with the project's own ffmpeg:"
            " its short start does not hide the cost of waiting.",
        )
    )
    return results
