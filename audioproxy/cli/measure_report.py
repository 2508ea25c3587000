"""The output of ``audioproxy measure``: a table, a JSON document or CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import IO, Any, Protocol

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


class Report(Protocol):
    """Writes rows in one format."""

    def add(self, row: Row) -> None:
        """Write the row of a source."""

    def end(self, album: Row | None) -> None:
        """Write the row of the album, if there is one, and the end of the output."""


class TableReport:
    """Columns for a terminal; sources without a result are left out."""

    def __init__(self, output: IO[str], with_gain: bool, with_url: bool) -> None:
        """Write the headings.

        :param with_gain: rows may have a gain.
        """
        self._output = output
        self._with_gain = with_gain
        self._with_url = with_url
        headings = f"{'LUFS':>7}{'LU':>7}{'dBTP':>7}"
        self._print(f"{headings}{'gain':>9}  source" if with_gain else f"{headings}  source")

    def add(self, row: Row) -> None:
        """Write a line, and a second one for the URL."""
        if row.loudness is None:
            return
        values = (row.loudness.integrated, row.loudness.range, row.loudness.true_peak)
        line = "".join("{:>7}".format("-" if v is None else f"{v:.1f}") for v in values)
        if self._with_gain:
            line += "{:>9}".format("-" if row.gain is None else f"{row.gain.decibels:+.2f}")
        line += f"  {printable(row.source)}"
        if row.gain is not None and row.gain.shortfall:
            line += f"  (the ceiling keeps it {row.gain.shortfall:.1f} LU below the target)"
        self._print(line)
        if row.url is not None:
            self._print(f"    {row.url}")

    def end(self, album: Row | None) -> None:
        """Write the row of the album."""
        if album is not None:
            self.add(album)

    def _print(self, line: str) -> None:
        print(line, file=self._output, flush=True)


class JsonReport:
    """One JSON document; None is ``null``."""

    def __init__(self, output: IO[str], with_gain: bool, with_url: bool) -> None:
        """Begin without rows."""
        self._output = output
        self._columns = _columns(with_gain, with_url)
        self._rows: list[dict[str, Any]] = []

    def add(self, row: Row) -> None:
        """Keep a row for the document."""
        self._rows.append(self._document(row))

    def end(self, album: Row | None) -> None:
        """Write the document."""
        document: dict[str, Any] = {"sources": self._rows}
        if album is not None:
            document["album"] = self._document(album)
        print(json.dumps(document, indent=2, default=float), file=self._output)

    def _document(self, row: Row) -> dict[str, Any]:
        return dict(zip(self._columns, _values(row, self._columns), strict=True))


class CsvReport:
    """Comma-separated values with a line of headings (RFC 4180); None is empty."""

    def __init__(self, output: IO[str], with_gain: bool, with_url: bool) -> None:
        """Write the headings."""
        self._output = output
        self._columns = _columns(with_gain, with_url)
        self._writer = csv.writer(output, lineterminator="\n")
        self._writer.writerow(self._columns)

    def add(self, row: Row) -> None:
        """Write a row."""
        self._writer.writerow(_values(row, self._columns))
        self._output.flush()

    def end(self, album: Row | None) -> None:
        """Write the row of the album."""
        if album is not None:
            self.add(album)


#: The report of each value of ``--format``.
REPORTS: dict[str, Callable[[IO[str], bool, bool], Report]] = {
    "table": TableReport,
    "json": JsonReport,
    "csv": CsvReport,
}


def _columns(with_gain: bool, with_url: bool) -> list[str]:
    columns = ["source", "integrated", "range", "true_peak"]
    columns += ["gain", "shortfall"] if with_gain else []
    return [*columns, *(["url"] if with_url else []), "error"]


def _values(row: Row, columns: list[str]) -> list[Any]:
    loudness, gain = row.loudness, row.gain
    values: dict[str, Any] = {
        "source": row.source,
        "integrated": None if loudness is None else _rounded(loudness.integrated),
        "range": None if loudness is None else _rounded(loudness.range),
        "true_peak": None if loudness is None else _rounded(loudness.true_peak),
        "gain": None if gain is None else gain.decibels,
        "shortfall": None if gain is None else gain.shortfall,
        "url": row.url,
        "error": row.error,
    }
    return [values[column] for column in columns]


def _rounded(value: float | None) -> Decimal | None:
    return None if value is None else round(Decimal(value), 2)
