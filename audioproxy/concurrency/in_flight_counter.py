"""A counter of operations in flight, which can wait until there are none."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from audioproxy.concurrency.shared_result import SharedResult


class InFlightCounter:
    """The number of operations that have begun and not ended.

    :ivar count: operations in flight.
    """

    def __init__(self) -> None:
        self.count = 0
        self._idle: SharedResult[None] = SharedResult()

    def begin(self) -> None:
        """Count an operation that begins."""
        self.count += 1

    def end(self) -> None:
        """Count an operation that ends."""
        self.count -= 1
        if not self.count:
            idle, self._idle = self._idle, SharedResult()
            idle.fire(None)

    async def wait_until_idle(self, clock: IReactorTime, seconds: float) -> None:
        """Wait until nothing is in flight, for ``seconds`` at most."""
        if self.count:
            idle = self._idle.wait()
            await idle.addTimeout(max(0.0, seconds), clock, lambda _outcome, _seconds: None)
