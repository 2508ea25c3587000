"""The metrics: names, labels, and the outcome that each render is counted under."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY, disable_created_metrics, enable_created_metrics
from prometheus_client.parser import text_string_to_metric_families
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy import errors
from audioproxy.files.disk_space import DiskSpace
from audioproxy.observe.metrics import Metrics
from audioproxy.web.metrics_resource import exposition
from tests.support.http import ResourceHarness
from tests.support.strategies import DETERMINISTIC, encoded, junk, option_segments, sources

#: Type and labels of each metric (Metrics).
TABLE = {
    "audio_proxy_renders_total": ("counter", "format outcome"),
    "audio_proxy_render_duration_seconds": ("histogram", "format outcome"),
    "audio_proxy_renders_running": ("gauge", ""),
    "audio_proxy_render_slots_held": ("gauge", ""),
    "audio_proxy_render_slots_capacity": ("gauge", ""),
    "audio_proxy_render_queue_depth": ("gauge", ""),
    "audio_proxy_render_low_queue_depth": ("gauge", ""),
    "audio_proxy_render_queue_capacity": ("gauge", ""),
    "audio_proxy_render_queue_rejections_total": ("counter", ""),
    "audio_proxy_cache_lookups_total": ("counter", "format outcome"),
    "audio_proxy_variant_store_write_failures_total": ("counter", ""),
    "audio_proxy_variant_store_full_total": ("counter", ""),
    "audio_proxy_variant_store_evictions_total": ("counter", ""),
    "audio_proxy_variant_store_bytes": ("gauge", ""),
    "audio_proxy_variant_store_max_bytes": ("gauge", ""),
    "audio_proxy_connection_evictions_total": ("counter", ""),
    "audio_proxy_signed_requests_total": ("counter", "pair"),
    "audio_proxy_http_requests_total": ("counter", "endpoint status"),
    "audio_proxy_http_responses_total": ("counter", "endpoint status"),
    "audio_proxy_http_response_bytes_total": ("counter", "endpoint"),
    "audio_proxy_http_responses_cut_total": ("counter", "reason"),
    "audio_proxy_first_byte_seconds": ("histogram", "cache"),
    "audio_proxy_render_queue_wait_seconds": ("histogram", "lane"),
    "audio_proxy_source_open_seconds": ("histogram", "scheme"),
    "audio_proxy_probe_duration_seconds": ("histogram", ""),
    "audio_proxy_write_back_duration_seconds": ("histogram", ""),
    "audio_proxy_disk_free_bytes": ("gauge", "folder"),
    "audio_proxy_disk_size_bytes": ("gauge", "folder"),
    "audio_proxy_build_info": ("gauge", "version ffmpeg resampler"),
}
BUCKETS = "0.1 0.25 0.5 1.0 2.5 5.0 10.0 30.0 60.0 120.0 300.0 +Inf".split()
FINE_BUCKETS = ["0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", *BUCKETS]

FORMATS = "mp3 opus ogg aac m4a flac wav peaks".split()
#: Outcomes of a render that held a slot; a remote source is read again, and may be gone by then.
OUTCOMES = (
    "success cancelled not_found source_too_large undecodable_source invalid_options render_failed"
    " upstream_unavailable render_timeout"
).split()
ENDPOINTS = "render info health ready metrics preflight unknown".split()


STATUSES = ("200 204 206 302 304 400 401 404 410 413 415 416 422 429 499 500 502 503 504").split()


def parse(exposition: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Parse the exposition into values by labels and by metric name without ``audio_proxy_``."""
    found = {}
    for family in text_string_to_metric_families(exposition.decode("ascii")):
        for sample in family.samples:
            if not sample.name.startswith("audio_proxy_"):
                continue
            series = (sample.name.removeprefix("audio_proxy_"), tuple(sample.labels.items()))
            assert series not in found, f"{series} occurs twice"
            found[series] = float(sample.value)
    return found


def read(exposition: bytes) -> dict[str, float]:
    """Parse the exposition into values by series; a series is spelled ``name value value``."""
    return {
        " ".join([name, *(value for _, value in labels)]): value
        for (name, labels), value in parse(exposition).items()
    }


