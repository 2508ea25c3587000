"""Deadlines, and timeouts for lack of progress."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline, ProgressTimeout
from audioproxy.concurrency.threads import await_uncancelled


class ProgressTimeoutTests(SynchronousTestCase):
    """`ProgressTimeout`"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.called: list[float] = []
        self.timeout = ProgressTimeout(
            self.clock, 10, lambda: self.called.append(self.clock.seconds())
        )

    def test_expires(self) -> None:
        """After the timeout the callback is called once; each reset restarts the timeout."""
        for _ in range(5):
            self.clock.advance(9)
            self.timeout.reset()
        self.clock.advance(9.9)
        self.assertEqual((self.called, self.timeout.expired), ([], False))
        self.clock.advance(0.1)
        self.timeout.reset()
        self.timeout.cancel()
        self.clock.advance(60)
        self.assertEqual((self.called, self.timeout.expired), ([55], True))

    def test_stopped(self) -> None:
        """A cancelled timeout never expires, a reset does not restart it, and no timer is left."""
        self.timeout.cancel()
        self.timeout.cancel()
        self.timeout.reset()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.clock.advance(60)
        self.assertEqual((self.called, self.timeout.expired), ([], False))


class DeadlineTests(SynchronousTestCase):
    """`Deadline`"""

    def test_exempt(self) -> None:
        """Exempt work has its own limit; what remains of the deadline remains afterwards."""
        for seconds, error in ((29, None), (30, TimeoutError)):
            deadline, step = Deadline(self.clock, 10), Deferred[str]()
            self.clock.advance(4)
            exempt = Deferred.fromCoroutine(deadline.exempt(step, 30))
            self.clock.advance(seconds)
            if error is None:
                step.callback("done")
                self.assertEqual("done", self.successResultOf(exempt))
            else:
                self.failureResultOf(exempt, error)
            self.assertEqual(6, deadline.remaining)

    def setUp(self) -> None:
        self.clock = Clock()
        self.step: Deferred[str] = Deferred()

    def begin(self, work: Coroutine[Any, Any, str], seconds: float = 10) -> Deferred[str]:
        """Start a coroutine with a timeout."""
        return Deferred.fromCoroutine(Deadline(self.clock, seconds).limit(work))

    async def work(self) -> str:
        """Wait for `step`."""
        return await self.step

    def test_in_time(self) -> None:
        """A result or an error in time is passed on, and no timer is left."""
        working = self.begin(self.work())
        self.clock.advance(9.9)
        self.step.callback("done")
        self.assertEqual("done", self.successResultOf(working))
        self.step = Deferred()
        working = self.begin(self.work())
        self.step.errback(KeyError())
        self.failureResultOf(working, KeyError)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_late(self) -> None:
        """After exactly the timeout the coroutine is cancelled; Python's TimeoutError is raised."""
        for seconds in (10, 0, -1):
            self.step = Deferred()
            working = self.begin(self.work(), seconds)
            self.assertNoResult(working)
            self.clock.advance(max(0, seconds))
            error = self.failureResultOf(working, TimeoutError).value
            self.assertIsInstance(error, OSError)

    def test_cleanup(self) -> None:
        """A timeout or a cancellation is raised once the coroutine has ended; no timer is left."""
        for cancelled in (False, True):
            self.step = Deferred()
            working = self.begin(await_uncancelled(self.step))
            if cancelled:
                working.cancel()
            else:
                self.clock.advance(10)
            self.assertNoResult(working)
            self.step.callback("done")
            self.failureResultOf(working, CancelledError if cancelled else TimeoutError)
            self.assertEqual([], self.clock.getDelayedCalls())

    def test_error_of_the_cleanup(self) -> None:
        """If a coroutine handles its cancellation, its own result or error is passed on."""

        async def work(outcome: dict[str, str]) -> str:
            try:
                return await Deferred[str]()
            except CancelledError:
                return outcome["saved"]

        saved, lost = self.begin(work({"saved": "done"})), self.begin(work({}))
        self.clock.advance(10)
        self.assertEqual("done", self.successResultOf(saved))
        self.failureResultOf(lost, KeyError)

    def test_left(self) -> None:
        """The remaining seconds run out; then the deadline's own error is raised."""
        deadline = Deadline(self.clock, 10, lambda: KeyError("late"))
        self.clock.advance(9)
        self.assertEqual((1, 1), (deadline.left(), deadline.remaining))
        self.clock.advance(5)
        self.assertEqual(0, deadline.remaining)
        self.assertRaises(KeyError, deadline.left)
        working = Deferred.fromCoroutine(deadline.limit(Deferred[str]()))
        self.clock.advance(0)
        self.failureResultOf(working, KeyError)
