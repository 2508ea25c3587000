"""Work on many items, some of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, FirstError, gatherResults

T = TypeVar("T")


async def for_each(
    items: Iterable[T], work: Callable[[T], Coroutine[Any, Any, object]], most: int
) -> None:
    """Do some work for each item, for at most ``most`` of them at a time.

    If the caller is cancelled, the work under way is cancelled too.

    :raises Exception: the first that the work raises; the other work under way is cancelled then.
    """
    waiting = iter(items)

    async def run_worker() -> None:
        for item in waiting:
            await work(item)

    workers = [Deferred.fromCoroutine(run_worker()) for _ in range(most)]
    try:
        await gatherResults(workers, consumeErrors=True)
    except FirstError as error:
        error.subFailure.raiseException()
    finally:
        for worker in workers:
            worker.cancel()
