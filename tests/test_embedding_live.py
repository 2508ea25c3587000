"""The proxy's resource inside another Twisted application."""

from __future__ import annotations

import os
import socket
from typing import Any

from twisted.application.service import MultiService
from twisted.internet.defer import CancelledError
from twisted.web.resource import Resource
from twisted.web.server import Site
from twisted.web.static import Data

from audioproxy.config import BucketStore, S3Config
from audioproxy.service import AudioProxy, BootError, make_resource
from tests.support.service import (
    ServiceCase,
    children,
    fetch,
    reactor,
    send,
    short_flac,
    signed,
    until_hit,
)

PATH = b"/audio" + signed("/f:ogg/plain/local://short.flac")


class EmbeddingTests(ServiceCase):
    """`make_resource`"""

    def mount(self, proxy: AudioProxy) -> int:
        """Serve a site with the proxy at /audio/ and a text at /text, and return its port."""
        root = Resource()
        root.putChild(b"audio", proxy.resource)
        root.putChild(b"text", Data(b"a text", "text/plain"))
        port = reactor.listenTCP(0, Site(root), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    def make(self, **settings: Any) -> AudioProxy:
        """Make a proxy; stop it at the end of the test if it still runs."""
        proxy = make_resource(self.config(**settings), reactor)
        self.addCleanup(lambda: proxy.stopService() if proxy.running else None)
        return proxy

    async def test_renders_below_a_prefix(self) -> None:
        """A proxy at /audio/ renders and stores, and does not affect other resources."""
        self.add("short.flac", short_flac())
        proxy = self.make()
        await proxy.startService()
        port = self.mount(proxy)
        miss = await fetch(port, PATH)
        self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
        self.assertEqual(b"OggS", miss.body[:4])
        self.assertEqual(miss.body, (await until_hit(port, PATH)).body)
        self.assertEqual(b"a text", (await fetch(port, b"/text")).body)
        self.assertEqual(200, (await fetch(port, b"/audio/health")).status)
        for target, status in ((b"/audio/", 404), (b"/audio", 404), (b"/audio/x/y", 401)):
            response = await fetch(port, target)
            self.assertEqual(status, response.status)
            self.assertEqual(b"application/json", response["content-type"])
        # The URL contains the prefix, but the signed path does not. The site has no resource at the
        # path without the prefix.
        self.assertEqual(404, (await fetch(port, PATH.removeprefix(b"/audio"))).status)

    async def test_store_without_urls(self) -> None:
        """A file store is served in proxy mode, even if the serve mode is redirect."""
        self.add("short.flac", short_flac())
        proxy = self.make(serve_mode="redirect")
        await proxy.startService()
        port = self.mount(proxy)
        miss = await fetch(port, PATH)
        hit = await until_hit(port, PATH)
        self.assertEqual((200, miss.body), (hit.status, hit.body))
        part = await fetch(port, PATH, range=b"bytes=0-3")
        self.assertEqual((206, b"OggS"), (part.status, part.body))

    async def test_child_of_an_application(self) -> None:
        """A proxy starts and stops with its parent service."""
        self.add("short.flac", short_flac())
        proxy = self.make()
        parent = MultiService()
        proxy.setServiceParent(parent)
        port = self.mount(proxy)
        parent.startService()
        self.assertEqual(200, (await fetch(port, PATH)).status)
        await parent.stopService()
        self.assertFalse(proxy.running)
        self.assertEqual([], children())
        self.assertEqual([], list((self.store / ".scratch").iterdir()))

    async def test_stop_at_once(self) -> None:
        """A stop right after the start leaves no child process and no timer."""
        proxy = self.make()
        await proxy.startService()
        await proxy.stopService()
        self.assertEqual([], children())

    async def test_stop_while_it_starts(self) -> None:
        """A stop cancels a start whose bucket does not respond; the proxy can be started again."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            proxy = self.make(
                variant_store=BucketStore("bucket"),
                source_s3=S3Config(
                    endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}",
                    access_key_id="id",
                    secret_access_key="secret",
                    region="eu-west-1",
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
        self.assertEqual([], children())

    async def test_stop_waits_for_responses(self) -> None:
        """A stop waits for running renders and their responses (D39)."""
        self.add("short.flac", short_flac())
        proxy = self.make()
        await proxy.startService()
        client = await send(self.mount(proxy), PATH)
        while not proxy.resource.active.count:
            await fetch(self.mount(proxy), b"/text")
        await proxy.stopService()
        response = await client.end()
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertEqual([], children())

    async def test_start_again(self) -> None:
        """A stopped proxy can be started again."""
        self.add("short.flac", short_flac())
        proxy = self.make()
        port = self.mount(proxy)
        states = []
        for _ in range(2):
            await proxy.startService()
            states.append((await fetch(port, PATH))["x-audio-proxy"])
            await proxy.stopService()
        self.assertEqual([b"MISS", b"HIT"], states)

    def test_store_not_writable(self) -> None:
        """If the store is not writable, the start fails with an error that names the setting."""
        self.store.rmdir()
        self.store.write_bytes(b"")
        proxy = self.make()
        error = self.failureResultOf(proxy.startService(), BootError).value
        self.assertIn("AP_VARIANT_STORE", str(error))
        self.assertFalse(proxy.running)

    def test_conflicting_settings(self) -> None:
        """`make_resource` refuses unusable settings with one line that names the variable."""
        bundle = self.root / "bundle.pem"
        bundle.write_text("nothing")
        # An address on the loopback interface; the test sends no request to it.
        identity: dict[str, Any] = {
            "endpoint": "http://127.0.0.1:9",
            "access_key_id": "id",
            "secret_access_key": "secret",
            "region": "eu-west-1",
        }
        bucket: dict[str, Any] = {"variant_store": BucketStore("bucket")}
        virtual = S3Config(**identity, addressing="virtual")
        for settings, problem in (
            (bucket, "AP_VARIANT_STORE: .*credentials"),
            ({**bucket, "source_s3": virtual}, "AP_S3_ADDRESSING: .*path"),
            (
                {**bucket, "source_s3": S3Config(**identity), "variant_s3": virtual},
                "AP_VARIANT_S3_ADDRESSING: .*path",
            ),
            ({"source_s3": virtual}, "AP_S3_ADDRESSING: .*path"),
            (
                {"source_s3": S3Config(**identity, ca_bundle=str(bundle))},
                "AP_S3_CA_BUNDLE: .*certificates",
            ),
            (
                {"source_s3": S3Config(**identity, ca_bundle="/nowhere.pem")},
                "AP_S3_CA_BUNDLE: .*No such file",
            ),
        ):
            error = self.assertRaises(BootError, make_resource, self.config(**settings), reactor)
            self.assertRegex(str(error), rf"\A{problem}")
            self.assertNotIn("\n", str(error))

    def test_missing_ssl_cert_file(self) -> None:
        """`make_resource` refuses a missing SSL_CERT_FILE if https sources are allowed."""
        self.patch(os, "environ", {**os.environ, "SSL_CERT_FILE": "/nowhere.pem"})
        # If no host is allowed, no certificate is ever verified.
        make_resource(self.config(), reactor)
        config = self.config(source_allowlist=("a.test",))
        error = self.assertRaises(BootError, make_resource, config, reactor)
        self.assertRegex(str(error), r"\ASSL_CERT_FILE: .*No such file")
