"""A counter of operations in flight, which can wait until there are none."""

from __future__ import annotations

from contextlib import suppress

from audioproxy.concurrency.deadlines import Deadline
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

    async def wait_until_idle(self, deadline: Deadline) -> None:
        """Wait until nothing is in flight, or until a deadline."""
        if self.count:
            with suppress(TimeoutError):
                await deadline.limit(self._idle.wait())
