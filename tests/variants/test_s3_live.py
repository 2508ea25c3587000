"""Variant store in a bucket: stored objects, hits in proxy mode and hits in redirect mode."""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

from twisted.internet.task import deferLater

from audioproxy import service as service_module
from audioproxy.grammar.cache_key import cache_key
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.sources import S3Source
from audioproxy.render import registry as registry_module
from audioproxy.variants import s3 as s3_module
from audioproxy.variants.s3 import S3VariantStore
from tests.support.http import MEDIA_CACHE_CONTROL, Response
from tests.support.origins import ReceivedRequest
from tests.support.remote import (
    ABORTED,
    PASS,
    RemoteCase,
    RequestAction,
    body_and_headers,
    key_of,
    until_miss,
)
from tests.support.service import (
    counter_increases,
    fetch,
    long_flac,
    reactor,
    scrape,
    send,
    short_flac,
    until,
    until_hit,
)

MEBIBYTE = 1024 * 1024
PART_SIZE = 5 * MEBIBYTE
#: A variant of 11 MB.
LARGE = "f:wav/sr:44100/ch:2/t:0:64"


class StoredTests(RemoteCase):
    """Content of the bucket after a render."""

    async def setUp(self) -> None:
        await super().setUp()
        self.put("a.flac", short_flac())

    async def test_object(self) -> None:
        """A stored object is named by its cache key and keeps the response's bytes and headers.

        (Stored object; D5)
        """
        service = await self.boot()
        misses = [
            await fetch(service.port, self.url("a.flac", options))
            for options in (
                "f:opus/dl:%C3%A9t%C3%A9%20%22a%22%25.opus",
                "f:peaks/pk_fmt:dat/pts:9",
                "f:peaks/pts:9/dl:a.json",
                "f:m4a/exp:4000000000",
            )
        ]
        names = await self.until_stored(len(misses))
        self.assertEqual(sorted(map(key_of, misses)), names)
        for miss in misses:
            self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
            stored = self.server.get(self.variants, key_of(miss))
            self.assertEqual(miss.body, stored.body)
            # exp limits max-age in the response, but never in the stored object (Request option
            # exp, 3).
            self.assertEqual(MEDIA_CACHE_CONTROL, stored.headers["cache-control"])
            for name in ("content-type", "content-disposition"):
                value = miss[name]
                self.assertEqual(value.decode() if value else None, stored.headers.get(name), name)
        self.assertIn(b"filename*=UTF-8''%C3%A9t%C3%A9", misses[0]["content-disposition"] or b"")
        key = cache_key(
            VariantOptions(f="peaks", ch=1, pk_bits=16, pk_fmt="dat", pts=9),
            self.canonical("a.flac"),
        )
        self.assertEqual(key, key_of(misses[1]))

    def canonical(self, key: str) -> bytes:
        """Return the canonical string of a source."""
        return S3Source(self.sources, key.encode()).canonical

    async def test_other_nodes(self) -> None:
        """A variant stored by one node is a hit on another node, even without its source.

        (Running several nodes, 3; Request handling order, 4)
        """
        one, other = await self.boot(), await self.boot()
        paths = [self.url("a.flac", options) for options in ("f:mp3/dl:a.mp3", "f:peaks/pts:5")]
        misses = [await fetch(one.port, path) for path in paths]
        await self.until_stored(2)
        self.server.remove(self.sources, "a.flac")
        for path, miss in zip(paths, misses, strict=True):
            hit = await fetch(other.port, path)
            self.assertEqual((200, b"HIT"), (hit.status, hit["x-audio-proxy"]))
            self.assertEqual(body_and_headers(miss), body_and_headers(hit))
        self.assertEqual(404, (await fetch(other.port, self.url("a.flac", "f:wav"))).status)

    async def test_deleted_variant(self) -> None:
        """A variant that was deleted from the bucket is rendered again to the same bytes."""
        self.patch(registry_module, "_LINGER", 0.05)
        service = await self.boot()
        miss = await fetch(service.port, self.url("a.flac"))
        await until_hit(service.port, self.url("a.flac"))
        self.server.remove(self.variants, key_of(miss))
        again = await until_miss(service.port, self.url("a.flac"))
        self.assertEqual(miss.body, again.body)
        self.assertEqual([key_of(miss)], await self.until_stored())

    async def test_one_render_for_many(self) -> None:
        """Simultaneous requests share one render, which writes one object once."""
        relay = self.relay()
        service = await self.boot(variant_s3=self.s3(relay))
        before = relay.count("PUT")
        clients = [await send(service.port, self.url("a.flac")) for _ in range(5)]
        responses = [await client.end() for client in clients]
        self.assertEqual(1, len({response.body for response in responses}))
        await until_hit(service.port, self.url("a.flac"))
        self.assertEqual(before + 1, relay.count("PUT"))
        self.assertEqual(1, len(self.stored()))


