"""Generator of docs/performance.md, from a template and the measurements. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.figures import Curve, Figure, Results, Spread

_BLANK = re.compile(r"\{\{ *([^{}]+?) *\}\}")


# Sections of the table of targets, with the prefixes of the work in each.
_GROUPS = (
    ("New variants: time to the first byte", ("MISS, first body", "start,", "100 previews")),
    ("New variants: whole render", ("MISS, whole", "peaks of")),
    ("Remote sources", ("a 30-second preview of a remote", "a 30-second preview at 150 seconds")),
    ("Previews from the middle of a source", ("a 30-second preview",)),
    ("Stored variants", ("HIT", "304", "hits beside")),
)


@dataclass(slots=True)
class Record:
    """One whole run.

    :ivar series: results of each series.
    :ivar failed: series that failed, with the reason of each.
    """

    date: str
    seconds: float
    rounds: int
    machine: dict[str, str]
    versions: dict[str, str]
    series: dict[str, Results] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the record as a JSON document."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "series": {name: results.document() for name, results in self.series.items()},
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Record:
        """Return the record of a JSON document."""
        series = {name: Results.read(results) for name, results in document["series"].items()}
        return cls(**{name: document[name] for name in _PLAIN}, series=series)

    @property
    def figures(self) -> list[Figure]:
        """All rows that have samples."""
        return [row for found in self.series.values() for row in found.figures if row.ours]

    @property
    def curves(self) -> list[Curve]:
        """All plots."""
        return [curve for found in self.series.values() for curve in found.curves]


_PLAIN = ("date", "seconds", "rounds", "machine", "versions", "failed")


def page(template: str, record: Record) -> str:
    """Return the template with a value for every ``{{ name }}``.

    :raises KeyError: for an unknown name.
    """
    parts = {
        "targets": lambda: "\n".join(_targets(record.figures)),
        "stated": lambda: "\n".join(_stated(record.figures)),
        "reasons": lambda: "\n".join(_reasons(record.figures)),
        "few": lambda: number(min(3, record.rounds)),
        "remarks": lambda: "\n".join(_remarks(record.figures)),
        "missing": lambda: "\n".join(_missing(record)),
        "machine": lambda: "\n".join(_pairs(record.machine)),
        "versions": lambda: "\n".join(_pairs(record.versions)),
        "plots": lambda: "\n".join(_plots(record.curves)),
        "summary": lambda: _summary(record.figures),
        "date": lambda: record.date,
        "rounds": lambda: f"{record.rounds} round{'s' if record.rounds > 1 else ''}",
        "minutes": lambda: number(record.seconds / 60),
    }
    facts = {name: value for found in record.series.values() for name, value in found.facts.items()}

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name in parts:
            return parts[name]()
        # If a series failed, the page shows question marks for its values, never values of an older
        # run.
        return number(facts[name]) if name in facts else _absent(name, record)

    return _BLANK.sub(fill, template)


def _absent(name: str, record: Record) -> str:
    if not record.failed:
        raise KeyError(name)
    return "?"


def number(value: float) -> str:
    """Return a number with three significant digits, or with all digits before its point."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        # A thin space as a thousands separator would break searches for the number.
        return f"{value:.0f}"
    return f"{value:.3g}"


def _span(samples: list[float]) -> str:
    spread = Spread.of(samples)
    if spread.least == spread.most:
        return number(spread.middle)
    return f"{number(spread.middle)} ({number(spread.least)}-{number(spread.most)})"


def _targets(figures: list[Figure]) -> Iterator[str]:
    for title, rows in _groups([row for row in figures if row.target is not None]):
        yield f"### {title}"
        yield ""
        yield "| Work | Measure | Target | Median (least-most) | Ours | The peer's | Met |"
        yield "|---|---|---|---|---|---|---|"
        for row in rows:
            assert row.target is not None
            bound = "" if row.exact else "at least " if row.at_least else "at most "
            verdict = "yes" if row.target_met else "**no**"
            unit = "" if row.theirs or not row.unit else f" {row.unit}"
            target = f"{bound}{number(row.target)}{unit}"
            middle = f"{_span(row.compared)}{'' if row.theirs or not row.unit else f' {row.unit}'}"
            cells = [row.work, row.measure, target, middle, *_sides(row), verdict]
            yield f"| {' | '.join(cells)} |"
        yield ""


def _groups(figures: list[Figure]) -> Iterator[tuple[str, list[Figure]]]:
    """Yield the sections of the table with their titles."""
    left = list(figures)
    for title, words in _GROUPS:
        rows = [row for row in left if row.work.startswith(words)]
        left = [row for row in left if row not in rows]
        if rows:
            yield title, rows
    if left:
        yield "Nodes and other figures", left


def _reasons(figures: list[Figure]) -> Iterator[str]:
    reasons = dict.fromkeys(row.reason for row in figures if row.target_met is False and row.reason)
    for reason in reasons:
        works = [row.work for row in figures if row.target_met is False and row.reason == reason]
        yield f"- {_listed(works)}: {reason}."


def _listed(works: list[str]) -> str:
    """Return the first name, and the number of the others."""
    works = list(dict.fromkeys(works))
    return works[0] if len(works) == 1 else f"{works[0]}, and {len(works) - 1} similar"


def _sides(row: Figure) -> tuple[str, str]:
    if not row.theirs:
        return "", ""
    ours, theirs = (number(Spread.of(side).middle) for side in (row.ours, row.theirs))
    return f"{ours} {row.unit}", f"{theirs} {row.unit} ({row.peer})"


def _stated(figures: list[Figure]) -> Iterator[str]:
    yield "| Work | Measure | Ratio, or value | Ours | The peer's |"
    yield "|---|---|---|---|---|"
    for row in figures:
        if row.target is None:
            unit = "" if row.theirs or not row.unit else f" {row.unit}"
            cells = [row.work, row.measure, _span(row.compared) + unit, *_sides(row)]
            yield f"| {' | '.join(cells)} |"


def _remarks(figures: list[Figure]) -> Iterator[str]:
    for remark in dict.fromkeys(row.remark for row in figures if row.remark):
        works = [row.work for row in figures if row.remark == remark]
        yield f"- {_listed(works)}: {remark}."


def _missing(record: Record) -> Iterator[str]:
    lacking = {name: why for found in record.series.values() for name, why in found.missing.items()}
    for name, why in {**lacking, **record.failed}.items():
        yield f"- Not measured: {name}; {' '.join(why.split())}."


def _pairs(values: Mapping[str, str]) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {name} | {value} |" for name, value in values.items())


def _plots(curves: list[Curve]) -> Iterator[str]:
    for curve in curves:
        yield f"### {curve.title}"
        yield ""
        yield f"![{curve.title}](images/performance/{curve.name}.svg)"
        yield ""
        yield curve.remark
        yield ""


def _summary(figures: list[Figure]) -> str:
    bound = [row for row in figures if row.target is not None]
    met = sum(bool(row.target_met) for row in bound)
    return f"{met} of {len(bound)}"
