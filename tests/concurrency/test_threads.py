"""Calls in threads, and waits that cancellation does not cut short."""

from __future__ import annotations

import errno
import threading
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase

from audioproxy.concurrency import threads
from audioproxy.concurrency.threads import await_uncancelled, bounded, run_detached, thread_per_call
from audioproxy.testing import FakeThreads
from tests.support.service import PATIENCE, TEST_PATIENCE, reactor


def refuse(work: object) -> Any:
    """Raise the error of a system that cannot start a thread."""
    raise OSError(errno.EAGAIN, "can't start new thread")


class ThreadPerCallTests(TestCase):
    """`thread_per_call`"""

    timeout = TEST_PATIENCE

    async def test_elsewhere(self) -> None:
        """Calls run at once in daemon threads, and their results arrive in the reactor thread."""
        in_thread = thread_per_call(reactor)
        meeting = threading.Barrier(3)
        works = [in_thread(partial(meeting.wait, PATIENCE)) for _ in range(2)]
        await deferToThread(meeting.wait, PATIENCE)
        turns = [await work for work in works]
        self.assertEqual(len(set(turns)), 2)
        daemon = await in_thread(lambda: threading.current_thread().daemon)
        self.assertTrue(daemon, "a thread that is not a daemon would delay the exit")

    async def test_again(self) -> None:
        """A thread takes the next call, and ends when there is none for a while."""
        self.patch(threads, "_IDLE_SECONDS", 0.05)
        in_thread = thread_per_call(reactor)
        one = await in_thread(threading.current_thread)
        self.assertIs(one, await in_thread(threading.current_thread))
        await deferToThread(one.join, PATIENCE)
        self.assertFalse(one.is_alive())
        self.assertIsNot(one, await in_thread(threading.current_thread))

    async def test_failure(self) -> None:
        """The caller gets the error of the call."""

        def fail() -> None:
            raise OSError(28, "No space left on device")

        with self.assertRaises(OSError):
            await thread_per_call(reactor)(fail)

    def test_no_thread(self) -> None:
        """If the system cannot start a thread, the call raises OSError with EAGAIN."""

        def refuse(thread: object) -> None:
            raise RuntimeError("can't start new thread")

        self.patch(threading.Thread, "start", refuse)
        error = self.assertRaises(OSError, thread_per_call(reactor), lambda: None)
        self.assertEqual((errno.EAGAIN, "can't start new thread"), (error.errno, error.strerror))


class BoundedTests(SynchronousTestCase):
    """`bounded`"""

    def setUp(self) -> None:
        self.threads = FakeThreads()
        self.in_thread = bounded(self.threads.in_thread, 2)

    def test_order(self) -> None:
        """Two calls run at a time, and the others wait in order; each caller gets its result."""
        calls = [self.in_thread(lambda number=number: 10 // number) for number in (5, 0, 2, 1)]
        self.assertEqual(self.threads.waiting, 2)
        self.threads.run()
        self.failureResultOf(calls.pop(1), ZeroDivisionError)
        self.assertEqual([2, 5, 10], [self.successResultOf(call) for call in calls])
        again = self.in_thread(lambda: "done")
        self.threads.run()
        self.assertEqual("done", self.successResultOf(again))

    def test_no_thread(self) -> None:
        """If no thread can be started, a call raises OSError, and a waiting one fails with it."""

        runners = [self.threads.in_thread, refuse, refuse, self.threads.in_thread, refuse]
        in_thread = bounded(lambda work: runners.pop(0)(work), 1)
        calls = [in_thread(lambda: "done") for _ in range(4)]
        self.threads.run()
        for call in calls[1:3]:
            self.failureResultOf(call, OSError)
        self.assertEqual(["done"] * 2, [self.successResultOf(call) for call in calls[::3]])
        self.assertRaises(OSError, in_thread, lambda: "done")


class RunDetachedTests(SynchronousTestCase):
    """`run_detached`"""

    def test_failure(self) -> None:
        """Detached work runs in a thread; its error is logged, as no caller receives it."""
        queued = FakeThreads()
        run_detached(queued.in_thread, lambda: 1 // 0)
        self.assertEqual(self.flushLoggedErrors(), [])
        queued.run()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_no_thread(self) -> None:
        """If no thread can be started, detached work runs at once in the current thread."""
        done: list[str] = []
        run_detached(refuse, lambda: done.append("done"))
        self.assertEqual(done, ["done"])


class AwaitUncancelledTests(SynchronousTestCase):
    """`await_uncancelled`"""

    def setUp(self) -> None:
        self.work: Deferred[str] = Deferred()
        self.waiting = Deferred.fromCoroutine(await_uncancelled(self.work))

    def test_result(self) -> None:
        """The waiter gets the result of the work, which may be None, or its error."""
        self.assertNoResult(self.waiting)
        self.work.callback("done")
        self.assertEqual(self.successResultOf(self.waiting), "done")
        for result in ("done", None):
            waiting = Deferred.fromCoroutine(await_uncancelled(succeed(result)))
            self.assertEqual(self.successResultOf(waiting), result)
        for error in (OSError, CancelledError):
            for work in (fail(error()), Deferred[str]()):
                waiting = Deferred.fromCoroutine(await_uncancelled(work))
                if not work.called:
                    work.errback(Failure(error()))
                self.failureResultOf(waiting, error)

    def test_cancelled(self) -> None:
        """A waiter that is cancelled fails when the work has ended, whose error is dropped."""
        for result in ("done", Failure(OSError())):
            self.setUp()
            for _ in range(5):
                self.waiting.cancel()
                self.assertNoResult(self.waiting)
            self.work.callback(result)
            self.failureResultOf(self.waiting, CancelledError)
        self.assertEqual(self.flushLoggedErrors(), [])
