"""Threads for work that would block the reactor, and a wait that survives cancellation."""

from __future__ import annotations

import errno
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol, TypeAlias, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorFromThreads
from twisted.python.failure import Failure

from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.observe.log_context import Logger

# Seconds for which a thread waits for its next call.
_IDLE_SECONDS = 5.0

_log = Logger()

T = TypeVar("T")

#: Work, and what fires with its result.
Call: TypeAlias = tuple[Callable[[], Any], Deferred[Any]]


class ThreadRunner(Protocol):
    """Runs a function in a thread; raises OSError where none can be started."""

    def __call__(self, work: Callable[[], T]) -> Deferred[T]: ...


def thread_per_call(reactor: IReactorFromThreads) -> ThreadRunner:
    """Return a runner with a thread for each call that has not ended.

    The reactor's pool is small, and these calls may last as long as a render. The process does not
    wait for these threads when it ends. They are reused, since starting one waits until it runs.
    """
    lock = Lock()
    idle: list[SimpleQueue[Call]] = []

    def start(work: Callable[[], T]) -> Deferred[T]:
        done: Deferred[T] = Deferred()
        with lock:
            calls = idle.pop() if idle else None
        if calls is not None:
            calls.put((work, done))
            return done
        calls = SimpleQueue()
        calls.put((work, done))
        try:
            Thread(target=run, args=(calls,), name="audioproxy", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error
        return done

    def run(calls: SimpleQueue[Call]) -> None:
        while True:
            try:
                work, done = calls.get(timeout=_IDLE_SECONDS)
            except Empty:
                with lock:
                    if calls in idle:
                        idle.remove(calls)
                        return
                # The next call has just come.
                continue
            outcome: Any
            try:
                outcome = work()
            except BaseException:
                outcome = Failure()
            with lock:
                idle.append(calls)
            # A failure calls the errbacks.
            reactor.callFromThread(done.callback, outcome)
            # They may be large, and nobody needs them while this thread waits.
            del work, done, outcome

    return start


def bounded(run_in_thread: ThreadRunner, most: int) -> ThreadRunner:
    """Return a runner of up to ``most`` calls at a time; further calls wait in order."""
    semaphore = DeferredSemaphore(most)

    def start(work: Callable[[], T]) -> Deferred[T]:
        if not semaphore.tokens:
            return semaphore.run(run_in_thread, work)
        running = run_in_thread(work)
        # There is a token, so this does not wait.
        semaphore.acquire()
        return running.addBoth(release)

    def release(outcome: T) -> T:
        semaphore.release()
        return outcome

    return start


def run_detached(run_in_thread: ThreadRunner, work: Callable[[], object]) -> None:
    """Run a function in a thread without waiting for it; inline where no thread can be started."""
    try:
        running = run_in_thread(work)
    except OSError:
        work()
    else:
        running.addErrback(lambda failure: _log.failure("work in a thread failed", failure))


async def await_uncancelled(running: Deferred[T], stop: Callable[[], object] = lambda: None) -> T:
    """Wait for work that cannot be cancelled; raise CancelledError only after it has ended.

    A caller that returned earlier would close files that the work still uses. On cancellation,
    ``stop`` lets the work end soon.
    """
    result: SharedResult[T] = SharedResult()
    running.addBoth(result.fire)
    cancelled = False
    while not result.fired:
        try:
            await result.wait()
        except Exception:
            # Until there is a result, only a cancellation of this wait raises.
            if not result.fired:
                cancelled = True
                stop()
    if cancelled:
        raise CancelledError
    return await result.wait()
