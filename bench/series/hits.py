"""Stored variants: small responses, large responses and 304."""

from __future__ import annotations

from pathlib import Path

from bench.client import Listeners, read
from bench.figures import Results
from bench.load import Load, load
from bench.peers import Missing, hello, nginx, thumbor
from bench.programs import Program, Service, service
from bench.settings import CLIENT, SERVER, Bench
from bench.stock import Stock, names, placed, stock

#: A quarter of a second of audio, which is 4 KB.
SMALL = "f:mp3/br:128/t:0:0.25"
CONNECTIONS = 64

_VARIANTS = 1000
_PYTHON = (
    "Python code parses each request, decides, and writes the log line; nginx does the same in C"
)
_UNCHANGED = "location = /unchanged { return 304; }"


def small_service(bench: Bench, folder: Path) -> dict[str, str]:
    """Create the folders of a service with a store, and return its settings."""
    (folder / "store").mkdir()
    return {"AP_LOCAL_ROOT": str(bench.sounds), "AP_VARIANT_STORE": f"file://{folder / 'store'}"}


def stocked(ours: Service, folder: Path) -> Stock:
    """Return a thousand small stored variants."""
    return stock(ours, folder / "store", SMALL, "short.wav", names(_VARIANTS))


def ask(bench: Bench, program: Program, paths: list[str], folder: Path, **headers: str) -> Load:
    """Run a load test against a server that has its own core."""
    return load(
        program,
        paths,
        connections=CONNECTIONS,
        seconds=bench.seconds,
        core=CLIENT,
        folder=folder,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def small(bench: Bench) -> Results:
    """Measure 4 KB variants and 304s, each beside the fastest server of its kind."""
    results = Results()
    folder = bench.folder("hits")
    duties = "on one core, with 64 keep-alive connections and 1000 URLs in turn"
    over_nginx = results.figure(
        "HIT, proxy mode, 4 KB variants",
        "requests/s over nginx",
        "requests/s",
        target=0.45,
        at_least=True,
        peer="nginx, the same files",
        remark=duties,
        reason=_PYTHON,
    )
    bare_nginx = results.figure(
        "HIT, proxy mode, 4 KB variants",
        "requests/s over nginx without its log",
        "requests/s",
        peer="nginx, access_log off",
    )
    unchanged = results.figure(
        "304",
        "requests/s over nginx `return 304`",
        "requests/s",
        target=0.40,
        at_least=True,
        peer="nginx",
        reason=_PYTHON,
    )
    over_hello = results.figure(
        "304",
        "requests/s over aiohttp with uvloop",
        "requests/s",
        target=1.0,
        at_least=True,
        peer="aiohttp, a hello-world",
    )
    with (
        service(folder, small_service(bench, folder), core=SERVER) as ours,
        nginx(
            folder,
            f"root {folder}/files; {_UNCHANGED} location /silent/ {{ access_log off; alias"
            f" {folder}/files/; }}",
            core=SERVER,
        ) as plain,
        hello(core=SERVER) as python,
    ):
        stored = stocked(ours, folder)
        files = folder / "files"
        files.mkdir()
        for number in range(len(stored.paths)):
            (files / f"{number}.mp3").write_bytes(stored.body)
        served = [f"/{number}.mp3" for number in range(len(stored.paths))]
        silent = [f"/silent{path}" for path in served]
        paths, one = list(stored.paths), [stored.paths[0]]
        tag = stored.etag
        loads = {
            "hits": lambda: ask(bench, ours, paths, folder),
            "files": lambda: ask(bench, plain, served, folder),
            "silent": lambda: ask(bench, plain, silent, folder),
            "same": lambda: ask(bench, ours, one, folder, If_None_Match=tag),
            "nginx": lambda: ask(bench, plain, ["/unchanged"], folder),
            "hello": lambda: ask(bench, python, ["/"], folder, If_None_Match=tag),
        }
        for number in range(bench.rounds + 1):
            # Alternate the order, since the speed of the machine itself may change.
            order = list(loads) if number % 2 else list(reversed(loads))
            done = {name: loads[name]().requests for name in order}
            # The first round does not count, since its caches are cold.
            if number:
                over_nginx.add(done["hits"], done["files"])
                bare_nginx.add(done["hits"], done["silent"])
                unchanged.add(done["same"], done["nginx"])
                over_hello.add(done["same"], done["hello"])
    return results


def beside_thumbor(bench: Bench) -> Results:
    """Measure 4 KB variants beside stored results of thumbor."""
    results = Results()
    work = "HIT, proxy mode, 4 KB variants"
    folder = bench.folder("thumbor")
    try:
        with (
            service(folder, small_service(bench, folder), core=SERVER) as ours,
            thumbor(folder / "peer", core=SERVER) as (peer, images),
        ):
            paths = list(stocked(ours, folder).paths)
            sizes = [len(read(peer.base, path)[1]) for path in images]
            figure = results.figure(
                work,
                "requests/s over thumbor's stored HIT",
                "requests/s",
                target=10,
                at_least=True,
                peer="thumbor",
                remark=f"thumbor's images have {sizes[0]} bytes,"
                f" the service's variants {_size(ours, paths)}",
            )
            for _ in range(bench.rounds):
                hits = ask(bench, ours, paths, folder).requests
                figure.add(hits, ask(bench, peer, images, folder).requests)
    except Missing as missing:
        results.missing[f"{work} over thumbor"] = str(missing)
    return results


def _size(ours: Service, paths: list[str]) -> int:
    return len(read(ours.base, paths[0])[1])


def large(bench: Bench) -> Results:
    """Measure downloads of 50 MB, 16 at a time."""
    results = Results()
    folder = bench.folder("large")
    work = "HIT, proxy mode, 50 MB file, 16 connections"
    speed = results.figure(
        work,
        "MB/s over nginx with sendfile",
        "MB/s",
        target=0.85,
        at_least=True,
        peer="nginx",
    )
    used = results.figure(
        work,
        "CPU over nginx with sendfile",
        "s/GB",
        target=1.25,
        peer="nginx",
        reason="a seventh of this CPU time is Python code that runs whenever a socket can send",
    )
    with (
        service(folder, small_service(bench, folder)) as ours,
        nginx(folder, f"root {folder}/files;") as plain,
    ):
        stored = stock(ours, folder / "store", "f:wav", "big.wav", [])
        (folder / "files").mkdir()
        # nginx serves the same file, with the service's trailer at its end. How a file was written
        # affects its layout in the page cache, and so the cost of sending it.
        variant = Path(placed(folder / "store", "f:wav", "big.wav"))
        (folder / "files" / "big.wav").hardlink_to(variant)
        for number in range(bench.rounds + 1):
            both = [(ours, stored.paths[0]), (plain, "/big.wav")]
            done = [
                load(
                    program,
                    [path],
                    connections=16,
                    seconds=2 * bench.seconds,
                    core=None,
                    folder=folder,
                )
                for program, path in (both if number % 2 else both[::-1])
            ]
            a, b = done if number % 2 else done[::-1]
            if number:
                speed.add(a.megabytes, b.megabytes)
                used.add(a.cpu_per_gigabyte, b.cpu_per_gigabyte)
    return results


def beside_renders(bench: Bench) -> Results:
    """Measure hits while an encoder runs in every slot."""
    results = Results()
    folder = bench.folder("beside")
    figure = results.figure(
        "hits beside as many renders as there are slots",
        "requests/s over the same without",
        "requests/s",
        target=0.6,
        at_least=True,
        peer="the same without renders",
        remark="2 slots; neither the service nor the load generator has its own core",
    )
    with service(folder, small_service(bench, folder) | {"AP_MAX_CONCURRENCY": "2"}) as ours:
        paths = list(stocked(ours, folder).paths)
        for number in range(bench.rounds + 1):
            alone = ask(bench, ours, paths, folder).requests
            with Listeners(ours, "hour.flac", ["f:aac/gain:-1", "f:aac/gain:-2"]):
                beside = ask(bench, ours, paths, folder).requests
            if number:
                figure.add(beside, alone)
    return results