class ProxyTests(RemoteCase):
    """Hits in proxy mode (AP_SERVE_MODE=proxy)."""

    async def setUp(self) -> None:
        await super().setUp()
        self.put("a.flac", short_flac())
        self.store = self.relay()
        self.service = await self.boot(variant_s3=self.s3(self.store))
        self.path = self.url("a.flac", "f:mp3/dl:a.mp3")
        self.miss = await self.fetch()
        await self.until_stored()

    async def fetch(self, method: bytes = b"GET", **headers: bytes) -> Response:
        """Request the variant."""
        return await fetch(self.service.port, self.path, method, **headers)

    async def test_ranges(self) -> None:
        """Hits support single ranges with 206 and 416; other Range values return the whole body."""
        body, tag = self.miss.body, self.miss["etag"] or b""
        size = len(body)
        for sent, start, stop in (
            (b"bytes=0-0", 0, 1),
            (b"bytes=100-1099", 100, 1100),
            (b"bytes=%d-" % (size - 1), size - 1, size),
            (b"bytes=-5", size - 5, size),
            (b"bytes=10-99999999", 10, size),
        ):
            part = await self.fetch(range=sent, if_range=tag)
            self.assertEqual((206, True, body[start:stop]), (part.status, part.complete, part.body))
            self.assertEqual(b"bytes %d-%d/%d" % (start, stop - 1, size), part["content-range"])
            self.assertEqual(b"%d" % (stop - start), part["content-length"])
            self.assertEqual(body_and_headers(self.miss)[1:], body_and_headers(part)[1:])
        wholes = [
            await self.fetch(),
            *[
                await self.fetch(range=sent)
                for sent in (b"bytes=0-1,4-5", b"lines=0-1", b"bytes=x")
            ],
            await self.fetch(range=b"bytes=0-1", if_range=b'"another"'),
        ]
        for whole in wholes:
            self.assertEqual((200, True), (whole.status, whole.complete))
            self.assertEqual(body_and_headers(self.miss), body_and_headers(whole))
            self.assertEqual((b"HIT", b"bytes"), (whole["x-audio-proxy"], whole["accept-ranges"]))
            self.assertEqual(b"%d" % size, whole["content-length"])
        beyond = await self.fetch(range=b"bytes=%d-" % size)
        self.assertEqual((416, "range_not_satisfiable"), (beyond.status, beyond.error))
        self.assertEqual(b"bytes */%d" % size, beyond["content-range"])
        self.assertEqual(b"no-store", beyond["cache-control"])

    async def test_head(self) -> None:
        """HEAD of a hit returns the headers of GET, ignores Range and does not read the object."""
        hit = await self.fetch()
        reads = self.store.count("GET")
        for headers in ({}, {"range": b"bytes=0-9"}):
            head = await self.fetch(b"HEAD", x_request_id=b"same", **headers)
            self.assertEqual((200, b""), (head.status, head.body))
            same = [line for line in hit.headers_without_date if line[0] != b"x-request-id"]
            self.assertEqual(
                same, [line for line in head.headers_without_date if line[0] != b"x-request-id"]
            )
        self.assertEqual(reads, self.store.count("GET"))

    async def test_304_without_storage(self) -> None:
        """A matching If-None-Match gets 304 without the store (Request handling order, 3)."""
        tag = self.miss["etag"] or b""
        await self.store.close()
        for method in (b"GET", b"HEAD"):
            same = await self.fetch(method, if_none_match=b'"x", ' + tag)
            self.assertEqual((304, b""), (same.status, same.body))
            self.assertEqual(tag, same["etag"])
            self.assertEqual(MEDIA_CACHE_CONTROL.encode(), same["cache-control"])
        self.assertEqual(502, (await self.fetch()).status)

    async def test_hit_requests(self) -> None:
        """A hit sends one HEAD and one GET to the store, and nothing to the source."""
        relay = self.relay()
        service = await self.boot(source_s3=self.s3(relay), variant_s3=self.s3(self.store))
        del self.store.requests[:]
        before = await scrape(service.metrics_port)
        hit = await fetch(service.port, self.path)
        self.assertEqual(body_and_headers(self.miss), body_and_headers(hit))
        self.assertEqual([], relay.requests)
        self.assertEqual(["HEAD", "GET"], [request.method for request in self.store.requests])
        counted = counter_increases(before, await scrape(service.metrics_port))
        self.assertEqual(1, counted['cache_lookups_total{format="mp3",outcome="hit"}'])

    async def test_replaced_while_it_is_read(self) -> None:
        """A variant replaced between lookup and read gives 502, and never a mix of two objects."""

        def replace(request: ReceivedRequest) -> RequestAction:
            if request.method == "GET":
                self.server.put(self.variants, key_of(self.miss), b"another" * 1000)
            return PASS

        self.store.rule = replace
        response = await self.fetch()
        self.assertEqual((502, "upstream_unavailable"), (response.status, response.error))
        self.assertEqual(b"no-store", response["cache-control"])
        self.store.rule = lambda request: PASS
        self.assertEqual(b"another" * 1000, (await self.fetch()).body)


