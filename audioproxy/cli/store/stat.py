"""``audioproxy store stat``: print the number and the bytes of variants."""

from __future__ import annotations

import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from audioproxy.cli.output import format_bytes
from audioproxy.cli.store.command import OpenStore, StoreCommand, add_common_arguments
from audioproxy.cli.store.variant_rows import amount_text, build_of, format_of
from audioproxy.variants.catalog import Amount, Entry
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

add_arguments = add_common_arguments


class Statistics(StoreCommand):
    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        self._now = time.time()
        self._all, self._unknown = Amount(), Amount()
        self._formats: defaultdict[str, Amount] = defaultdict(Amount)
        self._builds: defaultdict[str, Amount] = defaultdict(Amount)
        self._ages = {name: Amount() for name in _AGES}

    async def work(self, store: OpenStore) -> None:
        async for entry, record in store.records(self.fail):
            self.add(entry, record)

    def add(self, entry: Entry, record: VariantRecord | None) -> None:
        amount = self._unknown if record is None else self._formats[format_of(record)]
        age = next(name for name, end in _AGES.items() if self._now - entry.stored < end)
        for each in (self._all, amount, self._builds[build_of(record)], self._ages[age]):
            each.add(entry)

    def values(self) -> dict[str, Any]:
        return {
            **asdict(self._all),
            "unknown": asdict(self._unknown),
            "formats": {name: asdict(amount) for name, amount in sorted(self._formats.items())},
            "builds": {name: asdict(amount) for name, amount in sorted(self._builds.items())},
            "ages": {name: asdict(amount) for name, amount in self._ages.items()},
        }

    def lines(self) -> Iterator[str]:
        yield amount_text(self._all)
        unknown = {"unknown": self._unknown} if self._unknown.variants else {}
        yield from _table("format", dict(sorted(self._formats.items())) | unknown)
        yield from _table("build of ffmpeg", dict(sorted(self._builds.items())))
        yield from _table("age", self._ages)


def _table(title: str, rows: Mapping[str, Amount]) -> Iterator[str]:
    width = max(_WIDTH, *map(len, (title, *rows)))
    yield ""
    yield f"{title:<{width}}{'variants':>12}{'bytes':>12}"
    for name, amount in rows.items():
        yield f"{name:<{width}}{amount.variants:>12}{format_bytes(amount.bytes):>12}"


execute = Statistics.execute
