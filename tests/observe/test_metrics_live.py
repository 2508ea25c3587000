"""The metrics of a running service, as Prometheus scrapes them."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
from time import monotonic

from audioproxy import __version__
from audioproxy.service import BootError
from tests.observe.test_metrics import read
from tests.support.processes import set_environment
from tests.support.service import (
    ServiceCase,
    children,
    encoders,
    fetch,
    is_stopped,
    long_flac,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)

SHORT = signed("/f:mp3/plain/local://short.flac")
LONG = signed("/f:mp3/t:0:60/plain/local://long.flac")

#: An ffprobe that stops itself before it probes a source.
SLOW_FFPROBE = """#!/bin/sh
case $* in *-version*) ;; *) kill -STOP $$ ;; esac
exec "{ffprobe}" "$@"
"""


class MetricsCase(ServiceCase):
    """Service with two sources."""

    def setUp(self) -> None:
        super().setUp()
        self.add("short.flac", short_flac())
        self.add("long.flac", long_flac())

    async def scrape(self, port: int) -> dict[str, float]:
        """Return the non-zero series of a scrape, without histogram buckets."""
        response = await fetch(port, b"/metrics")
        self.assertEqual((200, True), (response.status, response.complete))
        series = read(response.body)
        return {name: n for name, n in series.items() if n and "_bucket " not in name}


class TrafficTests(MetricsCase):
    """Counters and gauges under traffic"""

    async def test_mixed_traffic(self) -> None:
        """Hits, misses and failures are counted exactly."""
        self.add("text.mp3", b"No sound, but words.\n" * 500)
        service = self.start(queue_size=5, max_concurrency=2)
        port, metrics_port = service.port, service.metrics_port
        started = monotonic()
        await fetch(port, SHORT)
        self.assertEqual(b"HIT", (await until_hit(port, SHORT))["x-audio-proxy"])
        joined = (await self.scrape(metrics_port)).get("cache_lookups_total mp3 coalesced", 0)
        for status, target, method in (
            (200, SHORT, b"HEAD"),
            (200, signed("/info/plain/local://short.flac"), b"GET"),
            (200, signed("/f:peaks/pts:10/plain/local://short.flac"), b"GET"),
            (401, b"/x/f:mp3/plain/local://short.flac", b"GET"),
            (404, b"/metrics", b"GET"),
            (404, signed("/f:wav/plain/local://none.flac"), b"GET"),
            (415, signed("/f:wav/plain/local://text.mp3"), b"GET"),
            (422, signed("/q:99/plain/local://short.flac"), b"GET"),
            (422, signed("/t:5/plain/local://short.flac"), b"GET"),
            (200, b"/health", b"GET"),
            (200, b"/ready", b"GET"),
        ):
            self.assertEqual(status, (await fetch(port, target, method)).status, target)
        exposition = (await fetch(metrics_port, b"/metrics")).body
        series = {name: n for name, n in read(exposition).items() if n and "_bucket " not in name}
        sums = {name: series.pop(name) for name in list(series) if "seconds_sum" in name}
        labels = {"mp3 success", "peaks success"}
        timed = {
            *(f"render_duration_seconds_sum {label}" for label in labels),
            *(f"first_byte_seconds_sum {cache}" for cache in ("hit", "miss")),
            *("render_queue_wait_seconds_sum normal", "source_open_seconds_sum local"),
            *("probe_duration_seconds_sum", "write_back_duration_seconds_sum"),
        }
        self.assertEqual(timed, sums.keys() - {"first_byte_seconds_sum coalesced"})
        longest = monotonic() - started
        self.assertTrue(all(0 < seconds < longest for seconds in sums.values()), sums)
        for folder in ("store", "tmpdir"):
            free = series.pop(f"disk_free_bytes {folder}")
            self.assertLess(free, series.pop(f"disk_size_bytes {folder}"))
        (build,) = (name for name in series if name.startswith("build_info "))
        self.assertRegex(build, rf"^build_info [\w.+~:-]+ (soxr|swr) {re.escape(__version__)}$")
        del series[build]
        # A source that was just written is probed again for each request.
        self.assertLessEqual(2, series.pop("probe_duration_seconds_count"))
        expected = {
            **{f"renders_total {label}": 1 for label in labels},
            **{f"render_duration_seconds_count {label}": 1 for label in labels},
            "render_slots_capacity": 2,
            "render_queue_capacity": 5,
            "cache_lookups_total mp3 hit": 1,
            "cache_lookups_total mp3 miss": 2,
            "cache_lookups_total peaks miss": 1,
            "cache_lookups_total wav miss": 2,
            "http_requests_total render 2xx": 4 + joined,
            "http_requests_total render 4xx": 5,
            "http_requests_total info 2xx": 1,
            "http_requests_total health 2xx": 1,
            "http_requests_total ready 2xx": 1,
            "http_requests_total metrics 2xx": 1,
            "http_requests_total unknown 4xx": 1,
            # All but the one with a wrong signature, and those of unsigned endpoints.
            "signed_requests_total current": 9 + joined,
            "http_responses_total render 200": 4 + joined,
            **{f"http_responses_total render {status}": 1 for status in (401, 404, 415)},
            "http_responses_total render 422": 2,
            "http_responses_total unknown 404": 1,
            **{f"http_responses_total {name} 200": 1 for name in ("info", "health", "ready")},
            "http_responses_total metrics 200": 1,
            "first_byte_seconds_count hit": 1,
            "first_byte_seconds_count miss": 2,
            "render_queue_wait_seconds_count normal": 2,
            "source_open_seconds_count local": 6,
            "write_back_duration_seconds_count": 2,
        }
        for name in ("cache_lookups_total mp3 coalesced", "first_byte_seconds_count coalesced"):
            series.pop(name, None)
        sent = {name for name in series if name.startswith("http_response_bytes_total ")}
        self.assertEqual(
            {"render", "info", "health", "ready", "metrics", "unknown"},
            {name.split(" ")[1] for name in sent},
        )
        found = {name: n for name, n in series.items() if name not in sent}
        self.assertEqual(expected, found)

    async def test_probes_busy(self) -> None:
        """Requests for one source share an ffprobe; another source finds no probe slot: 429.

        That does not count as a render queue rejection.
        """
        folder = self.root / "bin"
        folder.mkdir()
        script = folder / "ffprobe"
        script.write_text(SLOW_FFPROBE.format(ffprobe=shutil.which("ffprobe")))
        script.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        set_environment(self, PATH=path)
        service = self.start(max_probe_concurrency=1)
        first = await send(service.port, SHORT)
        (probe,) = await until(lambda: [n for n in children() if is_stopped(n)], "the probe")
        for target in (LONG, signed("/info/plain/local://long.flac")):
            response = await fetch(service.port, target)
            self.assertEqual((429, "queue_full"), (response.status, response.error))
        document = await send(service.port, signed("/info/plain/local://short.flac"))
        await until(lambda: service.resource.active.count == 2, "both requests")
        # The service may still try a program that was linked for another one.
        await until(lambda: children() == [probe], "no other probe")
        os.kill(probe, signal.SIGCONT)
        for client in (first, document):
            self.assertEqual(200, (await client.end()).status)
        shown = await self.scrape(service.metrics_port)
        self.assertNotIn("render_queue_rejections_total", shown)
        self.assertEqual(1, shown["http_requests_total info 4xx"])
        self.assertEqual(1, shown["http_requests_total render 4xx"])


class ListenerTests(MetricsCase):
    """Address and lifetime of the metrics listener"""

    async def test_until_the_last_render(self) -> None:
        """A stopping service serves metrics, on 127.0.0.1 only, until its last render has ended."""
        service = self.start()
        for port, listens in ((service.metrics_port, False), (service.port, True)):
            self.assertEqual(listens, _listens(port, "127.0.0.2"))
        client = await send(service.port, LONG)
        (encoder,) = await until(encoders, "an encoder")
        os.kill(encoder, signal.SIGSTOP)
        stopping = service.stopService()
        await until(lambda: not _listens(service.port), "the main listener to close")
        self.assertEqual(1, (await self.scrape(service.metrics_port))["renders_running"])
        os.kill(encoder, signal.SIGCONT)
        self.assertTrue((await client.end()).complete)
        await stopping
        self.assertFalse(_listens(service.metrics_port))

    async def test_refused(self) -> None:
        """If a port cannot open, the start fails and names its variable.

        If it is that of the service, the port of the metrics is closed again.
        """
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        port = taken.getsockname()[1]
        for settings, variable, named in (
            ({"metrics_port": port}, "METRICS_PORT", rf"\b127\.0\.0\.1 port {port}\b"),
            ({"metrics_bind": "192.0.2.1"}, "METRICS_BIND", "192.0.2.1"),
            ({"metrics_bind": "2001:db8::1"}, "METRICS_BIND", "2001:db8::1"),
            ({"port": port}, "PORT", rf"\bport {port}\b"),
        ):
            service = self.new_service(**settings)
            error = self.failureResultOf(service.startService(), BootError).value
            self.assertRegex(str(error), rf"\AAP_{variable}: [^\n]*{named}")
            self.assertNotIn("\n", str(error))
            self.assertEqual([], list((self.store / ".scratch").iterdir()))
            if variable != "PORT":
                self.assertEqual(0, service.port)
        self.assertNotEqual(0, service.metrics_port)
        await until(lambda: not _listens(service.metrics_port), "the metrics listener to close")


def _listens(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as client:
        refusal = client.connect_ex((address, port))
    assert refusal in (0, errno.ECONNREFUSED), os.strerror(refusal)
    return refusal == 0
