"""Plots as SVG, in colors that are readable on white and on black."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from bench.figures import Curve, Figure, Panel, Spread

_INK = "#7a828c"
_LINES = ("#2f81f7", "#d9730d", "#3fa45b")
_STYLE = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": _INK,
    "font.size": 10,
    "grid.alpha": 0.25,
    "grid.color": _INK,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    # No random values and no dates, so an unchanged plot is an unchanged file.
    "svg.fonttype": "none",
    "svg.hashsalt": "bench",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def draw(curve: Curve, path: Path) -> None:
    """Draw a curve: the median as a line, the minimum and the maximum as a band."""
    with pyplot.rc_context(_STYLE):
        count = len(curve.panels)
        figure, axes = pyplot.subplots(1, count, figsize=(4.2 * count, 3.2), squeeze=False)
        for panel, one in zip(curve.panels, axes[0], strict=True):
            _draw_panel(curve, panel, one)
        figure.suptitle(curve.title)
        _save(figure, path)


def _draw_panel(curve: Curve, panel: Panel, axes: Axes) -> None:
    for (name, samples), colour in zip(panel.lines.items(), _LINES, strict=False):
        spreads = [Spread.of(row) for row in samples]
        low, high = [row.least for row in spreads], [row.most for row in spreads]
        axes.plot(curve.xs, [row.middle for row in spreads], "o-", color=colour, label=name, ms=4)
        axes.fill_between(curve.xs, low, high, color=colour, alpha=0.2, linewidth=0)
    if curve.logarithmic:
        axes.set_xscale("log")
        _plain(axes.xaxis, curve.xs)
    if panel.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(_number))
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(curve.label)
    axes.set_ylabel(panel.label)
    axes.grid(True)
    if len(panel.lines) > 1:
        axes.legend()


def _plain(axis: object, places: Sequence[float]) -> None:
    axis.set_ticks(places)  # type: ignore[attr-defined]
    axis.set_major_formatter(FuncFormatter(_number))  # type: ignore[attr-defined]
    axis.set_minor_formatter(NullFormatter())  # type: ignore[attr-defined]


def _number(value: float, _: object = None) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def overview(figures: Sequence[Figure], path: Path) -> None:
    """Plot the ratio of each figure to its target; values right of the line meet the target."""
    rows = [figure for figure in figures if figure.target]
    with pyplot.rc_context(_STYLE):
        sheet, axes = pyplot.subplots(figsize=(8.4, 0.24 * len(rows) + 1))
        for place, figure in enumerate(reversed(rows)):
            margins = [_margin(figure, value) for value in figure.compared if value]
            middle = median(margins)
            colour = _LINES[0] if middle >= 1 else _LINES[1]
            axes.plot([min(margins), max(margins)], [place, place], color=colour, alpha=0.5)
            axes.plot([middle], [place], "o", color=colour, ms=5)
        axes.axvline(1, color=_INK)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(_number))
        labels = [f"{figure.work}: {figure.measure}".replace("`", "") for figure in rows]
        axes.set_yticks(range(len(rows)), reversed(labels), fontsize=7)
        axes.set_xlabel("times better than the target (median, minimum to maximum)")
        axes.grid(True, axis="x")
        _save(sheet, path)


def _margin(figure: Figure, value: float) -> float:
    assert figure.target is not None
    return value / figure.target if figure.at_least else figure.target / value


def _save(figure: object, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(  # type: ignore[attr-defined]
        path, transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None}
    )
    pyplot.close(figure)  # type: ignore[arg-type]
