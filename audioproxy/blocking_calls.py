"""Blocking work for a store: whoever waits for it has a deadline, the work itself has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from audioproxy.threads import InThread, run_detached

T = TypeVar("T")

# Calls at a time: each has a thread, and a render's file open.
_MOST = 64


class BlockingCalls:
    """Runs calls that a disk may take any time for, each in a thread.

    A thread that hangs in a system call cannot be stopped. So nobody waits for it past a
    deadline, and nobody sends another after it: while one is late, all new work is refused, as
    it is beyond so many at a time.
    """

    def __init__(self, clock: IReactorTime, in_thread: InThread) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._late = 0
        self._running = 0

    async def run(
        self,
        work: Callable[[], T],
        seconds: float,
        undo: Callable[[T], object] = lambda result: None,
    ) -> T:
        """Do work and return its result.

        :param undo: told of a result that came too late, or after its waiter was cancelled.
        :raises TimeoutError: past ``seconds``, or at once while earlier work is late.
        :raises OSError: the work's own, or that of a thread that cannot be started.
        """
        if self._late:
            raise TimeoutError("an earlier call has not come back")
        if self._running >= _MOST:
            raise TimeoutError(f"{_MOST} calls have not come back")
        running = self._in_thread(work)
        self._running += 1
        waiter: Deferred[T] = Deferred()
        late = False

        def give_up() -> None:
            nonlocal late
            late = True
            self._late += 1
            waiter.errback(TimeoutError(f"no answer for {seconds:g} seconds"))

        def come_back(outcome: T | Failure) -> None:
            self._late -= late
            self._running -= 1
            if not waiter.called:
                waiter.callback(outcome)
            elif not isinstance(outcome, Failure):
                undo(outcome)

        running.addBoth(come_back)
        deadline = self._clock.callLater(seconds, give_up)
        try:
            return await waiter
        finally:
            if deadline.active():
                deadline.cancel()

    def later(self, work: Callable[[], object]) -> None:
        """Do work that nobody waits for."""
        run_detached(self._in_thread, work)
