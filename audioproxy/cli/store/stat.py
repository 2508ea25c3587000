"""``audioproxy store stat``: print the number and the bytes of variants."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from audioproxy.cli.formatting import format_bytes
from audioproxy.cli.progress import progress_bar
from audioproxy.cli.store.open_store import (
    Amount,
    Outcome,
    StoreSession,
    add_common_arguments,
    run_command,
)
from audioproxy.cli.store.variant_rows import build_of, format_of
from audioproxy.variants.catalog import Entry
from audioproxy.variants.record import VariantRecord

DESCRIPTION = """\
Print the number and the bytes of all variants: by format, by the build of ffmpeg that made them,
and by the time since they were stored. Variants that were stored without a record of their options
and source, or of their build, are counted as unknown. The bytes are those in the store: a file has
some hundred more than its variant.

examples:
  audioproxy store stat
  audioproxy store stat --env-file /etc/audioproxy/audioproxy.env --json
"""

_DAY = 86_400
# The least width of a name in a table.
_WIDTH = 14
# Names of ages, and the seconds at which each ends.
_AGES = {
    "up to 1 day": _DAY,
    "1-7 days": 7 * _DAY,
    "7-30 days": 30 * _DAY,
    "30-365 days": 365 * _DAY,
    "over 365 days": float("inf"),
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_common_arguments(parser)


class StoreStatistics(Outcome):
    """The amounts of variants so far."""

    def __init__(self, as_json: bool, bar: Any, now: float) -> None:
        super().__init__(as_json, bar)
        self._now = now
        self._all = Amount()
        self._unknown = Amount()
        self._formats: defaultdict[str, Amount] = defaultdict(Amount)
        self._builds: defaultdict[str, Amount] = defaultdict(Amount)
        self._ages = {name: Amount() for name in _AGES}

    def add(self, entry: Entry, record: VariantRecord | None) -> None:
        """Add a variant."""
        amount = self._unknown if record is None else self._formats[format_of(record)]
        age = next(name for name, end in _AGES.items() if self._now - entry.stored < end)
        for each in (self._all, amount, self._builds[build_of(record)], self._ages[age]):
            each.add(entry)

    def values(self) -> dict[str, Any]:
        """Return the values of the JSON object."""
        return {
            **self._all.values,
            "unknown": self._unknown.values,
            "formats": {name: amount.values for name, amount in sorted(self._formats.items())},
            "builds": {name: amount.values for name, amount in sorted(self._builds.items())},
            "ages": {name: amount.values for name, amount in self._ages.items()},
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        yield str(self._all)
        rows = dict(sorted(self._formats.items()))
        if self._unknown.variants:
            rows["unknown"] = self._unknown
        yield from _table("format", rows)
        yield from _table("build of ffmpeg", dict(sorted(self._builds.items())))
        yield from _table("age", self._ages)


def _table(title: str, rows: Mapping[str, Amount]) -> Iterator[str]:
    width = max(_WIDTH, *map(len, (title, *rows)))
    yield ""
    yield f"{title:<{width}}{'variants':>12}{'bytes':>12}"
    for name, amount in rows.items():
        yield f"{name:<{width}}{amount.variants:>12}{format_bytes(amount.bytes):>12}"


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    bar = progress_bar("variants", arguments.quiet)
    outcome = StoreStatistics(arguments.json, bar, time.time())

    async def work(session: StoreSession) -> None:
        async for entry, record in session.records(outcome.fail):
            outcome.add(entry, record)

    return run_command(arguments, environment, outcome, bar, work)
