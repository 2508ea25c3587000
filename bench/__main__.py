"""`python -m bench`: run the benchmarks, and write their figures into the documents."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable

from bench import month
from bench.blocks import fill
from bench.figures import Figure
from bench.machine import machine, today, versions
from bench.programs import PROJECT
from bench.report import Run, all_contents, headline_contents, short_contents, table
from bench.series import children, far_renders, hits, memory, misses, redirects, remote, renders
from bench.settings import Bench
from bench.sounds import make_sounds

#: In the order of the page, which has a block for each of them.
SERIES: dict[str, Callable[[Bench], list[Figure]]] = {
    "first-bytes": misses.first_bytes,
    "previews": misses.previews,
    "remote": remote.remote,
    "far-renders": far_renders.far_renders,
    "uncompressed": renders.uncompressed,
    "peaks": renders.peaks,
    "speeds": renders.speeds,
    "children": children.cells,
    "large-hits": hits.large,
    "small-hits": hits.small,
    "beside-renders": hits.beside_renders,
    "redirects": redirects.redirects,
    "one-url": memory.one_url,
    "long-render": memory.long_render,
    "books": memory.books,
    "idle": memory.idle,
}

#: What the documents get of a run.
CONTENTS: dict[str, Callable[[Run], dict[str, str]]] = {
    "docs/benchmarks.md": all_contents,
    "docs/performance.md": short_contents,
    "docs/index.md": headline_contents,
    "README.md": headline_contents,
    # From the page that has been written by then.
    "docs/scope.md": lambda run: {"month": month.table(month.PAGE.read_text())},
}

# With fewer rounds, the range of the samples does not show how reliable a median is.
_LEAST_ROUNDS = 5


def main() -> int:
    """Run what the command line asks for, and return the exit status."""
    words = _arguments()
    start = time.monotonic()
    bench = Bench(words.rounds)
    make_sounds(bench)
    series = {}
    for name in words.only or SERIES:
        begun = time.monotonic()
        try:
            series[name] = SERIES[name](bench)
        except Exception:
            # The failure of a series does not stop the others.
            traceback.print_exc()
            continue
        print(f"\n{name}: {time.monotonic() - begun:.0f} s\n{table(series[name])}", flush=True)
    minutes = (time.monotonic() - start) / 60
    if len(series) < len(words.only or SERIES):
        return 1
    if words.only or words.rounds < _LEAST_ROUNDS:
        print(
            f"\n{minutes:.1f} minutes. The documents get the figures of whole runs alone,"
            f" with at least {_LEAST_ROUNDS} rounds."
        )
        return 0
    run = Run(today(), words.rounds, machine(), versions(), series)
    for name, contents in CONTENTS.items():
        page = PROJECT / name
        page.write_text(fill(page.read_text(), contents(run)))
    print(f"{', '.join(CONTENTS)} are written, after {minutes:.1f} minutes")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SERIES,
        metavar="NAME",
        help=f"run only these series: {' '.join(SERIES)}",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each side (5)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
