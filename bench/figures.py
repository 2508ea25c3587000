"""What a measurement yields: samples, their ratios and their medians. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some samples, and how far they go."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Return it for samples, of which there is at least one."""
        return cls(median(samples), min(samples), max(samples))


@dataclass(slots=True)
class Figure:
    """One row of the report.

    With a peer's samples, it is about the ratio of ours to theirs, round by round, since the two
    of one round saw the same machine; without, about ours as they are.

    :ivar work: what was done.
    :ivar measure: what was measured of it.
    :ivar unit: of a sample, such as ``ms``.
    :ivar target: None where the figure is only stated.
    :ivar at_least: the target is a lower bound.
    :ivar peer: who the peer is.
    :ivar remark: what has to be known to read it.
    :ivar reason: why the target is out of reach, where it is.
    :ivar exact: every sample has to be the target itself.
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
        """Take the samples of one more round."""
        self.ours.append(ours)
        if theirs is not None:
            self.theirs.append(theirs)

    @property
    def compared(self) -> list[float]:
        """What is held against the target: a ratio for each round, or the samples."""
        if not self.theirs:
            return self.ours
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def hit(self) -> bool | None:
        """Whether the target is reached by the median; None where there is none."""
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
    :ivar logarithmic: whether the y axis is.
    """

    label: str
    lines: dict[str, list[list[float]]]
    logarithmic: bool = False


@dataclass(slots=True)
class Curve:
    """How something grows: a plot, of one panel or several over the same x axis.

    :ivar name: of its file.
    :ivar xs: where it was measured.
    :ivar logarithmic: whether the x axis is.
    :ivar remark: what is to be seen in it.
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
    """What one series found out.

    :ivar missing: what could not be measured, and why.
    :ivar facts: what is said in the text by name, as medians of samples.
    """

    figures: list[Figure] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def figure(self, work: str, measure: str, unit: str, **rest: Any) -> Figure:
        """Add a row, whose samples are still to come, and return it."""
        made = Figure(work, measure, unit, **rest)
        self.figures.append(made)
        return made

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON would have it."""
        return asdict(self)

    @classmethod
    def read(cls, document: dict[str, Any]) -> Results:
        """Return what `document` was made of."""
        figures = [Figure(**row) for row in document["figures"]]
        curves = [
            Curve(**{**row, "panels": [Panel(**panel) for panel in row["panels"]]})
            for row in document["curves"]
        ]
        return cls(figures, curves, document["missing"], document["facts"], document["seconds"])
