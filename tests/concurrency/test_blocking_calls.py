"""Blocking calls of a store: timeouts, and cleanup of results that arrive too late."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.testing import FakeThreads

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_thread(work: Callable[[], object]) -> Deferred[Any]:
    """Raise the error of a system that cannot start a thread."""
    raise OSError(errno.EAGAIN, "can't start new thread")


def fail() -> None:
    """Raise the error of a full disk."""
    raise FULL


class BlockingCallsTests(SynchronousTestCase):
    """`BlockingCalls`"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.threads = FakeThreads()
        self.blocking_calls = BlockingCalls(self.clock, self.threads.in_thread)
        self.undone: list[object] = []

    def tearDown(self) -> None:
        self.assertEqual(self.clock.getDelayedCalls(), [], "a timeout is still scheduled")

    def run_call(self, work: Callable[[], Any], seconds: float = 10) -> Deferred[Any]:
        """Run work in a thread and return a Deferred of its result."""
        return Deferred.fromCoroutine(self.blocking_calls.run(work, seconds, self.undone.append))

    def assert_works(self) -> None:
        """Assert that a further call runs."""
        running = self.run_call(lambda: "next")
        self.threads.run()
        self.assertEqual(self.successResultOf(running), "next")

    def test_error(self) -> None:
        """The caller gets any error of a call, and a failed call does not count as overdue."""
        running, broken = self.run_call(fail), self.run_call(lambda: 1 // 0)
        self.threads.run()
        self.assertIs(self.failureResultOf(running, OSError).value, FULL)
        self.failureResultOf(broken, ZeroDivisionError)
        self.assert_works()
        self.assertEqual(self.undone, [])

    def test_many(self) -> None:
        """While the most calls run, 64 unless set, a further call fails at once."""
        for most in (64, 3):
            self.blocking_calls = BlockingCalls(self.clock, self.threads.in_thread, most)
            running = [self.run_call(lambda: "done") for _ in range(most)]
            error = self.failureResultOf(self.run_call(lambda: "done"), TimeoutError).value
            self.assertEqual(str(error), f"{most} calls have not returned")
            self.threads.run()
            self.assertEqual({"done"}, {self.successResultOf(each) for each in running})
            self.assert_works()

    def test_deadline(self) -> None:
        """A call fails with TimeoutError, an OSError, at its deadline and not before."""
        in_time = self.run_call(lambda: "done", seconds=10)
        self.clock.advance(9.9)
        self.threads.run()
        running = self.run_call(lambda: "late", seconds=10)
        self.clock.advance(9.9)
        self.assertEqual((self.successResultOf(in_time), self.undone), ("done", []))
        self.assertNoResult(running)
        self.clock.advance(0.1)
        failure = self.failureResultOf(running, TimeoutError)
        self.assertIsInstance(failure.value, OSError)
        self.assertEqual(str(failure.value), "no response for 10 seconds")

    def test_no_thread(self) -> None:
        """If no thread can be started, a call fails at once and does not count as overdue."""
        self.blocking_calls = BlockingCalls(self.clock, no_thread)
        for _ in range(2):
            failure = self.failureResultOf(self.run_call(lambda: "done"), OSError)
            self.assertEqual(failure.value.errno, errno.EAGAIN)

    def make_late(self, work: Callable[[], Any] = lambda: "late") -> None:
        """Run a call, and require that it fails at its deadline."""
        running = self.run_call(work, seconds=10)
        self.clock.advance(10)
        self.failureResultOf(running, TimeoutError)

    def test_others_are_refused(self) -> None:
        """While a call is overdue, new calls are refused at once and use no thread."""
        other = self.run_call(lambda: "other", seconds=20)
        self.make_late()
        waiting = self.threads.waiting
        for _ in range(3):
            failure = self.failureResultOf(self.run_call(lambda: "next"), TimeoutError)
            self.assertEqual(str(failure.value), "an earlier call has not returned")
        self.assertEqual(self.threads.waiting, waiting)
        self.assertNoResult(other)
        self.threads.run()
        self.assertEqual(self.successResultOf(other), "other")

    def test_undone(self) -> None:
        """A result after the deadline is undone, and a late error dropped; then calls run again."""
        late = [self.run_call(work) for work in (lambda: "late", fail)]
        self.clock.advance(10)
        for each in late:
            self.failureResultOf(each, TimeoutError)
        self.assertEqual(self.undone, [])
        for _ in late:
            self.failureResultOf(self.run_call(lambda: "next"), TimeoutError)
            self.threads.run_next()
        self.assertEqual(self.undone, ["late"])
        self.assertEqual(self.flushLoggedErrors(), [])
        self.assert_works()

    def test_cancelled(self) -> None:
        """A cancelled caller returns at once; its call is never overdue, and is undone."""
        for work in (lambda: "done", fail):
            running = self.run_call(work)
            running.cancel()
            self.failureResultOf(running, CancelledError)
        self.assertEqual((self.clock.getDelayedCalls(), self.undone), ([], []))
        self.clock.advance(60)
        self.assert_works()
        self.assertEqual((self.undone, self.flushLoggedErrors()), (["done"], []))

    def test_detached(self) -> None:
        """Detached work runs even while a call is overdue, because descriptors must be closed."""
        self.make_late()
        done: list[str] = []
        self.blocking_calls.run_detached(lambda: done.append("done"))
        self.threads.run()
        self.assertEqual(done, ["done"])
