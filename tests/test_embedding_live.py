"""The proxy's resource inside another Twisted application."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from typing import Any

from twisted.application.service import MultiService
from twisted.internet.defer import CancelledError
from twisted.logger import formatEvent
from twisted.web.resource import Resource
from twisted.web.server import Site
from twisted.web.static import Data

from audioproxy.config import BucketStore, S3Config
from audioproxy.service import AudioProxy, BootError, make_resource
from audioproxy.variants.response_headers import VariantHeaders
from tests.support.http import MEDIA_CACHE_CONTROL, Log, key_of
from tests.support.service import (
    ServiceCase,
    all_children,
    encoders,
    fetch,
    long_flac,
    reactor,
    read_metrics,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)
from tests.support.stores import RECORD
from tests.test_docs import PAGES, code

PREFIX = "http://app.test/audio"
IDENTITY: dict[str, Any] = {
    "access_key_id": "id",
    "secret_access_key": "secret",
    "region": "eu-west-1",
}
REST = "/f:ogg/plain/local://short.flac"
PATH = b"/audio" + signed(REST)


class EmbeddingTests(ServiceCase):
    """`make_resource`"""

    def application(self, proxy: AudioProxy) -> Resource:
        """Return an application with the proxy at /audio/, its metrics and a text."""
        root = Resource()
        root.putChild(b"audio", proxy.resource)
        root.putChild(b"internal", proxy.metrics)
        root.putChild(b"text", Data(b"a text", "text/plain"))
        return root

    def mount(self, proxy: AudioProxy, kind: type[Site] = Site) -> int:
        """Serve an application with the proxy and return its port."""
        site = kind(self.application(proxy))
        port = reactor.listenTCP(0, site, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    def make(self, **settings: Any) -> AudioProxy:
        """Make a proxy; stop it at the end of the test if it still runs."""
        proxy = make_resource(self.config(**settings), reactor)
        self.addCleanup(lambda: proxy.stopService() if proxy.running else None)
        return proxy

    async def test_renders_below_a_prefix(self) -> None:
        """A proxy at /audio/ renders and stores, and does not affect other resources.

        The metrics are served only where the application mounts them, separately for each proxy. A
        file store is served in proxy mode, even if the serve mode is redirect.
        """
        self.add("short.flac", short_flac())
        proxies = [self.make(serve_mode="redirect"), self.make()]
        for proxy in proxies:
            await proxy.startService()
        port, other_port = map(self.mount, proxies)
        miss = await fetch(port, PATH)
        self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
        self.assertEqual(b"OggS", miss.body[:4])
        hit = await until_hit(port, PATH)
        self.assertEqual((200, miss.body), (hit.status, hit.body))
        part = await fetch(port, PATH, range=b"bytes=0-3")
        self.assertEqual((206, b"OggS"), (part.status, part.body))
        self.assertEqual(b"a text", (await fetch(port, b"/text")).body)
        self.assertEqual("ok", (await fetch(port, b"/audio/health")).document["status"])
        # The URL contains the prefix, but the signed path does not. The site has no resource at the
        # path without the prefix.
        for target in (PATH.removeprefix(b"/audio"), b"/metrics", b"/internal"):
            self.assertEqual(404, (await fetch(port, target)).status)
        for each, renders in ((port, 1), (other_port, 0)):
            response = await fetch(each, b"/internal/metrics")
            self.assertEqual(b"text/plain; version=0.0.4", response["content-type"])
            name = 'audio_proxy_renders_total{format="ogg",outcome="success"}'
            self.assertEqual(renders, read_metrics(response.body)[name])

    async def test_signatures_in_the_log(self) -> None:
        """Twisted's site logs signed URLs; that of the documentation does not (Request log, 5)."""
        blocks = code(PAGES["embedding"], "python")
        (program,) = (block for block in blocks if "def log" in block)
        names: dict[str, Any] = {}
        exec(program, names)
        proxy = self.make()
        await proxy.startService()
        for kind, is_logged in ((Site, True), (names["QuietSite"], False)):
            log = Log(self)
            port = self.mount(proxy, kind)
            for target in (PATH, b"/text"):
                await fetch(port, target)
            lines = "".join(str(formatEvent(event)) for event in log.events)
            self.assertEqual(is_logged, PATH.decode() in lines)
            self.assertIn("/text", lines)

    async def test_child_of_an_application(self) -> None:
        """A proxy starts and stops with its parent service, and can be started again.

        A stop, even right after the start, leaves no child process and no scratch file.
        """
        self.add("short.flac", short_flac())
        proxy = self.make()
        parent = MultiService()
        proxy.setServiceParent(parent)
        port = self.mount(proxy)
        another = b"/audio" + signed("/f:wav/plain/local://short.flac")
        for target, cache in ((PATH, b"MISS"), (PATH, b"HIT"), (another, b"MISS"), (None, b"")):
            parent.startService()
            self.assertTrue(proxy.running)
            if target is not None:
                self.assertEqual(cache, (await fetch(port, target))["x-audio-proxy"])
            await parent.stopService()
            self.assertFalse(proxy.running)
            self.assertEqual([], all_children())
            self.assertEqual([], list((self.store / ".scratch").iterdir()))

    async def test_stop_while_it_starts(self) -> None:
        """A stop cancels a start whose bucket does not respond; the proxy can be started again."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            proxy = self.make(
                variant_store=BucketStore("bucket"),
                source_s3=S3Config(
                    endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", **IDENTITY
                ),
            )
            for _ in range(2):
                starting = proxy.startService()
                self.assertNoResult(starting)
                await proxy.stopService()
                self.failureResultOf(starting, CancelledError)
                self.assertFalse(proxy.running)
        # The silent server is closed now.
        with self.assertRaises(BootError):
            await proxy.startService()
        self.assertFalse(proxy.running)
        self.assertEqual([], all_children())

    async def test_stop_waits_for_responses(self) -> None:
        """A stop waits until the client of a hit has read it, with no render running (D39).

        A warning says what it waits for.
        """
        proxy = self.make(warm_programs=False)
        await proxy.startService()
        store = proxy.engine.store
        assert store is not None
        # More than the socket buffers of a connection can hold.
        size = 50_000_000
        scratch = await store.create()
        os.truncate(scratch.descriptor, size)
        headers = VariantHeaders("audio/ogg", MEDIA_CACHE_CONTROL, None)
        await store.commit(key_of(REST.encode()), scratch, size, headers, RECORD)
        client = await send(self.mount(proxy), PATH)
        client.pause()
        await until(lambda: proxy.resource.active.count, "the request")
        log = Log(self)
        stopping = proxy.stopService()
        await until(lambda: log.events, "the warning")
        self.assertRegex(
            formatEvent(log.events[0]) or "",
            r"\Athe stop waits for 2\d s at most; renders: 0, responses: 1, write-backs: 0\Z",
        )
        self.assertNoResult(stopping)
        client.resume()
        response = await client.end()
        self.assertEqual((b"HIT", True), (response["x-audio-proxy"], response.complete))
        self.assertEqual(size, len(response.body))
        await stopping

    async def test_stop_has_a_limit(self) -> None:
        """A stop breaks a hanging render off after AP_DRAIN_TIMEOUT, by default 30 s (D39)."""
        self.assertEqual(7, self.make(drain_timeout=7).drain_timeout)
        proxy = self.make()
        self.assertEqual(30, proxy.drain_timeout)
        self.add("long.flac", long_flac())
        await proxy.startService()
        target = b"/audio" + signed("/f:mp3/t:0:240/plain/local://long.flac")
        client = await send(self.mount(proxy), target)
        await until(lambda: client.response, "the headers")
        (encoder,) = encoders()
        os.kill(encoder, signal.SIGSTOP)
        proxy.drain_timeout = 0.1
        await proxy.stopService()
        self.assertEqual([], all_children())
        self.assertFalse((await client.end()).complete)
        self.assertEqual([], [path for path in self.store.rglob("*") if path.is_file()])

    def test_store_not_writable(self) -> None:
        """If the store is not writable, the start fails with an error that names the setting."""
        self.store.rmdir()
        for scratch in (False, True):
            # A file in the place of a folder.
            if scratch:
                self.store.mkdir()
            path = self.store / ".scratch" if scratch else self.store
            path.write_bytes(b"")
            proxy = self.make()
            error = self.failureResultOf(proxy.startService(), BootError).value
            self.assertTrue(str(error).startswith("AP_VARIANT_STORE: "), error)
            self.assertFalse(proxy.running)
            path.unlink()

    def test_conflicting_settings(self) -> None:
        """`make_resource` refuses unusable settings with one line that names the variable."""
        bundle = self.root / "bundle.pem"
        bundle.write_text("nothing")
        # An address on the loopback interface; the test sends no request to it.
        plain = S3Config(endpoint="http://127.0.0.1:9", **IDENTITY)
        virtual = replace(plain, addressing="virtual")
        named = replace(virtual, endpoint="http://s3.test:9")
        bucket: dict[str, Any] = {"variant_store": BucketStore("bucket")}
        bad_name: dict[str, Any] = {"variant_store": BucketStore("a_bucket")}
        for settings, problem in (
            (bucket, "AP_VARIANT_STORE: .*credentials"),
            ({**bucket, "source_s3": virtual}, "AP_S3_ADDRESSING: .*path"),
            (
                {**bucket, "source_s3": plain, "variant_s3": virtual},
                "AP_VARIANT_S3_ADDRESSING: .*path",
            ),
            ({"source_s3": virtual}, "AP_S3_ADDRESSING: .*path"),
            ({**bad_name, "source_s3": named}, "AP_VARIANT_STORE: "),
            ({"source_s3": replace(plain, ca_bundle=str(bundle))}, "AP_S3_CA_BUNDLE: .*certificat"),
            ({"source_s3": replace(plain, ca_bundle="/none")}, "AP_S3_CA_BUNDLE: .*No such file"),
        ):
            error = self.assertRaises(BootError, make_resource, self.config(**settings), reactor)
            self.assertRegex(str(error), rf"\A{problem}")
            self.assertNotIn("\n", str(error))
