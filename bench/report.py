"""Contents of the blocks of the documents. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.figures import Figure

#: Blocks of docs/benchmarks.md, and the series of each.
SECTIONS = {
    "first-bytes": ("first-bytes",),
    "previews": ("previews",),
    "remote": ("remote", "far-renders"),
    "renders": ("uncompressed", "peaks", "speeds", "children"),
    "hits": ("large-hits", "small-hits", "beside-renders", "redirects"),
    "memory": ("one-url", "long-render", "books", "idle"),
}

_HEADINGS = ("Work", "Measure", "Median (least-most)", "Ours, the peer's", "Target")


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run.

    :ivar series: rows of each series, by its name.
    """

    date: str
    rounds: int
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    series: Mapping[str, Sequence[Figure]]


def all_contents(run: Run) -> dict[str, str]:
    """Return the contents of each block of docs/benchmarks.md."""
    return {
        "run": _summary(run),
        **{
            name: table([row for each in group for row in run.series.get(each, ())], whole=False)
            for name, group in SECTIONS.items()
        },
        "machine": _sentence({**run.machine, **run.versions}),
    }


def short_contents(run: Run) -> dict[str, str]:
    """Return the contents of the block of docs/performance.md: rows without their targets."""
    rows = (_cells(row)[:4] for row in _figures(run) if row.in_short)
    return {"claims": "\n".join(_rows(_HEADINGS[:4], rows))}


def headline_contents(run: Run) -> dict[str, str]:
    """Return the contents of the block of the home page and the README: a few ranges."""
    rows = (f"- **{_range(row)}** {row.headline}" for row in _figures(run) if row.headline)
    return {"headlines": "\n".join(rows)}


def _figures(run: Run) -> Iterator[Figure]:
    for rows in run.series.values():
        yield from rows


def _range(row: Figure) -> str:
    """Return the least and the most of all rounds; ratios in percent."""
    scale, unit = (100, "%") if row.theirs else (1, row.unit)
    least, most = (number(scale * bound(row.compared)) for bound in (min, max))
    return f"{least} {unit}" if least == most else f"{least}-{most} {unit}"


def _summary(run: Run) -> str:
    bound = [row for row in _figures(run) if row.target is not None]
    met = sum(bool(row.target_met) for row in bound)
    return (
        f"Measured on {run.date}, with {run.rounds} rounds of each comparison, or at least"
        f" {min(3, run.rounds)} where a round takes long. {met} of {len(bound)} targets are met."
    )


def table(figures: Sequence[Figure], *, whole: bool = True) -> str:
    """Return the table of a series, with the reasons for missed targets and the notes below it.

    :param whole: whether to show the rows that the page leaves out too.
    """
    shown = [row for row in figures if whole or row.on_page]
    missed = [row for row in figures if row.target_met is False]
    notes = [
        *_notes("Missed: ", [(row.work, row.reason) for row in missed], figures),
        *_notes("", [(row.work, row.remark) for row in shown], figures),
    ]
    lines = _rows(_HEADINGS, map(_cells, shown))
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _cells(row: Figure) -> list[str]:
    """Return the cells of a row, in the order of the headings."""
    unit = "" if row.theirs or not row.unit else f" {row.unit}"
    sides = target = ""
    if row.theirs:
        sides = f"{number(median(row.ours))}, {number(median(row.theirs))} {row.unit}"
    if row.target is not None:
        target = f"{'≥' if row.at_least else '≤'} {number(row.target)}{unit}"
        target = target if row.target_met else f"**{target}**"
    return [row.work, row.measure, _span(row.compared) + unit, sides, target]


def _rows(headings: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def _span(samples: Sequence[float]) -> str:
    middle, least, most = median(samples), min(samples), max(samples)
    if least == most:
        return number(middle)
    return f"{number(middle)} ({number(least)}-{number(most)})"


def _notes(
    prefix: str, pairs: Sequence[tuple[str, str]], figures: Sequence[Figure]
) -> Iterator[str]:
    """Yield each note once, with the works that it is about if these are not all."""
    all_works = {row.work for row in figures}
    for note in dict.fromkeys(note for _, note in pairs if note):
        works = list(dict.fromkeys(work for work, other in pairs if other == note))
        others = f", and {len(works) - 1} similar" if works[1:] else ""
        about = "" if all_works == {*works} else f"{works[0]}{others}: "
        yield f"- {prefix}{about}{note}."


def _sentence(values: Mapping[str, str]) -> str:
    return f"{'; '.join(f'{name} {value}' for name, value in values.items())}."


def number(value: float) -> str:
    """Return a number with three significant digits, or with all digits before its point."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        # A thin space as a thousands separator would break searches for the number.
        return f"{value:.0f}"
    return f"{value:.3g}"
