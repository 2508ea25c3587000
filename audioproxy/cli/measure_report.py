"""The output of ``audioproxy measure``: a table, lines of JSON, or CSV."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import IO, Any

from audioproxy.cli.formatting import print_json, printable
from audioproxy.media.loudness import Gain, Loudness


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one source, or of an album.

    :ivar error: why there is no result, or no URL.
    """

    source: str
    loudness: Loudness | None = None
    gain: Gain | None = None
    url: str | None = None
    error: str | None = None


@dataclass
class Report(ABC):
    """Writes rows in one format.

    :ivar with_gain: whether rows may have a gain.
    :ivar with_url: whether rows may have a URL.
    """

    output: IO[str]
    with_gain: bool
    with_url: bool

    @abstractmethod
    def add(self, row: Row) -> None:
        """Write the row of a source."""

    def values(self, row: Row) -> dict[str, Any]:
        """Return the values of a row by the names of their columns."""
        values: dict[str, Any] = {"source": row.source}
        for name in ("integrated", "range", "true_peak"):
            value = getattr(row.loudness, name, None)
            values[name] = None if value is None else round(Decimal(value), 2)
        if self.with_gain:
            values["gain"] = None if row.gain is None else row.gain.decibels
            values["shortfall"] = None if row.gain is None else row.gain.shortfall
        if self.with_url:
            values["url"] = row.url
        return values | {"error": row.error}


@dataclass
class _TableReport(Report):
    """Columns for a terminal; sources without a result are left out."""

    def __post_init__(self) -> None:
        gain = f"{'gain':>9}" if self.with_gain else ""
        self._print(f"{'LUFS':>7}{'LU':>7}{'dBTP':>7}{gain}  source")

    def add(self, row: Row) -> None:
        if row.loudness is None:
            return
        values = (row.loudness.integrated, row.loudness.range, row.loudness.true_peak)
        line = "".join("{:>7}".format("-" if v is None else f"{v:.1f}") for v in values)
        if self.with_gain:
            line += "{:>9}".format("-" if row.gain is None else f"{row.gain.decibels:+.2f}")
        line += f"  {printable(row.source)}"
        if row.gain is not None and row.gain.shortfall:
            line += f"  (the ceiling keeps it {row.gain.shortfall:.1f} LU below the target)"
        self._print(line)
        if row.url is not None:
            self._print(f"    {row.url}")

    def _print(self, line: str) -> None:
        print(line, file=self.output, flush=True)


@dataclass
class _JsonReport(Report):
    """A JSON object on each line; None is ``null``."""

    def add(self, row: Row) -> None:
        print_json(self.values(row), self.output)


@dataclass
class _CsvReport(Report):
    """Comma-separated values with a line of headings (RFC 4180); None is empty."""

    def __post_init__(self) -> None:
        self._writer = csv.writer(self.output, lineterminator="\n")
        self._writer.writerow(self.values(Row("")))

    def add(self, row: Row) -> None:
        self._writer.writerow(self.values(row).values())
        self.output.flush()


#: The report of each value of ``--format``, and of ``--json``.
REPORTS: dict[str, Callable[[IO[str], bool, bool], Report]] = {
    "table": _TableReport,
    "json": _JsonReport,
    "csv": _CsvReport,
}