class Counts:
    """Changes of metrics since this object was created."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._before = self._read()

    @property
    def changes(self) -> dict[str, float]:
        """The change of each series that has changed, without histogram buckets."""
        return {
            series: round(value - self._before.get(series, 0), 9)
            for series, value in self._read().items()
            if value != self._before.get(series)
        }

    def of(self, *prefixes: str) -> dict[str, float]:
        """Return the changes of the series whose names have one of the prefixes."""
        return {name: value for name, value in self.changes.items() if name.startswith(prefixes)}

    def _read(self) -> dict[str, float]:
        # Other tests parse the exposition, which is slow.
        samples = [each for one in self._metrics.registry.collect() for each in one.samples]
        return {
            " ".join([each.name.removeprefix("audio_proxy_"), *each.labels.values()]): each.value
            for each in samples
            if each.name.startswith("audio_proxy_")
            and not each.name.endswith(("_bucket", "_created"))
        }


@dataclass
class FakePool:
    """Double of render slots with fixed numbers."""

    capacity: int = 3
    held: int = 2
    queue_size: int = 7
    depth: int = 5
    low_depth: int = 4


def full() -> Metrics:
    """Return metrics with at least one series each."""
    metrics = Metrics()
    metrics.watch(FakePool())
    metrics.watch_store(1000, lambda: 900)
    metrics.watch_disks(dict.fromkeys(("store", "tmpdir"), DiskSpace(3000, 8000)))
    metrics.watch_process(lambda: {"version": "1", "ffmpeg": "7.1", "resampler": "soxr"})
    with metrics.render("mp3", Clock().seconds):
        pass
    return metrics


class ContractTests(SynchronousTestCase):
    """Exposition of exactly the contract's table (Metrics)."""

    def test_names_and_types(self) -> None:
        """Exactly the metrics of the table are exposed, each with its type and a help sentence."""
        text = exposition(full().registry).decode()
        types = re.findall(r"^# TYPE (audio_proxy_\S+) (\S+)$", text, re.MULTILINE)
        self.assertEqual(sorted((name, kind) for name, (kind, _) in TABLE.items()), sorted(types))
        helped = re.findall(r"^# HELP (audio_proxy_\S+) [A-Z].*\.$", text, re.MULTILINE)
        self.assertEqual([name for name, _ in types], helped)

    def test_labels(self) -> None:
        """Each series belongs to a metric of the table and has that metric's labels."""
        expected = {}
        for name, (kind, labels) in TABLE.items():
            short, own = name.removeprefix("audio_proxy_"), set(labels.split())
            if kind == "histogram":
                expected |= {f"{short}_bucket": own | {"le"}, f"{short}_count": own}
                short += "_sum"
            expected[short] = own
        found: dict[str, set[str]] = {}
        for name, pairs in parse(exposition(full().registry)):
            labels_found = {label for label, _ in pairs}
            self.assertEqual(found.setdefault(name, labels_found), labels_found)
        self.assertEqual(expected, found)

    def test_buckets(self) -> None:
        """A duration counts in each fixed bucket that it does not exceed (Metrics, 4).

        Histograms beyond the contract have buckets from a millisecond on (D66).
        """
        seconds = (0, 0.001, 0.03, 0.1, 0.11, 1, 299.9, 300, 300.1)
        metrics = Metrics()
        for each in seconds:
            clock = Clock()
            for timed in (
                metrics.render("wav", clock.seconds),
                metrics.queue_waits["low"].measure(clock.seconds),
            ):
                with timed:
                    clock.advance(each)
        series = parse(exposition(metrics.registry))
        for name, label, bounds in (
            ("render_duration_seconds", ("format", "wav"), BUCKETS),
            ("render_queue_wait_seconds", ("lane", "low"), FINE_BUCKETS),
        ):
            counts = {
                dict(labels)["le"]: value
                for (found, labels), value in series.items()
                if found == f"{name}_bucket" and label in labels
            }
            self.assertEqual(bounds, list(counts))
            expected = {le: sum(each <= float(le) for each in seconds) for le in bounds}
            self.assertEqual(expected, counts)

    def test_from_the_start(self) -> None:
        """Counters are exposed as 0 before the first event, so that ``rate()`` includes it."""
        series = read(exposition(Metrics().registry))
        for name, *sets in (
            ("renders_total", FORMATS, OUTCOMES),
            ("cache_lookups_total", FORMATS, ["hit", "miss", "coalesced"]),
            ("http_requests_total", ENDPOINTS, ["2xx", "3xx", "4xx", "5xx"]),
            ("render_queue_rejections_total",),
            ("variant_store_write_failures_total",),
            ("variant_store_full_total",),
            ("variant_store_evictions_total",),
            ("connection_evictions_total",),
            ("signed_requests_total", ["current", "previous"]),
            ("http_responses_total", ENDPOINTS, STATUSES),
            ("http_response_bytes_total", ENDPOINTS),
            ("http_responses_cut_total", ["stop", "failure"]),
            ("first_byte_seconds_bucket", ["hit", "miss", "coalesced"], FINE_BUCKETS),
            ("render_queue_wait_seconds_count", ["normal", "low"]),
            ("source_open_seconds_count", ["local", "s3", "https"]),
            ("probe_duration_seconds_count",),
            ("write_back_duration_seconds_count",),
            ("renders_running",),
        ):
            expected = {" ".join([name, *values]) for values in itertools.product(*sets)}
            found = {line for line in series if line.split(" ")[0] == name}
            self.assertEqual(expected, found)
        self.assertEqual({0.0}, set(series.values()))

    def test_no_created_series(self) -> None:
        """There are no ``_created`` series, whatever prometheus-client's global setting is."""
        self.addCleanup(enable_created_metrics)
        names = set()
        for switch in (enable_created_metrics, disable_created_metrics):
            switch()
            text = exposition(full().registry)
            self.assertNotIn(b"_created", text)
            names.add(frozenset(parse(text)))
        self.assertEqual(1, len(names))

    def test_registry_of_its_own(self) -> None:
        """Two services in one process count separately, and neither uses the global registry."""
        one, other = full(), full()
        counts, other_counts = Counts(one), Counts(other)
        one.render_rejected()
        one.write_failed()
        one.store_full()
        one.variants_evicted(3)
        one.connection_evicted()
        for count in (one.hit, one.miss, one.coalesced):
            count("mp3")
        events = "render_queue_rejections variant_store_write_failures variant_store_full"
        expected = dict.fromkeys((f"{name}_total" for name in events.split()), 1)
        expected |= {"variant_store_evictions_total": 3, "connection_evictions_total": 1}
        lookups = ("hit", "miss", "coalesced")
        expected |= {f"cache_lookups_total mp3 {outcome}": 1 for outcome in lookups}
        self.assertEqual((expected, {}), (counts.changes, other_counts.changes))
        names = [metric.name for metric in REGISTRY.collect()]
        self.assertEqual([], [name for name in names if "audio_proxy" in name])

    def test_slots(self) -> None:
        """The gauges of slots and of both lanes show the state at the time of the scrape (D65)."""
        metrics, pool = Metrics(), FakePool()
        metrics.watch(pool)
        names = "slots_held slots_capacity queue_depth low_queue_depth queue_capacity".split()
        for held, depth, low_depth in ((2, 5, 0), (3, 0, 4), (0, 0, 0)):
            pool.held, pool.depth, pool.low_depth = held, depth, low_depth
            series = read(exposition(metrics.registry))
            values = [series[f"render_{name}"] for name in names]
            self.assertEqual([held, 3, depth, low_depth, 7], values)

    def test_statuses(self) -> None:
        """Every status of a refusal is counted exactly, and in its family."""
        refusals = {
            error.status
            for error in vars(errors).values()
            if isinstance(error, type) and hasattr(error, "status")
        }
        metrics = Metrics()
        counts = Counts(metrics)
        for status in refusals | {200, 204, 206, 302, 304, 503}:
            metrics.request_ended("info", status, sent=10)
        exact = {f"http_responses_total info {status}": 1 for status in STATUSES}
        self.assertEqual(exact, counts.of("http_responses_total"))
        families = {"2xx": 3, "3xx": 2, "4xx": 10, "5xx": 4}
        expected = {f"http_requests_total info {family}": n for family, n in families.items()}
        self.assertEqual(expected, counts.of("http_requests_total"))
        self.assertEqual({"http_response_bytes_total info": 190}, counts.of("http_response_bytes"))

    def test_process(self) -> None:
        """The process, its platform and its build are exposed; a replaced program is seen."""
        metrics, build = Metrics(), {"version": "1", "ffmpeg": "7.0", "resampler": "swr"}
        metrics.watch_process(lambda: build)
        for ffmpeg in ("7.0", "7.1"):
            build["ffmpeg"] = ffmpeg
            text = exposition(metrics.registry).decode()
            line = f'audio_proxy_build_info{{ffmpeg="{ffmpeg}",resampler="swr",version="1"}} 1.0'
            self.assertEqual([line], re.findall("^audio_proxy_build.*", text, re.MULTILINE))
        for name in ("process_resident_memory_bytes", "process_open_fds", "python_info"):
            self.assertIn(f"\n{name}", text)

    def test_disks(self) -> None:
        """A store with a bound has gauges of its bytes and its bound; each disk has its space.

        What is unknown, as of a disk that does not respond, is no number.
        """
        for disk, size, found in (
            (DiskSpace(3, 8), 900, ["3.0", "8.0", "900.0", "1000.0"]),
            (None, None, ["nan", "nan", "nan", "1000.0"]),
        ):
            metrics = Metrics()
            metrics.watch_disks({"store": disk})
            self.assertNotIn("variant_store_bytes", read(exposition(metrics.registry)))
            metrics.watch_store(1000, lambda size=size: size)
            series = read(exposition(metrics.registry))
            names = "disk_free_bytes store|disk_size_bytes store|variant_store_bytes"
            names += "|variant_store_max_bytes"
            self.assertEqual(found, [str(series[name]) for name in names.split("|")])


