"""`python -m bench.month`: what example sites use in a month, and what it costs at given prices.

Speeds and CPU times are those that `make bench` has written into docs/benchmarks.md. The block of
docs/scope.md has the table without prices.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

from bench.programs import PROJECT
from bench.report import number

PAGE = PROJECT / "docs" / "benchmarks.md"

# A HIT in redirect mode reads the bucket twice: the node's lookup, and the client's request.
_READS = 2


@dataclass(frozen=True, slots=True)
class Site:
    """What a site publishes and sends in a month.

    :ivar items: new variants.
    :ivar options: a row of the speeds of docs/benchmarks.md.
    :ivar seconds: of each variant.
    :ivar plays: of all variants, each of them whole.
    """

    name: str
    items: int
    options: str
    seconds: int
    kbps: int
    plays: int

    @property
    def size(self) -> float:
        """The bytes of a variant."""
        return self.seconds * self.kbps * 1000 / 8


SITES = (
    Site("Podcast", 8, "f:mp3/norm:ebu", 45 * 60, 96, 50_000),
    Site("Sample shop", 3_000, "f:opus", 30, 96, 500_000),
    Site("Newsroom", 900, "f:m4a", 3 * 60, 128, 2_000_000),
)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in one currency.

    :ivar cpu: of an hour of one CPU.
    :ivar storage: of a GB for a month.
    :ivar node_egress: of a GB that a node sends.
    :ivar bucket_egress: of a GB that a bucket sends.
    :ivar reads: of a million reads of a bucket.
    """

    cpu: float = 0
    storage: float = 0
    node_egress: float = 0
    bucket_egress: float = 0
    reads: float = 0


def measured(page: str, work: str, measure: str, column: int = 2) -> float:
    """Return a figure of docs/benchmarks.md: the first number of a cell.

    :raises LookupError: if the page has no such row.
    """
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[:2] == [work, measure] and (found := re.match(r"[\d.]+", cells[column])):
            return float(found[0])
    raise LookupError(f"docs/benchmarks.md has no row {work!r}, {measure!r}")


def table(page: str, prices: Prices | None = None) -> str:
    """Return the table of all sites.

    :param page: the text of docs/benchmarks.md.
    :param prices: None for no prices.
    """
    columns = [dict(_rows(site, page, prices)) for site in SITES]
    lines = [f"| In a month | {' | '.join(site.name for site in SITES)} |"]
    lines.append("|---" * (len(SITES) + 1) + "|")
    lines += [f"| {row} | {' | '.join(each[row] for each in columns)} |" for row in columns[0]]
    return "\n".join(lines)


def _rows(site: Site, page: str, prices: Prices | None) -> Iterator[tuple[str, str]]:
    """Yield the rows of a site, each with its name."""
    speed = measured(page, f"FLAC to `{site.options}`", "speed")
    rate = measured(page, "HIT, proxy mode, 4 KB variants", "requests/s over nginx", 3)
    large = "HIT, proxy mode, 50 MB file, 16 connections"
    seconds_per_gb = measured(page, large, "CPU over nginx with sendfile", 3)
    redirect = "HIT in redirect mode, 1000 URLs in turn"
    microseconds = measured(page, redirect, "service's CPU for each request")
    sent, stored = site.plays * site.size / 1e9, 12 * site.items * site.size / 1e9
    render = site.items * site.seconds / speed / 3600
    proxy = (site.plays / rate + sent * seconds_per_gb) / 3600
    redirected = site.plays * microseconds / 1e6 / 3600
    yield "new variants", f"{site.items} of {site.seconds} s, `{site.options}`, {site.kbps} kbps"
    yield "plays", str(site.plays)
    yield "CPU of the encoders", f"{number(60 * render)} min"
    yield "CPU of the service, proxy mode with a folder", f"{number(60 * proxy)} min"
    yield "CPU of the service, redirect mode", f"{number(60 * redirected)} min"
    yield "store, after a year", f"{number(stored)} GB"
    yield "sent, by the node or by the bucket", f"{number(sent)} GB"
    yield "reads of the bucket, redirect mode", str(_READS * site.plays)
    if prices is None:
        return
    kept = stored * prices.storage
    node = (render + proxy) * prices.cpu + kept + sent * prices.node_egress
    reads = _READS * site.plays / 1e6 * prices.reads
    bucket = (render + redirected) * prices.cpu + kept + sent * prices.bucket_egress + reads
    yield "price, proxy mode with a folder", f"{node:.2f}"
    yield "price, redirect mode", f"{bucket:.2f}"


def main() -> None:
    """Print the table with the prices of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.month", description=__doc__)
    for field in fields(Prices):
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=float, default=0, metavar="PRICE")
    print(table(PAGE.read_text(), Prices(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
