"""The output of ``audioproxy measure``: a table, lines of JSON, or CSV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from audioproxy.cli.output import Output
from audioproxy.media.loudness import Gain, Loudness


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one source, or of an album; an error says why it has none, or no URL."""

    source: str
    loudness: Loudness | None = None
    gain: Gain | None = None
    url: str | None = None
    error: str | None = None


class Report:
    """Prints rows, and counts their failures. A table has no row for a source without a result."""

    def __init__(self, out: Output, with_gain: bool, with_url: bool) -> None:
        self.out = out
        self.failures = 0
        self._with_gain = with_gain
        self._with_url = with_url
        gain = f"{'gain':>9}" if with_gain else ""
        heading = f"{'LUFS':>7}{'LU':>7}{'dBTP':>7}{gain}  source"
        out.headings(self._values(Row("")), heading)

    def add(self, row: Row) -> None:
        """Print a row, and its error."""
        if row.error is not None:
            self.failures += 1
            self.out.error(f"{row.source}: {row.error}")
        self.out.row(self._values(row), *self._lines(row))

    def _values(self, row: Row) -> dict[str, Any]:
        values: dict[str, Any] = {"source": row.source}
        for name in ("integrated", "range", "true_peak"):
            value = getattr(row.loudness, name, None)
            values[name] = None if value is None else round(Decimal(value), 2)
        if self._with_gain:
            values["gain"] = None if row.gain is None else row.gain.decibels
            values["shortfall"] = None if row.gain is None else row.gain.shortfall
        if self._with_url:
            values["url"] = row.url
        return values | {"error": row.error}

    def _lines(self, row: Row) -> Iterator[str]:
        if row.loudness is None:
            return
        values = (row.loudness.integrated, row.loudness.range, row.loudness.true_peak)
        line = "".join("{:>7}".format("-" if v is None else f"{v:.1f}") for v in values)
        if self._with_gain:
            line += "{:>9}".format("-" if row.gain is None else f"{row.gain.decibels:+.2f}")
        line += f"  {row.source}"
        if row.gain is not None and row.gain.shortfall:
            line += f"  (the ceiling keeps it {row.gain.shortfall:.1f} LU below the target)"
        yield line
        if row.url is not None:
            yield f"    {row.url}"
