"""Readiness of a node: its thresholds."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.render.readiness import Readiness


class ReadinessTests(SynchronousTestCase):
    """`Readiness`"""

    def test_thresholds(self) -> None:
        """A node is ready below the threshold, and again at half of it (Health and readiness)."""
        for threshold, depths, expected in (
            (5, (4, 5, 6, 5, 4, 3, 2, 3, 4, 5), "+ - - - - - + + + -"),
            (2, (1, 2, 1, 2, 1), "+ - + - +"),
            (3, (7, 0), "- +"),
            (1, (0, 1, 2, 1, 0), "+ - - - +"),
            (0, (0, 1, 1000, 0), "+ + + +"),
        ):
            readiness = Readiness(threshold)
            self.assertTrue(readiness.ready)
            for depth, sign in zip(depths, expected.split(), strict=True):
                readiness.depth_changed(depth)
                self.assertIs(sign == "+", readiness.ready, (threshold, depths, depth))

    def test_programs(self) -> None:
        """A node is ready only while its programs run, except with a threshold of 0."""
        for threshold in (0, 5):
            readiness = Readiness(threshold)
            readiness.programs_checked(False)
            self.assertIs(threshold == 0, readiness.ready)
            readiness.programs_checked(True)
            self.assertTrue(readiness.ready)