class RenderTests(SynchronousTestCase):
    """Outcomes of renders."""

    def test_outcomes(self) -> None:
        """The outcome is the error class; unexpected errors are render_failed (Metrics, 1).

        Both render metrics count each render once, while other renders run (Metrics, 3).
        """
        for error, outcome in (
            (None, "success"),
            (CancelledError(), "cancelled"),
            (errors.UndecodableSource(), "undecodable_source"),
            (errors.NothingDecoded(), "undecodable_source"),
            (errors.NotFound(), "not_found"),
            (errors.SourceTooLarge(), "source_too_large"),
            (errors.UpstreamUnavailable(), "upstream_unavailable"),
            (errors.InvalidOptions("Not this."), "invalid_options"),
            (errors.RenderFailed(), "render_failed"),
            (errors.RenderTimeout(), "render_timeout"),
            (ZeroDivisionError(), "render_failed"),
            (OSError(28, "No space left on device"), "render_failed"),
        ):
            metrics, clock = Metrics(), Clock()
            counts = Counts(metrics)
            with metrics.render("mp3", clock.seconds):
                clock.advance(1)
                raised = None
                try:
                    with metrics.render("m4a", clock.seconds):
                        self.assertEqual({"renders_running": 2}, counts.changes)
                        clock.advance(2.5)
                        if error is not None:
                            raise error
                except Exception as caught:
                    raised = caught
                self.assertIs(error, raised)
                labels = f"m4a {outcome}"
                expected = {
                    "renders_running": 1,
                    f"renders_total {labels}": 1,
                    f"render_duration_seconds_count {labels}": 1,
                    f"render_duration_seconds_sum {labels}": 2.5,
                }
                self.assertEqual(expected, counts.changes, error)
            self.assertEqual(
                {"render_duration_seconds_sum mp3 success": 3.5},
                counts.of("render_duration_seconds_sum mp3"),
            )
            self.assertEqual({}, counts.of("renders_running"))


