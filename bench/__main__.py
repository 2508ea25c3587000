"""`python -m bench`: run the benchmarks and write docs/performance.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from bench import plots
from bench.figures import Results, Spread
from bench.machine import machine, today, versions
from bench.programs import FOLDER, PROJECT
from bench.report import Record, number, page
from bench.series import children, growth, hits, memory, misses, nodes, redirects, remote, renders
from bench.settings import Bench
from bench.sounds import sounds

#: In the order of the page.
SERIES: dict[str, Callable[[Bench], Results]] = {
    "first-bytes": misses.first_bytes,
    "starts": misses.starts,
    "encoded": renders.encoded,
    "uncompressed": renders.uncompressed,
    "converted": renders.converted,
    "cold": misses.cold,
    "previews": misses.previews,
    "remote": remote.remote,
    "large-hits": hits.large,
    "small-hits": hits.small,
    "thumbor": hits.beside_thumbor,
    "supysonic": redirects.beside_supysonic,
    "redirects": redirects.redirects,
    "one-url": memory.one_url,
    "idle-connections": memory.idle_connections,
    "peaks": renders.peaks,
    "idle-service": nodes.alone,
    "children": children.prefixes,
    "beside-renders": hits.beside_renders,
    "nodes": nodes.several,
    "speeds": renders.speeds,
    "lengths": growth.lengths,
    "clients": memory.growing_crowd,
    "queue": memory.queue,
    "variants": growth.variants,
}

_SAMPLES = FOLDER / "samples.json"
# With fewer rounds, the range of the samples does not show how reliable a median is.
_LEAST_ROUNDS = 5
_PAGE = PROJECT / "docs" / "performance.md"
_IMAGES = PROJECT / "docs" / "images" / "performance"


def main() -> int:
    """Run what the command line asks for, and return the exit status."""
    words = _arguments()
    if words.list:
        print(*SERIES, sep="\n")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    if words.report_only:
        record = Record.read(json.loads(_SAMPLES.read_text()))
    else:
        record = measure(words.only or list(SERIES), words.rounds, words.seconds)
        if words.only:
            # The page shows only complete runs.
            return bool(record.failed)
        _SAMPLES.write_text(json.dumps(record.document(), indent=1))
    if record.rounds < _LEAST_ROUNDS:
        print(f"the page is not written: it needs at least {_LEAST_ROUNDS} rounds")
        return bool(record.failed)
    write(record)
    print(f"{_PAGE.relative_to(PROJECT)} is written, after {record.seconds / 60:.1f} minutes")
    return bool(record.failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=SERIES, metavar="NAME", help="run only these series"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each side (5)")
    parser.add_argument("--seconds", type=int, default=1, help="seconds of each load (1)")
    parser.add_argument("--list", action="store_true", help="list the series")
    parser.add_argument("--report-only", action="store_true", help="write the page of the last run")
    return parser.parse_args()


def measure(names: list[str], rounds: int, seconds: int) -> Record:
    """Run some series, one after the other; the failure of a series does not stop the others."""
    start = time.monotonic()
    record = Record(today(), 0.0, rounds, machine(), versions())
    bench = Bench(rounds, seconds, sounds())
    print(f"the audio files took {time.monotonic() - start:.0f} s", flush=True)
    for name in names:
        begun = time.monotonic()
        try:
            record.series[name] = results = SERIES[name](bench)
        except Exception as error:
            # Any exception of a series is reported, so that the figures of the other series are not
            # lost.
            traceback.print_exc()
            record.failed[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        results.seconds = time.monotonic() - begun
        print(f"\n{name}: {results.seconds:.0f} s", flush=True)
        _print(results)
    record.seconds = time.monotonic() - start
    return record


def _print(results: Results) -> None:
    for row in results.figures:
        if not row.ours:
            continue
        spread, verdict = Spread.of(row.compared), {True: "hit", False: "MISSED", None: ""}
        bounds = f"{number(spread.middle)} ({number(spread.least)}-{number(spread.most)})"
        print(f"  {row.work}: {row.measure}: {bounds} {verdict[row.target_met]}", flush=True)
    for name, value in {**results.facts, **results.missing}.items():
        print(f"  {name}: {value if isinstance(value, str) else number(value)}")


def write(record: Record) -> None:
    """Write the page and its plots."""
    for curve in record.curves:
        plots.draw(curve, _IMAGES / f"{curve.name}.svg")
    plots.overview(record.figures, _IMAGES / "targets.svg")
    template = Path(__file__).with_name("performance.md").read_text()
    _PAGE.write_text(page(template, record))


if __name__ == "__main__":
    sys.exit(main())
