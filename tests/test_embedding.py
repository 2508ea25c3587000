"""Resource in an application's tree, tested with treq.testing as an application would test it."""

from __future__ import annotations

import json
from typing import Any

from treq.testing import StubTreq
from twisted.internet.defer import Deferred
from twisted.web.resource import Resource
from twisted.web.server import Request
from twisted.web.static import Data

from audioproxy.service import make_resource
from audioproxy.urls import Signer, Variant
from tests.support.service import KEY, SALT, ServiceCase, begin, reactor, short_flac, until

BASE = "http://app.test/audio"


class StubTreqTests(ServiceCase):
    """`make_resource` as a child of the application's root, without a port"""

    def setUp(self) -> None:
        super().setUp()
        proxy = make_resource(self.config(), reactor)
        begin(proxy)
        self.addCleanup(proxy.stopService)
        root = Resource()
        root.putChild(b"", Data(b"the application", "text/plain"))
        root.putChild(b"audio", proxy.resource)
        root.putChild(b"internal", proxy.metrics)
        self.treq = StubTreq(root)

    def get(self, url: str) -> tuple[Any, bytes]:
        """Return the response to a request that completes at once, and its body."""
        response = self.successResultOf(self.treq.get(url))
        return response, self.successResultOf(self.treq.content(response))

    def test_health(self) -> None:
        """The child serves its health document, and the root still serves the application."""
        response, body = self.get(f"{BASE}/health")
        self.assertEqual((200, "ok"), (response.code, json.loads(body)["status"]))
        response, body = self.get("http://app.test/")
        self.assertEqual((200, b"the application"), (response.code, body))

    def test_wrong_signature(self) -> None:
        """A wrong signature returns 401 with an error document."""
        response, body = self.get(f"{BASE}/wrong/f:mp3/plain/local://a.flac")
        self.assertEqual(401, response.code)
        self.assertEqual(["application/json"], response.headers.getRawHeaders("content-type"))
        self.assertEqual("invalid_signature", json.loads(body)["error"])

    def test_not_found(self) -> None:
        """A signed URL of a missing source returns 404, as does a path that is not a signed URL."""
        missing = Signer(KEY, SALT, BASE).url("local://missing.flac")
        for url in (missing, BASE, f"{BASE}/"):
            response, body = self.get(url)
            self.assertEqual((404, "not_found"), (response.code, json.loads(body)["error"]), url)

    def test_metrics(self) -> None:
        """The metrics are served only where the application mounts them."""
        self.get(f"{BASE}/health")
        response, body = self.get("http://app.test/internal/metrics")
        self.assertEqual(200, response.code)
        self.assertIn(b"audio_proxy_renders_total", body)
        response, _ = self.get(f"{BASE}/metrics")
        self.assertEqual(404, response.code)

    async def test_render(self) -> None:
        """A test can read a render with the real reactor and repeated calls of `StubTreq.flush`."""
        self.add("short.flac", short_flac())
        url = Signer(KEY, SALT, BASE).url("local://short.flac", Variant(f="wav"))
        response = await self.flush_until(self.treq.get(url))
        self.assertEqual(["MISS"], response.headers.getRawHeaders("x-audio-proxy"))
        body = await self.flush_until(self.treq.content(response))
        self.assertEqual((200, b"RIFF"), (response.code, body[:4]))

    async def flush_until(self, waiting: Deferred[Any]) -> Any:
        """Return the result of a Deferred that needs several flushes."""
        results: list[Any] = []
        waiting.addBoth(results.append)

        def flush() -> list[Any]:
            self.treq.flush()
            return results

        return (await until(flush, "the response"))[0]

    def test_raw_urls(self) -> None:
        """StubTreq passes `Signer`'s URLs on unchanged, but changes some other raw URLs.

        treq encodes ``[``, ``]`` and ``|``. Twisted's Agent drops a final ``;`` if the last segment
        has no other. A test with such a URL needs a socket.
        """
        seen: list[bytes] = []

        class Record(Resource):
            isLeaf = True

            def render_GET(self, request: Request) -> bytes:
                seen.append(request.uri)
                return b""

        stub = StubTreq(Record())
        signed = Signer(KEY, SALT).url("local://a b;[1]|%.flac")
        for target in (signed, "/%2f%2F", "/a;b;", "/a[1]|b", "/a;"):
            self.successResultOf(stub.get(f"http://app.test{target}"))
        passed = [signed.encode(), b"/%2f%2F", b"/a;b;"]
        self.assertEqual([*passed, b"/a%5B1%5D%7Cb", b"/a"], seen)
