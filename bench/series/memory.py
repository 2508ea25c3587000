"""Memory of the service: with many clients of one render, with a long render, and when idle."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

from bench.client import Crowd, fetch, metric
from bench.figures import Figure
from bench.programs import Program, Service, linked, service, settled
from bench.settings import Bench

_CLIENTS = 200
_IDLE = 1000
_BOOKS = 10
_MEGABYTE = 1e6
#: Metric of renders that ran; clients that joined one are not counted.
_RENDERS = "audio_proxy_renders_total"


@contextmanager
def _watched(program: Program) -> Iterator[Callable[[], float]]:
    """Sample a program's memory for the duration of a block.

    Yield a function that returns by how many megabytes it has grown at most.
    """
    before = program.resident_bytes()
    samples, over = [before], threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            samples.append(program.resident_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: (max(*samples, program.resident_bytes()) - before) / _MEGABYTE
    finally:
        over.set()
        thread.join()


def one_url(bench: Bench) -> list[Figure]:
    """Measure renders and memory for 200 clients of one new URL, reading and stalled."""
    clients = bench.count(_CLIENTS)
    work = f"{clients} clients on one cold URL, 5 MB output"
    renders = Figure(work, "renders", "", target=1)
    reading = Figure(
        work,
        "resident memory added, all reading",
        "MB",
        target=4,
        in_short=True,
        headline=f"of memory for {clients} clients of one new URL, which is rendered once",
    )
    stalled = Figure(
        work,
        "resident memory added, all stalled",
        "MB",
        target=4,
        remark="stalled clients read the headers and then nothing until the render has ended",
        on_page=False,
    )
    for _ in range(bench.rounds):
        # A new service for each measurement, since a process does not return its memory.
        with bench.service("crowd") as ours:
            _warm(ours)
            before = metric(ours.metrics_port, _RENDERS)
            with _watched(ours) as added:
                crowd = Crowd(ours.port, ours.path("f:wav", "five.wav"), clients)
                least = crowd.read_all()
                reading.add(added())
            crowd.leave()
            if least < bench.scale * 5_000_000:
                raise RuntimeError(f"a client received only {least} bytes")
            settled(ours)
            renders.add(metric(ours.metrics_port, _RENDERS) - before)
        with bench.service("crowd") as ours:
            _warm(ours)
            with _watched(ours) as added:
                crowd = Crowd(ours.port, ours.path("f:wav", "five.wav"), clients)
                crowd.read_headers()
                settled(ours)
                time.sleep(0.2)
                stalled.add(added())
            crowd.leave()
    return [renders, reading, stalled]


def _warm(ours: Service) -> None:
    """Render another URL first, so that all modules are loaded before the measurement."""
    fetch(ours.port, ours.path("f:wav/t:0:1", "five.wav"))
    settled(ours)
    # It is counted when it is over, which is after its last child has ended.
    while not metric(ours.metrics_port, _RENDERS):
        time.sleep(0.002)


def long_render(bench: Bench) -> list[Figure]:
    """Measure the memory for a render of four hours."""
    figure = Figure(
        "MISS, whole render, 4-hour FLAC to wav, mono", "resident memory added", "MB", target=1
    )
    for _ in range(bench.few):
        with bench.service("long", AP_MAX_VARIANT_BYTES="4000000000") as ours:
            _warm(ours)
            with _watched(ours) as added:
                fetch(ours.port, ours.path("f:wav", "long.flac"))
                figure.add(added())
    return [figure]


def books(bench: Bench) -> list[Figure]:
    """Measure the memory while ten audio books are indexed, for the first late preview of each."""
    figure = Figure(
        f"first late previews of {_BOOKS} 12-hour mp3 of variable bit rate, at once",
        "resident memory added",
        "MB",
        target=32,
        remark="pieces of the books that are read, and what is found in them",
    )
    root = bench.copies("books", "vbr-half-day.mp3", bench.count(_BOOKS))
    options = f"f:mp3/{bench.part(42840, 30)}"
    for _ in range(bench.few):
        with service(root, {"AP_LOCAL_ROOT": str(root)}) as ours:
            fetch(ours.port, ours.path(f"f:wav/{bench.part(0, 1)}", "0.mp3"))
            settled(ours)
            paths = [ours.path(options, each.name) for each in root.glob("*.mp3")]
            with _watched(ours) as added, ThreadPoolExecutor(len(paths)) as pool:
                list(pool.map(partial(fetch, ours.port), paths))
                figure.add(added())
    return [figure]


def idle(bench: Bench) -> list[Figure]:
    """Measure an idle service, without connections and with many."""
    connections = bench.count(_IDLE)
    memory = Figure("idle service", "resident memory", "MB", target=50, in_short=True)
    start = Figure(
        "idle service",
        "start to listening",
        "s",
        target=0.4,
        remark="with the start of Python",
        reason="it depends on the machine: Python imports some hundred modules",
    )
    each = Figure(
        f"{connections} idle keep-alive connections", "resident memory each", "KiB", target=8
    )
    ask = b"GET /health HTTP/1.1\r\nHost: bench\r\n\r\n"
    for number in bench.numbers(bench.rounds):
        with ExitStack() as stack, bench.service("idle") as ours:
            # When the service responds, its work at boot is done.
            metric(ours.metrics_port, _RENDERS)
            # The first round does not count: it compiles modules and fills caches.
            if number:
                memory.add(ours.resident_bytes() / _MEGABYTE)
                start.add(ours.started)
            _warm(ours)
            before = ours.resident_bytes()
            for _ in range(connections):
                address = ("127.0.0.1", ours.port)
                connection = stack.enter_context(socket.create_connection(address, 20))
                connection.sendall(ask)
                if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
                    raise RuntimeError("the service is not healthy")
            if number:
                each.add((ours.resident_bytes() - before) / connections / 1024)
    return [memory, *_proportional(bench), start, each]


def _proportional(bench: Bench) -> Iterator[Figure]:
    """Yield the memory of an idle service with its fork servers, and without them."""
    for servers, work, target in (
        (2, "idle service with its fork servers", 75),
        (0, "idle service, `AP_WARM_PROGRAMS=0`", 50),
    ):
        figure = Figure(work, "proportional memory of all processes", "MB", target=target)
        for _ in range(bench.few):
            with bench.service("idle", AP_WARM_PROGRAMS=str(bool(servers)).lower()) as ours:
                linked(ours, servers)
                figure.add(ours.proportional_bytes() / _MEGABYTE)
        yield figure
