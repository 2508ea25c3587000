"""Variant store in a bucket: stored objects, uploads, write-backs, and hits in redirect mode."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SkipTest

from audioproxy.s3.signing import RequestSigner
from audioproxy.service import BootError
from audioproxy.variants import s3 as s3_module
from audioproxy.variants.s3 import S3VariantStore
from tests.support.http import MEDIA_CACHE_CONTROL, Response
from tests.support.remote import (
    ABORTED,
    HOLD,
    PASS,
    RemoteCase,
    RequestAction,
    body_and_headers,
    key_of,
)
from tests.support.service import fetch, long_flac, short_flac, signed, until, until_hit
from tests.support.wire import Request

MEBIBYTE = 1024 * 1024
PART_SIZE = 5 * MEBIBYTE
#: A variant of 11 MB.
LARGE = "f:wav/sr:44100/ch:2/t:0:64"


class StoredTests(RemoteCase):
    """Content of the bucket after a render."""

    async def test_object(self) -> None:
        """A stored object is named by its cache key and keeps the response's bytes and headers.

        Its metadata has the tag of the source. It is a hit on another node, even without its
        source. (Stored object; D5; D59; Running several nodes, 3; Request handling order, 4)
        """
        self.put("a.flac", short_flac())
        one, other = [await self.boot(cache_tag_header="cache-tag") for _ in range(2)]
        paths = [
            self.url("a.flac", options)
            for options in (
                "f:opus/dl:%C3%A9t%C3%A9%20%22a%22%25.opus",
                "f:peaks/pk_fmt:dat/pts:9",
                "f:peaks/pts:9/dl:a.json",
                "f:m4a/exp:4000000000",
            )
        ]
        misses = [await fetch(one.port, path) for path in paths]
        names = await self.until_stored(len(misses))
        self.assertEqual(sorted(map(key_of, misses)), names)
        self.server.remove(self.sources, "a.flac")
        for path, miss in zip(paths, misses, strict=True):
            self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
            stored = self.server.get(self.variants, key_of(miss))
            self.assertEqual(miss.body, stored.body)
            # exp limits max-age in the response, but never in the stored object (Request option
            # exp, 3).
            self.assertEqual(MEDIA_CACHE_CONTROL, stored.headers["cache-control"])
            self.assertEqual(miss["cache-tag"], stored.headers["x-amz-meta-cache-tag"].encode())
            for name in ("content-type", "content-disposition"):
                value = miss[name]
                self.assertEqual(value.decode() if value else None, stored.headers.get(name), name)
            hit = await fetch(other.port, path)
            self.assertEqual((200, b"HIT"), (hit.status, hit["x-audio-proxy"]))
            self.assertEqual(miss.body, hit.body)
            if path is not paths[-1]:  # its max-age counts down
                self.assertEqual(body_and_headers(miss), body_and_headers(hit))
        part = await fetch(other.port, paths[0], range=b"bytes=100-1099")
        self.assertEqual((206, misses[0].body[100:1100]), (part.status, part.body))
        self.assertIn(b"filename*=UTF-8''%C3%A9t%C3%A9", misses[0]["content-disposition"] or b"")
        self.assertEqual(404, (await fetch(other.port, self.url("a.flac", "f:wav"))).status)


class MultipartTests(RemoteCase):
    """Variants that are too large for a single PUT."""

    async def test_multipart_upload(self) -> None:
        """A part whose connection breaks off once is sent again, in another upload."""
        self.put("long.flac", long_flac())
        # Small parts in place of the default of 4 GiB.
        self.patch(s3_module, "S3VariantStore", partial(S3VariantStore, part_size=PART_SIZE))
        store = self.relay()
        service = await self.boot(variant_s3=self.s3(store))
        path = self.url("long.flac", f"{LARGE}/dl:a.wav")
        lost: list[Request] = []

        def lose(request: Request) -> RequestAction:
            if "partNumber=2" in request.target and not lost:
                lost.append(request)
                return ABORTED
            return PASS

        store.rule = lose
        miss = await fetch(service.port, path)
        self.assertEqual((200, True), (miss.status, miss.complete))
        hit = await until_hit(service.port, path)
        self.assertEqual(body_and_headers(miss), body_and_headers(hit))
        sent = [request for request in store.requests if "partNumber=" in request.target]
        self.assertEqual(2 - (-len(miss.body) // PART_SIZE), len(sent))
        self.assertEqual([], self.server.uploads(self.variants))
        self.assertEqual([key_of(miss)], self.stored())
        self.assertEqual(miss.body, self.server.get(self.variants, key_of(miss)).body)
        part = await fetch(
            service.port, path, range=b"bytes=%d-%d" % (PART_SIZE - 2, PART_SIZE + 1)
        )
        self.assertEqual((206, miss.body[PART_SIZE - 2 : PART_SIZE + 2]), (part.status, part.body))


class RedirectTests(RemoteCase):
    """Hits in redirect mode (AP_SERVE_MODE=redirect)."""

    async def start_with_variant(self, options: str, **settings: Any) -> tuple[int, Response]:
        """Start a service and store a variant; return the port and the response to the MISS."""
        self.put("a.flac", short_flac())
        booting = Deferred.fromCoroutine(self.boot(serve_mode="redirect", **settings))
        if "presigned URL" in self.server.fails:
            error = await self.assertFailure(booting, BootError)
            self.assertIn("AP_SERVE_MODE=proxy", str(error))
            raise SkipTest("This S3 server is refused in redirect mode.")
        service = await booting
        miss = await fetch(service.port, self.url("a.flac", options))
        self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
        await self.until_stored()
        return service.port, miss

    async def test_location(self) -> None:
        """The presigned URL of a 302 serves the object with its headers, whole or in ranges.

        The URL permits GET only, until it expires. The service looks the object up, and reads one
        byte of it. HEAD gets the object's size (HEAD on signed endpoints, 3 and 4).
        """
        relay, options = self.relay(), "f:mp3/dl:%C3%A9.mp3"
        port, miss = await self.start_with_variant(
            options, presign_ttl=77, variant_s3=self.s3(relay)
        )
        relay.requests.clear()
        hit = await fetch(port, self.url("a.flac", options), range=b"bytes=0-1")
        self.assertEqual(
            [("GET", "bytes=0-0")],
            [(request.method, request.headers["range"]) for request in relay.requests],
        )
        self.assertEqual((302, b"", True), (hit.status, hit.body, hit.complete))
        self.assertEqual((b"no-store", b"HIT"), (hit["cache-control"], hit["x-audio-proxy"]))
        self.assertEqual((miss["etag"], b"0"), (hit["etag"], hit["content-length"]))
        location = (hit["location"] or b"").decode()
        self.assertIn("X-Amz-Expires=77&", location)
        whole = self.server.fetch(location)
        self.assertEqual((200, miss.body), (whole.status, whole.body))
        for name in ("content-type", "content-disposition", "cache-control"):
            self.assertEqual((miss[name] or b"").decode(), whole.headers[name])
        part = self.server.fetch(location, headers={"Range": "bytes=10-19"})
        self.assertEqual((206, miss.body[10:20]), (part.status, part.body))
        for method in ("HEAD", "PUT", "DELETE"):
            self.assertEqual(403, self.server.fetch(location, method).status, method)
        # A URL that has expired is refused, as those of other methods are.
        who, place = self.server.owner, self.server.url(self.variants, key_of(miss))
        signer = RequestSigner(who.access_key, who.secret_key, None, self.server.region)
        lasting, brief = (signer.presign("GET", place, seconds) for seconds in (77, 1))
        await until(lambda: self.server.fetch(brief).status == 403, "the URL to expire")
        self.assertEqual(200, self.server.fetch(lasting).status)
        head = await fetch(port, self.url("a.flac", options), b"HEAD")
        self.assertEqual((302, b"%d" % len(miss.body)), (head.status, head["content-length"]))
        self.assertEqual((b"no-store", b"bytes"), (head["cache-control"], head["accept-ranges"]))
        self.assertEqual(200, self.server.fetch((head["location"] or b"").decode()).status)


class WriteBackTests(RemoteCase):
    """Write-backs that run when the service stops."""

    async def test_term(self) -> None:
        """SIGTERM during a write-back lets the write-back complete; the exit status is 0 (D39)."""
        self.add("short.flac", short_flac())
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
