"""Readiness of a node for new work: the queue is short, and ffmpeg runs."""

from __future__ import annotations


class Readiness:
    """Whether the node should receive new work.

    The node is ready until the render queue reaches ``threshold``, and ready again once the queue
    has fallen to half of that. It is also not ready while ffmpeg or ffprobe cannot run (D34). With
    a threshold of 0, it is always ready.
    """

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self._queue_is_short = True
        self._programs_run = True

    @property
    def ready(self) -> bool:
        return not self.threshold or (self._queue_is_short and self._programs_run)

    def programs_checked(self, run: bool) -> None:
        self._programs_run = run

    def depth_changed(self, depth: int) -> None:
        if depth >= self.threshold:
            self._queue_is_short = False
        elif depth <= self.threshold // 2:
            self._queue_is_short = True
