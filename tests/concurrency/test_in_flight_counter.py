"""Counter of operations in flight, and the wait until there are none."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.in_flight_counter import InFlightCounter


class InFlightCounterTests(SynchronousTestCase):
    """`InFlightCounter`"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.counter = InFlightCounter()

    def wait(self, seconds: float = 30) -> Deferred[None]:
        """Wait until the counter is idle."""
        return Deferred.fromCoroutine(self.counter.wait_until_idle(Deadline(self.clock, seconds)))

    def test_nothing(self) -> None:
        """A wait on an idle counter ends at once."""
        self.successResultOf(self.wait())
        self.counter.begin()
        self.counter.end()
        self.successResultOf(self.wait())

    def test_last_one(self) -> None:
        """A wait ends with the last operation, even one that begins later, and leaves no timer."""
        self.counter.begin()
        waits = [self.wait(), self.wait()]
        self.counter.begin()
        self.counter.end()
        self.assertEqual(self.counter.count, 1)
        for each in waits:
            self.assertNoResult(each)
        self.counter.end()
        for each in waits:
            self.successResultOf(each)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_deadline(self) -> None:
        """Each wait ends after its own timeout, even if operations are still in flight.

        With a timeout of zero or less it ends in the next reactor turn.
        """
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

    def test_cancelled(self) -> None:
        """A cancelled wait leaves no timer and does not disturb other waits."""
        self.counter.begin()
        leaver, other = self.wait(), self.wait()
        leaver.cancel()
        self.failureResultOf(leaver, CancelledError)
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        self.counter.end()
        self.successResultOf(other)
        self.assertEqual(self.clock.getDelayedCalls(), [])
