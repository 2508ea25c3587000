"""One result for many waiters."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.shared_result import SharedResult


class SharedResultTests(SynchronousTestCase):
    """`SharedResult`"""

    def setUp(self) -> None:
        self.abandoned = 0
        self.shared: SharedResult[int] = SharedResult(self.abandon)

    def abandon(self) -> None:
        """Count a call."""
        self.abandoned += 1

    def test_many(self) -> None:
        """Each who waits has the result, as has each who comes later."""
        waiters = [self.shared.wait() for _ in range(3)]
        for waiter in waiters:
            self.assertNoResult(waiter)
        self.assertFalse(self.shared.fired)
        self.shared.fire(5)
        self.assertTrue(self.shared.fired)
        for waiter in (*waiters, self.shared.wait()):
            self.assertEqual(5, self.successResultOf(waiter))

    def test_failure(self) -> None:
        """A failure comes to each of them; without waiters nobody is told."""
        waiter = self.shared.wait()
        self.shared.fire(Failure(ValueError("a")))
        self.failureResultOf(waiter, ValueError)
        self.failureResultOf(self.shared.wait(), ValueError)
        SharedResult[int]().fire(Failure(ValueError("b")))

    def test_first_outcome(self) -> None:
        """Only the first outcome counts."""
        self.shared.fire(5)
        self.shared.fire(Failure(ValueError()))
        self.assertEqual(5, self.successResultOf(self.shared.wait()))

    def test_cancelled(self) -> None:
        """A waiter that is cancelled leaves the others waiting."""
        leaver, other = self.shared.wait(), self.shared.wait()
        leaver.cancel()
        self.failureResultOf(leaver, CancelledError)
        self.assertEqual(0, self.abandoned)
        self.shared.fire(5)
        self.assertEqual(5, self.successResultOf(other))

    def test_abandoned(self) -> None:
        """The last waiter to be cancelled before the result is noticed, and no one else."""
        for waiter in [self.shared.wait(), self.shared.wait()]:
            waiter.cancel()
            self.failureResultOf(waiter, CancelledError)
        self.assertEqual(1, self.abandoned)
        self.shared.fire(5)
        self.shared.wait().cancel()
        self.assertEqual(1, self.abandoned)

    def test_waiter_that_cancels_another(self) -> None:
        """A waiter that cancels the next one, on hearing of the result, disturbs nobody."""
        first, second, third = (self.shared.wait() for _ in range(3))
        first.addCallback(lambda _: second.cancel())
        self.shared.fire(5)
        self.failureResultOf(second, CancelledError)
        self.assertEqual(5, self.successResultOf(third))
        self.assertEqual(0, self.abandoned)
