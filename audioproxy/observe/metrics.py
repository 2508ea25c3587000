"""The metrics of the service, on a registry of their own (Metrics).

Every label value comes from a fixed set. Nothing from a request becomes a label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Protocol, TypeAlias

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
from audioproxy.observe.collectors import Durations, Info, ResponseCounts

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

#: Counts one event, or as many as its argument says.
Count: TypeAlias = Callable[..., None]

_HELP = {
    "renders": "Renders that had a slot, by outcome.",
    "render_duration_seconds": "Seconds that a render had its slot.",
    "renders_running": "Running renders; clients that share a render count once.",
    "render_slots_held": "Render slots in use.",
    "render_slots_capacity": "Render slots in total.",
    "render_queue_depth": "Renders that wait for a slot.",
    "render_low_queue_depth": "Low-lane renders that wait for a slot.",
    "render_queue_capacity": "Maximum number of renders that wait for a slot.",
    "render_queue_rejections": "Renders rejected because the queue was full or the wait too long.",
    "render_queue_wait_seconds": "Seconds that a render waited for a slot, by lane.",
    "cache_lookups": "GET requests for variants, by cache outcome.",
    "source_open_seconds": "Seconds that the opening of a source took, by scheme.",
    "probe_duration_seconds": "Seconds that a probe took, with the wait for a remote source.",
    "write_back_duration_seconds": "Seconds that the store took to accept a finished render.",
    "variant_store_write_failures": "Finished renders that could not be stored.",
    "variant_store_full": "Finished renders that were not stored, since the store has its maximum"
    " size.",
    "variant_store_evictions": "Variants that this node has removed from the store to make room for"
    " others.",
    "variant_store_bytes": "Bytes in the variant store.",
    "variant_store_max_bytes": "Maximum number of bytes in the variant store.",
    "connection_evictions": "Idle or stalled connections that were closed to make room for new"
    " ones.",
    "http_responses_cut": "Responses that were not sent to their end, by what has cut them.",
    "signed_requests": "Finished requests with a right signature, by the pair of key and salt that"
    " made it.",
    "first_byte_seconds": "Seconds from a GET request to the first byte of its response, by cache"
    " outcome.",
    "disk_free_bytes": "Bytes that the service may still write on the disk of a folder.",
    "disk_size_bytes": "Bytes of all files that fit on the disk of a folder.",
    "build": "The versions that run.",
}


def _described(name: str) -> tuple[str, str]:
    return f"audio_proxy_{name}", _HELP[name]


class Pool(Protocol):
    """The values of the render slot gauges; they are read at each scrape."""

    capacity: int
    held: int
    queue_size: int

    @property
    def depth(self) -> int: ...
    @property
    def low_depth(self) -> int: ...


class Space(Protocol):
    @property
    def free(self) -> int: ...
    @property
    def size(self) -> int: ...


class Metrics:
    """The counters, gauges and histograms, with a method for each event.

    :ivar registry: the registry that is exposed.
    :ivar first_bytes: by the value of X-Audio-Proxy.
    :ivar queue_waits: by lane.
    :ivar openings: by scheme.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry, outcomes = self.registry, ("format", "outcome")
        self._renders = Counter(*_described("renders"), outcomes, registry=registry)
        self._durations = Histogram(
            *_described("render_duration_seconds"), outcomes, buckets=BUCKETS, registry=registry
        )
        # Series of small sets exist from the start, so that a rate includes the first event. The
        # series of the histogram, 14 for each combination, appear with their first render.
        for values in product(FORMATS, _OUTCOMES):
            self._renders.labels(*values)
        self._running = self._gauge("renders_running")
        self.render_rejected = self._event("render_queue_rejections")
        self._lookups = self._events("cache_lookups", format=FORMATS, outcome=_LOOKUPS)
        self.write_failed = self._event("variant_store_write_failures")
        self.store_full = self._event("variant_store_full")
        self.variants_evicted = self._event("variant_store_evictions")
        self.connection_evicted = self._event("connection_evictions")
        responses = ResponseCounts(ENDPOINTS, STATUSES)
        self._responses = responses.cells
        registry.register(responses)
        self._cuts = self._events("http_responses_cut", reason=("stop", "failure"))
        signed = self._events("signed_requests", pair=("current", "previous"))
        self._signed = tuple(signed.values())
        first_bytes = self._histograms("first_byte_seconds", cache=_LOOKUPS)
        self.first_bytes = {name.upper(): each for name, each in first_bytes.items()}
        self.queue_waits = self._histograms("render_queue_wait_seconds", lane=("normal", "low"))
        self.openings = self._histograms("source_open_seconds", scheme=SCHEMES)
        self.probes = self._histogram("probe_duration_seconds")
        self.write_backs = self._histogram("write_back_duration_seconds")

    def _event(self, name: str) -> Count:
        return Counter(*_described(name), registry=self.registry).inc

    def _events(self, name: str, **labels: Iterable[str]) -> dict[tuple[str, ...], Count]:
        """Register a counter, and return the count of each combination of label values."""
        family = Counter(*_described(name), tuple(labels), registry=self.registry)
        return {values: family.labels(*values).inc for values in product(*labels.values())}

    def _histogram(self, name: str, *labels: str) -> Durations:
        return Durations(*_described(name), labels, buckets=FINE_BUCKETS, registry=self.registry)

    def _histograms(self, name: str, **label: Iterable[str]) -> dict[str, Durations]:
        family = self._histogram(name, *label)
        return {value: family.labels(value) for values in label.values() for value in values}

    def _gauge(self, name: str, *labels: str) -> Gauge:
        return Gauge(*_described(name), labels, registry=self.registry)

    def watch(self, pool: Pool) -> None:
        self._gauge("render_slots_held").set_function(lambda: pool.held)
        self._gauge("render_slots_capacity").set_function(lambda: pool.capacity)
        self._gauge("render_queue_depth").set_function(lambda: pool.depth)
        self._gauge("render_low_queue_depth").set_function(lambda: pool.low_depth)
        self._gauge("render_queue_capacity").set_function(lambda: pool.queue_size)

    def watch_store(self, max_bytes: int, size: Callable[[], int | None]) -> None:
        """Expose the size of a store with a bound; None is one that is not known yet."""

        def read() -> float:
            found = size()
            return math.nan if found is None else found

        self._gauge("variant_store_bytes").set_function(read)
        self._gauge("variant_store_max_bytes").set(max_bytes)

    def watch_disks(self, spaces: Mapping[str, Space | None]) -> None:
        """Expose the space of the disks of folders; None is one that is not known now."""

        def read(folder: str, name: str) -> float:
            space = spaces[folder]
            return math.nan if space is None else getattr(space, name)

        for name in ("free", "size"):
            gauge = self._gauge(f"disk_{name}_bytes", "folder")
            for folder in spaces:
                gauge.labels(folder).set_function(partial(read, folder, name))

    def watch_process(self, build: Callable[[], Mapping[str, str]]) -> None:
        """Expose this process, its platform, and the versions that ``build`` returns by name."""
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(Info(*_described("build"), build))

    @contextmanager
    def render(self, form: str, seconds: Callable[[], float]) -> Iterator[None]:
        """Count the render that runs in the ``with`` block, its duration and its outcome."""
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

    def hit(self, form: str) -> None:
        self._lookups[form, "hit"]()

    def miss(self, form: str) -> None:
        self._lookups[form, "miss"]()

    def coalesced(self, form: str) -> None:
        self._lookups[form, "coalesced"]()

    def response_cut(self, *, by_stop: bool) -> None:
        """Count a response that a stop of the service, or a failure, has cut."""
        self._cuts["stop" if by_stop else "failure",]()

    def request_ended(
        self, endpoint: str, status: int, pair: int | None = None, sent: int = 0
    ) -> None:
        """Count a request.

        :param pair: the index of the pair that made its signature.
        :param sent: bytes of the response's body.
        """
        cell = self._responses[endpoint, status]
        cell[0] += 1
        cell[1] += sent
        if pair is not None:
            self._signed[pair > 0]()
