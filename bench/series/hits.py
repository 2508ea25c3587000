"""Stored variants: small responses, large responses and 304."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from bench.client import Crowd
from bench.figures import Figure
from bench.load import load
from bench.peers import nginx
from bench.programs import free_port, service, settled, started, working_children
from bench.settings import CLIENT, SERVER, Bench
from bench.stock import SMALL, names, placed, stock

_VARIANTS = 1000
_CONNECTIONS = 64
_PYTHON = (
    "Python code parses each request, decides, and writes the log line; nginx does the same in C"
)


def small(bench: Bench) -> list[Figure]:
    """Measure 4 KB variants and 304s, each beside the fastest server of its kind."""
    folder = bench.folder("hits")
    over_nginx = Figure(
        "HIT, proxy mode, 4 KB variants",
        "requests/s over nginx",
        "requests/s",
        target=0.45,
        at_least=True,
        remark=f"on one core, with {_CONNECTIONS} keep-alive connections and {_VARIANTS} URLs in"
        " turn",
        reason=_PYTHON,
        in_short=True,
    )
    unchanged = Figure(
        "304",
        "requests/s over nginx `return 304`",
        "requests/s",
        target=0.40,
        at_least=True,
        reason=_PYTHON,
    )
    over_hello = Figure(
        "304",
        "requests/s over aiohttp with uvloop",
        "requests/s",
        target=1.0,
        at_least=True,
    )
    port = free_port()
    hello = [sys.executable, "-m", "bench.hello", str(port)]
    with (
        service(folder, _settings(bench, folder), core=SERVER) as ours,
        nginx(
            folder,
            f"root {folder}/files; location = /unchanged {{ return 304; }}",
            core=SERVER,
        ) as plain,
        started(hello, folder, port, core=SERVER) as python,
    ):
        stored = stock(ours, folder / "store", SMALL, "short.wav", names(bench.count(_VARIANTS)))
        (folder / "files").mkdir()
        served = [f"/{number}.mp3" for number in range(len(stored.paths))]
        for path in served:
            Path(f"{folder}/files{path}").write_bytes(stored.body)
        tag = {"If-None-Match": stored.etag}
        asked = {
            "hits": (ours, stored.paths, {}),
            "files": (plain, served, {}),
            "same": (ours, stored.paths[:1], tag),
            "nginx": (plain, ["/unchanged"], {}),
            "hello": (python, ["/"], tag),
        }
        for number in bench.numbers(bench.rounds):
            # Alternate the order, since the speed of the machine itself may change.
            done = {}
            for name in list(asked) if number % 2 else reversed(asked):
                program, paths, headers = asked[name]
                done[name] = load(
                    program,
                    paths,
                    connections=_CONNECTIONS,
                    core=CLIENT,
                    folder=folder,
                    headers=headers,
                ).requests
            # The first round does not count, since its caches are cold.
            if number:
                over_nginx.add(done["hits"], done["files"])
                unchanged.add(done["same"], done["nginx"])
                over_hello.add(done["same"], done["hello"])
    return [over_nginx, unchanged, over_hello]


def _settings(bench: Bench, folder: Path) -> dict[str, str]:
    """Create the folder of a store, and return the settings of a service with it."""
    (folder / "store").mkdir()
    return {"AP_LOCAL_ROOT": str(bench.sounds), "AP_VARIANT_STORE": f"file://{folder / 'store'}"}


def large(bench: Bench) -> list[Figure]:
    """Measure downloads of 50 MB, 16 at a time."""
    folder = bench.folder("large")
    work = "HIT, proxy mode, 50 MB file, 16 connections"
    speed = Figure(
        work,
        "MB/s over nginx with sendfile",
        "MB/s",
        target=0.85,
        at_least=True,
        in_short=True,
        headline="of the throughput of nginx, with stored files of 50 MB",
    )
    used = Figure(
        work,
        "CPU over nginx with sendfile",
        "s/GB",
        target=1.25,
        reason="Python code runs whenever a socket can send",
    )
    with (
        service(folder, _settings(bench, folder)) as ours,
        nginx(folder, f"root {folder}/files;") as plain,
    ):
        stored = stock(ours, folder / "store", "f:wav", "big.wav", [])
        (folder / "files").mkdir()
        # nginx serves the same file, with the service's trailer at its end. How a file was written
        # affects its layout in the page cache, and so the cost of sending it.
        variant = placed(folder / "store", "f:wav", "big.wav")
        (folder / "files" / "big.wav").hardlink_to(variant)
        both = [(ours, stored.paths[0]), (plain, "/big.wav")]
        seconds = bench.count(2)
        for number in bench.numbers(bench.rounds):
            done = [
                load(
                    program,
                    [path],
                    connections=16,
                    seconds=seconds,
                    core=None,
                    folder=folder,
                )
                for program, path in (both if number % 2 else both[::-1])
            ]
            a, b = done if number % 2 else done[::-1]
            if number:
                speed.add(a.megabytes, b.megabytes)
                used.add(a.cpu_per_gigabyte, b.cpu_per_gigabyte)
    return [speed, used]


def beside_renders(bench: Bench) -> list[Figure]:
    """Measure hits while an encoder runs in every slot."""
    folder = bench.folder("beside")
    figure = Figure(
        "hits beside as many renders as there are slots",
        "requests/s over the same without",
        "requests/s",
        target=0.6,
        at_least=True,
        remark="2 slots; neither the service nor the load generator has its own core",
    )
    with service(folder, _settings(bench, folder) | {"AP_MAX_CONCURRENCY": "2"}) as ours:
        paths = stock(
            ours, folder / "store", SMALL, "short.wav", names(bench.count(_VARIANTS))
        ).paths

        def hits() -> float:
            return load(ours, paths, connections=_CONNECTIONS, core=CLIENT, folder=folder).requests

        for number in bench.numbers(bench.rounds):
            alone = hits()
            listeners = [
                Crowd(ours.port, ours.path(f"f:aac/gain:-{n}", "hour.flac"), 1) for n in (1, 2)
            ]
            for listener in listeners:
                listener.read_headers()
            if number:
                figure.add(hits(), alone)
            for listener in listeners:
                listener.leave()
            # The service would let the encoders finish, since their output is stored.
            for pid in working_children(ours.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            settled(ours)
    return [figure]
