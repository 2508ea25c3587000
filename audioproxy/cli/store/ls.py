"""``audioproxy store ls``: list variants."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping

from audioproxy.cli.formatting import format_bytes
from audioproxy.cli.output import Output
from audioproxy.cli.store.command import (
    OpenStore,
    Report,
    add_common_arguments,
    run_command,
    store_output,
)
from audioproxy.cli.store.variant_rows import (
    SourceFilter,
    age_text,
    format_of,
    source_text,
    variant_values,
)
from audioproxy.grammar.formats import FORMATS
from audioproxy.urls import read_source
from audioproxy.variants.catalog import Entry
from audioproxy.variants.record import VariantRecord

DESCRIPTION = """\
List variants: key, bytes in the store, time since they were stored and since their last use,
options and source. A bucket does not record the last use. The source of an https URL is printed
without its query, and a source that is too long to be recorded as its SHA-256. Options and source
of variants that were stored without a record are unknown; no filter selects these. With --json, a
variant has its "build" too: that of the ffmpeg that made it.

examples:
  audioproxy store ls
  audioproxy store ls --source local://album/piece.wav
  audioproxy store ls --prefix local://album/ --format opus
  audioproxy store ls --json | jq 'select(.bytes > 100000000)'
"""


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--source",
        action="append",
        default=[],
        metavar="SOURCE",
        help="only variants of this source: local://PATH, s3://BUCKET/KEY or an https URL with its"
        " query; may be repeated",
    )
    add(
        "--prefix",
        action="append",
        default=[],
        help="only variants of sources whose address begins with this; may be repeated",
    )
    add("--format", choices=list(FORMATS), help="only variants in this format")
    add_common_arguments(parser)


class Listing(Report):
    """The rows of the list, which are printed at once."""

    def __init__(self, out: Output, now: float) -> None:
        super().__init__(out)
        self._now = now
        out.line(f"{'key':<64}  {'bytes':>7}  {'age':>7}  {'unused':>7}  options  source")

    def add(self, entry: Entry, record: VariantRecord | None) -> None:
        """Print a variant."""
        unused = "unknown" if entry.used is None else age_text(self._now - entry.used)
        known = "unknown" if record is None else f"{record.options}  {source_text(record)}"
        self.out.row(
            variant_values(entry, record),
            f"{entry.key}  {format_bytes(entry.size):>7}  {age_text(self._now - entry.stored):>7}"
            f"  {unused:>7}  {known}",
        )


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    wanted = SourceFilter.of(map(read_source, arguments.source), arguments.prefix)
    selects_all = not (arguments.source or arguments.prefix or arguments.format)

    def is_wanted(record: VariantRecord | None) -> bool:
        if record is None:
            return selects_all
        return wanted.accepts(record) and arguments.format in (None, format_of(record))

    listing = Listing(store_output(arguments), time.time())
    return list_variants(arguments, environment, listing, listing.add, is_wanted)


def list_variants(
    arguments: Namespace,
    environment: Mapping[str, str],
    report: Report,
    add: Callable[[Entry, VariantRecord | None], None],
    is_wanted: Callable[[VariantRecord | None], bool] = lambda record: True,
) -> int:
    """Add variants with `add` to a report, print it, and return the exit status."""

    async def work(store: OpenStore) -> None:
        async for page in store.pages():
            for entry, record in await store.catalog.read_records(page.entries, report.fail):
                if is_wanted(record):
                    add(entry, record)

    return run_command(arguments, environment, report, work)
