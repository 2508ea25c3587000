"""Slot pools: render slots with a queue, and probe slots without one."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import QueueFull

# Weight of the newest hold in the running mean of hold times.
_NEWEST_WEIGHT = 0.3


class Slots:
    """A pool with a bounded number of slots and a bounded queue, served in order.

    :param depth_changed: called with the number of waiters whenever it changes.
    :param rejected: called whenever a request for a slot is rejected.
    """

    def __init__(
        self,
        clock: IReactorTime,
        capacity: int,
        queue_size: int,
        longest_wait: float,
        depth_changed: Callable[[int], object] = lambda depth: None,
        rejected: Callable[[], object] = lambda: None,
    ) -> None:
        self.capacity = capacity
        self.queue_size = queue_size
        self.held = 0
        self._clock = clock
        self._longest_wait = longest_wait
        self._depth_changed = depth_changed
        self._rejected = rejected
        self._queue: OrderedDict[Deferred[None], None] = OrderedDict()
        self._mean_hold = 1.0
        self._pending_releases = 0

    @property
    def depth(self) -> int:
        """The number of waiters."""
        return len(self._queue)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold a slot for the length of a block, after waiting for one if none is free.

        A waiter that is cancelled leaves the queue at once.

        :raises QueueFull: if the queue is full, or the wait exceeds its limit.
        """
        await self._acquire()
        since = self._clock.seconds()
        try:
            yield
        finally:
            held_for = self._clock.seconds() - since
            self._mean_hold += _NEWEST_WEIGHT * (held_for - self._mean_hold)
            self._release()

    def retry_after(self) -> int:
        """Return an estimate of the whole seconds until a slot is free (D21)."""
        estimate = math.ceil(self._mean_hold * (self.depth + 1) / self.capacity)
        return max(1, min(estimate, math.floor(self._longest_wait)))

    async def _acquire(self) -> None:
        if self.held < self.capacity:
            self.held += 1
            return
        if self.depth >= self.queue_size:
            raise self._reject()
        waiter: Deferred[None] = Deferred()
        self._queue[waiter] = None
        self._depth_changed(self.depth)
        try:
            await Deadline(self._clock, self._longest_wait).limit(waiter)
        except (TimeoutError, CancelledError) as error:
            del self._queue[waiter]
            self._depth_changed(self.depth)
            if isinstance(error, TimeoutError):
                raise self._reject() from None
            raise

    def _reject(self) -> QueueFull:
        self._rejected()
        return QueueFull(self.retry_after())

    def _release(self) -> None:
        self._pending_releases += 1
        if self._pending_releases > 1:
            # This call is nested in the callback below: the holder that was just resumed has
            # released its slot at once. The loop in the outer call passes the slot on. Recursion
            # would exceed Python's limit for a long queue of such holders.
            return
        while self._pending_releases:
            if self._queue:
                # The slot passes to the first waiter without becoming free in between.
                waiter, _ = self._queue.popitem(last=False)
                self._depth_changed(self.depth)
                waiter.callback(None)
            else:
                self.held -= 1
            self._pending_releases -= 1
