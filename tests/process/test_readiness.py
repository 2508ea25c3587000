"""Readiness: two marks, and one period for one excursion."""

from __future__ import annotations

from itertools import pairwise

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.readiness import Readiness


class ReadinessTests(SynchronousTestCase):
    """`Readiness`"""

    def verdicts(self, threshold: int, depths: list[int]) -> list[bool]:
        """Return what is said after each depth."""
        readiness = Readiness(threshold)
        verdicts = []
        for depth in depths:
            readiness.depth_changed(depth)
            verdicts.append(readiness.ready)
        return verdicts

    def test_start(self) -> None:
        """A node is ready before anyone has waited."""
        self.assertTrue(Readiness(1).ready)

    def test_both_marks(self) -> None:
        """Not ready from the threshold on, ready again at half of it (Readiness states)."""
        self.assertEqual(
            self.verdicts(5, [4, 5, 6, 5, 4, 3, 2, 3, 4, 5]),
            [True, False, False, False, False, False, True, True, True, False],
        )
        self.assertEqual(self.verdicts(2, [1, 2, 1, 2, 1]), [True, False, True, False, True])

    def test_threshold_of_one(self) -> None:
        """A threshold of 1 recovers only at 0 (Readiness states)."""
        self.assertEqual(self.verdicts(1, [0, 1, 2, 1, 0]), [True, False, False, False, True])

    def test_disabled(self) -> None:
        """A threshold of 0 disables the check (Readiness states)."""
        self.assertEqual(self.verdicts(0, [0, 1, 1000, 0]), [True] * 4)

    def test_one_period(self) -> None:
        """One excursion, however it wavers above the lower mark, is one period."""
        verdicts = self.verdicts(6, [*range(1, 7), 4, 6, 5, 9, 4, 6, *range(5, -1, -1)])
        changes = sum(a != b for a, b in pairwise(verdicts))
        self.assertEqual(changes, 2)

    def test_jump(self) -> None:
        """A queue that grows past the threshold by more than one counts too."""
        self.assertEqual(self.verdicts(3, [7, 0]), [False, True])
