"""Limits of time: a deadline for work of several steps, and a timeout for lack of progress."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

T = TypeVar("T")


class Deadline:
    """The time by which work has to be over.

    :param error: makes what is raised past the deadline.
    """

    def __init__(
        self, clock: IReactorTime, seconds: float, error: Callable[[], BaseException] = TimeoutError
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._end = clock.seconds() + seconds
        self._error = error

    @property
    def remaining(self) -> float:
        return max(0.0, self._end - self._clock.seconds())

    @property
    def elapsed(self) -> float:
        """The seconds that are over, at most those of the whole deadline."""
        return self._seconds - self.remaining

    def left(self) -> float:
        """Return the remaining seconds, or raise the error of the deadline."""
        if not self.remaining:
            raise self._error()
        return self.remaining

    async def limit(self, work: Coroutine[Any, Any, T] | Deferred[T]) -> T:
        """Return the result of work; at the deadline, cancel it and wait for its cleanup."""
        running = work if isinstance(work, Deferred) else Deferred.fromCoroutine(work)
        return await running.addTimeout(self.remaining, self._clock, self._replace_cancellation)

    async def exempt(self, work: Coroutine[Any, Any, T] | Deferred[T], seconds: float) -> T:
        """Return the result of work that has a limit of its own and takes no time from this one."""
        left = self.left()
        self._end = self._clock.seconds() + seconds
        try:
            return await self.limit(work)
        finally:
            self._end = self._clock.seconds() + left

    def _replace_cancellation(self, outcome: T | Failure, _seconds: float) -> T:
        # Work that handles its cancellation may still have a result or an error of its own.
        if not isinstance(outcome, Failure):
            return outcome
        outcome.trap(CancelledError)
        raise self._error() from None


class ProgressTimeout:
    """Calls a function once if it is not reset for a number of seconds.

    ``Deferred.addTimeout`` is not suitable, since it cannot be extended.
    """

    def __init__(
        self, clock: IReactorTime, seconds: float, on_timeout: Callable[[], object]
    ) -> None:
        self.expired = False
        self._seconds = seconds
        self._on_timeout = on_timeout
        self._delayed_call: IDelayedCall = clock.callLater(seconds, self._expire)

    def reset(self) -> None:
        """Restart the timer, unless it has expired or was cancelled."""
        if self._delayed_call.active():
            self._delayed_call.reset(self._seconds)

    def cancel(self) -> None:
        if self._delayed_call.active():
            self._delayed_call.cancel()

    def _expire(self) -> None:
        self.expired = True
        self._on_timeout()
