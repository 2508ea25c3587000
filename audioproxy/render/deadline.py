"""The moment by which a render has to be done."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from audioproxy.errors import RenderTimeout


class Deadline:
    """So many seconds from now on a clock."""

    def __init__(
        self,
        clock: IReactorTime,
        seconds: float,
        expired: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the time.

        :param expired: called when it is over, unless `cancel` was called before.
        """
        self._clock = clock
        self._end = clock.seconds() + seconds
        self._alarm = clock.callLater(seconds, expired)

    @property
    def expired(self) -> bool:
        """Whether the time was over before `cancel` was called."""
        return not self._alarm.active()

    def left(self) -> float:
        """Return the seconds that are left.

        :raises RenderTimeout: where none are.
        """
        left = self._end - self._clock.seconds()
        if left <= 0:
            raise RenderTimeout
        return left

    def cancel(self) -> None:
        """Stop the alarm; again is harmless."""
        if self._alarm.active():
            self._alarm.cancel()
