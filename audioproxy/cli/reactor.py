"""Work that needs a reactor, and what the log says meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure
from zope.interface import provider

from audioproxy.cli.exit_status import complain

T = TypeVar("T")


def run(work: Callable[[Any], Coroutine[Any, Any, T]], observer: ILogObserver | None = None) -> T:
    """Run the reactor until some work is done, once in a process.

    :param observer: hears the log in place of who reads stderr.
    :returns: what the work returned; what it raises is raised here.
    """
    from twisted.internet import reactor

    globalLogBeginner.beginLoggingTo([observer or _complain], redirectStandardIO=False)
    outcome: list[T | Failure] = []

    def end(result: T | Failure) -> None:
        if not outcome:
            outcome.append(result)
            reactor.stop()

    def begin() -> None:
        working = Deferred.fromCoroutine(work(reactor))

        def interrupt() -> None:
            if not outcome:
                # A signal has stopped the reactor.
                outcome.append(Failure(KeyboardInterrupt()))
                working.cancel()

        reactor.addSystemEventTrigger("before", "shutdown", interrupt)
        working.addBoth(end)

    reactor.callWhenRunning(begin)
    reactor.run()
    if isinstance(outcome[0], Failure):
        outcome[0].raiseException()
    return outcome[0]


@provider(ILogObserver)
def _complain(event: LogEvent) -> None:
    level = event.get("log_level")
    if level is not None and level >= LogLevel.warn:
        complain(formatEvent(event))
