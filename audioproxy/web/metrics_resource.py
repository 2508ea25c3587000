"""``/metrics`` on a listener of its own, and its text (Metrics endpoint)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from audioproxy.errors import NotFound
from audioproxy.web.exchange import Exchange, Instrumentation
from audioproxy.web.resource import BaseResource
from audioproxy.web.response_plan import plan_body

_CONTENT_TYPE = b"text/plain; version=0.0.4"


class MetricsResource(BaseResource):
    """Serves ``/metrics`` and nothing else.

    :param measure: called before each response; updates what takes too long to be read with the
        other metrics.
    """

    def __init__(
        self, instrumentation: Instrumentation, measure: Callable[[], Awaitable[None]]
    ) -> None:
        BaseResource.__init__(self, instrumentation)
        self._measure = measure

    async def route(self, exchange: Exchange, path: bytes) -> None:
        """Respond with all metrics, to HEAD as to GET (D19)."""
        if not self.serves(exchange.method) or path != b"/metrics":
            raise NotFound("no such route on the metrics listener")
        exchange.endpoint = "metrics"
        await self._measure()
        headers = {b"content-type": _CONTENT_TYPE, b"cache-control": b"no-store"}
        body = exposition(self._instrumentation.metrics.registry)
        exchange.respond(plan_body(200, headers, body))


def exposition(registry: CollectorRegistry) -> bytes:
    """Return all metrics as text for Prometheus, in version 0.0.4 of its format."""
    return generate_latest(_WithoutCreated(registry))


@dataclass(frozen=True, slots=True)
class _WithoutCreated(Collector):
    """A registry without the creation times of its series.

    prometheus-client 0.26 adds them as series of their own. It can leave them out only for the
    whole process, which may be an application that embeds this service.
    """

    registry: CollectorRegistry

    def collect(self) -> Iterator[Metric]:
        for metric in self.registry.collect():
            metric.samples = [
                sample for sample in metric.samples if sample.name != f"{metric.name}_created"
            ]
            yield metric
