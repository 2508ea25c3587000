"""Store outages: what clients see of them, and how the service recovers."""

from __future__ import annotations

import signal

from twisted.logger import LogLevel, formatEvent

from audioproxy.render import registry as registry_module
from audioproxy.s3 import objects
from tests.support.http import Log, Response
from tests.support.remote import HOLD, PASS, RemoteCase, body_and_headers, key_of
from tests.support.service import (
    counter_increases,
    fetch,
    scrape,
    short_flac,
    signed,
    until,
    until_hit,
)


class OutageCase(RemoteCase):
    """Service with a test relay in front of its variant store, and the captured log."""

    async def setUp(self) -> None:
        await super().setUp()
        self.patch(objects, "RETRY_DELAY", 0.01)
        self.patch(registry_module, "_LINGER", 0.05)
        self.log = Log(self)
        self.add("short.flac", short_flac())
        self.store = self.relay()
        self.service = await self.boot(local_root=str(self.root), variant_s3=self.s3(self.store))
        self.port = self.service.port

    def warnings(self) -> list[str]:
        """Return all logged warnings except access log lines."""
        return [
            formatEvent(event)
            for event in self.log.events
            if event.get("log_level") is LogLevel.warn and "record" not in event
        ]

    def assert_unavailable(self, response: Response) -> None:
        """Require the 502 for requests that need an unreachable store (Errors, 8)."""
        self.assertEqual((502, "upstream_unavailable"), (response.status, response.error))
        self.assertEqual(b"no-store", response["cache-control"])
        for name in ("etag", "x-audio-proxy", "accept-ranges", "location"):
            self.assertIsNone(response[name], name)


class LookupTests(OutageCase):
    """Lookups in a store that is unreachable or does not respond."""

    async def test_real_outage(self) -> None:
        """An outage gives 502 for variants and counts no lookups; afterwards requests succeed.

        A matching If-None-Match gets 304 without the store (Request handling order, 3).
        """
        hit, new = signed("/f:mp3/plain/local://short.flac"), self.url("a.flac")
        self.put("a.flac", short_flac())
        miss = await fetch(self.port, hit)
        await until_hit(self.port, hit)
        before = await scrape(self.service.metrics_port)
        self.addCleanup(self.server.start)
        await self.server.stop()
        for path in (hit, new):
            self.assert_unavailable(await fetch(self.port, path))
            head = await fetch(self.port, path, b"HEAD")
            self.assertEqual((502, b""), (head.status, head.body))
        same = await fetch(self.port, hit, if_none_match=miss["etag"] or b"")
        self.assertEqual((304, miss["etag"]), (same.status, same["etag"]))
        self.assertEqual(200, (await fetch(self.port, b"/ready")).status)
        counted = counter_increases(before, await scrape(self.service.metrics_port))
        self.assertEqual(4, counted['http_requests_total{endpoint="render",status="5xx"}'])
        self.assertFalse([name for name in counted if "lookups" in name or "renders" in name])
        self.assertRegex(self.warnings()[-1], r"\Aa lookup in the variant store failed: .+")
        await self.server.start()
        again = await fetch(self.port, hit)
        self.assertEqual(
            (b"HIT", body_and_headers(miss)), (again["x-audio-proxy"], body_and_headers(again))
        )
        rendered = await fetch(self.port, new)
        self.assertEqual((200, b"MISS"), (rendered.status, rendered["x-audio-proxy"]))
        await until_hit(self.port, new)
        self.assertEqual([], self.log.errors)


class WriteBackTests(OutageCase):
    """Write-backs that run when the service stops."""

    async def test_term(self) -> None:
        """SIGTERM during a write-back lets the write-back complete; the exit status is 0 (D39)."""
        relay = self.relay()
        relay.rule = lambda a: HOLD if a.method == "PUT" and "proof" not in a.target else PASS
        node = self.twistd(AP_VARIANT_S3_ENDPOINT=f"http://127.0.0.1:{relay.port}")
        port = await node.port()
        response = await fetch(port, signed("/plain/local://short.flac"))
        await until(lambda: relay.stalled, "the upload")
        self.assertEqual([], self.stored())
        node.signal(signal.SIGTERM)
        await node.printed("Received SIGTERM", "SIGTERM to be logged")
        self.assertIsNone(node.code)
        relay.release()
        self.assertEqual(0, await node.end())
        self.assertEqual([key_of(response)], self.stored())
        self.assertEqual(response.body, self.server.get(self.variants, key_of(response)).body)
        self.assertEqual("", node.stderr)
