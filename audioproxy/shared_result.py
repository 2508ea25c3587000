"""One result that any number of coroutines wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


class SharedResult(Generic[T]):
    """A result that is set once, with a separate Deferred for each waiter.

    A single Deferred is not enough: if two coroutines await it, the second gets None. Cancelling
    one waiter does not affect the others.
    """

    def __init__(self, abandoned: Callable[[], object] = lambda: None) -> None:
        """Create a pending result.

        :param abandoned: called when the last waiter is cancelled before the result is set.
        """
        self._abandoned = abandoned
        self._waiters: list[Deferred[T]] = []
        self._outcome: tuple[T | Failure] | None = None

    @property
    def fired(self) -> bool:
        """Whether the result is set."""
        return self._outcome is not None

    def wait(self) -> Deferred[T]:
        """Return a new Deferred that fires with the result, at once if it is already set."""
        waiter: Deferred[T] = Deferred(self._leave)
        if self._outcome is None:
            self._waiters.append(waiter)
        else:
            waiter.callback(self._outcome[0])
        return waiter

    def fire(self, outcome: T | Failure) -> None:
        """Fire all waiters with the result or the failure; only the first outcome counts."""
        if self._outcome is not None:
            return
        self._outcome = (outcome,)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            # An earlier waiter may have cancelled this one.
            if not waiter.called:
                waiter.callback(outcome)

    def _leave(self, waiter: Deferred[T]) -> None:
        # While `fire` runs, a cancelled waiter may already be removed from the list.
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            if not self._waiters:
                self._abandoned()
