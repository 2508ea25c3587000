"""Whether the node should receive new work: the depth of the queue, and whether ffmpeg runs."""

from __future__ import annotations


class Readiness:
    """Ready until the queue reaches ``threshold``, and again once it is down to half of it.

    A threshold of 0 disables the check. Depths are reported as they change, so one excursion
    is one period of not being ready, however seldom anyone asks. The node is not ready either
    where ffmpeg or ffprobe cannot run (D34).
    """

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self._queue_is_short = True
        self._programs_run = True

    @property
    def ready(self) -> bool:
        """Whether new work should be routed to the node."""
        return not self.threshold or (self._queue_is_short and self._programs_run)

    def programs_checked(self, run: bool) -> None:
        """Record whether ffmpeg and ffprobe can run."""
        self._programs_run = run

    def depth_changed(self, depth: int) -> None:
        """Take note of how many wait for a slot."""
        if depth >= self.threshold:
            self._queue_is_short = False
        elif depth <= self.threshold // 2:
            self._queue_is_short = True
