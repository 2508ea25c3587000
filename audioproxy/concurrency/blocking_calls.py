"""System calls in threads: the caller has a timeout; the call in its thread has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from audioproxy.concurrency.threads import ThreadRunner, run_detached

T = TypeVar("T")

# Simultaneous calls. Each holds a thread and an open file of a render.
_MAX_CALLS = 64


class BlockingCalls:
    """Runner of system calls that may hang, each in a thread, which cannot be stopped.

    While a call is overdue, or ``most`` are running, new calls are refused, so that no more threads
    hang.
    """

    def __init__(
        self, clock: IReactorTime, run_in_thread: ThreadRunner, most: int = _MAX_CALLS
    ) -> None:
        self._clock, self._run_in_thread, self._most = clock, run_in_thread, most
        self._overdue = self._in_flight = 0

    async def run(
        self,
        work: Callable[[], T],
        seconds: float,
        undo: Callable[[T], object] = lambda result: None,
    ) -> T:
        """Run a call in a thread and return its result, or raise OSError, as it does.

        :param undo: called with a result that arrives after the caller has left.
        :raises TimeoutError: after ``seconds``, or at once while new calls are refused.
        """
        if self._overdue:
            raise TimeoutError("an earlier call has not returned")
        if self._in_flight >= self._most:
            raise TimeoutError(f"{self._most} calls have not returned")
        running = self._run_in_thread(work)
        self._in_flight += 1
        # The timeout cancels only the waiter, since the thread cannot be cancelled.
        waiter: Deferred[T] = Deferred()
        overdue = False

        def on_timeout(_: object, __: float) -> T:
            nonlocal overdue
            overdue = True
            self._overdue += 1
            raise TimeoutError(f"no response for {seconds:g} seconds")

        def on_end(outcome: T | Failure) -> None:
            self._overdue -= overdue
            self._in_flight -= 1
            if not waiter.called:
                waiter.callback(outcome)
            elif not isinstance(outcome, Failure):
                undo(outcome)

        running.addBoth(on_end)
        return await waiter.addTimeout(seconds, self._clock, on_timeout)

    def run_detached(self, work: Callable[[], object]) -> None:
        run_detached(self._run_in_thread, work)
