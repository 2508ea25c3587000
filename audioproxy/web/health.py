"""Health and readiness endpoints, for load balancers and supervisors."""

from __future__ import annotations

from collections.abc import Callable

from audioproxy import __version__
from audioproxy.web.exchange import Exchange

_NO_STORE = {b"cache-control": b"no-store"}


class Readiness:
    """Whether the node should receive new work.

    The node is ready until the render queue reaches ``threshold``, and ready again once the queue
    has fallen to half of that. In between, the state does not change. The node is also not ready
    while ffmpeg or ffprobe cannot run (D34). With a threshold of 0, it is always ready. Every
    change of the depth is reported here, so the state does not depend on how often clients ask.
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
        """Record the number of renders that wait for a slot."""
        if depth >= self.threshold:
            self._queue_is_short = False
        elif depth <= self.threshold // 2:
            self._queue_is_short = True


def respond_health(exchange: Exchange) -> None:
    """Respond that the process is alive, whatever the load (D23)."""
    exchange.set_headers(_NO_STORE)
    exchange.respond_json(200, {"status": "ok", "version": __version__})


def respond_ready(exchange: Exchange, readiness: Readiness, depth: Callable[[], int]) -> None:
    """Respond whether new work should be routed to this node."""
    exchange.set_headers(_NO_STORE)
    document = {
        "status": "ready" if readiness.ready else "not_ready",
        "queued": depth(),
        "threshold": readiness.threshold,
    }
    exchange.respond_json(200 if readiness.ready else 503, document)
