"""Metrics that prometheus-client lacks, or that are too slow with it.

Its counters and histograms take a lock, and three times as long. That is paid for all but the three
counters of each response. All series exist from the start, so that a rate includes the first event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product

from prometheus_client import Histogram
from prometheus_client.metrics_core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector


class ResponseCounts(Collector):
    """The counters of responses: by exact status, by family (``2xx``), and of bytes.

    :ivar cells: the number of responses and the bytes of their bodies, by endpoint and status.
    """

    def __init__(self, endpoints: Iterable[str], statuses: Iterable[int]) -> None:
        self.cells = {key: [0, 0] for key in product(endpoints, statuses)}

    def collect(self) -> Iterator[Metric]:
        exact: Counter[tuple[str, ...]] = Counter()
        families: Counter[tuple[str, ...]] = Counter()
        sizes: Counter[tuple[str, ...]] = Counter()
        for (endpoint, status), (count, size) in self.cells.items():
            exact[endpoint, str(status)] = count
            families[endpoint, f"{status // 100}xx"] += count
            sizes[endpoint,] += size
        for name, documentation, labels, counts in (
            ("requests", "Finished requests, by status family.", ("endpoint", "status"), families),
            ("responses", "Finished requests, by exact status.", ("endpoint", "status"), exact),
            ("response_bytes", "Bytes of the bodies of responses.", ("endpoint",), sizes),
        ):
            family = CounterMetricFamily(f"audio_proxy_http_{name}", documentation, labels=labels)
            for values, count in counts.items():
                family.add_metric(values, count)
            yield family


class Info(Collector):
    """An info metric, whose labels a function returns at each scrape."""

    def __init__(
        self, name: str, documentation: str, read: Callable[[], Mapping[str, str]]
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._read = read

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(self._name, self._documentation, value=dict(self._read()))


class Durations(Histogram):
    """A histogram of durations in seconds."""

    @contextmanager
    def measure(self, clock: Callable[[], float]) -> Iterator[None]:
        """Count the seconds of a block, however it ends."""
        since = clock()
        try:
            yield
        finally:
            self.observe(clock() - since)
