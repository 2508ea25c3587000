"""Slot pools: render slots with a queue of two lanes, and probe slots without a queue."""

from __future__ import annotations

import math
from bisect import bisect_left, insort_right
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime

from audioproxy.concurrency.deadlines import ProgressTimeout
from audioproxy.errors import QueueFull

# Weight of the newest hold in the running mean of hold times.
_NEWEST_WEIGHT = 0.3


@dataclass(eq=False, slots=True)
class Claim:
    """A claim to a slot. Others go before a low one (D65), until `Slots.lift`."""

    is_low: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class _Waiter:
    claim: Claim
    granted: Deferred[None]
    timeout: ProgressTimeout


_is_low = attrgetter("claim.is_low")


@dataclass(eq=False)
class Slots:
    """A pool with a bounded number of slots, and a queue of two lanes, each with its bound.

    Each lane is served in order. A low claim gets a slot only if no normal claim waits (D65).

    :ivar depth_changed: called with the number of normal waiters whenever it changes.
    :ivar rejected: called whenever a normal claim is rejected.
    :ivar timed: measures the wait of a claim that is not rejected; called with ``is_low``.
    :ivar low_capacity: the number of slots that low claims may hold.
    :ivar low_queue_size: the number of low claims that may wait, besides the others.
    """

    clock: IReactorTime
    capacity: int
    queue_size: int
    longest_wait: float
    depth_changed: Callable[[int], object] = lambda depth: None
    rejected: Callable[[], object] = lambda: None
    timed: Callable[[bool], AbstractContextManager[None]] = lambda is_low: nullcontext()
    _: KW_ONLY
    low_capacity: int = 1
    low_queue_size: int = 0

    def __post_init__(self) -> None:
        self.held = 0
        # In the order in which they are served: first the normal lane, then the low one.
        self._queue: list[_Waiter] = []
        self._waiters: dict[Claim, _Waiter] = {}
        # Low waiters that are to be normal ones, in order.
        self._lifted: list[_Waiter] = []
        self._low_holders: set[Claim] = set()
        # Additional slots of holders, by their claims.
        self._spares: dict[Claim, list[Claim]] = {}
        self._mean_hold = 1.0
        self._is_serving = False

    @property
    def depth(self) -> int:
        # Of the normal lane.
        return bisect_left(self._queue, True, key=_is_low)

    @property
    def low_depth(self) -> int:
        return len(self._queue) - self.depth

    @asynccontextmanager
    async def hold(self, claim: Claim | None = None) -> AsyncIterator[None]:
        """Hold a slot for the length of a block; wait for one, or raise `QueueFull`.

        :param claim: used for one hold at a time; by default, a normal one.
        """
        claim = claim or Claim()
        await self._acquire(claim)
        since = self.clock.seconds()
        try:
            yield
        finally:
            held_for = self.clock.seconds() - since
            self._mean_hold += _NEWEST_WEIGHT * (held_for - self._mean_hold)
            self._release(claim)

    def spare(self, claim: Claim) -> int:
        """Return how many more slots the holder of a claim may take; none while others wait."""
        if self._queue:
            return 0
        spare = self.capacity - self.held
        return min(spare, self.low_capacity - len(self._low_holders)) if claim.is_low else spare

    @contextmanager
    def hold_spare(self, claim: Claim, count: int) -> Iterator[Callable[[], None]]:
        """Hold as many spare slots besides that of a claim, for the length of a block at most.

        A normal claim that would wait gets one of them at once. Yields a function that releases
        one, if any is left.
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

        A waiter moves to the end of the normal queue as soon as that has a place, and the limit of
        its wait starts again.
        """
        if not claim.is_low:
            return
        waiter = self._waiters.get(claim)
        if waiter is not None:
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
            waiters, slots = waiters + self.low_depth, self.low_capacity
        estimate = math.ceil(self._mean_hold * (waiters + 1) / slots)
        return max(1, min(estimate, math.floor(self.longest_wait)))

    async def _acquire(self, claim: Claim) -> None:
        spares = next((taken for taken in self._spares.values() if taken), None)
        if spares and not claim.is_low and self.held >= self.capacity:
            self._release(spares.pop())
        ahead, size = self.depth, self.queue_size
        if claim.is_low:
            ahead, size = self.low_depth, self.low_queue_size
        waits = ahead > 0 or not self._may_take(claim)
        if waits and ahead >= size:
            raise self._reject(claim)
        with self.timed(claim.is_low):
            if waits:
                await self._wait(claim)
            else:
                self._take(claim)

    async def _wait(self, claim: Claim) -> None:
        granted: Deferred[None] = Deferred()
        timeout = ProgressTimeout(self.clock, self.longest_wait, granted.cancel)
        waiter = _Waiter(claim, granted, timeout)
        self._enqueue(waiter)
        self._waiters[claim] = waiter
        try:
            await granted
        except CancelledError:
            self._dequeue(waiter)
            if timeout.expired:
                raise self._reject(claim) from None
            raise
        finally:
            timeout.cancel()
            del self._waiters[claim]

    def _may_take(self, claim: Claim) -> bool:
        if claim.is_low and (self.depth or len(self._low_holders) >= self.low_capacity):
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
        insort_right(self._queue, waiter, key=_is_low)
        if not waiter.claim.is_low:
            self.depth_changed(self.depth)

    def _dequeue(self, waiter: _Waiter) -> None:
        self._queue.remove(waiter)
        if not waiter.claim.is_low:
            self.depth_changed(self.depth)
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
            self.rejected()
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
