"""Whether the node should receive new work: two marks on the depth of the queue."""

from __future__ import annotations


class Readiness:
    """Ready until the queue reaches ``threshold``, and again once it is down to half of it.

    A threshold of 0 disables the check. Depths are reported as they change, so one excursion
    is one period of not being ready, however seldom anyone asks.
    """

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.ready = True

    def depth_changed(self, depth: int) -> None:
        """Take note of how many wait for a slot."""
        if not self.threshold:
            return
        if depth >= self.threshold:
            self.ready = False
        elif depth <= self.threshold // 2:
            self.ready = True
