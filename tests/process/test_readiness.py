"""Readiness of a node: thresholds, and the periods in which a node is not ready."""

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.readiness import Readiness
from audioproxy.process.slots import Slots


class ReadinessTests(SynchronousTestCase):
    """`Readiness`"""

    def test_thresholds(self) -> None:
        """A node is ready at first, not from the threshold on, and again at half of it.

        A threshold of 1 recovers only at 0, and a threshold of 0 disables the check (Readiness
        states).
        """
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


class QueueTests(SynchronousTestCase):
    """`Readiness` with the queue that it observes."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.readiness = Readiness(2)
        self.readiness_after: list[bool] = []
        self.slots = Slots(self.clock, 1, 3, 10, self.record_readiness)

    def record_readiness(self, depth: int) -> None:
        """Record the readiness at each queue depth."""
        self.readiness.depth_changed(depth)
        self.readiness_after.append(self.readiness.ready)

    def take_slot(self) -> Deferred[None]:
        """Request a slot, and hold it until cancelled."""

        async def hold() -> None:
            async with self.slots.hold():
                await Deferred()

        return Deferred.fromCoroutine(hold()).addErrback(lambda failure: None)

    def test_queue(self) -> None:
        """By a free slot, a cancelled wait and timeouts, a queue shrinks in one period.

        A node whose slots are all held, with an empty queue, is ready. A request that finds the
        queue full does not change the readiness.
        """
        for cancelled, depths in (((0, 3), (2, 1)), ((), ())):
            self.setUp()
            holders = [self.take_slot()]
            self.assertEqual((self.slots.held, self.readiness.ready), (1, True))
            holders += [self.take_slot() for _ in range(3)]
            before = list(self.readiness_after)
            self.take_slot()
            self.assertEqual((self.readiness_after, self.readiness.ready), (before, False))
            for number, depth in zip(cancelled, depths, strict=True):
                holders[number].cancel()
                self.assertEqual((self.slots.depth, self.readiness.ready), (depth, depth < 2))
            self.clock.advance(10)
            self.assertEqual((self.slots.depth, self.readiness.ready), (0, True))
            self.assertEqual(sum(a != b for a, b in pairwise(self.readiness_after)), 2)