class FixedSetTests(SynchronousTestCase):
    """Fixed sets of label values (Metrics endpoint, 3)."""

    @settings(DETERMINISTIC, max_examples=25)
    @given(
        st.sampled_from((b"GET", b"HEAD", b"OPTIONS", b"POST", b"BREW", b"get")),
        st.one_of(
            st.builds(
                lambda options, source: b"/".join([b"", *options, b"enc", encoded(source)]),
                option_segments(),
                sources(),
            ),
            st.builds(lambda source: b"/info/enc/" + encoded(source), sources()),
            # A line break would split one request into two.
            st.lists(junk(), max_size=4).map(
                lambda parts: b"/" + b"/".join(parts).translate(None, b"\r\n")
            ),
            st.sampled_from((b"/health", b"/ready", b"/metrics", b"*", b"/f:x/plain/local://a")),
        ),
        st.booleans(),
    )
    def test_whatever_is_asked(self, method: bytes, path: bytes, signed: bool) -> None:
        """Every request changes an existing series and adds no new series."""
        harness = ResourceHarness(origin="*")
        before = read(exposition(harness.metrics.registry))
        counts = Counts(harness.metrics)
        connection = harness.connect()
        connection.send(harness.path(path) if signed else path, method)
        # The test does not wait for renders and probes to end.
        connection.leave()
        harness.spawner.kill_all()
        self.assertEqual(before.keys(), read(exposition(harness.metrics.registry)).keys())
        self.assertEqual([1], list(counts.of("http_requests_total").values()))
        self.assertLessEqual(sum(counts.of("cache_lookups_total").values()), 1)
