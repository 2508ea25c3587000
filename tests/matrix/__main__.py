"""Renders places of noise in every container and codec, and prints a table (`make matrix`).

Random regions of sources of many forms follow.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from audioproxy.errors import Refusal
from tests.matrix.kinds import FALSE_GAP, Kind, decode_whole, list_kinds, make_source
from tests.matrix.regions import (
    FORMS,
    PLACES,
    WHOLE,
    Region,
    find_differences,
    find_wrong,
    random_regions,
    seeks,
    spread,
)
from tests.support.audio import measure, probe, probe_length, read_wav, render


def main() -> int:
    """Print the table; return 1 if a region is not the requested one."""
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__)
    parser.add_argument("--muxer", help="only this muxer of ffmpeg")
    parser.add_argument("--places", type=int, help="this number of places, in place of a few")
    parser.add_argument("--regions", type=int, default=100, help="random regions of each form")
    arguments = parser.parse_args()
    kinds = [kind for kind in list_kinds() if arguments.muxer in (None, kind.muxer)]
    places = PLACES if arguments.places is None else spread(arguments.places)
    starts = ", ".join(f"{each.start / 1000:g}" for each in places)
    print(f"| Muxer | Encoder | Read as | Seek | {starts} s |\n|---|---|---|---|---|")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        examined = pool.map(partial(_examine, places=places), kinds)
        rows = [row for row in examined if row is not None]
    wrong = sum(not is_right for is_right in rows)
    print(f"\n{len(rows)} kinds, {wrong} with another region than the requested one.")
    found = [] if arguments.muxer else _examine_regions(arguments.regions)
    return 1 if wrong or found else 0


def _examine_regions(count: int) -> list[str]:
    """Print and return the random regions that differ, of this number of each form."""
    wrong = []
    for seed in range(count):
        regions = {name: random_regions(f"{name} {seed}", 1) for name in FORMS}
        for complaint in find_wrong(regions):
            print(complaint, flush=True)
            wrong.append(complaint)
    print(f"{count} random regions of each of {len(FORMS)} forms, {len(wrong)} wrong.")
    return wrong


def _examine(kind: Kind, places: Sequence[Region]) -> bool | None:
    """Print the row of a kind, and return whether all regions are right; None if there is none."""
    source = make_source(kind)
    if source is None:
        return None
    try:
        found = probe(source)
        # ffmpeg itself closes gaps, also those that it states falsely of flac in ASF, puts other
        # noise into AC-3, and has another decoder for Speex.
        is_own = (
            kind.has_gap or kind.encoder in ("ac3", "eac3", "libspeex") or kind[:2] == FALSE_GAP
        )
        whole = read_wav(render(source, WHOLE)) if is_own else decode_whole(source)
        differences = [*find_differences(source, places, whole)]
        result = "; ".join(differences) or "exact"
        name = f"{found.container} {found.codec} | {'yes' if seeks(source) else 'no'}"
    except Refusal as refusal:
        differences, result, name = [], refusal.message, "- | -"
    finally:
        for cached in (probe, probe_length, measure):
            cached.cache_clear()
    encoder = f"{kind.encoder} and {kind.beside}" if kind.beside else kind.encoder
    encoder += ", with a gap" if kind.has_gap else ""
    print(f"| {kind.muxer} | {encoder} | {name} | {result} |", flush=True)
    return not differences


if __name__ == "__main__":
    sys.exit(main())
