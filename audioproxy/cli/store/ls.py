"""``audioproxy store ls``: list variants."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

from audioproxy.cli.arguments import add_repeatable
from audioproxy.cli.output import format_bytes
from audioproxy.cli.store.command import OpenStore, StoreCommand, add_common_arguments
from audioproxy.cli.store.variant_rows import (
    SourceFilter,
    age_text,
    format_of,
    known_text,
    variant_values,
)
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.sources import FORMS
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
    add_repeatable(
        parser,
        "--source",
        metavar="SOURCE",
        help=f"only variants of this source: {FORMS} with its query; may be repeated",
    )
    add_repeatable(
        parser,
        "--prefix",
        help="only variants of sources whose address begins with this; may be repeated",
    )
    parser.add_argument("--format", choices=list(FORMATS), help="only variants in this format")
    add_common_arguments(parser)


class Listing(StoreCommand):
    """The rows of the list are printed at once, and are its report."""

    def __init__(self, arguments: Namespace) -> None:
        self._wanted = SourceFilter.of(map(read_source, arguments.source), arguments.prefix)
        super().__init__(arguments)
        self._now = time.time()
        self.out.line(f"{'key':<64}  {'bytes':>7}  {'age':>7}  {'unused':>7}  options  source")

    async def work(self, store: OpenStore) -> None:
        form = self.arguments.format
        async for entry, record in store.records(self.fail):
            if self._wanted.accepts(record) and form in (None, record and format_of(record)):
                self.add(entry, record)

    def add(self, entry: Entry, record: VariantRecord | None) -> None:
        unused = "unknown" if entry.used is None else age_text(self._now - entry.used)
        self.out.row(
            variant_values(entry, record),
            f"{entry.key}  {format_bytes(entry.size):>7}  {age_text(self._now - entry.stored):>7}"
            f"  {unused:>7}  {known_text(record)}",
        )


execute = Listing.execute
