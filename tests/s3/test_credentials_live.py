"""Store check at boot, and the credentials that the service uses for each store."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.protocols.portforward import ProxyFactory

from audioproxy.config import BucketStore, load
from audioproxy.s3 import objects
from audioproxy.service import AudioProxy, BootError
from audioproxy.variants import s3 as s3_module
from tests.support.authority import Authority
from tests.support.buckets import s3_server
from tests.support.remote import (
    HOLD,
    RemoteCase,
    body_and_headers,
    key_of,
)
from tests.support.servers import free_port
from tests.support.service import fetch, make_service, reactor, short_flac, until

#: Requirements that are named at the end of boot errors.
RIGHTS = "credentials that may write, read and delete objects there are required"
BUCKET_NAME = "the name of a bucket that exists is required"
BUCKET_ADDRESS = "the endpoint, the region and the addressing of that bucket are required"
REACHABLE_STORE = "a store that can be reached is required"


class StoreCheckCase(RemoteCase):
    """Services that refuse to start."""

    async def refusal(self, **settings: Any) -> str:
        """Return the boot error of a service, which must not have opened a port."""
        service = make_service(self.config(**settings), reactor)
        try:
            await service.startService()
        except BootError as error:
            self.assertEqual((0, 0), (service.port, service.metrics_port))
            return str(error)
        finally:
            await service.stopService()
        raise AssertionError("the service has started")


class StoreCheckTests(StoreCheckCase):
    """Store check at boot: the variant bucket must accept writes and deletes (AP_VARIANT_STORE)."""

    async def test_refusals(self) -> None:
        """The boot error for wrong rights, bucket, endpoint or region names what is required."""
        self.patch(s3_module, "RETRY_DELAY", 0.01)
        self.patch(objects, "RETRY_DELAY", 0.01)
        writer, reader = self.server.add_user("write"), self.server.add_user("read")
        unreachable = {"endpoint": f"http://127.0.0.1:{free_port()}"}
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({"variant_s3": self.s3(who=writer)}, "removing", RIGHTS),
            ({"variant_s3": self.s3(who=reader)}, "writing", RIGHTS),
            ({"variant_s3": self.s3(secret_access_key="x" * 40)}, "writing", RIGHTS),
            ({"variant_s3": self.s3(access_key_id="x" * 20)}, "writing", RIGHTS),
            ({"variant_store": BucketStore("no-such-bucket")}, "NoSuchBucket", BUCKET_NAME),
            ({"variant_s3": self.s3(**unreachable)}, "unreachable", REACHABLE_STORE),
        ]
        if "region" in self.server.checks:
            cases.append(
                ({"variant_s3": self.s3(region="mars-north-1")}, "status 400", BUCKET_ADDRESS)
            )
        for settings, fault, wanted in cases:
            error_text = await self.refusal(**settings)
            self.assertTrue(error_text.startswith("AP_VARIANT_STORE: "), error_text)
            self.assertIn(fault, error_text)
            self.assertTrue(error_text.endswith(f"; {wanted}"), error_text)
            self.assertTrue(error_text.isprintable(), error_text)
        # The user "write" may not delete, so its test object remains.
        self.assertEqual(1, len(self.stored()))

    async def test_exit(self) -> None:
        """If the store check fails, the process exits with 1 and one line without secrets.

        SIGTERM during the check ends the service with status 0. Neither leaves an object.
        """
        reader = self.server.add_user("read")
        identity = (reader.access_key, reader.secret_key)
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        relay = self.relay()
        relay.rule = lambda request: HOLD if request.method == "PUT" else None
        node = self.twistd(AP_LOG_LEVEL="debug", **dict(zip(names, identity, strict=True)))
        held = self.twistd(AP_VARIANT_S3_ENDPOINT=f"http://127.0.0.1:{relay.port}")
        self.assertEqual(1, await node.end())
        (line,) = node.stderr.splitlines()
        for word in ("audioproxy: AP_VARIANT_STORE: ", "AccessDenied", RIGHTS):
            self.assertIn(word, line)
        for word in ("Traceback", "listening", "metrics on", "Signature", "AWS4", *identity):
            self.assertNotIn(word, node.stdout + node.stderr)
        await until(lambda: relay.stalled, "a request of the store check")
        held.signal(15)
        self.assertEqual((0, ""), (await held.end(), held.stderr))
        self.assertEqual([], self.stored())

    async def test_no_port_before(self) -> None:
        """No port opens before the check has written, found and deleted a single object."""
        relay = self.relay()
        relay.rule = lambda request: HOLD
        service = make_service(self.config(variant_s3=self.s3(relay)), reactor)
        self.addCleanup(service.stopService)
        starting = service.startService()
        for method in ("PUT", "GET", "DELETE"):
            await until(lambda: relay.stalled, "a request of the store check")
            self.assertEqual(method, relay.requests[-1].method)
            self.assertEqual((0, 0), (service.port, service.metrics_port))
            relay.release()
            relay.rule = lambda request: HOLD
        await starting
        self.assertTrue(service.port and service.metrics_port)
        self.assertEqual(["PUT", "GET", "DELETE"], [request.method for request in relay.requests])
        self.assertEqual(1, len({request.target for request in relay.requests}))
        self.assertEqual([], self.stored())


class TLSStoreCheckTests(StoreCheckCase):
    """Store check over TLS."""

    tls = True

    async def test_not_trusted(self) -> None:
        """A store is refused at boot if its certificate is not trusted or is for another name."""
        other = str(Authority(Path(self.mktemp()).resolve()).bundle)
        other_endpoint = f"https://127.1.1.1:{self.forward_from_another_address()}"
        for settings, fault, wanted in (
            ({"ca_bundle": None}, "certificate is not trusted", "AP_VARIANT_S3_CA_BUNDLE with"),
            ({"ca_bundle": other}, "certificate is not trusted", "AP_VARIANT_S3_CA_BUNDLE with"),
            (
                {"endpoint": other_endpoint},
                "certificate is for another name",
                "AP_S3_ADDRESSING=path, or",
            ),
        ):
            error_text = await self.refusal(variant_s3=self.s3(**settings))
            self.assertRegex(error_text, f"{fault}.*; .*{wanted}")
        self.assertEqual([], self.stored())

    def forward_from_another_address(self) -> int:
        """Forward to the server from an address that is not in its certificate; return the port."""
        factory = ProxyFactory("127.0.0.1", self.server.port)
        factory.noisy = False
        port = reactor.listenTCP(0, factory, interface="127.1.1.1")
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    async def test_trusted(self) -> None:
        """The service starts if the right bundle is in the store's settings or in SSL_CERT_FILE.

        A bundle without certificates is refused before any request; the error names it.
        """
        right = str(self.server.ca_bundle)
        await self.boot(source_s3=self.s3(ca_bundle=None))
        self.patch(os, "environ", {**os.environ, "SSL_CERT_FILE": right})
        await self.boot(variant_s3=self.s3(ca_bundle=None))
        self.assertEqual([], self.stored())
        empty = Path(self.mktemp()).resolve()
        empty.write_text("no certificate\n")
        settings = self.config(variant_s3=self.s3(ca_bundle=str(empty)))
        error = self.assertRaises(BootError, make_service, settings, reactor)
        self.assertIn("AP_VARIANT_S3_CA_BUNDLE", str(error))


class IdentityTests(RemoteCase):
    """Credentials for one shared store and for two separate stores (Authentication, 10)."""

    async def setUp(self) -> None:
        await super().setUp()
        self.put("a.flac", short_flac())

    async def boot_from_environment(self, **variables: str) -> AudioProxy:
        """Start a service in this process, configured by environment variables."""
        config, _ = load(self.environment(**variables))
        settings = {
            name: getattr(config, name)
            for name in ("source_s3", "variant_s3", "variant_store", "serve_mode")
        }
        return await self.boot(**settings)

    async def assert_stored_and_hit(self, service: AudioProxy, options: str) -> None:
        """Render a variant, wait until it is stored, and require a hit with the same bytes."""
        path = self.url("a.flac", options)
        miss = await fetch(service.port, path)
        self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
        await until(lambda: key_of(miss) in self.stored(), "the write-back")
        hit = await fetch(service.port, path)
        if hit.status == 302:
            location = (hit["location"] or b"").decode()
            self.assertEqual(miss.body, self.server.fetch(location).require_success().body)
        else:
            self.assertEqual(body_and_headers(miss), body_and_headers(hit))

    async def test_two_servers(self) -> None:
        """Sources in cleartext and variants over TLS each use their own server and credentials."""
        other = await s3_server(tls=True)
        bucket = other.make_bucket()
        reader = self.server.add_user("get")
        service = await self.boot_from_environment(
            AWS_ACCESS_KEY_ID=reader.access_key,
            AWS_SECRET_ACCESS_KEY=reader.secret_key,
            AP_VARIANT_STORE=f"s3://{bucket}",
            AP_VARIANT_S3_ENDPOINT=other.endpoint,
            AP_VARIANT_S3_CA_BUNDLE=str(other.ca_bundle),
            AP_VARIANT_S3_ACCESS_KEY_ID=other.access_key,
            AP_VARIANT_S3_SECRET_ACCESS_KEY=other.secret_key,
            AP_VARIANT_S3_REGION=other.region,
            AP_SERVE_MODE="redirect",
        )
        miss = await fetch(service.port, self.url("a.flac"))
        self.assertEqual((200, True), (miss.status, miss.complete))
        await until(lambda: other.keys(bucket), "the write-back")
        self.assertEqual([key_of(miss).encode()], other.keys(bucket))
        hit = await fetch(service.port, self.url("a.flac"))
        location = (hit["location"] or b"").decode()
        self.assertTrue(location.startswith(f"{other.endpoint}/{bucket}/"), location)
        self.assertIn(f"X-Amz-Credential={other.access_key}%2F", location)
        self.assertEqual(miss.body, other.fetch(location).require_success().body)
        self.assertEqual([], self.stored())

    async def test_session_token(self) -> None:
        """Session tokens work for sources, write-backs and redirects; a forged one gives 404."""
        self.require("session token")
        reader = self.server.temporary_credentials(self.server.add_user("get"))
        keeper = self.server.temporary_credentials(self.server.add_user("keep"))
        settings = {"source_s3": self.s3(who=reader), "variant_s3": self.s3(who=keeper)}
        for mode in ("proxy", "redirect"):
            service = await self.boot(**settings, serve_mode=mode)
            await self.assert_stored_and_hit(service, f"cb:{mode}")
        hit = await fetch(service.port, self.url("a.flac", "cb:redirect"))
        self.assertIn(b"X-Amz-Security-Token=", hit["location"] or b"")
        forged = self.s3(who=replace(reader, session_token="x" * 100))
        service = await self.boot(source_s3=forged)
        response = await fetch(service.port, self.url("a.flac", "cb:forged"))
        self.assertEqual((404, "not_found"), (response.status, response.error))
