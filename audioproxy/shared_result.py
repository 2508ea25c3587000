"""One result that any number of coroutines wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


class SharedResult(Generic[T]):
    """A result that comes once, and a Deferred of its own for each who waits for it.

    One Deferred would not do: of two coroutines that await it, the second gets None. A waiter that
    is cancelled leaves the others waiting.
    """

    def __init__(self, abandoned: Callable[[], object] = lambda: None) -> None:
        """Begin without a result.

        :param abandoned: called when the last waiter was cancelled before the result came.
        """
        self._abandoned = abandoned
        self._waiters: list[Deferred[T]] = []
        self._outcome: tuple[T | Failure] | None = None

    @property
    def fired(self) -> bool:
        """Whether the result has come."""
        return self._outcome is not None

    def wait(self) -> Deferred[T]:
        """Return a new Deferred that fires with the result, or has fired if it has come."""
        waiter: Deferred[T] = Deferred(self._leave)
        if self._outcome is None:
            self._waiters.append(waiter)
        else:
            waiter.callback(self._outcome[0])
        return waiter

    def fire(self, outcome: T | Failure) -> None:
        """Give all waiters the result, or the failure; only the first outcome counts."""
        if self._outcome is not None:
            return
        self._outcome = (outcome,)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            # An earlier one may have cancelled it.
            if not waiter.called:
                waiter.callback(outcome)

    def _leave(self, waiter: Deferred[T]) -> None:
        # While `fire` runs, a waiter may be cancelled that is not on the list any more.
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            if not self._waiters:
                self._abandoned()
