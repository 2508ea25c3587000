"""A wait for work on a thread, which nothing cuts short."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.threads import outlast


class OutlastTests(SynchronousTestCase):
    """`outlast`"""

    def setUp(self) -> None:
        self.work: Deferred[str] = Deferred()
        self.waiting = Deferred.fromCoroutine(outlast(self.work))

    def test_result(self) -> None:
        """The result of the work is the result of the wait."""
        self.assertNoResult(self.waiting)
        self.work.callback("done")
        self.assertEqual(self.successResultOf(self.waiting), "done")

    def test_no_result(self) -> None:
        """Work may have nothing to say."""
        self.work.callback(None)  # type: ignore[arg-type]
        self.assertIsNone(self.successResultOf(self.waiting))

    def test_failure(self) -> None:
        """What the work fails with, the wait fails with."""
        self.work.errback(Failure(OSError(28, "No space left on device")))
        self.assertEqual(self.failureResultOf(self.waiting).value.errno, 28)

    def test_done_before(self) -> None:
        """Work that is done by now is not waited for."""
        waiting = Deferred.fromCoroutine(outlast(succeed("done")))
        self.assertEqual(self.successResultOf(waiting), "done")
        self.failureResultOf(Deferred.fromCoroutine(outlast(fail(OSError()))), OSError)

    def test_cancelled(self) -> None:
        """One who is cancelled comes back when the work is done, and not before."""
        self.waiting.cancel()
        self.assertNoResult(self.waiting)
        self.work.callback("done")
        self.failureResultOf(self.waiting, CancelledError)

    def test_cancelled_again(self) -> None:
        """However often that happens."""
        for _ in range(5):
            self.waiting.cancel()
            self.assertNoResult(self.waiting)
        self.work.callback("done")
        self.failureResultOf(self.waiting, CancelledError)

    def test_cancelled_and_failed(self) -> None:
        """One who is cancelled hears of that, not of a failure that nobody waits for."""
        self.waiting.cancel()
        self.work.errback(Failure(OSError()))
        self.failureResultOf(self.waiting, CancelledError)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_work_that_ends_cancelled(self) -> None:
        """Work that ends as cancelled by others is over, too."""
        self.work.errback(Failure(CancelledError()))
        self.failureResultOf(self.waiting, CancelledError)
