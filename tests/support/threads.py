"""Thread pool double whose work runs only when a test calls `FakeThreads.run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, execute

T = TypeVar("T")


class FakeThreads:
    """Thread pool double that queues work until `run`.

    :ivar waiting: the number of queued calls.
    """

    def __init__(self) -> None:
        self._work: list[tuple[Deferred[Any], Callable[[], Any]]] = []

    @property
    def waiting(self) -> int:
        """The number of queued calls."""
        return len(self._work)

    def in_thread(self, work: Callable[[], T]) -> Deferred[T]:
        """Queue a call and return a Deferred of its result; cancellation does not stop the call."""
        done: Deferred[T] = Deferred()
        self._work.append((done, work))
        return done

    def run(self) -> None:
        """Run all queued calls, including those that they queue."""
        while self._work:
            self.run_next()

    def run_next(self) -> None:
        """Run the call that was queued first."""
        done, work = self._work.pop(0)
        execute(work).chainDeferred(done)
