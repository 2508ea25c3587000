"""The metrics of the service, on a registry of their own (Metrics).

Every label value comes from a fixed set. Nothing from a request becomes a label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from twisted.internet.defer import CancelledError

from audioproxy.errors import (
    InvalidOptions,
    NotFound,
    Refusal,
    RenderFailed,
    RenderTimeout,
    SourceTooLarge,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.grammar.formats import FORMATS

#: Seconds (Metrics, 4).
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

ENDPOINTS = ("render", "info", "health", "ready", "metrics", "preflight", "unknown")

_FAMILIES = ("2xx", "3xx", "4xx", "5xx")
_PAIRS = ("current", "previous")
_LOOKUPS = ("hit", "miss", "coalesced")
_SUCCESS, _CANCELLED = "success", "cancelled"
# Failure outcomes of a render that had a slot.
_FAILURES = (
    NotFound,
    SourceTooLarge,
    UndecodableSource,
    InvalidOptions,
    RenderFailed,
    UpstreamUnavailable,
    RenderTimeout,
)
_OUTCOMES = (_SUCCESS, _CANCELLED, *(failure.code for failure in _FAILURES))


class Pool(Protocol):
    """The values of the render slot gauges; they are read at each scrape."""

    @property
    def capacity(self) -> int: ...  # noqa: D102
    @property
    def held(self) -> int: ...  # noqa: D102
    @property
    def queue_size(self) -> int: ...  # noqa: D102
    @property
    def depth(self) -> int: ...  # noqa: D102
    @property
    def low_depth(self) -> int: ...  # noqa: D102


class Metrics:
    """The counters, gauges and histograms, with a method for each event.

    :ivar registry: the registry that is exposed.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._renders = Counter(
            "audio_proxy_renders",
            "Renders that had a slot, by outcome.",
            ("format", "outcome"),
            registry=registry,
        )
        self._durations = Histogram(
            "audio_proxy_render_duration_seconds",
            "Seconds that a render had its slot.",
            ("format", "outcome"),
            buckets=BUCKETS,
            registry=registry,
        )
        self._running = Gauge(
            "audio_proxy_renders_running",
            "Running renders; clients that share a render count once.",
            registry=registry,
        )
        self._rejections = Counter(
            "audio_proxy_render_queue_rejections",
            "Renders rejected because the queue was full or the wait too long.",
            registry=registry,
        )
        lookups = _Counts(
            "audio_proxy_cache_lookups",
            "GET requests for variants, by cache outcome.",
            {"format": FORMATS, "outcome": _LOOKUPS},
        )
        self._lookups = lookups.values
        registry.register(lookups)
        self._write_failures = Counter(
            "audio_proxy_variant_store_write_failures",
            "Finished renders that could not be stored.",
            registry=registry,
        )
        self._store_refusals = Counter(
            "audio_proxy_variant_store_full",
            "Finished renders that were not stored, since the store has its maximum size.",
            registry=registry,
        )
        self._store_evictions = Counter(
            "audio_proxy_variant_store_evictions",
            "Variants that this node has removed from the store to make room for others.",
            registry=registry,
        )
        self._evictions = Counter(
            "audio_proxy_connection_evictions",
            "Idle or stalled connections that were closed to make room for new ones.",
            registry=registry,
        )
        requests = _Counts(
            "audio_proxy_http_requests",
            "Finished requests, by endpoint and status family.",
            {"endpoint": ENDPOINTS, "status": _FAMILIES},
        )
        self._requests = requests.values
        registry.register(requests)
        signed = _Counts(
            "audio_proxy_signed_requests",
            "Finished requests with a right signature, by the pair of key and salt that made it.",
            {"pair": _PAIRS},
        )
        self._signed = signed.values
        registry.register(signed)
        # Series of small sets exist from the start, so that a rate includes the first event. The
        # series of the histogram, 14 for each combination, appear with their first render.
        for values in product(FORMATS, _OUTCOMES):
            self._renders.labels(*values)

    def watch(self, pool: Pool) -> None:
        """Expose the render slots and their queue from now on."""
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("render_slots_held", "Render slots in use.", lambda: pool.held),
            ("render_slots_capacity", "Render slots in total.", lambda: pool.capacity),
            ("render_queue_depth", "Renders that wait for a slot.", lambda: pool.depth),
            (
                "render_low_queue_depth",
                "Low-lane renders that wait for a slot.",
                lambda: pool.low_depth,
            ),
            (
                "render_queue_capacity",
                "Maximum number of renders that wait for a slot.",
                lambda: pool.queue_size,
            ),
        )
        for name, documentation, value in gauges:
            gauge = Gauge(f"audio_proxy_{name}", documentation, registry=self.registry)
            gauge.set_function(value)

    def watch_store(self, max_bytes: int, size: Callable[[], int | None]) -> None:
        """Expose the size of a store with a bound from now on.

        :param size: returns the bytes of the store, or None while they are unknown.
        """

        def value() -> float:
            found = size()
            return math.nan if found is None else found

        Gauge(
            "audio_proxy_variant_store_bytes", "Bytes in the variant store.", registry=self.registry
        ).set_function(value)
        Gauge(
            "audio_proxy_variant_store_max_bytes",
            "Maximum number of bytes in the variant store.",
            registry=self.registry,
        ).set(max_bytes)

    @contextmanager
    def render(self, form: str, seconds: Callable[[], float]) -> Iterator[None]:
        """Count the render that runs in the ``with`` block, its duration and its outcome.

        :param form: the output format.
        :param seconds: a clock.
        """
        since = seconds()
        outcome = RenderFailed.code
        self._running.inc()
        try:
            yield
            outcome = _SUCCESS
        except CancelledError:
            outcome = _CANCELLED
            raise
        except Refusal as refusal:
            outcome = refusal.code
            raise
        finally:
            self._running.dec()
            self._renders.labels(form, outcome).inc()
            self._durations.labels(form, outcome).observe(seconds() - since)

    def render_rejected(self) -> None:
        """Count a render that was rejected without a slot."""
        self._rejections.inc()

    def hit(self, form: str) -> None:
        """Count a request that is served from the store."""
        self._lookups[form, "hit"] += 1

    def miss(self, form: str) -> None:
        """Count a request that starts a render."""
        self._lookups[form, "miss"] += 1

    def coalesced(self, form: str) -> None:
        """Count a request that joins a render."""
        self._lookups[form, "coalesced"] += 1

    def write_failed(self) -> None:
        """Count a finished render that could not be stored."""
        self._write_failures.inc()

    def store_full(self) -> None:
        """Count a finished render that was not stored, for lack of room."""
        self._store_refusals.inc()

    def variants_evicted(self, count: int) -> None:
        """Count variants that were removed from the store to make room."""
        self._store_evictions.inc(count)

    def connection_evicted(self) -> None:
        """Count a connection that was closed to make room for a new one."""
        self._evictions.inc()

    def request_ended(self, endpoint: str, status: int, pair: int | None = None) -> None:
        """Count a request.

        :param endpoint: one of `ENDPOINTS`.
        :param status: the three-digit number.
        :param pair: the index of the pair that made its signature, or None without a signature.
        """
        self._requests[endpoint, f"{status // 100}xx"] += 1
        if pair is not None:
            self._signed[_PAIRS[min(pair, 1)],] += 1


class _Counts(Collector):
    """A counter for events of every request, with all its series from the start.

    All events are counted in one thread. A ``Counter`` takes a lock, and ten times as long.

    :ivar values: the count of each combination of label values.
    """

    def __init__(self, name: str, documentation: str, labels: Mapping[str, Iterable[str]]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self.values = dict.fromkeys(product(*labels.values()), 0)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, count in self.values.items():
            family.add_metric(values, count)
        yield family
