"""Work that needs a reactor, and what the log says meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure
from zope.interface import provider

from audioproxy.cli.outcome import complain

T = TypeVar("T")


def run(work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Run the reactor until some work is done, once in a process.

    :returns: what the work returned; what it raises is raised here.
    """
    from twisted.internet import reactor

    globalLogBeginner.beginLoggingTo([_complain], redirectStandardIO=False)
    outcome: list[T | Failure] = []

    def end(result: T | Failure) -> None:
        outcome.append(result)
        reactor.stop()

    def begin() -> None:
        Deferred.fromCoroutine(work(reactor)).addBoth(end)

    reactor.callWhenRunning(begin)
    reactor.run()
    if not outcome:
        # A signal has stopped the reactor.
        raise KeyboardInterrupt
    if isinstance(outcome[0], Failure):
        outcome[0].raiseException()
    return outcome[0]


@provider(ILogObserver)
def _complain(event: LogEvent) -> None:
    level = event.get("log_level")
    if level is not None and level >= LogLevel.warn:
        complain(formatEvent(event))
