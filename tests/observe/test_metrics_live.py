"""The metrics of a running service, as Prometheus scrapes them."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
from time import monotonic

from audioproxy import __version__
from audioproxy.service import BootError
from tests.observe.test_metrics import read
from tests.support.service import (
    ServiceCase,
    encoders,
    fetch,
    long_flac,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)

SHORT = signed("/f:mp3/plain/local://short.flac")
LONG = signed("/f:mp3/t:0:60/plain/local://long.flac")


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
        """Hits, misses and failures are counted; disks, slots and the build are exposed."""
        self.add("text.mp3", b"No sound, but words.\n" * 500)
        service = self.start(queue_size=5, max_concurrency=2)
        port, metrics_port = service.port, service.metrics_port
        started = monotonic()
        await fetch(port, SHORT)
        self.assertEqual(b"HIT", (await until_hit(port, SHORT))["x-audio-proxy"])
        joined = (await self.scrape(metrics_port)).get("cache_lookups_total mp3 coalesced", 0)
        for status, target in (
            (200, signed("/info/plain/local://short.flac")),
            (401, b"/x/f:mp3/plain/local://short.flac"),
            (404, b"/metrics"),
            (415, signed("/f:wav/plain/local://text.mp3")),
            (200, b"/ready"),
        ):
            self.assertEqual(status, (await fetch(port, target)).status, target)
        series = await self.scrape(metrics_port)
        longest = monotonic() - started
        sums = {name: seconds for name, seconds in series.items() if "seconds_sum" in name}
        self.assertTrue(all(0 < seconds < longest for seconds in sums.values()), sums)
        for folder in ("store", "tmpdir"):
            free = series[f"disk_free_bytes {folder}"]
            self.assertLess(free, series[f"disk_size_bytes {folder}"])
        (build,) = (name for name in series if name.startswith("build_info "))
        self.assertRegex(build, rf"^build_info [\w.+~:-]+ (soxr|swr) {re.escape(__version__)}$")
        expected = {
            **{f"render{name} mp3 success": 1 for name in ("s_total", "_duration_seconds_count")},
            "render_slots_capacity": 2,
            "render_queue_capacity": 5,
            "cache_lookups_total mp3 hit": 1,
            "cache_lookups_total wav miss": 1,
            "cache_lookups_total mp3 miss": 1,
            "http_requests_total render 2xx": 2 + joined,
            **{f"http_requests_total {name} 2xx": 1 for name in ("info", "ready", "metrics")},
            **{f"http_responses_total render {status}": 1 for status in (401, 415)},
            "http_responses_total unknown 404": 1,
            # All but the one with a wrong signature, and those of unsigned endpoints.
            "signed_requests_total current": 4 + joined,
            **{f"first_byte_seconds_count {cache}": 1 for cache in ("hit", "miss")},
            "render_queue_wait_seconds_count normal": 1,
            "write_back_duration_seconds_count": 1,
        }
        self.assertEqual(expected, {name: series.get(name) for name in expected})


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
        """If a port cannot open, the start fails and names its variable."""
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
