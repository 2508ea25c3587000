"""Store outages: what clients see of them, and how the service recovers."""

from __future__ import annotations

import signal
from collections.abc import Callable

from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent

from audioproxy.concurrency.deadlines import ProgressTimeout
from audioproxy.http_client import bodies as bodies_module
from audioproxy.render import registry as registry_module
from audioproxy.s3 import objects
from tests.support.http import Log, Response
from tests.support.remote import (
    HOLD,
    PASS,
    RemoteCase,
    RequestAction,
    body_and_headers,
    key_of,
)
from tests.support.service import (
    Client,
    counter_increases,
    fetch,
    scrape,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)
from tests.support.wire import Request


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
    """Write-backs that fail, are interrupted, or run when the service stops."""

    async def test_lost_during_the_upload(self) -> None:
        """An interrupted upload stores no object, not even a torn one, and is retried once.

        Its failure affects no client, and is logged once.
        """
        tries: list[Request] = []

        def lose(request: Request) -> RequestAction:
            if request.method == "PUT":
                tries.append(request)
                return HOLD
            return PASS

        self.store.rule = lose
        response = await fetch(self.port, signed("/plain/local://short.flac"))
        self.assertEqual((200, True), (response.status, response.complete))
        for number in (1, 2):
            await until(
                lambda number=number: len(tries) == number and self.store.stalled, "the upload"
            )
            self.assertEqual([], self.stored())
            self.store.reset_all()
        await until(self.warnings, "the warning")
        self.assertEqual((2, []), (len(tries), self.stored()))
        (warning,) = self.warnings()
        self.assertRegex(warning, rf"\Awrite-back of {key_of(response)} failed: .+ unreachable: .+")
        self.assertEqual([], self.log.errors)

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


class HitTests(OutageCase):
    """Stores that fail while a hit is read from them."""

    SIZE = 8 * 1024 * 1024

    async def test_breaks_off(self) -> None:
        """If the store resets or closes its connection or stalls, the hit's stream breaks off.

        The next request gets the whole variant.
        """
        path = signed("/plain/local://short.flac")
        name = key_of(await fetch(self.port, path, b"HEAD"))
        self.server.put(self.variants, name, bytes(self.SIZE), content_type="audio/mpeg")
        # The timeout of a stalled body passes only when this clock is advanced.
        clock = Clock()
        self.patch(
            bodies_module,
            "ProgressTimeout",
            lambda _, seconds, on_expiry: ProgressTimeout(clock, seconds, on_expiry),
        )
        failures: tuple[Callable[[], object], ...] = (
            self.store.reset_all,
            self.store.close_cleanly,
            lambda: clock.advance(bodies_module.STALL_TIMEOUT),
        )
        for number, fail in enumerate(failures, 1):
            self.store.rule = lambda request: self.SIZE // 2
            client: Client = await send(self.port, path)
            await until(lambda: self.store.stalled, "half of the body")
            await until(
                lambda client=client, fail=fail: client.closed or fail(), "the stream to break off"
            )
            broken = await client.end()
            self.assertEqual((200, False), (broken.status, broken.complete), number)
            self.assertEqual(b"HIT", broken["x-audio-proxy"])
            self.assertLess(len(broken.body), self.SIZE)
            failed = [each for each in self.log.requests if each.error_code]
            self.assertEqual(number, len(failed))
            self.assertEqual(
                (200, "upstream_unavailable"), (failed[-1].status, failed[-1].error_code)
            )
            warnings = self.warnings()
            self.assertEqual(number, len(warnings))
            self.assertRegex(warnings[-1], "the transfer of a stored variant failed: .+")
            await until(lambda: not self.store.stalled, "the connection to close")
            self.store.rule = lambda request: PASS
            whole = await fetch(self.port, path)
            self.assertEqual((True, self.SIZE), (whole.complete, len(whole.body)), number)
        self.assertEqual([], self.log.errors)
