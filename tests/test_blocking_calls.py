"""Blocking work of a store: nobody waits for a disk for ever, and nothing it gives late leaks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.blocking_calls import BlockingCalls
from audioproxy.variants.scratch_folder import NamedFile
from tests.support.processes import open_descriptors
from tests.support.threads import FakeThreads

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_thread(work: Callable[[], object]) -> Deferred[Any]:
    """Be a system that has no thread to give."""
    raise OSError(errno.EAGAIN, "can't start new thread")


def fail() -> None:
    """Do what a disk without room does."""
    raise FULL


class BlockingCallsCase(SynchronousTestCase):
    """Calls on a clock that stands still, in threads that begin when a test says so."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.threads = FakeThreads()
        self.blocking_calls = BlockingCalls(self.clock, self.threads.in_thread)
        self.undone: list[object] = []

    def tearDown(self) -> None:
        self.assertEqual(self.clock.getDelayedCalls(), [], "a deadline is left on the clock")

    def run_call(self, work: Callable[[], Any], seconds: float = 10) -> Deferred[Any]:
        """Give work to a thread and wait for it."""
        return Deferred.fromCoroutine(self.blocking_calls.run(work, seconds, self.undone.append))


class RunTests(BlockingCallsCase):
    """`BlockingCalls.run`"""

    def test_result(self) -> None:
        """The result of the work is the result of the wait, be it nothing."""
        for result in ("done", None):
            running = self.run_call(lambda result=result: result)
            self.assertNoResult(running)
            self.threads.run()
            self.assertEqual(self.successResultOf(running), result)
        self.assertEqual(self.undone, [])

    def test_error(self) -> None:
        """What the work fails with, the wait fails with; a failure is not late."""
        running = self.run_call(fail)
        self.threads.run()
        self.assertIs(self.failureResultOf(running, OSError).value, FULL)
        again = self.run_call(lambda: "done")
        self.threads.run()
        self.assertEqual(self.successResultOf(again), "done")
        self.assertEqual(self.undone, [])

    def test_many(self) -> None:
        """So many at a time and no more: a disk may be slow without being late."""
        running = [self.run_call(lambda: "done") for _ in range(64)]
        self.failureResultOf(self.run_call(lambda: "done"), TimeoutError)
        self.threads.run()
        self.assertEqual({"done"}, {self.successResultOf(each) for each in running})
        again = self.run_call(lambda: "done")
        self.threads.run()
        self.assertEqual("done", self.successResultOf(again))

    def test_any_error(self) -> None:
        """A fault in the work itself is told as it is, too."""
        running = self.run_call(lambda: 1 // 0)
        self.threads.run()
        self.failureResultOf(running, ZeroDivisionError)

    def test_beside_each_other(self) -> None:
        """While nothing is late, any number of calls are under way."""
        running = [self.run_call(lambda n=n: n) for n in range(5)]
        self.assertEqual(self.threads.waiting, 5)
        self.threads.run()
        self.assertEqual([self.successResultOf(each) for each in running], [0, 1, 2, 3, 4])

    def test_deadline(self) -> None:
        """At the deadline the wait is over, and not before; that is an error of the system's."""
        running = self.run_call(lambda: "late", seconds=10)
        self.clock.advance(9.9)
        self.assertNoResult(running)
        self.clock.advance(0.1)
        failure = self.failureResultOf(running, TimeoutError)
        self.assertIsInstance(failure.value, OSError)
        self.assertEqual(str(failure.value), "no answer for 10 seconds")

    def test_just_in_time(self) -> None:
        """What comes a moment before the deadline is a result, and counts as nothing else."""
        running = self.run_call(lambda: "done", seconds=10)
        self.clock.advance(9.9)
        self.threads.run()
        self.clock.advance(60)
        self.assertEqual(self.successResultOf(running), "done")
        self.assertEqual(self.undone, [])

    def test_no_thread(self) -> None:
        """Without a thread to be had that is the system's error, at once, and nobody is late."""
        self.blocking_calls = BlockingCalls(self.clock, no_thread)
        for _ in range(2):
            failure = self.failureResultOf(self.run_call(lambda: "done"), OSError)
            self.assertEqual(failure.value.errno, errno.EAGAIN)


class LateTests(BlockingCallsCase):
    """Work that comes back after its deadline, or never"""

    def make_late(self, work: Callable[[], Any] = lambda: "late") -> None:
        """Have work pass its deadline."""
        running = self.run_call(work, seconds=10)
        self.clock.advance(10)
        self.failureResultOf(running, TimeoutError)

    def test_others_are_refused(self) -> None:
        """While one is late the next is refused at once, and no thread is spent on it."""
        self.make_late()
        waiting = self.threads.waiting
        for _ in range(3):
            failure = self.failureResultOf(self.run_call(lambda: "next"), TimeoutError)
            self.assertEqual(str(failure.value), "an earlier call has not come back")
        self.assertEqual(self.threads.waiting, waiting)

    def test_others_that_are_under_way(self) -> None:
        """What was begun before still has its own time."""
        other = self.run_call(lambda: "other", seconds=20)
        self.make_late()
        self.assertNoResult(other)
        self.threads.run()
        self.assertEqual(self.successResultOf(other), "other")

    def test_works_again(self) -> None:
        """When the late one came back, be it with an error, work is taken as before."""
        for work in (lambda: "late", fail):
            self.make_late(work)
            self.threads.run()
            running = self.run_call(lambda: "next")
            self.threads.run()
            self.assertEqual(self.successResultOf(running), "next")

    def test_several_late(self) -> None:
        """As long as one of them is still away, nothing new is taken."""
        works: list[Deferred[str]] = [Deferred(), Deferred()]
        self.blocking_calls = BlockingCalls(self.clock, lambda work: work())
        running = [self.run_call(lambda work=work: work) for work in works]
        self.clock.advance(10)
        for each in running:
            self.failureResultOf(each, TimeoutError)
        works[0].callback("late")
        self.failureResultOf(self.run_call(lambda: Deferred()), TimeoutError)
        works[1].errback(Failure(FULL))
        self.assertNoResult(next_one := self.run_call(lambda: Deferred()))
        next_one.cancel()
        self.failureResultOf(next_one, CancelledError)

    def test_undone(self) -> None:
        """A result that nobody waits for any more is undone, and an error is not."""
        self.make_late()
        self.assertEqual(self.undone, [])
        self.threads.run()
        self.assertEqual(self.undone, ["late"])
        self.make_late(fail)
        self.threads.run()
        self.assertEqual(self.undone, ["late"])
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_late_file(self) -> None:
        """A file that was made too late is closed and removed, in a thread like all the rest."""
        folder = Path(self.mktemp())
        folder.mkdir()
        before = open_descriptors()
        make = partial(NamedFile, str(folder / "file"), self.blocking_calls.run_detached)
        late = Deferred.fromCoroutine(self.blocking_calls.run(make, 10, NamedFile.close))
        self.clock.advance(10)
        self.failureResultOf(late, TimeoutError)
        self.threads.run()
        self.assertEqual((list(folder.iterdir()), open_descriptors()), ([], before))

    def test_cancelled(self) -> None:
        """One who is cancelled comes back at once, and what the work gives is undone."""
        running = self.run_call(lambda: "done")
        running.cancel()
        self.failureResultOf(running, CancelledError)
        self.assertEqual((self.clock.getDelayedCalls(), self.undone), ([], []))
        self.threads.run()
        self.assertEqual(self.undone, ["done"])

    def test_cancelled_and_failed(self) -> None:
        """An error that nobody waits for any more is nobody's."""
        running = self.run_call(fail)
        running.cancel()
        self.failureResultOf(running, CancelledError)
        self.threads.run()
        self.assertEqual((self.undone, self.flushLoggedErrors()), ([], []))

    def test_cancelled_is_not_late(self) -> None:
        """One who did not want to wait says nothing about the disk: others are served."""
        running = self.run_call(lambda: "done")
        running.cancel()
        self.failureResultOf(running, CancelledError)
        self.clock.advance(60)
        other = self.run_call(lambda: "other")
        self.threads.run()
        self.assertEqual(self.successResultOf(other), "other")


class RunDetachedTests(BlockingCallsCase):
    """`BlockingCalls.run_detached`"""

    def test_in_a_thread(self) -> None:
        """Work that nobody waits for is done in a thread, sooner or later."""
        done: list[str] = []
        self.blocking_calls.run_detached(lambda: done.append("done"))
        self.assertEqual(done, [])
        self.threads.run()
        self.assertEqual(done, ["done"])

    def test_without_a_thread(self) -> None:
        """Without a thread to be had it is done here and now, rather than never."""
        done: list[str] = []
        BlockingCalls(self.clock, no_thread).run_detached(lambda: done.append("done"))
        self.assertEqual(done, ["done"])

    def test_failure(self) -> None:
        """What it fails with is logged, since nobody else hears of it."""
        self.blocking_calls.run_detached(fail)
        self.threads.run()
        self.assertEqual([failure.value for failure in self.flushLoggedErrors(OSError)], [FULL])

    def test_while_one_is_late(self) -> None:
        """It is taken while other work is late: a descriptor has to be closed some time."""
        late = self.run_call(lambda: "late")
        self.clock.advance(10)
        self.failureResultOf(late, TimeoutError)
        done: list[str] = []
        self.blocking_calls.run_detached(lambda: done.append("done"))
        self.threads.run()
        self.assertEqual(done, ["done"])
