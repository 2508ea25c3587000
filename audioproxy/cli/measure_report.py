"""The output of ``audioproxy measure``: a table, a JSON document or CSV."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from decimal import Decimal
from typing import IO, Any

from audioproxy.cli.formatting import printable
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

    def end(self, album: Row | None) -> None:
        """Write the row of the album, if there is one, and the end of the output."""
        if album is not None:
            self.add(album)

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
    """One JSON document; None is ``null``."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(self.values(row))

    def end(self, album: Row | None) -> None:
        document: dict[str, Any] = {"sources": self.rows}
        if album is not None:
            document["album"] = self.values(album)
        print(json.dumps(document, indent=2, default=float), file=self.output)


@dataclass
class _CsvReport(Report):
    """Comma-separated values with a line of headings (RFC 4180); None is empty."""

    def __post_init__(self) -> None:
        self._writer = csv.writer(self.output, lineterminator="\n")
        self._writer.writerow(self.values(Row("")))

    def add(self, row: Row) -> None:
        self._writer.writerow(self.values(row).values())
        self.output.flush()


#: The report of each value of ``--format``.
REPORTS = {"table": _TableReport, "json": _JsonReport, "csv": _CsvReport}
