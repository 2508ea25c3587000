"""Results of measurements: samples, ratios and medians. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of some samples."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Return the spread of at least one sample."""
        return cls(median(samples), min(samples), max(samples))


@dataclass(slots=True)
class Figure:
    """One row of the report.

    With samples of a peer, the row shows the ratio of ours to theirs in each round. Both samples of
    a round come from the same machine in the same state. Without a peer, the row shows our samples.

    :ivar work: what was done.
    :ivar measure: what was measured.
    :ivar unit: unit of a sample, such as ``ms``.
    :ivar target: bound, or None for a row without a target.
    :ivar at_least: whether the target is a lower bound.
    :ivar peer: name of the peer.
    :ivar remark: note that a reader of the row needs.
    :ivar reason: known reason for a missed target.
    :ivar exact: whether every sample must equal the target.
    """

    work: str
    measure: str
    unit: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    target: float | None = None
    at_least: bool = False
    peer: str = ""
    remark: str = ""
    reason: str = ""
    exact: bool = False

    def add(self, ours: float, theirs: float | None = None) -> None:
        """Add the samples of one round."""
        self.ours.append(ours)
        if theirs is not None:
            self.theirs.append(theirs)

    @property
    def compared(self) -> list[float]:
        """Values that are compared with the target: the ratio of each round, or our samples."""
        if not self.theirs:
            return self.ours
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def target_met(self) -> bool | None:
        """Whether the median meets the target; None without a target."""
        if self.target is None:
            return None
        if self.exact:
            return set(self.compared) == {self.target}
        middle = Spread.of(self.compared).middle
        return middle >= self.target if self.at_least else middle <= self.target


@dataclass(slots=True)
class Panel:
    """One pair of axes of a plot.

    :ivar lines: for each line, its samples at each x of the curve.
    :ivar logarithmic: whether the y axis is logarithmic.
    """

    label: str
    lines: dict[str, list[list[float]]]
    logarithmic: bool = False


@dataclass(slots=True)
class Curve:
    """A plot of growth, with one or several panels over the same x axis.

    :ivar name: file name of the plot.
    :ivar xs: x values of the measurements.
    :ivar logarithmic: whether the x axis is logarithmic.
    :ivar remark: text below the plot.
    """

    name: str
    title: str
    label: str
    xs: list[float]
    panels: list[Panel]
    logarithmic: bool = True
    remark: str = ""


@dataclass(slots=True)
class Results:
    """Results of one series.

    :ivar missing: measurements that were not possible, with the reason of each.
    :ivar facts: medians that the text of the page uses, by name.
    """

    figures: list[Figure] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def figure(self, work: str, measure: str, unit: str, **rest: Any) -> Figure:
        """Add a row without samples and return it."""
        made = Figure(work, measure, unit, **rest)
        self.figures.append(made)
        return made

    def document(self) -> dict[str, Any]:
        """Return the results as a JSON document."""
        return asdict(self)

    @classmethod
    def read(cls, document: dict[str, Any]) -> Results:
        """Return the results of a JSON document."""
        figures = [Figure(**row) for row in document["figures"]]
        curves = [
            Curve(**{**row, "panels": [Panel(**panel) for panel in row["panels"]]})
            for row in document["curves"]
        ]
        return cls(figures, curves, document["missing"], document["facts"], document["seconds"])
