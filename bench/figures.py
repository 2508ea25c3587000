"""Rows of the report: samples, ratios and medians. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


@dataclass(slots=True)
class Figure:
    """One row of the report.

    With samples of a peer, the row shows the ratio of ours to theirs in each round. Both samples of
    a round come from the same machine in the same state. Without a peer, the row shows our samples.

    :ivar measure: what was measured, and over which peer.
    :ivar unit: unit of a sample, such as ``ms``.
    :ivar target: bound, or None for a row without a target.
    :ivar at_least: whether the target is a lower bound.
    :ivar remark: note that a reader of the row needs.
    :ivar reason: known reason for a missed target.
    :ivar on_page: whether docs/benchmarks.md shows the row, which is printed in any case.
    :ivar in_short: whether docs/performance.md shows the row too.
    :ivar headline: what a range is of, for the home page and the README.
    """

    work: str
    measure: str
    unit: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    target: float | None = None
    at_least: bool = False
    remark: str = ""
    reason: str = ""
    on_page: bool = True
    in_short: bool = False
    headline: str = ""

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
        middle = median(self.compared)
        return middle >= self.target if self.at_least else middle <= self.target