class LargeHitTests(RemoteCase):
    """Large hits, and clients that stop reading."""

    SIZE = 48 * MEBIBYTE

    async def setUp(self) -> None:
        await super().setUp()
        self.put("a.flac", short_flac())
        self.store = self.relay()
        self.service = await self.boot(variant_s3=self.s3(self.store))
        head = await fetch(self.service.port, self.url("a.flac"), b"HEAD")
        self.server.put(self.variants, key_of(head), bytes(self.SIZE), content_type="audio/mpeg")
        self.sent_before = self.store.sent_bytes

    async def test_stalled_client(self) -> None:
        """A hit is read from the store no faster than the client reads it (D38)."""
        client = await send(self.service.port, self.url("a.flac"))
        await until(lambda: client.received, "the first bytes")
        client.pause()
        previous, unchanged_count = -1, 0
        while unchanged_count < 30:
            await deferLater(reactor, 0.005)
            current = self.store.sent_bytes
            previous, unchanged_count = current, unchanged_count + 1 if current == previous else 0
        self.assertLess(self.store.sent_bytes - self.sent_before, 3 * self.SIZE // 4)
        client.resume()
        whole = await client.end()
        self.assertEqual((True, self.SIZE), (whole.complete, len(whole.body)))

    async def test_client_that_leaves(self) -> None:
        """When a client leaves, the store connection closes and the rest is not read."""
        client = await send(self.service.port, self.url("a.flac"))
        await until(lambda: client.received, "the first bytes")
        client.pause()
        await client.leave()
        await until(lambda: not self.store.ends, "the connection to the store to close")
        self.assertLess(self.store.sent_bytes - self.sent_before, 3 * self.SIZE // 4)


class MultipartTests(RemoteCase):
    """Variants that are too large for a single PUT."""

    async def setUp(self) -> None:
        await super().setUp()
        self.put("long.flac", long_flac())
        # Small parts in place of the default of 4 GiB.
        self.patch(s3_module, "S3VariantStore", partial(S3VariantStore, part_size=PART_SIZE))
        self.patch(s3_module, "_RETRY_DELAY", 0.01)
        self.patch(registry_module, "_LINGER", 0.05)
        self.store = self.relay()
        self.service = await self.boot(variant_s3=self.s3(self.store))

    async def test_multipart_upload(self) -> None:
        """A multipart upload results in the same bytes and headers, and is served in ranges."""
        path = self.url("long.flac", f"{LARGE}/dl:a.wav")
        miss = await fetch(self.service.port, path)
        self.assertEqual(True, miss.complete)
        self.assertLess(2 * PART_SIZE, len(miss.body))
        hit = await until_hit(self.service.port, path)
        self.assertEqual(body_and_headers(miss), body_and_headers(hit))
        parts = [request for request in self.store.requests if "partNumber=" in request.target]
        self.assertEqual(-(-len(miss.body) // PART_SIZE), len(parts))
        self.assertEqual([], self.server.uploads(self.variants))
        self.assertEqual(miss.body, self.server.get(self.variants, key_of(miss)).body)
        part = await fetch(
            self.service.port, path, range=b"bytes=%d-%d" % (PART_SIZE - 2, PART_SIZE + 1)
        )
        self.assertEqual((206, miss.body[PART_SIZE - 2 : PART_SIZE + 2]), (part.status, part.body))

    async def test_part_that_fails(self) -> None:
        """A failed multipart upload is aborted: neither an object nor a billed part remains."""
        self.store.rule = lambda request: ABORTED if "partNumber=2" in request.target else PASS
        path = self.url("long.flac", LARGE)
        before = await scrape(self.service.metrics_port)
        client = await send(self.service.port, path)
        response = await client.end()
        self.assertTrue(response.complete)
        await until(lambda: self.store.requests[-1].method == "DELETE", "the parts to be removed")
        name = "variant_store_write_failures_total"
        while name not in (
            counted := counter_increases(before, await scrape(self.service.metrics_port))
        ):
            pass
        self.assertEqual(1, counted[name])
        self.assertEqual([], self.server.uploads(self.variants))
        self.assertEqual([], self.stored())
        self.store.rule = lambda request: PASS
        again = await until_miss(self.service.port, path)
        self.assertEqual(response.body, again.body)
        self.assertEqual([key_of(again)], await self.until_stored())

    async def test_part_that_is_lost_once(self) -> None:
        """A part whose connection breaks off once is sent again, and the upload completes."""
        lost: list[Any] = []

        def lose(request: ReceivedRequest) -> RequestAction:
            if "partNumber=2" in request.target and not lost:
                lost.append(request)
                return ABORTED
            return PASS

        self.store.rule = lose
        miss = await fetch(self.service.port, self.url("long.flac", LARGE))
        self.assertEqual([key_of(miss)], await self.until_stored())
        self.assertEqual(1, len(lost))
        self.assertEqual(miss.body, self.server.get(self.variants, key_of(miss)).body)
        self.assertEqual([], self.server.uploads(self.variants))


class RedirectTests(RemoteCase):
    """Hits in redirect mode (AP_SERVE_MODE=redirect)."""

    async def setUp(self) -> None:
        await super().setUp()
        self.put("a.flac", short_flac())

    async def start_with_variant(
        self, options: str = "f:mp3", **settings: Any
    ) -> tuple[int, Response]:
        """Start a service and store a variant; return the port and the response to the MISS."""
        service = await self.boot(serve_mode="redirect", **settings)
        miss = await fetch(service.port, self.url("a.flac", options))
        self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
        await self.until_stored()
        return service.port, miss

    async def test_location(self) -> None:
        """The presigned URL of a 302 serves the object with its headers, whole or in ranges.

        The URL permits GET only.
        """
        port, miss = await self.start_with_variant("f:mp3/dl:%C3%A9.mp3", presign_ttl=77)
        hit = await fetch(port, self.url("a.flac", "dl:%C3%A9.mp3"), range=b"bytes=0-1")
        self.assertEqual((302, b"", True), (hit.status, hit.body, hit.complete))
        self.assertEqual((b"no-store", b"HIT"), (hit["cache-control"], hit["x-audio-proxy"]))
        self.assertEqual((miss["etag"], b"0"), (hit["etag"], hit["content-length"]))
        location = (hit["location"] or b"").decode()
        self.assertIn("X-Amz-Expires=77&", location)
        whole = self.server.fetch(location)
        self.assertEqual((200, miss.body), (whole.status, whole.body))
        for name in ("content-type", "content-disposition", "cache-control"):
            self.assertEqual((miss[name] or b"").decode(), whole.headers[name])
        self.assertEqual("bytes", whole.headers["accept-ranges"])
        part = self.server.fetch(location, headers={"Range": "bytes=10-19"})
        self.assertEqual((206, miss.body[10:20]), (part.status, part.body))
        for method in ("HEAD", "PUT", "DELETE"):
            self.assertEqual(403, self.server.fetch(location, method).status, method)

    async def test_head(self) -> None:
        """HEAD of a hit gets a 302 with the object's size and a Location that serves the object.

        (HEAD on signed endpoints, 3 and 4)
        """
        port, miss = await self.start_with_variant()
        head = await fetch(port, self.url("a.flac"), b"HEAD")
        self.assertEqual((302, b"%d" % len(miss.body)), (head.status, head["content-length"]))
        self.assertEqual((b"no-store", b"bytes"), (head["cache-control"], head["accept-ranges"]))
        self.assertEqual(200, self.server.fetch((head["location"] or b"").decode()).status)

    async def test_exp(self) -> None:
        """Presigned URLs expire no later than ``exp``.

        During the second that ``exp`` names, the service sends the variant instead of a 302 (D14).
        """
        now = int(time.time())
        clock = SimpleNamespace(time=lambda: now + 0.9)
        self.patch(service_module, "time", clock)
        port, miss = await self.start_with_variant(presign_ttl=100)
        for left, expires in ((1000, 100), (100, 100), (99, 99), (1, 1)):
            hit = await fetch(port, self.url("a.flac", f"exp:{now + left}"))
            self.assertEqual((302, b"no-store"), (hit.status, hit["cache-control"]), left)
            self.assertIn(b"X-Amz-Expires=%d&" % expires, hit["location"] or b"", left)
        last = await fetch(port, self.url("a.flac", f"exp:{now}"))
        self.assertEqual((200, miss.body, None), (last.status, last.body, last["location"]))
        self.assertEqual(b"HIT", last["x-audio-proxy"])
        self.assertIn(b"max-age=0,", last["cache-control"] or b"")
        part = await fetch(port, self.url("a.flac", f"exp:{now}"), range=b"bytes=1-2")
        self.assertEqual((206, miss.body[1:3]), (part.status, part.body))
        head = await fetch(port, self.url("a.flac", f"exp:{now}"), b"HEAD")
        self.assertEqual((200, b"%d" % len(miss.body)), (head.status, head["content-length"]))
        late = await fetch(port, self.url("a.flac", f"exp:{now - 1}"))
        self.assertEqual((410, "expired"), (late.status, late.error))

    async def test_url_expires(self) -> None:
        """The store refuses a presigned URL after AP_PRESIGN_TTL seconds."""
        port, _ = await self.start_with_variant(presign_ttl=1)
        hit = await fetch(port, self.url("a.flac"))
        location = (hit["location"] or b"").decode()
        self.assertEqual(200, self.server.fetch(location).status)
        await until(lambda: self.server.fetch(location).status == 403, "the URL to expire")

    async def test_nothing_is_read(self) -> None:
        """A redirect sends one HEAD to the store, and reads no byte of the object."""
        relay = self.relay()
        port, _ = await self.start_with_variant(variant_s3=self.s3(relay))
        del relay.requests[:]
        hit = await fetch(port, self.url("a.flac"))
        self.assertEqual(302, hit.status)
        self.assertEqual(["HEAD"], [request.method for request in relay.requests])
