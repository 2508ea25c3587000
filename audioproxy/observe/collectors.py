"""Collectors of metrics: counters and histograms for events of every request, and others.

A ``Counter`` or a ``Histogram`` of prometheus-client takes a lock, and ten times as long. Here, all
events are counted in one thread. All series exist from the start, so that a rate includes the first
event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, product
from typing import Any

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Counts(Collector):
    """A counter.

    :ivar values: the count of each combination of label values.
    """

    def __init__(
        self, name: str, documentation: str, labels: Mapping[str, Iterable[object]]
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self.values: dict[tuple[Any, ...], int] = dict.fromkeys(product(*labels.values()), 0)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, count in self.values.items():
            family.add_metric([str(value) for value in values], count)
        yield family


class ResponseCounts(Collector):
    """The counters of responses: by exact status, by family (``2xx``), and of bytes.

    :ivar cells: the number of responses and the bytes of their bodies, by endpoint and status.
    """

    def __init__(self, endpoints: Iterable[str], statuses: Iterable[int]) -> None:
        self.cells = {key: [0, 0] for key in product(endpoints, statuses)}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
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
    """An info metric, whose labels may change.

    :param read: returns the labels.
    """

    def __init__(
        self, name: str, documentation: str, read: Callable[[], Mapping[str, str]]
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        yield InfoMetricFamily(self._name, self._documentation, value=dict(self._read()))


class Durations:
    """The durations of one series.

    :param bounds: the upper bounds of the buckets in seconds, without infinity.
    :ivar counts: of the durations in each bucket alone.
    :ivar total: the sum of all durations.
    """

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self._bounds = bounds

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    @contextmanager
    def measure(self, clock: Callable[[], float]) -> Iterator[None]:
        """Count the duration of a block, however it ends.

        :param clock: returns seconds.
        """
        since = clock()
        try:
            yield
        finally:
            self.observe(clock() - since)


class DurationHistogram(Collector):
    """A histogram of durations with at most one label.

    :ivar series: by the value of the label; without a label, the only one is that of ``""``.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        bounds: Sequence[float],
        label: str | None = None,
        values: Iterable[str] = ("",),
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = () if label is None else (label,)
        self._edges = [*map(floatToGoString, bounds), "+Inf"]
        self.series = {value: Durations(bounds) for value in values}

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for value, durations in self.series.items():
            buckets = list(zip(self._edges, accumulate(durations.counts), strict=True))
            family.add_metric([value] if self._labels else [], buckets, durations.total)
        yield family
