"""Plots as SVG, in colors that are readable on white and on black."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

from bench.figures import Curve, Figure, Panel, Spread

_INK = "#7a828c"
# Level of a full-scale sine in a spectrogram of magnitudes, in dB.
_SCALE = -6.02
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


def spectrograms(panels: Mapping[str, NDArray[np.float64]], rate: int, path: Path) -> None:
    """Draw the spectrogram of each signal; the colors range from -150 dBFS to full scale."""
    with pyplot.rc_context(_STYLE):
        size = (3.0 * len(panels), 3.0)
        sheet, row = pyplot.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True)
        for (name, samples), axes in zip(panels.items(), row[0], strict=True):
            axes.specgram(
                samples,
                NFFT=1024,
                Fs=rate,
                noverlap=512,
                window=np.kaiser(1024, 20),
                scale="dB",
                mode="magnitude",
                vmin=-150 + _SCALE,
                vmax=_SCALE,
            )
            axes.set_title(name.replace("`", ""), fontsize=9)
            axes.set_xlabel("s")
            axes.yaxis.set_major_formatter(FuncFormatter(_number))
        row[0][0].set_ylabel("Hz")
        _save(sheet, path)


def spectra(
    lines: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]], path: Path
) -> None:
    """Draw spectra, each by its frequencies in Hz and its levels in dBFS.

    Each line is the highest level of groups of neighboring bins.
    """
    with pyplot.rc_context(_STYLE):
        sheet, row = pyplot.subplots(
            1, len(lines), figsize=(3.4 * len(lines), 3.0), squeeze=False, sharey=True
        )
        for (name, (hertz, levels)), colour, axes in zip(
            lines.items(), _LINES, row[0], strict=False
        ):
            count = len(levels) // 600
            whole = 600 * count
            axes.plot(
                hertz[:whole:count],
                levels[:whole].reshape(-1, count).max(axis=1),
                color=colour,
                linewidth=0.8,
            )
            axes.set_title(name.replace("`", ""), fontsize=9)
            axes.set_xlabel("Hz")
            axes.xaxis.set_major_formatter(FuncFormatter(_number))
            axes.grid(True)
        row[0][0].set_ylabel("dBFS")
        _save(sheet, path)


def _save(figure: object, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(  # type: ignore[attr-defined]
        path, transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None}
    )
    pyplot.close(figure)  # type: ignore[arg-type]
