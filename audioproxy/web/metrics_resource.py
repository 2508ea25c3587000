"""What Prometheus asks for, on a listener of its own (contract: Metrics endpoint)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from audioproxy.errors import NotFound
from audioproxy.web.access_log import AccessLog, log_request
from audioproxy.web.base_resource import BaseResource
from audioproxy.web.cors import Cors
from audioproxy.web.exchange import Exchange

if TYPE_CHECKING:
    from audioproxy.metrics import Metrics


class MetricsResource(BaseResource):
    """``/metrics``, and nothing else."""

    def __init__(
        self, seconds: Callable[[], float], metrics: Metrics, access_log: AccessLog = log_request
    ) -> None:
        """Open for scrapes; see `BaseResource`."""
        BaseResource.__init__(self, seconds, metrics, Cors(None), access_log)

    async def route(self, exchange: Exchange, path: bytes) -> None:
        """Answer with all metrics; HEAD is answered as GET is (D19)."""
        if not self.serves(exchange.method) or path != b"/metrics":
            raise NotFound("no such route on the metrics listener")
        exchange.endpoint = "metrics"
        exchange.set_headers(
            {b"content-type": self._metrics.content_type, b"cache-control": b"no-store"}
        )
        exchange.respond(200, self._metrics.exposition())
