"""Health and readiness endpoints, for load balancers and supervisors."""

from __future__ import annotations

from collections.abc import Callable

from audioproxy import __version__
from audioproxy.process.readiness import Readiness
from audioproxy.web.exchange import Exchange

_NO_STORE = {b"cache-control": b"no-store"}


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
