"""`SharedResult`: one result for many waiters; `InFlightCounter`."""

from __future__ import annotations

import weakref

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.shared_result import InFlightCounter, SharedResult


class SharedResultTests(SynchronousTestCase):
    """`SharedResult`"""

    def setUp(self) -> None:
        self.abandoned: list[None] = []
        self.shared: SharedResult[int] = SharedResult(lambda: self.abandoned.append(None))

    def test_many(self) -> None:
        """All current and later waiters receive the result."""
        waiters = [self.shared.wait() for _ in range(3)]
        for waiter in waiters:
            self.assertNoResult(waiter)
        self.assertFalse(self.shared.fired)
        self.shared.fire(5)
        self.assertTrue(self.shared.fired)
        for waiter in (*waiters, self.shared.wait()):
            self.assertEqual(5, self.successResultOf(waiter))

    def test_failure(self) -> None:
        """All waiters receive a failure, which is final; without waiters, it is not logged."""
        waiter = self.shared.wait()
        self.shared.fire(Failure(ValueError("a")))
        self.shared.fire(5)
        for each in (waiter, self.shared.wait()):
            self.failureResultOf(each, ValueError)
        SharedResult[int]().fire(Failure(ValueError("b")))

    def test_abandoned(self) -> None:
        """The callback runs once: when the last waiter is cancelled before there is a result."""
        for abandoned, waiter in ([], self.shared.wait()), ([None], self.shared.wait()):
            waiter.cancel()
            self.failureResultOf(waiter, CancelledError)
            self.assertEqual(abandoned, self.abandoned)
        self.shared.fire(5)
        self.shared.wait().cancel()
        self.assertEqual([None], self.abandoned)

    def test_freed(self) -> None:
        """A result that is set does not keep its callback: the two may refer to each other."""

        def abandoned() -> None:
            self.fail("the result is set")

        shared: SharedResult[int] = SharedResult(abandoned)
        kept = weakref.ref(abandoned)
        shared.fire(5)
        del abandoned
        self.assertIsNone(kept())

    def test_waiter_that_cancels_another(self) -> None:
        """A waiter may cancel another one in its callback without affecting the rest."""
        first, second, third = (self.shared.wait() for _ in range(3))
        first.addCallback(lambda _: second.cancel())
        self.shared.fire(5)
        self.failureResultOf(second, CancelledError)
        self.assertEqual(5, self.successResultOf(third))
        self.assertEqual([], self.abandoned)


class InFlightCounterTests(SynchronousTestCase):
    """`InFlightCounter`"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.counter = InFlightCounter()

    def wait(self, seconds: float = 30) -> Deferred[None]:
        """Wait until the counter is idle."""
        return Deferred.fromCoroutine(self.counter.wait_until_idle(Deadline(self.clock, seconds)))

    def test_last_one(self) -> None:
        """A wait ends with the last operation, at once where there is none, without a timer."""
        self.successResultOf(self.wait())
        self.counter.begin()
        waits = [self.wait(), self.wait()]
        self.counter.begin()
        self.counter.end()
        self.assertEqual(self.counter.count, 1)
        for each in waits:
            self.assertNoResult(each)
        self.counter.end()
        for each in (*waits, self.wait()):
            self.successResultOf(each)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_deadline(self) -> None:
        """Each wait ends after its own timeout, even if operations are in flight."""
        self.counter.begin()
        none, negative, short, long = (self.wait(seconds) for seconds in (0, -3, 5, 30))
        for seconds, ended, waiting in (
            (0, (none, negative), (short, long)),
            (5, (short,), (long,)),
            (25, (long,), ()),
        ):
            self.clock.advance(seconds)
            for each in ended:
                self.successResultOf(each)
            for each in waiting:
                self.assertNoResult(each)
