"""A cache in front of a node: nginx, in short; `tests.deploy.other_caches` has the rest."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import ClassVar

from audioproxy.config import BucketStore, S3Config
from audioproxy.service import AudioProxy
from tests.deploy.balancer import Nginx, balance
from tests.deploy.caches import Cache, NginxCache
from tests.deploy.test_cluster import gather, sum_series
from tests.render.test_failures_live import ScriptedEncoderCase, target, until_stopped
from tests.support.buckets import s3_server
from tests.support.http import Response
from tests.support.service import Client, fetch, send, until, until_hit

#: Clients that request one URL at once.
CLIENTS = 100

#: Bytes that the encoder writes before it is held, and after.
HALF = 65536

PATH = target("good", "mp3")
RANGE = b"bytes=10-19"
EPOCH, FAR = b"Thu, 01 Jan 1970 00:00:00 GMT", b"Fri, 01 Jan 2100 00:00:00 GMT"


class CacheCase(ScriptedEncoderCase):
    """Cache in front of a node.

    :cvar kind: the cache.
    """

    kind: ClassVar[type[Cache]]
    encoder_scripts: ClassVar[dict[str, str]] = {
        "half": "write_64k; stop_self; write_64k; exit 0",
        "torn": "write_64k; stop_self; exit 1",
    }

    async def put_in_front(self, service: AudioProxy) -> int:
        """Start the cache in front of a service, and return its port."""
        cache = self.kind(self, service.port)
        await cache.start()
        return cache.port

    async def start_redirecting(self) -> AudioProxy:
        """Start a service in redirect mode."""
        server = await s3_server()
        key, secret = server.owner.access_key, server.owner.secret_key
        identity = {"access_key_id": key, "secret_access_key": secret, "region": server.region}
        service = self.new_service(
            serve_mode="redirect",
            variant_store=BucketStore(server.make_bucket()),
            variant_s3=S3Config(endpoint=server.endpoint, **identity),
        )
        await service.startService()
        return service

    async def start_with_variant(self, **settings: str) -> tuple[AudioProxy, bytes]:
        """Start a service that has stored the variant; return it, and the variant."""
        service = self.start(**settings)
        await fetch(service.port, PATH)
        return service, (await until_hit(service.port, PATH)).body

    async def until_cached(self, port: int) -> Response:
        """Request the variant until the cache sends it, with the request id of an earlier fetch."""
        seen: set[bytes | None] = set()

        async def find() -> Response | None:
            response = await fetch(port, PATH)
            if response["x-request-id"] in seen:
                return response
            seen.add(response["x-request-id"])
            return None

        return await until(find, "the variant to be cached")

    async def count(self, service: AudioProxy, metric: str) -> int:
        """Return the sum of a counter of a service."""
        return (await sum_series(metric, service.metrics_port)).total()

    def assert_whole(self, response: Response, whole: bytes) -> None:
        """Require a complete response with these bytes."""
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertTrue(response.body == whole, "other bytes")

    def assert_part(self, response: Response, whole: bytes) -> None:
        """Require the range of these bytes; Varnish 7.7 does not know the length of a stream."""
        self.assertEqual((206, whole[10:20]), (response.status, response.body))
        lengths = (b"%d" % len(whole), b"*")
        self.assertIn(response["content-range"], [b"bytes 10-19/" + each for each in lengths])

    def assert_part_or_whole(self, response: Response, whole: bytes) -> None:
        """Require the range, or all of these bytes, as the cache knows the length or does not."""
        (self.assert_part if response.status == 206 else self.assert_whole)(response, whole)


def has_begun(client: Client) -> bool:
    """Return whether a range, or most of what the encoder has written, has arrived."""
    response = client.response
    return response is not None and (response.status == 206 or len(response.body) > HALF // 2)


class ShortCacheTests:
    """What every cache does with its shipped configuration, in short."""

    async def test_ranges(self) -> None:
        """After a cold play, ranges are 206, and a cached variant costs no fetch (D62)."""
        service = self.start()
        port = await self.put_in_front(service)
        cold = await fetch(port, PATH, range=RANGE)
        whole = (await until_hit(service.port, PATH)).body
        self.assert_part_or_whole(cold, whole)
        self.assert_part(await fetch(port, PATH, range=RANGE), whole)
        self.assert_whole(await self.until_cached(port), whole)
        before = await self.count(service, "cache_lookups_total")
        for response in await gather(fetch(port, PATH, range=RANGE) for _ in range(CLIENTS)):
            self.assert_part(response, whole)
        self.assertEqual(before, await self.count(service, "cache_lookups_total"))
        last = await fetch(port, PATH, range=b"bytes=-10")
        self.assertEqual((206, whole[-10:]), (last.status, last.body))
        # Squid ignores a range that no byte satisfies, as RFC 9110, 14.2, allows.
        past = await fetch(port, PATH, range=b"bytes=%d-" % len(whole))
        self.assertIn((past.status, past.body), ((416, past.body), (200, whole)))

    async def test_resume(self) -> None:
        """The ETag and the Last-Modified of a stored variant resume it, from the cache too (D58).

        With another value, the whole variant is sent. The cache may evaluate If-Modified-Since.
        """
        service, whole = await self.start_with_variant()
        port = await self.put_in_front(service)
        head = await fetch(service.port, PATH, b"HEAD")
        tag, date = head["etag"], head["last-modified"]
        assert tag is not None and date is not None
        for is_cached in (False, True):
            if is_cached:
                self.assertEqual(date, (await self.until_cached(port))["last-modified"])
            for own in (tag, date):
                self.assert_part(await fetch(port, PATH, range=RANGE, if_range=own), whole)
            for other in (b'"other"', EPOCH, FAR):
                self.assert_whole(await fetch(port, PATH, range=RANGE, if_range=other), whole)
            since = await fetch(port, PATH, if_modified_since=date)
            self.assertIn((since.status, since.body), ((200, whole), (304, b"")))

    async def test_many_clients(self) -> None:
        """Clients of a cold URL cost one render, and none of them waits for another."""
        for service in (self.start(), await self.start_redirecting()):
            port = await self.put_in_front(service)
            path = target("half", "aac")
            headers = ({}, {"range": RANGE})
            clients = await gather(send(port, path, **headers[n % 2]) for n in range(CLIENTS))
            await until(lambda clients=clients: all(map(has_begun, clients)), "the first bytes")
            os.kill(await until_stopped(), signal.SIGCONT)
            for client in clients:
                self.assert_part_or_whole(await client.end(), bytes(2 * HALF))
            self.assertEqual(1, await self.count(service, "renders_total"))

    async def test_broken_stream(self) -> None:
        """A stream that breaks off is never served as whole, with a store or without."""
        for service in (self.start(), self.start(variant_store=None)):
            port = await self.put_in_front(service)
            for _ in range(3):
                client = await send(port, target("torn", "aac"))
                encoder = await until_stopped()
                await until(lambda client=client: client.response, "the headers")
                os.kill(encoder, signal.SIGCONT)
                response = await client.end()
                self.assertEqual((200, False), (response.status, response.complete))


class NginxTests(ShortCacheTests, CacheCase):
    """nginx"""

    kind = NginxCache

    async def test_behind_balancer(self) -> None:
        """Behind the shipped balancer, the stream of a render is not stored either (D62)."""
        service = self.start()
        folder = Path(self.mktemp()).resolve()
        folder.mkdir()
        balancer = await balance(self, Nginx, folder, {"one": service.port})
        cache = NginxCache(self, balancer.port)
        await cache.start()
        whole = (await fetch(cache.port, PATH)).body
        await until_hit(service.port, PATH)
        self.assert_part(await fetch(cache.port, PATH, range=RANGE), whole)
