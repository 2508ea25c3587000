"""Slot pools: render slots with a queue of two lanes, and probe slots without a queue."""

from __future__ import annotations

import math
from bisect import bisect_left, insort_right
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from operator import attrgetter

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime

from audioproxy.concurrency.deadlines import ProgressTimeout
from audioproxy.errors import QueueFull

# Weight of the newest hold in the running mean of hold times.
_NEWEST_WEIGHT = 0.3


@dataclass(eq=False, slots=True)
class Claim:
    """A claim to a slot.

    :ivar is_low: whether other claims go first (D65); `Slots.lift` changes it.
    """

    is_low: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class _Waiter:
    claim: Claim
    granted: Deferred[None]
    timeout: ProgressTimeout


_is_low = attrgetter("claim.is_low")


class Slots:
    """A pool with a bounded number of slots, and a queue of two lanes, each with its bound.

    Each lane is served in order. A low claim gets a slot only if no normal claim waits (D65).

    :param low_capacity: the number of slots that low claims may hold.
    :param low_queue_size: the number of low claims that may wait, besides the others.
    :param depth_changed: called with the number of normal waiters whenever it changes.
    :param rejected: called whenever a normal claim is rejected.
    :param timed: called with the lane of each claim that takes a slot or a place in the queue
        (True for the low one); measures the wait for the slot.
    """

    def __init__(
        self,
        clock: IReactorTime,
        capacity: int,
        queue_size: int,
        longest_wait: float,
        depth_changed: Callable[[int], object] = lambda depth: None,
        rejected: Callable[[], object] = lambda: None,
        timed: Callable[[bool], AbstractContextManager[None]] = lambda is_low: nullcontext(),
        *,
        low_capacity: int = 1,
        low_queue_size: int = 0,
    ) -> None:
        self.capacity = capacity
        self.queue_size = queue_size
        self.held = 0
        self._clock = clock
        self._longest_wait = longest_wait
        self._depth_changed = depth_changed
        self._rejected = rejected
        self._timed = timed
        self._low_capacity = low_capacity
        self._low_queue_size = low_queue_size
        # In the order in which they are served: first the normal lane, then the low one.
        self._queue: list[_Waiter] = []
        # Low waiters that are to be normal ones, in order.
        self._lifted: list[_Waiter] = []
        self._low_holders: set[Claim] = set()
        # Additional slots of holders, by their claims.
        self._spares: dict[Claim, list[Claim]] = {}
        self._mean_hold = 1.0
        self._is_serving = False

    @property
    def depth(self) -> int:
        """Normal waiters."""
        return bisect_left(self._queue, True, key=_is_low)

    @property
    def low_depth(self) -> int:
        return len(self._queue) - self.depth

    @asynccontextmanager
    async def hold(self, claim: Claim | None = None) -> AsyncIterator[None]:
        """Hold a slot for the length of a block, after waiting for one if none is free.

        :param claim: used for one hold at a time; by default, a normal one.
        :raises QueueFull: if the queue is full, or the wait exceeds its limit.
        """
        claim = claim or Claim()
        await self._acquire(claim)
        since = self._clock.seconds()
        try:
            yield
        finally:
            held_for = self._clock.seconds() - since
            self._mean_hold += _NEWEST_WEIGHT * (held_for - self._mean_hold)
            self._release(claim)

    def spare(self, claim: Claim) -> int:
        """Return how many more slots the holder of a claim may take; none while others wait."""
        if self._queue:
            return 0
        spare = self.capacity - self.held
        return min(spare, self._low_capacity - len(self._low_holders)) if claim.is_low else spare

    @contextmanager
    def hold_spare(self, claim: Claim, count: int) -> Iterator[Callable[[], None]]:
        """Hold slots besides that of a claim, for the length of a block at most.

        A normal claim that would wait gets one of them at once. Yields a function that releases
        one, if any is left.

        :param count: at most as many as are spare.
        """
        taken = self._spares[claim] = [Claim(claim.is_low) for _ in range(count)]
        for extra in taken:
            self._take(extra)

        def release_one() -> None:
            if taken:
                self._release(taken.pop())

        try:
            yield release_one
        finally:
            while taken:
                release_one()
            del self._spares[claim]

    def lift(self, claim: Claim) -> None:
        """Make a low claim a normal one, before, during or after its wait.

        A waiter moves to the end of the normal queue as soon as that has a place. There, the limit
        of its wait starts again, as for a new request.
        """
        waiter = next((each for each in self._queue if each.claim is claim), None)
        if waiter is not None and claim.is_low:
            if waiter not in self._lifted:
                self._lifted.append(waiter)
        else:
            for held in (claim, *self._spares.get(claim, ())):
                self._low_holders.discard(held)
                held.is_low = False
        self._serve()

    def retry_after(self, *, is_low: bool = False) -> int:
        """Return an estimate of the whole seconds until a slot is free (D21)."""
        waiters, slots = self.depth, self.capacity
        if is_low:
            waiters, slots = waiters + self.low_depth, self._low_capacity
        estimate = math.ceil(self._mean_hold * (waiters + 1) / slots)
        return max(1, min(estimate, math.floor(self._longest_wait)))

    async def _acquire(self, claim: Claim) -> None:
        spares = next((taken for taken in self._spares.values() if taken), None)
        if spares and not claim.is_low and self.held >= self.capacity:
            self._release(spares.pop())
        ahead, size = self.depth, self.queue_size
        if claim.is_low:
            ahead, size = self.low_depth, self._low_queue_size
        waits = ahead > 0 or not self._may_take(claim)
        if waits and ahead >= size:
            raise self._reject(claim)
        with self._timed(claim.is_low):
            if waits:
                await self._wait(claim)
            else:
                self._take(claim)

    async def _wait(self, claim: Claim) -> None:
        granted: Deferred[None] = Deferred()
        timeout = ProgressTimeout(self._clock, self._longest_wait, granted.cancel)
        waiter = _Waiter(claim, granted, timeout)
        self._enqueue(waiter)
        try:
            await granted
        except CancelledError:
            self._dequeue(waiter)
            if timeout.expired:
                raise self._reject(claim) from None
            raise
        finally:
            timeout.cancel()

    def _may_take(self, claim: Claim) -> bool:
        if claim.is_low and (self.depth or len(self._low_holders) >= self._low_capacity):
            return False
        return self.held < self.capacity

    def _take(self, claim: Claim) -> None:
        self.held += 1
        if claim.is_low:
            self._low_holders.add(claim)

    def _release(self, claim: Claim) -> None:
        self.held -= 1
        self._low_holders.discard(claim)
        self._serve()

    def _enqueue(self, waiter: _Waiter) -> None:
        """Add a waiter at the end of its lane."""
        insort_right(self._queue, waiter, key=_is_low)
        if not waiter.claim.is_low:
            self._depth_changed(self.depth)

    def _dequeue(self, waiter: _Waiter) -> None:
        self._queue.remove(waiter)
        if not waiter.claim.is_low:
            self._depth_changed(self.depth)
            self._move_lifted()
        elif waiter in self._lifted:
            self._lifted.remove(waiter)
            self._low_holders.discard(waiter.claim)
            waiter.claim.is_low = False

    def _move_lifted(self) -> None:
        """Move lifted waiters to the normal lane, while that has places or slots are free."""
        places = max(self.queue_size, self.capacity - self.held)
        while self._lifted and self.depth < places:
            waiter = self._lifted.pop(0)
            self._queue.remove(waiter)
            waiter.claim.is_low = False
            waiter.timeout.reset()
            self._enqueue(waiter)

    def _reject(self, claim: Claim) -> QueueFull:
        if not claim.is_low:
            self._rejected()
        return QueueFull(self.retry_after(is_low=claim.is_low))

    def _serve(self) -> None:
        if self._is_serving:
            # This call is nested in the callback below: a holder has released its slot at once, and
            # the outer loop passes it on. Recursion would exceed Python's limit for a long queue.
            return
        self._is_serving = True
        self._move_lifted()
        while self._queue and self._may_take(self._queue[0].claim):
            waiter = self._queue[0]
            # The slot is taken before the waiter is resumed, so no later claim can take it.
            self._take(waiter.claim)
            self._dequeue(waiter)
            waiter.granted.callback(None)
        self._is_serving = False
