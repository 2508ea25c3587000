"""Runner of a store's blocking calls. The caller has a timeout; the call in its thread has none."""

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
    """Runner of system calls that may block for an unlimited time, each in a thread.

    A thread that hangs in a system call cannot be stopped. So no caller waits longer than its
    timeout. While a call is overdue, or ``most`` are running, new calls are refused, so that
    no more threads hang.
    """

    def __init__(
        self, clock: IReactorTime, run_in_thread: ThreadRunner, most: int = _MAX_CALLS
    ) -> None:
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._most = most
        self._overdue = 0
        self._in_flight = 0

    async def run(
        self,
        work: Callable[[], T],
        seconds: float,
        undo: Callable[[T], object] = lambda result: None,
    ) -> T:
        """Run a call in a thread and return its result.

        :param undo: called with a result that arrives after the caller has left.
        :raises TimeoutError: after ``seconds``, or at once while new calls are refused.
        :raises OSError: raised by the call, or where no thread can be started.
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
