"""Evictions by times of use that are recorded once an hour, compared with exact LRU."""

from __future__ import annotations

import random
from collections import OrderedDict
from itertools import accumulate

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.variants.catalog import Entry
from audioproxy.variants.last_use import is_due
from audioproxy.variants.prune import LeastRecentlyUsed

# Variants, how many of them a store holds, requests, and seconds between two requests: 16 days.
_VARIANTS, _BOUND, _REQUESTS, _PAUSE = 1000, 300, 40_000, 35


class ReplayTests(SynchronousTestCase):
    """A replay of requests whose frequencies follow Zipf's law"""

    def setUp(self) -> None:
        weights = list(accumulate(1 / rank for rank in range(1, _VARIANTS + 1)))
        numbers = random.Random(1).choices(range(_VARIANTS), cum_weights=weights, k=_REQUESTS)
        self.requests = [f"{number:064}" for number in numbers]

    def replay_exact(self) -> int:
        """Return the hits of a store that always evicts the least recently used variant."""
        store, hits = OrderedDict[str, None](), 0
        for key in self.requests:
            hits += key in store
            store[key] = None
            store.move_to_end(key)
            if len(store) > _BOUND:
                store.popitem(last=False)
        return hits

    def replay(self) -> int:
        """Return the hits of a store with hourly times, which prunes at 95 % to 90 %."""
        used, hits = dict[str, float](), 0
        for number, key in enumerate(self.requests):
            now = number * _PAUSE
            hits += key in used
            if key not in used or is_due(used[key], now):
                used[key] = now
            if len(used) > _BOUND * 0.95:
                entries = [Entry(key, 1, 0, time) for key, time in used.items()]
                selection = LeastRecentlyUsed()
                for entry in entries:
                    selection.count(entry)
                selection.select(len(used) - round(_BOUND * 0.90))
                early = [entry for entry in entries if selection.takes(entry)]
                for batch in (early, *selection.rest()):
                    for entry in batch:
                        del used[entry.key]
        return hits

    def test_hits(self) -> None:
        """The share of hits is at most 2 % smaller than with exact LRU."""
        exact, found = self.replay_exact(), self.replay()
        self.assertGreater(exact, _REQUESTS // 2)
        self.assertLess(0.98 * exact, found)
