"""Readiness of a node: thresholds, and the periods in which a node is not ready."""

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.slots import Slots
from audioproxy.web.health import Readiness


class ReadinessTests(SynchronousTestCase):
    """`Readiness`"""

    def readiness_after(self, threshold: int, depths: list[int]) -> list[bool]:
        """Return the readiness after each queue depth."""
        readiness = Readiness(threshold)
        readiness_after = []
        for depth in depths:
            readiness.depth_changed(depth)
            readiness_after.append(readiness.ready)
        return readiness_after

    def test_start(self) -> None:
        """A node is ready before any request has waited."""
        self.assertTrue(Readiness(1).ready)

    def test_both_marks(self) -> None:
        """A node is not ready from the threshold on, and ready at half of it (Readiness states)."""
        self.assertEqual(
            self.readiness_after(5, [4, 5, 6, 5, 4, 3, 2, 3, 4, 5]),
            [True, False, False, False, False, False, True, True, True, False],
        )
        self.assertEqual(self.readiness_after(2, [1, 2, 1, 2, 1]), [True, False, True, False, True])

    def test_threshold_of_one(self) -> None:
        """A threshold of 1 recovers only at 0 (Readiness states)."""
        self.assertEqual(
            self.readiness_after(1, [0, 1, 2, 1, 0]), [True, False, False, False, True]
        )

    def test_disabled(self) -> None:
        """A threshold of 0 disables the check (Readiness states)."""
        self.assertEqual(self.readiness_after(0, [0, 1, 1000, 0]), [True] * 4)

    def test_one_period(self) -> None:
        """A queue that varies above half of the threshold causes one not-ready period."""
        readiness_after = self.readiness_after(
            6, [*range(1, 7), 4, 6, 5, 9, 4, 6, *range(5, -1, -1)]
        )
        changes = sum(a != b for a, b in pairwise(readiness_after))
        self.assertEqual(changes, 2)

    def test_jump(self) -> None:
        """A queue that jumps past the threshold makes the node not ready."""
        self.assertEqual(self.readiness_after(3, [7, 0]), [False, True])


class QueueTests(SynchronousTestCase):
    """`Readiness` with the queue that it observes."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.readiness = Readiness(2)
        self.readiness_after: list[bool] = []
        self.slots = Slots(self.clock, 1, 3, 10, self.record_readiness)
        self.holders: list[Deferred[None]] = []

    def record_readiness(self, depth: int) -> None:
        """Record the readiness at each queue depth."""
        self.readiness.depth_changed(depth)
        self.readiness_after.append(self.readiness.ready)

    def take_slot(self) -> Deferred[None]:
        """Request a slot, and hold it until cancelled."""

        async def hold() -> None:
            async with self.slots.hold():
                await Deferred()

        one = Deferred.fromCoroutine(hold())
        one.addErrback(lambda failure: None)
        self.holders.append(one)
        return one

    def test_slots_alone(self) -> None:
        """A node whose slots are all held, with an empty queue, is ready."""
        self.take_slot()
        self.assertEqual((self.slots.held, self.readiness.ready), (1, True))

    def test_queue_shrinks(self) -> None:
        """However the queue shrinks, it causes one not-ready period.

        The queue shrinks by a free slot, by a cancelled wait and by a timeout.
        """
        for _ in range(4):
            self.take_slot()
        self.assertFalse(self.readiness.ready)
        self.holders[0].cancel()
        self.assertEqual((self.slots.depth, self.readiness.ready), (2, False))
        self.holders[3].cancel()
        self.assertEqual((self.slots.depth, self.readiness.ready), (1, True))
        self.clock.advance(10)
        self.assertEqual((self.slots.depth, self.readiness.ready), (0, True))
        self.assertEqual(sum(a != b for a, b in pairwise(self.readiness_after)), 2)

    def test_too_long_a_wait(self) -> None:
        """A queue that is emptied by timeouts makes the node ready again."""
        for _ in range(4):
            self.take_slot()
        self.assertFalse(self.readiness.ready)
        self.clock.advance(10)
        self.assertEqual((self.slots.depth, self.readiness.ready), (0, True))
        self.assertEqual(sum(a != b for a, b in pairwise(self.readiness_after)), 2)

    def test_refused(self) -> None:
        """A request that finds the queue full does not change the readiness."""
        for _ in range(4):
            self.take_slot()
        before = list(self.readiness_after)
        self.take_slot()
        self.assertEqual(self.readiness_after, before)
