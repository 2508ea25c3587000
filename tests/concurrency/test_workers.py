"""Work on several items at a time."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.workers import all_results, for_each


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


class AllResultsTests(SynchronousTestCase):
    """`all_results`"""

    def setUp(self) -> None:
        self.works: list[Deferred[int]] = [Deferred(), Deferred(), Deferred()]
        self.cleanup: Deferred[None] = Deferred()
        self.running = Deferred.fromCoroutine(all_results(map(self.work, self.works)))

    async def work(self, waiting: Deferred[int]) -> int:
        """Wait until a test fires a Deferred; if this is cancelled, until the cleanup has ended."""
        try:
            return await waiting
        except CancelledError:
            await self.cleanup
            raise

    def test_all(self) -> None:
        """The results have the order of the works, whichever ends first."""
        for number in (2, 0, 1):
            self.assertNoResult(self.running)
            self.works[number].callback(number)
        self.assertEqual(self.successResultOf(self.running), [0, 1, 2])

    def test_failed(self) -> None:
        """The first failure stops the others, and is raised when these have ended."""
        self.works[0].callback(0)
        self.works[1].errback(ValueError())
        self.assertNoResult(self.running)
        self.cleanup.callback(None)
        self.failureResultOf(self.running, ValueError)

    def test_cancelled(self) -> None:
        """Where the caller is cancelled, all works are, and their ends are awaited."""
        self.running.cancel()
        self.assertNoResult(self.running)
        self.cleanup.callback(None)
        self.failureResultOf(self.running, CancelledError)
