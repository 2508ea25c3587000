"""Health and readiness: what load balancers and supervisors ask."""

from __future__ import annotations

from collections.abc import Callable

from audioproxy import __version__
from audioproxy.process.readiness import Readiness
from audioproxy.web.exchange import Exchange

_NO_STORE = {b"cache-control": b"no-store"}


def answer_health(exchange: Exchange) -> None:
    """Say that the process is alive, whatever its load (D23)."""
    exchange.set_headers(_NO_STORE)
    exchange.respond_json(200, {"status": "ok", "version": __version__})


def answer_ready(exchange: Exchange, readiness: Readiness, depth: Callable[[], int]) -> None:
    """Say whether new work should be sent here."""
    exchange.set_headers(_NO_STORE)
    document = {
        "status": "ready" if readiness.ready else "not_ready",
        "queued": depth(),
        "threshold": readiness.threshold,
    }
    exchange.respond_json(200 if readiness.ready else 503, document)
