"""How many of something go on, and a wait for the last one to end."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime


class Tally:
    """A count of what has begun and not ended."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[Deferred[None]] = []

    def begin(self) -> None:
        """Count one more."""
        self.count += 1

    def end(self) -> None:
        """Count one less."""
        self.count -= 1
        if not self.count:
            self._tell()

    async def wait(self, clock: IReactorTime, seconds: float) -> None:
        """Come back when nothing goes on, or after so many seconds."""
        if not self.count:
            return
        waiter: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiter)
        deadline = clock.callLater(max(0.0, seconds), self._give_up, waiter)
        try:
            await waiter
        finally:
            if deadline.active():
                deadline.cancel()

    def _give_up(self, waiter: Deferred[None]) -> None:
        self._waiting.remove(waiter)
        waiter.callback(None)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.callback(None)
