"""Work that would block the reactor, on threads, and a wait for it that nothing cuts short."""

from __future__ import annotations

import errno
from collections.abc import Callable
from threading import Thread
from typing import Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorFromThreads
from twisted.logger import Logger
from twisted.python.failure import Failure

_log = Logger()

T = TypeVar("T")


class InThread(Protocol):
    """Runs a function in a thread of its own.

    It raises OSError where none can be started.
    """

    def __call__(self, work: Callable[[], T]) -> Deferred[T]: ...  # noqa: D102


def thread_per_call(reactor: IReactorFromThreads) -> InThread:
    """Return what starts a new thread for each piece of work.

    The reactor's pool is small and has other things to do, while this work may last as long as
    a render. A process that ends does not wait for these threads.
    """

    def begin(work: Callable[[], T]) -> Deferred[T]:
        done: Deferred[T] = Deferred()

        def run() -> None:
            try:
                outcome = work()
            except BaseException:
                reactor.callFromThread(done.errback, Failure())
            else:
                reactor.callFromThread(done.callback, outcome)

        try:
            Thread(target=run, name="audioproxy", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error
        return done

    return begin


def run_detached(in_thread: InThread, work: Callable[[], object]) -> None:
    """Do work that nobody waits for in a thread; where none can be started, here and now."""
    try:
        running = in_thread(work)
    except OSError:
        work()
    else:
        running.addErrback(lambda failure: _log.failure("work in a thread failed", failure))


async def await_uncancelled(running: Deferred[T]) -> T:
    """Wait for work that cannot be stopped; one who is cancelled waits all the same.

    Whoever let go earlier would close files that the work still uses.
    """
    outcomes: list[T | Failure] = []
    waiting: list[Deferred[None]] = []

    def end(outcome: T | Failure) -> None:
        outcomes.append(outcome)
        for waiter in waiting:
            waiter.callback(None)

    running.addBoth(end)
    cancelled = False
    while not outcomes:
        waiting.append(Deferred(waiting.remove))
        try:
            await waiting[-1]
        except CancelledError:
            cancelled = True
    if cancelled:
        raise CancelledError
    outcome = outcomes[0]
    if isinstance(outcome, Failure):
        outcome.raiseException()
    return outcome
