"""The tally: how many go on, and a wait for the last to end."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.in_flight import Tally


class TallyTests(SynchronousTestCase):
    """`Tally`"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.tally = Tally()

    def wait(self, seconds: float = 30) -> Deferred[None]:
        """Wait for the last to end."""
        return Deferred.fromCoroutine(self.tally.wait(self.clock, seconds))

    def test_nothing(self) -> None:
        """Where nothing goes on there is no wait."""
        self.successResultOf(self.wait())
        self.tally.begin()
        self.tally.end()
        self.successResultOf(self.wait())

    def test_last_one(self) -> None:
        """A wait is over with the last that ends, not before, and leaves no timer."""
        self.tally.begin()
        self.tally.begin()
        waits = [self.wait(), self.wait()]
        self.tally.end()
        self.assertEqual(self.tally.count, 1)
        for each in waits:
            self.assertNoResult(each)
        self.tally.end()
        for each in waits:
            self.successResultOf(each)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_more_begin(self) -> None:
        """What begins during a wait is waited for."""
        self.tally.begin()
        waiting = self.wait()
        self.tally.begin()
        self.tally.end()
        self.assertNoResult(waiting)
        self.tally.end()
        self.successResultOf(waiting)

    def test_deadline(self) -> None:
        """A wait is over after its time, whatever goes on; each has its own."""
        self.tally.begin()
        short, long = self.wait(5), self.wait(30)
        self.clock.advance(5)
        self.successResultOf(short)
        self.assertNoResult(long)
        self.clock.advance(25)
        self.successResultOf(long)
        self.tally.end()

    def test_no_time(self) -> None:
        """A wait of no time, or less, is over in a moment."""
        self.tally.begin()
        waits = [self.wait(0), self.wait(-3)]
        self.clock.advance(0)
        for each in waits:
            self.successResultOf(each)

    def test_cancelled(self) -> None:
        """One who stops to wait leaves nothing behind."""
        self.tally.begin()
        leaver, other = self.wait(), self.wait()
        leaver.cancel()
        self.failureResultOf(leaver, CancelledError)
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        self.tally.end()
        self.successResultOf(other)
        self.assertEqual(self.clock.getDelayedCalls(), [])
