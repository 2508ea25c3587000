"""The limits of a render, and the deadline that follows from its time limit."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from twisted.internet.interfaces import IReactorTime

from audioproxy.concurrency.deadlines import with_timeout
from audioproxy.errors import RenderTimeout

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """The limits of a render in time and size.

    :ivar timeout: seconds that a render may hold its slot.
    :ivar max_variant: bytes; a render that outputs more is stopped.
    """

    clock: IReactorTime
    timeout: float
    max_variant: int


class Deadline:
    """A deadline, and a call that is made when it passes.

    :ivar expired: the deadline passed before `cancel` was called.
    """

    def __init__(
        self,
        clock: IReactorTime,
        seconds: float,
        on_expiry: Callable[[], object] = lambda: None,
    ) -> None:
        """Schedule the call.

        :param seconds: from now to the deadline.
        :param on_expiry: called at the deadline, unless `cancel` was called before.
        """
        self.expired = False
        self._clock = clock
        self._end = clock.seconds() + seconds
        self._on_expiry = on_expiry
        self._delayed_call = clock.callLater(seconds, self._expire)

    def left(self) -> float:
        """Return the remaining seconds.

        :raises RenderTimeout: where none remain.
        """
        left = self._end - self._clock.seconds()
        if left <= 0:
            raise RenderTimeout
        return left

    async def limit(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and cancel it at the deadline.

        :raises RenderTimeout: at the deadline.
        """
        try:
            return await with_timeout(self._clock, self.left(), work)
        except TimeoutError:
            raise RenderTimeout from None

    def cancel(self) -> None:
        """Cancel the call; repeated calls are harmless."""
        if self._delayed_call.active():
            self._delayed_call.cancel()

    def _expire(self) -> None:
        self.expired = True
        self._on_expiry()
