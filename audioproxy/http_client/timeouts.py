"""How long to wait for what does not come: for progress, and for a piece of work."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

T = TypeVar("T")


class Watch:
    """Calls something off that makes no progress for a while."""

    def __init__(self, clock: IReactorTime, seconds: float, call_off: Callable[[], object]) -> None:
        self.expired = False
        self._seconds = seconds
        self._call_off = call_off
        self._deadline: IDelayedCall = clock.callLater(seconds, self._expire)

    def extend(self) -> None:
        """Hear of progress."""
        if self._deadline.active():
            self._deadline.reset(self._seconds)

    def stop(self) -> None:
        """Watch no more."""
        if self._deadline.active():
            self._deadline.cancel()

    def _expire(self) -> None:
        self.expired = True
        self._call_off()


async def within(clock: IReactorTime, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Do some work, or call it off when its time is over.

    :raises TimeoutError: when it is.
    """
    running = Deferred.fromCoroutine(work)
    deadline = clock.callLater(max(0.0, seconds), running.cancel)
    try:
        return await running
    except CancelledError:
        if deadline.active():
            raise
        raise TimeoutError(f"{seconds:g} seconds are over") from None
    finally:
        if deadline.active():
            deadline.cancel()
