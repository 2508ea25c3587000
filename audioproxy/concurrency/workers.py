"""Work on several items at a time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, gatherResults
from twisted.python.failure import Failure

from audioproxy.concurrency.threads import await_uncancelled

T = TypeVar("T")


async def all_results(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of several works, which run side by side, when all of them have ended.

    The first failure, or a cancellation of the caller, cancels the other works.
    """
    failures: list[Failure] = []

    def cancel() -> None:
        for work in running:
            work.cancel()

    def stop_others(failure: Failure) -> None:
        failures.append(failure)
        cancel()

    running = [Deferred.fromCoroutine(work) for work in works]
    ended: Deferred[list[Any]] = gatherResults([work.addErrback(stop_others) for work in running])
    results = await await_uncancelled(ended, cancel)
    if failures:
        failures[0].raiseException()
    return results


async def for_each(
    items: Iterable[T], work: Callable[[T], Coroutine[Any, Any, object]], most: int
) -> None:
    """Do some work for each item, for at most ``most`` of them at a time.

    The first failure, or a cancellation of the caller, cancels the work under way.
    """
    waiting = iter(items)

    async def run_worker() -> None:
        for item in waiting:
            await work(item)

    await all_results(run_worker() for _ in range(most))
