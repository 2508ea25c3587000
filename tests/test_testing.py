"""`audioproxy.testing`, as an application uses it."""

from __future__ import annotations

from typing import Any
from unittest import TestLoader, TestResult

from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource

from audioproxy.config import Config
from audioproxy.testing import MemoryProxy
from audioproxy.urls import Variant
from tests.test_docs import PAGES, code

TONE = "local://tone.flac"


class MemoryProxyTests(SynchronousTestCase):
    """`MemoryProxy`"""

    def setUp(self) -> None:
        self.proxy = MemoryProxy({TONE: b"any bytes"})

    def get(self, url: str, **options: Any) -> tuple[int, str | None, bytes]:
        """Return the status, the cache state and the body of a response."""
        getting = self.proxy.treq.get(url, **options)
        self.proxy.flush()
        response = self.successResultOf(getting)
        reading = response.content()
        self.proxy.flush()
        (state,) = response.headers.getRawHeaders("x-audio-proxy", [None])
        return response.code, state, self.successResultOf(reading)

    def test_variant(self) -> None:
        """The first request renders, each later one is served from the store, and by ranges."""
        for form in ("mp3", "opus", "wav", "flac", "m4a", "ogg"):
            self.proxy.ffmpeg.commands.clear()
            url = self.proxy.signer.url(TONE, Variant(f=form, t=(0, 5)))
            status, state, body = self.get(url)
            self.assertEqual((200, "MISS"), (status, state), form)
            self.assertEqual(self.proxy.ffmpeg.output[-100:], body[-100:])
            self.assertIn("ffmpeg", [command[0] for command in self.proxy.ffmpeg.commands])
            self.assertEqual((200, "HIT", body), self.get(url))
            self.assertEqual((206, "HIT", body[5:9]), self.get(url, headers={"range": "bytes=5-8"}))
        self.assertEqual(6, len(self.proxy.variants))

    def test_refusals(self) -> None:
        """Signatures, options and sources are refused as by the service."""
        url = self.proxy.signer.url(TONE)
        self.assertEqual(401, self.get(url.replace("/plain/", "/f:wav/plain/"))[0])
        self.assertEqual(404, self.get(self.proxy.signer.url("local://none.flac"))[0])
        self.proxy.ffmpeg.error = b"Invalid data found when processing input"
        self.assertEqual(415, self.get(url)[0])
        self.proxy.ffmpeg.error = b""
        self.assertEqual((200, "MISS"), self.get(url)[:2])

    def test_other_endpoints(self) -> None:
        """Health, info documents and peaks respond."""
        self.assertEqual(200, self.get("http://proxy.test/health")[0])
        status, _, document = self.get(self.proxy.signer.info_url(TONE))
        self.assertEqual(200, status)
        self.assertIn(b'"sample_rate"', document)
        self.assertEqual(200, self.get(self.proxy.signer.url(TONE, Variant(f="peaks", pts=10)))[0])

    def test_mounted(self) -> None:
        """The resource is mounted in an application, which starts and stops it."""
        self.proxy = MemoryProxy(
            {TONE: b"x"}, Config(key=bytes(32), salt=b"s"), "http://a.test/audio"
        )
        root = Resource()
        root.putChild(b"audio", self.proxy.resource)
        client = self.proxy.client(root)
        self.successResultOf(self.proxy.startService())
        self.proxy.flush()
        self.assertEqual([], self.proxy.ffmpeg.commands)
        getting = client.get(self.proxy.signer.url(TONE))
        self.proxy.flush()
        self.assertEqual(200, self.successResultOf(getting).code)
        stopping = self.proxy.stopService()
        self.proxy.flush()
        self.successResultOf(stopping)

    def test_page(self) -> None:
        """The test case of docs/embedding.md passes."""
        (program,) = (b for b in code(PAGES["embedding"], "python") if "MemoryProxy" in b)
        names: dict[str, Any] = {"__name__": "test_previews"}
        exec(program, names)
        result = TestResult()
        TestLoader().loadTestsFromTestCase(names["PreviewTests"]).run(result)
        self.assertEqual((2, [], []), (result.testsRun, result.failures, result.errors))
