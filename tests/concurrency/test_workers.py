"""Work on many items, some of them at a time."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.workers import for_each


class ForEachTests(SynchronousTestCase):
    """`for_each`"""

    def setUp(self) -> None:
        self.waiting: dict[int, Deferred[None]] = {}
        self.cancelled: list[int] = []
        self.working = Deferred.fromCoroutine(for_each(iter(range(5)), self.work, 2))

    async def work(self, item: int) -> None:
        """Wait until a test fires the Deferred of the item."""
        self.waiting[item] = Deferred()
        try:
            await self.waiting[item]
        except CancelledError:
            self.cancelled.append(item)
            raise

    def test_all(self) -> None:
        """Each item gets its turn when another one is done, in their order."""
        for started, done in ((2, 1), (3, 2), (4, 0), (5, 4), (5, 3)):
            self.assertEqual(list(range(started)), list(self.waiting))
            self.assertNoResult(self.working)
            self.waiting[done].callback(None)
        self.assertIsNone(self.successResultOf(self.working))

    def test_failed(self) -> None:
        """After an error, or if the caller is cancelled, no other item is worked on."""
        self.waiting[0].errback(ValueError())
        self.failureResultOf(self.working, ValueError)
        self.assertEqual(([0, 1], [1]), (list(self.waiting), self.cancelled))
        self.setUp()
        self.working.cancel()
        self.failureResultOf(self.working, CancelledError)
        self.assertEqual(([0, 1], [0, 1]), (list(self.waiting), self.cancelled))
