"""The thread pool double behaves as a real pool does."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.testing import FakeThreads


class FakeThreadsTests(SynchronousTestCase):
    """`FakeThreads`"""

    def setUp(self) -> None:
        self.threads = FakeThreads()
        self.done: list[str] = []

    def test_waits(self) -> None:
        """Queued calls run only in `run`, all of them and in order."""
        one = self.threads.in_thread(lambda: self.done.append("one") or 1)
        two = self.threads.in_thread(lambda: self.done.append("two") or 2)
        self.assertEqual((self.done, self.threads.waiting), ([], 2))
        self.assertNoResult(one)
        self.threads.run()
        self.assertEqual((self.done, self.threads.waiting), (["one", "two"], 0))
        self.assertEqual((self.successResultOf(one), self.successResultOf(two)), (1, 2))
        self.threads.run()
        self.assertEqual(self.done, ["one", "two"])

    def test_failure(self) -> None:
        """A call that raises fails its own Deferred; the next one, and one that it queues, run."""
        broken = self.threads.in_thread(lambda: 1 // 0)
        whole = self.threads.in_thread(lambda: 1)
        whole.addCallback(lambda _: self.threads.in_thread(lambda: self.done.append("next")))
        self.threads.run()
        self.failureResultOf(broken, ZeroDivisionError)
        self.successResultOf(whole)
        self.assertEqual((self.done, self.threads.waiting), (["next"], 0))

    def test_cancelled(self) -> None:
        """As with real threads, cancelling the Deferred does not stop the call."""
        given_up = self.threads.in_thread(lambda: self.done.append("done"))
        given_up.cancel()
        self.failureResultOf(given_up, CancelledError)
        self.assertEqual(self.threads.waiting, 1)
        self.threads.run()
        self.assertEqual(self.done, ["done"])
