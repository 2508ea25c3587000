"""What goes wrong on the way to another machine, and how long to wait for what does not come."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from OpenSSL.SSL import Error as TlsError
from service_identity import VerificationError
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from audioproxy.media.diagnostics import without_secrets

T = TypeVar("T")


class Unreachable(Exception):
    """There was no answer, or not the whole of one. The text says why."""


class Untrusted(Unreachable):
    """The other side could not prove by its certificate who it is."""


class Watch:
    """Calls something off that makes no progress for a while."""

    def __init__(self, clock: IReactorTime, seconds: float, call_off: Callable[[], object]) -> None:
        self.expired = False
        self._seconds = seconds
        self._call_off = call_off
        self._deadline: IDelayedCall = clock.callLater(seconds, self._expire)

    def extend(self) -> None:
        """Hear of progress."""
        if self._deadline.active():
            self._deadline.reset(self._seconds)

    def stop(self) -> None:
        """Watch no more."""
        if self._deadline.active():
            self._deadline.cancel()

    def _expire(self) -> None:
        self.expired = True
        self._call_off()


async def within(clock: IReactorTime, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Do some work, or call it off when its time is over.

    :raises TimeoutError: when it is.
    """
    running = Deferred.fromCoroutine(work)
    deadline = clock.callLater(max(0.0, seconds), running.cancel)
    try:
        return await running
    except CancelledError:
        if deadline.active():
            raise
        raise TimeoutError(f"{seconds:g} seconds are over") from None
    finally:
        if deadline.active():
            deadline.cancel()


def explain(error: BaseException | None, expired: bool = False) -> Exception:
    """Return why there is no answer, or not all of it, as one of the classes here.

    :param expired: it was called off for want of progress.
    """
    causes = list(_causes(error))
    if isinstance(error, Unreachable):
        return error
    if expired:
        return Unreachable("no answer in time")
    if any(isinstance(cause, CancelledError | ConnectingCancelledError) for cause in causes):
        return CancelledError()
    for cause in causes:
        if isinstance(cause, VerificationError):
            return Untrusted("the certificate is for another name")
        if isinstance(cause, TlsError) and "certificate verify failed" in str(cause):
            return Untrusted("the certificate is not trusted")
    last = causes[-1]
    # What the server sent instead of HTTP may repeat the query of the request (D47).
    text = without_secrets(str(last))
    return Unreachable(f"{type(last).__name__}: {text}" if text else type(last).__name__)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error of Twisted's client and what it wraps."""
    if error is not None:
        yield error
    for reason in getattr(error, "reasons", ()):
        yield from _causes(reason.value)
