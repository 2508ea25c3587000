"""The metrics listener: its path, its methods, and the metrics of its own requests."""

from __future__ import annotations

from math import isnan
from typing import Any

from prometheus_client import Gauge
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.files.disk_space import DiskMonitor
from audioproxy.server.channel import ProxySite
from audioproxy.testing import FakeThreads
from audioproxy.web.metrics_resource import MetricsResource, exposition
from tests.observe.test_metrics import Counts, read
from tests.support.http import Connection, Log, ResourceHarness, Response

PATH = b"/f:mp3/plain/local://a.mp3"


class ScrapeCase(SynchronousTestCase):
    """A service with a metrics listener."""

    def setUp(self) -> None:
        self.log = Log(self)
        self.harness = ResourceHarness(origin="*")
        self.metrics = self.harness.metrics
        self.resource = MetricsResource(self.harness.metrics_instrumentation, self.measure)
        self.site = ProxySite(self.resource, Clock())

    async def measure(self) -> None:
        """Measure nothing."""

    def fetch(self, target: bytes, method: bytes = b"GET", **headers: Any) -> Response:
        """Send one request to the metrics listener."""
        connection = Connection(self.site)
        connection.send(target, method, **headers)
        response = connection.response
        self.assertTrue(response.complete)
        self.assertEqual(b"", response.rest)
        return response

    def scrape(self) -> dict[str, float]:
        """Scrape the metrics and return their values."""
        return read(self.fetch(b"/metrics").body)


class AnswerTests(ScrapeCase):
    """``GET /metrics``"""

    def test_scrape(self) -> None:
        """All metrics are sent as text 0.0.4 with ``no-store`` (Metrics endpoint, 2).

        Accept and a query are ignored, and a target in absolute form is accepted. HEAD has the
        headers of GET, including Content-Length, and no body (D19).
        """
        self.harness.fetch(b"/health")
        # Prometheus lists 0.0.4 in its Accept header, after others.
        accept = b"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3"
        for target, given in (
            *((b"/metrics", accept), (b"/metrics?format=json", b"application/json")),
            (b"http://proxy.example:9568/metrics", b"text/html"),
        ):
            for method in (b"HEAD", b"GET"):
                text = exposition(self.metrics.registry)
                self.assertEqual(1, read(text)["http_requests_total health 2xx"])
                expected = {
                    "content-type": b"text/plain; version=0.0.4",
                    "cache-control": b"no-store",
                    "content-length": b"%d" % len(text),
                }
                response = self.fetch(target, method, accept=given, accept_encoding=b"gzip")
                self.assertEqual((200, expected), (response.status, response.fields))
                self.assertEqual(text if method == b"GET" else b"", response.body)
            self.assertTrue(response.body.startswith(b"# HELP audio_proxy_"))


class RefusalTests(ScrapeCase):
    """Other methods and paths"""

    def test_not_found(self) -> None:
        """Other methods and other paths are the main listener's 404, without CORS headers.

        A preflight is a 404 too, since no web page may read metrics.
        """
        self.harness.store_variant(PATH, b"abc")
        expected = self.harness.fetch(b"/nowhere").document
        rows: list[tuple[bytes, bytes, dict[str, Any]]] = [
            (method, b"/metrics", {"origin": b"https://example.com"})
            for method in (b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"BREW", b"get")
        ]
        rows.append((b"POST", b"/metrics", {"body": b"x", "content_length": b"1"}))
        for path in (
            *(b"/", b"/metrics/", b"//metrics", b"/Metrics", b"/%6detrics", b"/metrics%20", b"*"),
            *(b"/metrics/metrics", b"/metric", b"/health", b"/ready", b"/favicon.ico"),
            self.harness.path(PATH),
            self.harness.path(b"/info/plain/local://a.mp3"),
        ):
            rows.append((b"GET", path, {}))
        for method, target, headers in rows:
            response = self.fetch(target, method, **headers)
            self.assertEqual((404, expected), (response.status, response.document), target)
            self.assertEqual(b"max-age=10", response["cache-control"])
            self.assertIsNone(response["access-control-allow-origin"])
        self.assertEqual([], self.harness.called_methods())


class OwnMetricsTests(ScrapeCase):
    """Metrics and log lines of scrapes."""

    def test_counts_itself(self) -> None:
        """Each scrape counts the scrapes before it, including HEAD."""
        for before in range(3):
            self.assertEqual(before, self.scrape()["http_requests_total metrics 2xx"])
        self.fetch(b"/metrics", b"HEAD")
        self.assertEqual(4, self.scrape()["http_requests_total metrics 2xx"])

    def test_lines(self) -> None:
        """A scrape is logged at debug level with its request id, a 404 at info level.

        A 404 of the metrics listener has the endpoint class ``unknown``.
        """
        response = self.fetch(b"/metrics", x_request_id=b"mine")
        (event,) = [event for event in self.log.events if "record" in event]
        self.assertEqual(("mine", LogLevel.debug), (event["request_id"], event["log_level"]))
        self.assertEqual(f"metrics 200 {len(response.body)} bytes in 0ms", str(event["record"]))
        self.assertEqual(b"mine", response["x-request-id"])
        counts = Counts(self.metrics)
        self.fetch(b"/metrics", b"POST")
        self.fetch(b"/", b"HEAD")
        self.assertEqual({"http_requests_total unknown 4xx": 2}, counts.of("http_requests_total"))
        record = self.log.requests[-1]
        self.assertEqual(
            (LogLevel.info, "unknown 404 not_found 0 bytes in 0ms"), (record.level, str(record))
        )

    def test_crash(self) -> None:
        """If a metric cannot be read, the response is 500, and the error is logged."""
        Gauge("broken", "", registry=self.metrics.registry).set_function(lambda: 1 // 0)
        response = self.fetch(b"/metrics")
        self.assertEqual((500, "render_failed"), (response.status, response.error))
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        (record,) = self.log.requests
        self.assertEqual(("metrics", 500), (record.endpoint, record.status))


class DiskTests(ScrapeCase):
    """Disks that hang"""

    async def measure(self) -> None:
        """Measure the disk."""
        await self.disk.measure()

    def setUp(self) -> None:
        super().setUp()
        self.clock, self.threads = Clock(), FakeThreads()
        self.disk = DiskMonitor({"store": "/"}, self.clock, self.threads.in_thread)
        self.metrics.watch_disks(self.disk.spaces)

    def test_hung_disk(self) -> None:
        """A scrape waits a second for a disk, and no longer while the disk hangs.

        The free bytes are unknown meanwhile.
        """
        connection = Connection(self.site)
        connection.send(b"/metrics")
        self.assertEqual(b"", connection.received)
        self.threads.run()
        self.assertGreater(read(connection.response.body)["disk_free_bytes store"], 0)
        hung = Connection(self.site)
        hung.send(b"/metrics")
        self.clock.advance(1)
        for body in (hung.response.body, self.fetch(b"/metrics").body):
            self.assertTrue(isnan(read(body)["disk_free_bytes store"]))
        self.threads.run()
        self.assertEqual(0, self.threads.waiting)
