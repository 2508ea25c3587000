"""Timeouts for the progress of a transfer, and for a coroutine as a whole."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

T = TypeVar("T")


class ProgressTimeout:
    """Calls a function once if it is not reset for a number of seconds.

    ``Deferred.addTimeout`` is not suitable, since it cannot be extended.

    :ivar expired: the function was called.
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
        """Stop the timer. Calling this again has no effect."""
        if self._delayed_call.active():
            self._delayed_call.cancel()

    def _expire(self) -> None:
        self.expired = True
        self._on_timeout()


async def with_timeout(clock: IReactorTime, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; on timeout, cancel it and wait for its cleanup.

    :raises TimeoutError: on timeout.
    """
    running = Deferred.fromCoroutine(work)
    running.addTimeout(max(0.0, seconds), clock, lambda outcome, _: _as_timeout(outcome, seconds))
    return await running


def _as_timeout(outcome: T | Failure, seconds: float) -> T:
    """Return the result of a coroutine that its timeout has cancelled, or raise ``TimeoutError``.

    Twisted's default raises ``twisted.internet.defer.TimeoutError``, which is not an OSError.
    """
    if not isinstance(outcome, Failure):
        return outcome
    outcome.trap(CancelledError)
    raise TimeoutError(f"{seconds:g} seconds have passed") from None
