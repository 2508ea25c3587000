"""``audioproxy store ls``: list variants."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from audioproxy.cli.formatting import format_bytes
from audioproxy.cli.progress import progress_bar
from audioproxy.cli.store.open_store import (
    Outcome,
    StoreSession,
    add_common_arguments,
    run_command,
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
    """Add the arguments of the command."""
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="SOURCE",
        help="only variants of this source: local://PATH, s3://BUCKET/KEY or an https URL with its"
        " query; may be repeated",
    )
    parser.add_argument(
        "--prefix",
        action="append",
        default=[],
        help="only variants of sources whose address begins with this; may be repeated",
    )
    parser.add_argument("--format", choices=list(FORMATS), help="only variants in this format")
    add_common_arguments(parser)


class Listing(Outcome):
    """The rows of the list, which are printed at once."""

    def __init__(self, as_json: bool, bar: Any, now: float) -> None:
        super().__init__(as_json, bar)
        self._now = now
        if not as_json:
            print(f"{'key':<64}  {'bytes':>7}  {'age':>7}  {'unused':>7}  options  source")

    def add(self, entry: Entry, record: VariantRecord | None) -> None:
        """Print a variant."""
        if self._as_json:
            self.print(json.dumps(variant_values(entry, record)))
            return
        unused = "unknown" if entry.used is None else age_text(self._now - entry.used)
        known = "unknown" if record is None else f"{record.options}  {source_text(record)}"
        self.print(
            f"{entry.key}  {format_bytes(entry.size):>7}  {age_text(self._now - entry.stored):>7}"
            f"  {unused:>7}  {known}"
        )

    def values(self) -> dict[str, Any]:
        """Return nothing: each line is a JSON object of its own."""
        return {}

    def lines(self) -> Iterator[str]:
        """Yield nothing."""
        yield from ()

    def print_report(self, *, interrupted: bool) -> None:
        """Print nothing: the rows are the report."""


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    wanted = SourceFilter.of(map(read_source, arguments.source), arguments.prefix)
    selects_all = not (arguments.source or arguments.prefix or arguments.format)
    bar = progress_bar("variants", arguments.quiet)
    outcome = Listing(arguments.json, bar, time.time())

    def is_wanted(record: VariantRecord | None) -> bool:
        if record is None:
            return selects_all
        return wanted.accepts(record) and arguments.format in (None, format_of(record))

    async def work(session: StoreSession) -> None:
        async for entry, record in session.records(outcome.fail):
            if is_wanted(record):
                outcome.add(entry, record)

    return run_command(arguments, environment, outcome, bar, work)
