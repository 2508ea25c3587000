"""A bounded memory: what was asked for last is there, and no more than there is room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.recent import Recent
from tests.support.strategies import PROMISE


class RecentTests(SynchronousTestCase):
    """`Recent`"""

    def test_kept(self) -> None:
        """What is kept is found, and the last word on a key counts."""
        recent: Recent[str, int] = Recent(4)
        self.assertIsNone(recent.get("a"))
        recent.keep("a", 1)
        recent.keep("a", 2)
        self.assertEqual((recent.get("a"), len(recent)), (2, 1))

    def test_use(self) -> None:
        """What is asked for again and again stays, whatever comes and goes beside it."""
        recent: Recent[int, int] = Recent(8)
        recent.keep(-1, 0)
        for number in range(100):
            recent.keep(number, number)
            self.assertEqual(recent.get(-1), 0)
        self.assertIsNone(recent.get(0))

    @PROMISE
    @given(st.integers(2, 20), st.lists(st.integers(0, 50)))
    def test_room(self, room: int, keys: list[int]) -> None:
        """There are never more than there is room for, and half as many of the last are there."""
        recent: Recent[int, int] = Recent(room)
        for key in keys:
            recent.keep(key, key)
            self.assertLessEqual(len(recent), room)
        last = list(dict.fromkeys(reversed(keys)))[: room // 2]
        self.assertEqual([recent.get(key) for key in last[:1]], last[:1])
        self.assertTrue(all(key in recent._young or key in recent._old for key in last))
