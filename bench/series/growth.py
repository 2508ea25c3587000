"""Cost by the length of a render, and by the number of stored variants."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.variants.files import FileVariantStore, variant_path
from bench.client import fetch
from bench.figures import Curve, Panel, Results
from bench.programs import service, settled
from bench.series.hits import SMALL, ask, small_service
from bench.series.memory import watched
from bench.settings import SERVER, Bench
from bench.stock import names, placed, stock

_LOOKUPS = 5000


def lengths(bench: Bench) -> Results:
    """Measure renders of one minute to four hours, of one source of four hours."""
    results = Results()
    minutes = [1, 4, 15, 60, 240]
    took: list[list[float]] = [[] for _ in minutes]
    added: list[list[float]] = [[] for _ in minutes]
    settings = {"AP_LOCAL_ROOT": str(bench.sounds), "AP_MAX_VARIANT_BYTES": "4000000000"}
    for place, length in enumerate(minutes):
        # The longest render runs once: it takes as long as all the others.
        for _ in range(1 if length == minutes[-1] else bench.few):
            with service(bench.folder("lengths"), settings) as ours:
                path = ours.path(f"f:wav/t:0:{60 * length}", "long.flac")
                fetch(ours.port, ours.path("f:wav/t:0:1", "long.flac"))
                with watched(ours) as watch:
                    took[place].append(fetch(ours.port, path).last)
                    added[place].append(watch.added)
                settled(ours)
    results.curves.append(
        Curve(
            "lengths",
            "Render length: FLAC to wav, mono",
            "minutes",
            list(map(float, minutes)),
            [
                Panel("seconds", {"until the last byte": took}, logarithmic=True),
                Panel("memory added (MB)", {"the service": added}),
            ],
            remark="All renders have the same source of four hours. The longest was rendered once.",
        )
    )
    return results


def variants(bench: Bench) -> Results:
    """Measure hits in a store of a thousand to a million variants."""
    results = Results()
    folder = bench.folder("variants")
    xs = [10**power for power in range(3, 7)]
    hits: list[list[float]] = []
    lookups: list[list[float]] = []
    with service(folder, small_service(bench, folder), core=SERVER) as ours:
        store = folder / "store"
        asked = stock(ours, store, SMALL, "short.wav", names(999))
        files = [placed(store, SMALL, name) for name in asked.names]
        for number in range(256):
            (store / f"{number:02x}").mkdir(exist_ok=True)
        there = 0
        for count in xs:
            _fill(store, there, count, files)
            there = count
            ask(bench, ours, list(asked.paths), folder)
            hits.append(
                [ask(bench, ours, list(asked.paths), folder).requests for _ in range(bench.few)]
            )
            lookups.append([_look_up(store, count, seed) for seed in range(bench.rounds)])
    shutil.rmtree(folder)
    results.curves.append(
        Curve(
            "variants",
            "Stored variants in a file store",
            "variants",
            list(map(float, xs)),
            [
                Panel("hits/s, of 1000 variants in turn", {"the service": hits}),
                Panel("µs for each lookup, all variants", {"the store's own code": lookups}),
            ],
            remark="Variants beyond the first thousand are hard links to the files of that"
            " thousand. A million separate files would measure the disk's write speed.",
        )
    )
    return results


def _key(number: int) -> str:
    """Return a digest that looks like a cache key."""
    return hashlib.sha256(b"%d" % number).hexdigest()


def _fill(store: Path, start: int, stop: int, files: Sequence[str]) -> None:
    """Store hard links to files under further keys, for which no URL is known."""
    middle = (start + stop) // 2
    halves = [range(start, middle), range(middle, stop)]
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(_link, [store] * 2, halves, [files] * 2))


def _link(store: Path, numbers: range, files: Sequence[str]) -> None:
    for number in numbers:
        # The keys are digests, so they do not follow the order of the folders.
        os.link(files[number % len(files)], variant_path(str(store), _key(number)))


def _look_up(store: Path, count: int, seed: int) -> float:
    """Return the microseconds in which the store opens a variant and reads its trailer."""
    # Without threads, whose switches take longer than a lookup.
    calls = BlockingCalls(Clock(), execute)
    opened = FileVariantStore(str(store), calls, calls)
    chosen = random.Random(seed)
    keys = [_key(chosen.randrange(count)) for _ in range(_LOOKUPS)]
    start = time.perf_counter()
    for key in keys:
        found = Deferred.fromCoroutine(opened.lookup(key))
        found.addCallback(lambda stored: stored.close())
    return (time.perf_counter() - start) / _LOOKUPS * 1e6
