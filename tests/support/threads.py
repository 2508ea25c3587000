"""Threads that begin when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, execute

T = TypeVar("T")


class FakeThreads:
    """Takes work as a pool of threads does, and does it all in `run`.

    :ivar waiting: how much work has come and is not done.
    """

    def __init__(self) -> None:
        self._work: list[tuple[Deferred[Any], Callable[[], Any]]] = []

    @property
    def waiting(self) -> int:
        """How much work has come and is not done."""
        return len(self._work)

    def in_thread(self, work: Callable[[], T]) -> Deferred[T]:
        """Take work; what cancels the Deferred does not stop the work."""
        done: Deferred[T] = Deferred()
        self._work.append((done, work))
        return done

    def run(self) -> None:
        """Do all work, and what comes of it."""
        while self._work:
            done, work = self._work.pop(0)
            execute(work).chainDeferred(done)
