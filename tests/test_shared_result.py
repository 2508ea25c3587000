"""`SharedResult`: one result for many waiters."""

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
        """Count the calls."""
        self.abandoned += 1

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
        """All waiters receive a failure; without waiters, a failure is not logged."""
        waiter = self.shared.wait()
        self.shared.fire(Failure(ValueError("a")))
        self.failureResultOf(waiter, ValueError)
        self.failureResultOf(self.shared.wait(), ValueError)
        SharedResult[int]().fire(Failure(ValueError("b")))

    def test_first_outcome(self) -> None:
        """A shared result keeps its first outcome and ignores later ones."""
        self.shared.fire(5)
        self.shared.fire(Failure(ValueError()))
        self.assertEqual(5, self.successResultOf(self.shared.wait()))

    def test_cancelled(self) -> None:
        """A cancelled waiter does not affect the other waiters."""
        leaver, other = self.shared.wait(), self.shared.wait()
        leaver.cancel()
        self.failureResultOf(leaver, CancelledError)
        self.assertEqual(0, self.abandoned)
        self.shared.fire(5)
        self.assertEqual(5, self.successResultOf(other))

    def test_abandoned(self) -> None:
        """The callback runs once: when the last waiter is cancelled before there is a result."""
        for waiter in [self.shared.wait(), self.shared.wait()]:
            waiter.cancel()
            self.failureResultOf(waiter, CancelledError)
        self.assertEqual(1, self.abandoned)
        self.shared.fire(5)
        self.shared.wait().cancel()
        self.assertEqual(1, self.abandoned)

    def test_waiter_that_cancels_another(self) -> None:
        """A waiter may cancel another one in its callback without affecting the rest."""
        first, second, third = (self.shared.wait() for _ in range(3))
        first.addCallback(lambda _: second.cancel())
        self.shared.fire(5)
        self.failureResultOf(second, CancelledError)
        self.assertEqual(5, self.successResultOf(third))
        self.assertEqual(0, self.abandoned)
