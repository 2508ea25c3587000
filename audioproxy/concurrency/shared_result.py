"""Results with any number of waiters: of one event, of calls by key, and of a counter."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from audioproxy.concurrency.deadlines import Deadline

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedResult(Generic[T]):
    """A result that is set once, with a separate Deferred for each waiter.

    A single Deferred is not enough: if two coroutines await it, the second gets None. Cancelling
    one waiter does not affect the others.

    :param abandoned: called when the last waiter is cancelled before the result is set.
    """

    def __init__(self, abandoned: Callable[[], object] = lambda: None) -> None:
        self._abandoned = abandoned
        self._waiters: list[Deferred[T]] = []
        self._outcome: tuple[T | Failure] | None = None

    @property
    def fired(self) -> bool:
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
        # The callback mostly refers to this object. Such a cycle would be freed by the garbage
        # collector only, which would run more often.
        self._abandoned = lambda: None
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


class SharedCalls(Generic[K, T]):
    """Calls in flight: one for each key, shared by all callers with that key."""

    def __init__(self) -> None:
        self._joinable: dict[K, SharedResult[T]] = {}

    def join(self, key: K, start: Callable[[], Coroutine[Any, Any, T]]) -> Deferred[T]:
        """Return the result of the call of ``key``, which is started if none is in flight.

        Cancelling one caller does not affect the others. The last one cancels the call.
        """
        shared = self._joinable.get(key)
        if shared is None:
            shared = self._start(key, start())
        return shared.wait()

    def detach(self, key: K) -> None:
        """Let the next caller start another call; earlier callers still get their result."""
        self._joinable.pop(key, None)

    def _start(self, key: K, call: Coroutine[Any, Any, T]) -> SharedResult[T]:
        def unregister() -> None:
            if self._joinable.get(key) is shared:
                del self._joinable[key]

        def abandon() -> None:
            # A caller that arrives while the call is cancelled starts another one.
            unregister()
            running.cancel()

        def finish(outcome: T | Failure) -> None:
            unregister()
            shared.fire(outcome)

        shared: SharedResult[T] = SharedResult(abandon)
        self._joinable[key] = shared
        running = Deferred.fromCoroutine(call)
        running.addBoth(finish)
        return shared


class InFlightCounter:
    """The number of operations that have begun and not ended."""

    def __init__(self) -> None:
        self.count = 0
        self._idle: SharedResult[None] = SharedResult()

    def begin(self) -> None:
        self.count += 1

    def end(self) -> None:
        self.count -= 1
        if not self.count:
            idle, self._idle = self._idle, SharedResult()
            idle.fire(None)

    async def wait_until_idle(self, deadline: Deadline) -> None:
        if self.count:
            with suppress(TimeoutError):
                await deadline.limit(self._idle.wait())
