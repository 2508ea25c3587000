"""Slots: never too many, none lost, listeners first, and a correct Retry-After."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.slots import Claim, Slots
from audioproxy.errors import QueueFull
from tests.support.strategies import DETERMINISTIC


class Holder:
    """Coroutine that acquires a slot, and holds it until the test releases it."""

    def __init__(
        self, slots: Slots, on_slot: Callable[[], object] = lambda: None, *, is_low: bool = False
    ) -> None:
        self.claim = Claim(is_low)
        self.holds = self.had_slot = False
        self.outcome: object = None
        self._slots = slots
        self._on_slot = on_slot
        self._work: Deferred[None] = Deferred()
        self._ended = Deferred.fromCoroutine(self._run())
        self._ended.addBoth(self._note)

    @property
    def waits(self) -> bool:
        """Whether it is in the queue."""
        return self.outcome is None and not self.had_slot

    def finish(self) -> None:
        """Release the slot."""
        self._work.callback(None)

    def lift(self) -> None:
        """Lift the claim."""
        self._slots.lift(self.claim)

    def cancel(self) -> None:
        """Cancel the coroutine, whether it waits or holds a slot."""
        self._ended.cancel()

    async def _run(self) -> None:
        async with self._slots.hold(self.claim):
            self.holds = self.had_slot = True
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

    def make(
        self, capacity: int = 1, queue: int = 2, longest_wait: float = 300, low_queue: int = 0
    ) -> Slots:
        """Return new slots."""
        return Slots(
            self.clock,
            capacity,
            queue,
            longest_wait,
            self.depths.append,
            self.count_rejection,
            low_capacity=max(1, capacity - 1),
            low_queue_size=low_queue,
        )

    def count_rejection(self) -> None:
        """Count the calls."""
        self.rejections += 1

    def take_slot(
        self, slots: Slots, on_slot: Callable[[], object] = lambda: None, *, is_low: bool = False
    ) -> Holder:
        """Return a new holder, and keep a reference, so that it is not garbage-collected."""
        self.all_holders.append(Holder(slots, on_slot, is_low=is_low))
        return self.all_holders[-1]

    def test_spare(self) -> None:
        """A holder may take free slots besides its own, and gives each back when it likes."""
        slots = self.make(capacity=4, queue=2)
        holder = self.take_slot(slots)
        self.assertEqual(slots.spare(holder.claim), 3)
        with slots.hold_spare(holder.claim, 2) as release_one:
            self.assertEqual((slots.held, slots.spare(holder.claim)), (3, 1))
            release_one()
            self.assertEqual(slots.held, 2)
            others = [self.take_slot(slots) for _ in range(4)]
            # The third one has got the other spare slot, and the fourth one waits. Meanwhile, no
            # slot is spare.
            self.assertEqual([other.waits for other in others], [False, False, False, True])
            self.assertEqual((slots.spare(holder.claim), slots.held), (0, 4))
            release_one()
            self.assertEqual(slots.held, 4)
        self.assertEqual(slots.held, 4)
        for other in (holder, *others):
            other.finish()
        self.assertEqual(slots.held, 0)

    def test_spare_for_low_claims(self) -> None:
        """A low claim leaves a slot to listeners, also with those that it takes besides (D65)."""
        slots = self.make(capacity=3, low_queue=1)
        holder = self.take_slot(slots, is_low=True)
        self.assertEqual(slots.spare(holder.claim), 1)
        with slots.hold_spare(holder.claim, 1):
            self.assertEqual(slots.spare(holder.claim), 0)
            waiting = self.take_slot(slots, is_low=True)
            self.assertTrue(self.take_slot(slots).holds)
            self.assertTrue(waiting.waits)
        self.assertTrue(waiting.holds)

    def test_spare_of_a_lifted_claim(self) -> None:
        """The additional slots of a claim that is lifted are no longer of the low lane (D65)."""
        slots = self.make(capacity=4, low_queue=1)
        holder = self.take_slot(slots, is_low=True)
        with slots.hold_spare(holder.claim, 2):
            slots.lift(holder.claim)
            self.assertTrue(self.take_slot(slots, is_low=True).holds)
            self.assertEqual(slots.held, 4)

    def test_no_gap_after_a_failure(self) -> None:
        """A claim that arrives as a holder ends at once goes behind all that wait (D65)."""

        async def claim_again(slots: Slots, late: list[Holder], *, is_low: bool) -> None:
            async with slots.hold():
                pass
            late.append(self.take_slot(slots, is_low=is_low))

        for waits_low, arrives_low in ((False, False), (True, True), (False, True)):
            slots = self.make(queue=3, low_queue=3)
            first = self.take_slot(slots)
            late: list[Holder] = []
            again = Deferred.fromCoroutine(claim_again(slots, late, is_low=arrives_low))
            waiting = self.take_slot(slots, is_low=waits_low)
            first.finish()
            self.successResultOf(again)
            self.assertEqual((True, False), (waiting.holds, late[0].holds))

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

    def test_low_queue_is_full(self) -> None:
        """A low claim that finds its lane full is refused (D65); its estimate is its own (D21)."""
        slots = self.make(3, low_queue=3, queue=1)
        for _ in range(5):
            self.take_slot(slots, is_low=True)
        for _ in range(2):
            self.take_slot(slots)
        refused = self.take_slot(slots, is_low=True)
        assert isinstance(refused.outcome, QueueFull)
        # Five waiters and this request need two slots for a second each.
        self.assertEqual((3, 0), (refused.outcome.retry_after, self.rejections))
        self.assertEqual((1, 3), (slots.depth, slots.low_depth))

    def test_lifted_while_waiting(self) -> None:
        """A lifted claim goes last in the normal queue, with a whole wait (D65)."""
        slots = self.make(queue=2, longest_wait=10, low_queue=2)
        first = self.take_slot(slots)
        low, lifted = (self.take_slot(slots, is_low=True) for _ in range(2))
        self.clock.advance(9)
        normal = self.take_slot(slots)
        lifted.lift()
        self.assertEqual((2, 1, [1, 2]), (slots.depth, slots.low_depth, self.depths))
        self.clock.advance(9)
        self.assertIsInstance(low.outcome, QueueFull)
        first.finish()
        self.assertEqual((True, False), (normal.holds, lifted.holds))
        normal.finish()
        self.assertTrue(lifted.holds)

    def test_lifted_while_full(self) -> None:
        """A lifted claim gets a place in the normal queue as soon as there is one (D65)."""
        slots = self.make(queue=1, low_queue=2)
        first, normal = self.take_slot(slots), self.take_slot(slots)
        gone, lifted = (self.take_slot(slots, is_low=True) for _ in range(2))
        for each in (gone, lifted):
            each.lift()
        gone.cancel()
        self.assertEqual((1, 1), (slots.depth, slots.low_depth))
        self.assertIsInstance(self.take_slot(slots).outcome, QueueFull)
        normal.cancel()
        self.assertEqual((1, 0), (slots.depth, slots.low_depth))
        self.assertIsInstance(self.take_slot(slots).outcome, QueueFull)
        first.finish()
        self.assertTrue(lifted.holds)
        # Without a queue, it stays where it is, and is a normal one from its start.
        slots = self.make(capacity=2, queue=0, low_queue=2)
        both = [self.take_slot(slots), self.take_slot(slots)]
        lifted, low = (self.take_slot(slots, is_low=True) for _ in range(2))
        lifted.lift()
        self.assertEqual((0, 2), (slots.depth, slots.low_depth))
        for each in both:
            each.finish()
        self.assertEqual((True, True), (lifted.holds, low.holds))

    @DETERMINISTIC
    @given(
        capacity=st.integers(1, 3),
        queue=st.integers(0, 3),
        low_queue=st.integers(0, 3),
        steps=st.lists(
            st.tuples(
                st.sampled_from(("request", "low request", "lift", "finish", "cancel", "wait")),
                st.integers(0, 9),
            ),
            max_size=40,
        ),
    )
    def test_every_waiter_ends(
        self, capacity: int, queue: int, low_queue: int, steps: list[tuple[str, int]]
    ) -> None:
        """In any order, all requests end in turn (Limits; D36); normal ones go first (D65)."""
        self.setUp()
        slots = self.make(capacity, queue, longest_wait=10, low_queue=low_queue)
        all_holders = self.all_holders
        lifted: list[Holder] = []
        # The holders of each lane, in the order in which they have to be served.
        lanes: dict[bool, list[Holder]] = {False: [], True: []}
        overtaken: list[Holder] = []

        def move_lifted() -> None:
            while lifted and not lifted[0].claim.is_low:
                lanes[True].remove(lifted[0])
                lanes[False].append(lifted.pop(0))

        def check_order(index: int, is_low: bool) -> None:
            move_lifted()
            # A holder that starts at once is not among all holders yet, and all others are before.
            one = all_holders[index] if index < len(all_holders) else None
            is_low = is_low if one is None else one.claim.is_low
            before = lanes[is_low][: lanes[is_low].index(one) if one else None]
            overtaken.extend(each for each in before + lanes[False] * is_low if each.waits)

        for step, number in steps:
            present = [each for each in all_holders if each.outcome is None]
            if step.endswith("request"):
                is_low = step.startswith("low")
                check = partial(check_order, len(all_holders), is_low)
                lanes[is_low].append(self.take_slot(slots, check, is_low=is_low))
            elif step == "wait":
                self.clock.advance(number)
            elif present:
                one = present[number % len(present)]
                if step == "lift":
                    if one.waits and one.claim.is_low and one not in lifted:
                        lifted.append(one)
                    one.lift()
                elif step == "cancel" or not one.holds:
                    one.cancel()
                else:
                    one.finish()
            lifted = [each for each in lifted if each.waits or not each.claim.is_low]
            move_lifted()
            self.assertEqual([], overtaken)
            holding = sum(each.holds for each in all_holders)
            low_holding = sum(each.holds and each.claim.is_low for each in all_holders)
            waiting, low_waiting = (sum(each.waits for each in lanes[low]) for low in (False, True))
            self.assertEqual(
                (slots.held, slots.depth, slots.low_depth), (holding, waiting, low_waiting)
            )
            self.assertLessEqual(holding, capacity)
            self.assertLessEqual(low_holding, max(1, capacity - 1))
            self.assertLessEqual(waiting, queue)
            self.assertLessEqual(low_waiting, low_queue)
            # No waiter stays behind that may have a slot.
            is_full = holding == capacity
            self.assertTrue(is_full or not waiting)
            self.assertTrue(is_full or low_holding == max(1, capacity - 1) or not low_waiting)
            # Every change of the queue's depth is reported, and nothing else.
            self.assertEqual([0, *self.depths][-1], waiting)
            self.assertTrue(all(abs(one - two) == 1 for one, two in pairwise([0, *self.depths])))
            refused = [each for each in all_holders if isinstance(each.outcome, QueueFull)]
            self.assertEqual(sum(not each.claim.is_low for each in refused), self.rejections)
        while present := [each for each in all_holders if each.holds]:
            present[0].finish()
        self.assertEqual([], overtaken)
        self.assertNotIn(None, [each.outcome for each in all_holders])
        self.assertEqual((slots.held, slots.depth, slots.low_depth), (0, 0, 0))
        self.assertEqual([], self.clock.getDelayedCalls())
