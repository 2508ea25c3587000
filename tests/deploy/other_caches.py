"""Varnish and Squid in front of a node, and the rest of nginx: ``make caches``."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from http.client import HTTPConnection

from twisted.internet.threads import deferToThread

from audioproxy.grammar.cache_tag import cache_tags
from tests.deploy.caches import NginxCache, Squid, Varnish
from tests.deploy.test_caches import CLIENTS, PATH, RANGE, CacheCase, ShortCacheTests
from tests.deploy.test_cluster import gather
from tests.render.test_failures_live import target
from tests.support.buckets import s3_server
from tests.support.http import SALT, Response
from tests.support.service import fetch, short_flac, signed, until, until_hit

ORIGIN = b"https://player.example"


class MoreCacheTests:
    """What every cache does with its shipped configuration, besides `ShortCacheTests`."""

    async def test_stored(self) -> None:
        """Clients who request a stored variant at once cost at most two fetches.

        nginx fetches it for each until it has one: with its lock, they would wait for each other.
        """
        service, whole = await self.start_with_variant()
        port = await self.put_in_front(service)
        before = await self.count(service, "cache_lookups_total")
        for response in await gather(fetch(port, PATH) for _ in range(CLIENTS)):
            self.assert_whole(response, whole)
        fetches = await self.count(service, "cache_lookups_total") - before
        self.assertLessEqual(fetches, CLIENTS if self.kind is NginxCache else 2)

    async def test_redirects(self) -> None:
        """In redirect mode, clients of a stored variant are redirected to the bucket (D62)."""
        service = await self.start_redirecting()
        port = await self.put_in_front(service)
        cold = await fetch(port, PATH)
        self.assertEqual((200, True), (cold.status, cold.complete))

        async def find() -> Response | None:
            response = await fetch(port, PATH, range=RANGE)
            return None if response["x-audio-proxy"] == b"COALESCED" else response

        for _ in range(2):
            response = await until(find, "the write-back")
            self.assertEqual((302, b"no-store"), (response.status, response["cache-control"]))
            get = partial((await s3_server()).fetch, (response["location"] or b"").decode())
            part = await deferToThread(get, headers={"Range": RANGE.decode()})
            self.assertEqual((206, cold.body[10:20]), (part.status, part.body))

    async def test_without_store(self) -> None:
        """Without a store, one render serves all: the cache stores it.

        Varnish then serves ranges. Squid would serve wrong bytes, so its
        configuration stores nothing without a length.
        """
        service = self.start(variant_store=None)
        port = await self.put_in_front(service)
        whole = (await fetch(port, PATH)).body
        if self.kind is not Squid:
            await self.until_cached(port)
        before = await self.count(service, "renders_total")
        for response in await gather(fetch(port, PATH) for _ in range(CLIENTS)):
            self.assert_whole(response, whole)
        if self.kind is not Squid:
            self.assertEqual(before, await self.count(service, "renders_total"))
        part = await fetch(port, PATH, range=RANGE)
        self.assert_part_or_whole(part, whole)
        self.assertEqual(self.kind is Varnish, part.status == 206)

    async def test_head(self) -> None:
        """HEAD starts no render, and has the length of a stored variant."""
        service = self.start()
        port = await self.put_in_front(service)
        for _ in range(2):
            head = await fetch(port, PATH, b"HEAD")
            self.assertEqual((200, b"MISS", b""), (head.status, head["x-audio-proxy"], head.body))
        self.assertEqual(0, await self.count(service, "renders_total"))
        await fetch(port, PATH)
        whole = (await until_hit(service.port, PATH)).body
        for _ in range(2):
            head = await fetch(port, PATH, b"HEAD")
            self.assertEqual(b"%d" % len(whole), head["content-length"])
            self.assertEqual((200, b""), (head.status, head.body))
            self.assert_whole(await fetch(port, PATH), whole)

    async def test_paths(self) -> None:
        """A path and a request id reach the node unchanged, whose signature covers the bytes.

        nginx and Varnish remove file names under /media/; the others leave that to a balancer.
        """
        service = self.start()
        port = await self.put_in_front(service)
        named = 200 if self.kind in (NginxCache, Varnish) else 401
        for status, path in (
            (200, target("good", "mp3", "/cb:%2F%2e%2e%2Fb%25%20c|^{}") + b"?query"),
            (404, signed("/f:mp3/plain/local://a/./../..//%2e%2e/good.flac")),
            (422, signed("/f:mp3//plain/local://good.flac")),
            (401, b"/changed" + PATH),
            (named, b"/media" + target("good", "mp3", "/cb:%2F%c3%9f") + b"/a%2Fb.mp3?query"),
        ):
            response = await fetch(port, path, b"HEAD", x_request_id=b"mine")
            self.assertEqual((status, b"mine"), (response.status, response["x-request-id"]))

    async def test_expiry(self) -> None:
        """A URL with ``exp`` ends with that second, although the cache has its variant."""
        service, whole = await self.start_with_variant()
        port = await self.put_in_front(service)
        exp = int(time.time()) + 3
        path = target("good", "mp3", f"/exp:{exp}")

        async def is_expired() -> bool:
            sent = time.time()
            response = await fetch(port, path)
            if response.status == 410:
                return True
            self.assert_whole(response, whole)
            self.assertLess(sent, exp + 1)
            return False

        await until(is_expired, "the 410")
        self.assertGreaterEqual(time.time(), exp)

    async def test_cors(self) -> None:
        """A page of the configured origin may read every response, and preflights pass."""
        service, _ = await self.start_with_variant(allow_origin=ORIGIN.decode())
        port = await self.put_in_front(service)
        for _ in range(2):
            response = await fetch(port, PATH, origin=ORIGIN)
            self.assertEqual((200, b"Origin"), (response.status, response["vary"]))
            self.assertEqual(ORIGIN, response["access-control-allow-origin"])
        request = {"origin": ORIGIN, "access_control_request_method": b"GET"}
        preflight = await fetch(port, PATH, b"OPTIONS", **request)
        self.assertEqual(204, preflight.status)
        self.assertEqual(b"GET, HEAD", preflight["access-control-allow-methods"])


class NginxTests(MoreCacheTests, CacheCase):
    """nginx"""

    kind = NginxCache


class VarnishTests(ShortCacheTests, MoreCacheTests, CacheCase):
    """Varnish"""

    kind = Varnish

    async def test_purge_by_tag(self) -> None:
        """A purge by tag, from this machine alone, removes the variants of one source (D59)."""
        service = self.start(cache_tag_header="xkey")
        port = await self.put_in_front(service)
        self.add("other.flac", short_flac())
        sources = ("good", "other")
        paths = [target(name, form) for name in sources for form in ("mp3", "opus", "wav")]

        async def is_cached(path: bytes) -> bool:
            return (await fetch(port, path))["x-cache"] == b"HIT"

        for path in paths:
            await fetch(service.port, path)
            await until_hit(service.port, path)
            await until(partial(is_cached, path), "the variant to be cached")
        tags = cache_tags([SALT], b"local://good.flac")

        def purge(client: str, **headers: str) -> tuple[int, str]:
            connection = HTTPConnection("127.0.0.1", port, source_address=(client, 0))
            fields = {"xkey-purge": " ".join(tags), **headers}
            connection.request("PURGE", "/", headers=fields)
            with closing(connection), connection.getresponse() as response:
                return response.status, response.reason

        for client, headers in (("127.0.0.2", {}), ("127.0.0.1", {"X-Forwarded-For": "::1"})):
            refused = await deferToThread(purge, client, **headers)
            self.assertEqual((403, "Forbidden"), refused)
        self.assertEqual((200, "Purged 3"), await deferToThread(purge, "127.0.0.1"))
        self.assertEqual([False] * 3 + [True] * 3, [await is_cached(path) for path in paths])


class SquidTests(ShortCacheTests, MoreCacheTests, CacheCase):
    """Squid"""

    kind = Squid
