"""Readiness: two marks, and one period for one excursion."""

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.slots import Slots
from audioproxy.web.health import Readiness


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


class QueueTests(SynchronousTestCase):
    """`Readiness` beside the queue that it speaks of"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.readiness = Readiness(2)
        self.verdicts: list[bool] = []
        self.slots = Slots(self.clock, 1, 3, 10, self.note)
        self.everyone: list[Deferred[None]] = []

    def note(self, depth: int) -> None:
        """Take note of what is said at each depth."""
        self.readiness.depth_changed(depth)
        self.verdicts.append(self.readiness.ready)

    def come(self) -> Deferred[None]:
        """Have one more come who never has enough of a slot."""

        async def hold() -> None:
            async with self.slots.hold():
                await Deferred()

        one = Deferred.fromCoroutine(hold())
        one.addErrback(lambda failure: None)
        self.everyone.append(one)
        return one

    def test_slots_alone(self) -> None:
        """A node whose slots are all taken, and where nobody waits, is ready."""
        self.come()
        self.assertEqual((self.slots.held, self.readiness.ready), (1, True))

    def test_every_way_out(self) -> None:
        """A queue shrinks by a turn, by one who leaves and by too long a wait: one period."""
        for _ in range(4):
            self.come()
        self.assertFalse(self.readiness.ready)
        self.everyone[0].cancel()
        self.assertEqual((self.slots.depth, self.readiness.ready), (2, False))
        self.everyone[3].cancel()
        self.assertEqual((self.slots.depth, self.readiness.ready), (1, True))
        self.clock.advance(10)
        self.assertEqual((self.slots.depth, self.readiness.ready), (0, True))
        self.assertEqual(sum(a != b for a, b in pairwise(self.verdicts)), 2)

    def test_too_long_a_wait(self) -> None:
        """A queue that nobody is served from empties itself, and the node is ready again."""
        for _ in range(4):
            self.come()
        self.assertFalse(self.readiness.ready)
        self.clock.advance(10)
        self.assertEqual((self.slots.depth, self.readiness.ready), (0, True))
        self.assertEqual(sum(a != b for a, b in pairwise(self.verdicts)), 2)

    def test_refused(self) -> None:
        """One who finds the queue full changes nothing."""
        for _ in range(4):
            self.come()
        before = list(self.verdicts)
        self.come()
        self.assertEqual(self.verdicts, before)
