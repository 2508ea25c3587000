"""Runs a coroutine in the global reactor, and prints the warnings that Twisted logs meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure
from zope.interface import provider

from audioproxy._twisted import use_monotonic_clock
from audioproxy.cli.output import print_errors

T = TypeVar("T")

# Seconds that a cancelled coroutine has to clean up.
_CLEANUP_TIMEOUT = 10


def run(work: Callable[[Any], Coroutine[Any, Any, T]], least: Any = LogLevel.warn) -> T:
    """Return the result of a coroutine, or raise its exception. A process can call this once.

    A signal that stops the reactor cancels the coroutine, waits for it, at most 10 seconds, and
    raises ``KeyboardInterrupt``.

    :param least: the lowest level of log events that are printed to stderr.
    """

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        level = event.get("log_level")
        if level is not None and level >= least:
            print_errors(formatEvent(event))

    globalLogBeginner.beginLoggingTo([observe], redirectStandardIO=False)
    outcomes: list[T | Failure] = []

    async def main(reactor: Any) -> None:
        use_monotonic_clock(reactor)
        # Wait until the reactor runs: before that, a signal would not cancel the coroutine.
        running: Deferred[None] = Deferred()
        reactor.callWhenRunning(running.callback, None)
        await running
        working = Deferred.fromCoroutine(work(reactor))
        ended: Deferred[None] = Deferred()

        def interrupt() -> Deferred[None] | None:
            if working.called:
                return None
            outcomes.append(Failure(KeyboardInterrupt()))
            working.cancel()
            # The reactor runs on while the coroutine cleans up.
            ended.addTimeout(_CLEANUP_TIMEOUT, reactor).addErrback(lambda failure: None)
            return ended

        reactor.addSystemEventTrigger("before", "shutdown", interrupt)
        # A failure goes to `outcomes` and not to `react`, which would log it.
        await working.addBoth(outcomes.append)
        ended.callback(None)

    # `react` raises SystemExit with an exit status that does not apply here.
    with suppress(SystemExit):
        react(main)
    if isinstance(outcomes[0], Failure):
        outcomes[0].raiseException()
    return outcomes[0]
