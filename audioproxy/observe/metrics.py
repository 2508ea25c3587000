"""The metrics of the service, on a registry of their own (Metrics).

Every label value comes from a fixed set. Nothing from a request becomes a label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
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
from audioproxy.grammar.sources import SCHEMES
from audioproxy.observe.collectors import (
    Counts,
    DurationHistogram,
    Durations,
    Info,
    ResponseCounts,
)

#: Seconds (Metrics, 4).
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
#: The buckets of the histograms beyond the contract (D66), in seconds.
FINE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, *BUCKETS)

ENDPOINTS = ("render", "info", "health", "ready", "metrics", "preflight", "unknown")

#: The statuses of all responses, and 499 for a client that has disconnected before its response.
STATUSES = (
    *(200, 204, 206, 302, 304),
    *(400, 401, 404, 410, 413, 415, 416, 422, 429, 499),
    *(500, 502, 503, 504),
)
_LANES = ("normal", "low")
_CUTS = ("stop", "failure")
_PAIRS = (("current",), ("previous",))
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
    def capacity(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def queue_size(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def low_depth(self) -> int: ...


class Space(Protocol):
    """The free bytes and the size of a disk."""

    @property
    def free(self) -> int: ...
    @property
    def size(self) -> int: ...


class Metrics:
    """The counters, gauges and histograms, with a method for each event.

    :ivar registry: the registry that is exposed.
    :ivar first_bytes: how long responses to GET requests for variants take to begin, by the value
        of X-Audio-Proxy.
    :ivar queue_waits: how long renders wait for a slot, by lane.
    :ivar openings: how long sources take to open, by scheme.
    :ivar probes: how long probes take, with the downloads that they need.
    :ivar write_backs: how long the store takes to accept a finished render.
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
        self._lookups = self._count(
            "audio_proxy_cache_lookups",
            "GET requests for variants, by cache outcome.",
            {"format": FORMATS, "outcome": _LOOKUPS},
        ).values
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
        responses = ResponseCounts(ENDPOINTS, STATUSES)
        self._responses = responses.cells
        registry.register(responses)
        self._cuts = self._count(
            "audio_proxy_http_responses_cut",
            "Responses that were not sent to their end, by what has cut them.",
            {"reason": _CUTS},
        ).values
        self._signed = self._count(
            "audio_proxy_signed_requests",
            "Finished requests with a right signature, by the pair of key and salt that made it.",
            {"pair": [name for (name,) in _PAIRS]},
        ).values
        first_bytes = self._time(
            "audio_proxy_first_byte_seconds",
            "Seconds from a GET request to the first byte of its response, by cache outcome.",
            "cache",
            _LOOKUPS,
        )
        self.first_bytes = {name.upper(): each for name, each in first_bytes.items()}
        self.queue_waits = self._time(
            "audio_proxy_render_queue_wait_seconds",
            "Seconds that a render waited for a slot, by lane.",
            "lane",
            _LANES,
        )
        self.openings = self._time(
            "audio_proxy_source_open_seconds",
            "Seconds that the opening of a source took, by scheme.",
            "scheme",
            SCHEMES,
        )
        (self.probes,) = self._time(
            "audio_proxy_probe_duration_seconds",
            "Seconds that a probe took, with the wait for a remote source.",
        ).values()
        (self.write_backs,) = self._time(
            "audio_proxy_write_back_duration_seconds",
            "Seconds that the store took to accept a finished render.",
        ).values()
        # Series of small sets exist from the start, so that a rate includes the first event. The
        # series of the histogram, 14 for each combination, appear with their first render.
        for values in product(FORMATS, _OUTCOMES):
            self._renders.labels(*values)

    def _count(
        self, name: str, documentation: str, labels: Mapping[str, Iterable[object]]
    ) -> Counts:
        counts = Counts(name, documentation, labels)
        self.registry.register(counts)
        return counts

    def _time(
        self,
        name: str,
        documentation: str,
        label: str | None = None,
        values: Iterable[str] = ("",),
    ) -> dict[str, Durations]:
        histogram = DurationHistogram(name, documentation, FINE_BUCKETS, label, values)
        self.registry.register(histogram)
        return histogram.series

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

    def watch_disks(self, spaces: Mapping[str, Space | None]) -> None:
        """Expose the free bytes and the sizes of disks from now on.

        :param spaces: by folder, the space of its disk, or None while it is unknown.
        """
        gauges: tuple[tuple[str, str, Callable[[Space], int]], ...] = (
            ("free", "Bytes that the service may still write", lambda space: space.free),
            ("size", "Bytes of all files that fit", lambda space: space.size),
        )

        def read(folder: str, value: Callable[[Space], int]) -> float:
            found = spaces[folder]
            return math.nan if found is None else value(found)

        for name, documentation, value in gauges:
            gauge = Gauge(
                f"audio_proxy_disk_{name}_bytes",
                f"{documentation} on the disk of a folder.",
                ("folder",),
                registry=self.registry,
            )
            for folder in spaces:
                gauge.labels(folder).set_function(partial(read, folder, value))

    def watch_process(self, build: Callable[[], Mapping[str, str]]) -> None:
        """Expose this process, its platform and its build from now on.

        :param build: returns the versions of programs and the like, by name.
        """
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(Info("audio_proxy_build", "The versions that run.", build))

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

    def response_cut(self, *, by_stop: bool) -> None:
        """Count a response that is not sent to its end.

        :param by_stop: a stop of the service has cut it, and not a failure.
        """
        self._cuts["stop" if by_stop else "failure",] += 1

    def request_ended(
        self, endpoint: str, status: int, pair: int | None = None, sent: int = 0
    ) -> None:
        """Count a request.

        :param endpoint: one of `ENDPOINTS`.
        :param status: one of `STATUSES`.
        :param pair: the index of the pair that made its signature, or None without a signature.
        :param sent: bytes of the response's body.
        """
        cell = self._responses[endpoint, status]
        cell[0] += 1
        cell[1] += sent
        if pair is not None:
            self._signed[_PAIRS[pair > 0]] += 1
