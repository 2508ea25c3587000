"""Slots: never too many, none lost, and a correct Retry-After."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import QueueFull
from audioproxy.process.slots import Slots
from tests.support.strategies import DETERMINISTIC


class Holder:
    """Coroutine that acquires a slot, and holds it until the test releases it."""

    def __init__(self, slots: Slots, on_slot: Callable[[], object] = lambda: None) -> None:
        self.holds = False
        self.outcome: object = None
        self._slots = slots
        self._on_slot = on_slot
        self._work: Deferred[None] = Deferred()
        self._ended = Deferred.fromCoroutine(self._run())
        self._ended.addBoth(self._note)

    def finish(self) -> None:
        """Release the slot."""
        self._work.callback(None)

    def cancel(self) -> None:
        """Cancel the coroutine, whether it waits or holds a slot."""
        self._ended.cancel()

    async def _run(self) -> None:
        async with self._slots.hold():
            self.holds = True
            try:
                self._on_slot()
                await self._work
            finally:
                self.holds = False

    def _note(self, result: object) -> None:
        self.outcome = getattr(result, "value", "done")


class SlotsTests(SynchronousTestCase):
    """`Slots`, with a clock that the test controls"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.depths: list[int] = []
        self.rejections = 0
        self.all_holders: list[Holder] = []

    def make(self, capacity: int = 1, queue: int = 2, longest_wait: float = 300) -> Slots:
        """Return new slots."""
        return Slots(
            self.clock, capacity, queue, longest_wait, self.depths.append, self.count_rejection
        )

    def count_rejection(self) -> None:
        """Count the calls."""
        self.rejections += 1

    def take_slot(self, slots: Slots, on_slot: Callable[[], object] = lambda: None) -> Holder:
        """Return a new holder, and keep a reference, so that it is not garbage-collected."""
        self.all_holders.append(Holder(slots, on_slot))
        return self.all_holders[-1]

    def test_no_gap(self) -> None:
        """A released slot goes to the first in the queue, even if a request arrives just then."""
        slots = self.make()
        first = self.take_slot(slots)
        late: list[Holder] = []
        second = self.take_slot(slots, lambda: late.append(self.take_slot(slots)))
        first.finish()
        self.assertTrue(second.holds)
        self.assertFalse(late[0].holds)
        self.assertEqual((slots.held, slots.depth), (1, 1))

    def test_no_queue(self) -> None:
        """A pool without a queue refuses at once, with Retry-After 1 (Errors, 429; D21)."""
        slots = self.make(queue=0, longest_wait=1.0)
        for _ in range(2):
            holder = self.take_slot(slots)
            refused = self.take_slot(slots)
            assert isinstance(refused.outcome, QueueFull)
            self.assertEqual((refused.outcome.retry_after, self.depths), (1, []))
            self.clock.advance(500)
            holder.finish()

    def test_too_long_a_wait(self) -> None:
        """A wait of AP_RENDER_TIMEOUT is a 429, not a 504; each waiter has its own (Errors, 9)."""
        slots = self.make(queue=3, longest_wait=10)
        holder, first = self.take_slot(slots), self.take_slot(slots)
        self.clock.advance(6)
        second = self.take_slot(slots)
        self.clock.advance(3.9)
        self.assertIsNone(first.outcome)
        self.clock.advance(0.1)
        self.assertIsInstance(first.outcome, QueueFull)
        # The other waiter is still ahead of a further request; the one that gives up is not.
        self.assertEqual(2, first.outcome.retry_after)
        self.assertEqual((slots.depth, self.depths), (1, [1, 2, 1]))
        self.clock.advance(5)
        self.assertIsNone(second.outcome)
        holder.finish()
        self.clock.advance(1000)
        self.assertTrue(second.holds)

    def test_long_queue_of_failures(self) -> None:
        """A queue of any length is emptied even if each holder fails at once."""
        slots = self.make(queue=400)
        first = self.take_slot(slots)

        def fail() -> None:
            raise KeyError

        others = [Holder(slots, fail) for _ in range(400)]
        first.finish()
        self.assertEqual({type(other.outcome) for other in others}, {KeyError})
        self.assertEqual((slots.held, slots.depth), (0, 0))
        self.assertEqual(self.depths[-3:], [2, 1, 0])

    def refusal(self, slots: Slots) -> int:
        """Return the Retry-After of a refused request."""
        refused = self.take_slot(slots)
        assert isinstance(refused.outcome, QueueFull)
        return refused.outcome.retry_after

    def test_estimate(self) -> None:
        """Retry-After follows recent slot times, queue depth and capacity (D21)."""
        slots = self.make(capacity=2, queue=3)
        for _ in range(30):
            holder = self.take_slot(slots)
            self.clock.advance(20)
            holder.finish()
        for _ in range(5):
            self.take_slot(slots)
        # Three waiters and this request need a slot for 20 seconds each, and there are two slots.
        self.assertEqual(self.refusal(slots), 40)

    @DETERMINISTIC
    @given(
        capacity=st.integers(1, 4),
        queue=st.integers(0, 4),
        longest_wait=st.integers(1, 1000),
        holds=st.lists(st.floats(0, 5000), max_size=8),
    )
    def test_any_estimate(
        self, capacity: int, queue: int, longest_wait: int, holds: list[float]
    ) -> None:
        """After any history, Retry-After is a whole number from 1 to AP_RENDER_TIMEOUT (D21)."""
        self.setUp()
        slots = self.make(capacity, queue, longest_wait)
        for seconds in holds:
            holder = self.take_slot(slots)
            self.clock.advance(seconds)
            holder.finish()
        for _ in range(capacity + queue):
            self.take_slot(slots)
        seconds = self.refusal(slots)
        self.assertIsInstance(seconds, int)
        self.assertTrue(1 <= seconds <= longest_wait, seconds)

    @DETERMINISTIC
    @given(
        capacity=st.integers(1, 3),
        queue=st.integers(0, 3),
        steps=st.lists(
            st.tuples(st.sampled_from(("request", "finish", "cancel", "wait")), st.integers(0, 9)),
            max_size=40,
        ),
    )
    def test_every_waiter_ends(
        self, capacity: int, queue: int, steps: list[tuple[str, int]]
    ) -> None:
        """In any order, all requests end in turn, within AP_MAX_CONCURRENCY (Limits; D36)."""
        self.setUp()
        slots = self.make(capacity, queue, longest_wait=10)
        all_holders = self.all_holders
        served: list[int] = []
        for step, number in steps:
            present = [each for each in all_holders if each.outcome is None]
            if step == "request":
                self.take_slot(slots, partial(served.append, len(all_holders)))
            elif step == "wait":
                self.clock.advance(number)
            elif present:
                one = present[number % len(present)]
                if step == "cancel" or not one.holds:
                    one.cancel()
                else:
                    one.finish()
            holding = sum(each.holds for each in all_holders)
            waiting = sum(each.outcome is None and not each.holds for each in all_holders)
            self.assertEqual((slots.held, slots.depth), (holding, waiting))
            self.assertLessEqual(holding, capacity)
            self.assertLessEqual(waiting, queue)
            self.assertTrue(holding == capacity or not waiting)
            # Every change of the queue's depth is reported, and nothing else.
            self.assertEqual([0, *self.depths][-1], waiting)
            self.assertTrue(all(abs(one - two) == 1 for one, two in pairwise([0, *self.depths])))
            refused = sum(isinstance(each.outcome, QueueFull) for each in all_holders)
            self.assertEqual(refused, self.rejections)
        while present := [each for each in all_holders if each.holds]:
            present[0].finish()
        self.assertNotIn(None, [each.outcome for each in all_holders])
        self.assertEqual(sorted(served), served)
        self.assertEqual((slots.held, slots.depth, self.clock.getDelayedCalls()), (0, 0, []))
