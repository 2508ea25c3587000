"""Store check at boot, and the credentials that the service uses for each store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from audioproxy.service import BootError
from tests.support.processes import set_environment
from tests.support.remote import HOLD, RemoteCase
from tests.support.service import fetch, short_flac, until

#: Requirements that are named at the end of boot errors.
RIGHTS = "credentials that may write, read and delete objects there are required"


class StoreCheckTests(RemoteCase):
    """Store check at boot: the variant bucket must accept writes and deletes (AP_VARIANT_STORE)."""

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
        """No port opens before the check has written, read and deleted a single object."""
        relay = self.relay()
        relay.rule = lambda request: HOLD
        service = self.new_service(variant_s3=self.s3(relay))
        starting = service.startService()
        last = ""
        while last != "DELETE":
            await until(lambda: relay.stalled, "a request of the store check")
            last = relay.requests[-1].method
            self.assertEqual((0, 0), (service.port, service.metrics_port))
            relay.release()
            relay.rule = lambda request: HOLD
        await starting
        self.assertTrue(service.port and service.metrics_port)
        methods = [request.method for request in relay.requests]
        self.assertEqual(["PUT", "GET", "DELETE"], list(dict.fromkeys(methods)))
        self.assertEqual(1, len({request.target for request in relay.requests}))
        self.assertEqual([], self.stored())


class TLSStoreCheckTests(RemoteCase):
    """Store check over TLS."""

    tls = True

    async def test_not_trusted(self) -> None:
        """A store is refused at boot if its certificate is not trusted or is for another name."""
        # An address that is not in the certificate.
        other_endpoint = f"https://127.1.1.1:{self.relay('127.1.1.1').port}"
        for settings, fault, wanted in (
            ({"ca_bundle": None}, "is not trusted", "AP_VARIANT_S3_CA_BUNDLE with"),
            ({"endpoint": other_endpoint}, "is for another name", "AP_S3_ADDRESSING=path, or"),
        ):
            with self.assertRaises(BootError) as raised:
                await self.new_service(variant_s3=self.s3(**settings)).startService()
            self.assertRegex(str(raised.exception), f"certificate {fault}.*; .*{wanted}")
        self.assertEqual([], self.stored())

    async def test_trusted(self) -> None:
        """The service starts if the right bundle is in the store's settings or in SSL_CERT_FILE.

        A bundle without certificates is refused before any request; the error names it.
        """
        right = str(self.server.ca_bundle)
        await self.boot(source_s3=self.s3(ca_bundle=None))
        set_environment(self, SSL_CERT_FILE=right)
        await self.boot(variant_s3=self.s3(ca_bundle=None))
        self.assertEqual([], self.stored())
        empty = Path(self.mktemp()).resolve()
        empty.write_text("no certificate\n")
        settings = self.s3(ca_bundle=str(empty))
        error = self.assertRaises(BootError, self.new_service, variant_s3=settings)
        self.assertIn("AP_VARIANT_S3_CA_BUNDLE", str(error))


class IdentityTests(RemoteCase):
    """Credentials for one shared store and for two separate stores (Authentication, 10)."""

    async def setUp(self) -> None:
        await super().setUp()
        self.put("a.flac", short_flac())

    async def test_session_token(self) -> None:
        """Session tokens work for sources, write-backs and redirects; a forged one gives 404."""
        self.require("session token")
        reader = self.server.temporary_credentials(self.server.add_user("get"))
        keeper = self.server.temporary_credentials(self.server.add_user("keep"))
        service = await self.boot(
            source_s3=self.s3(who=reader), variant_s3=self.s3(who=keeper), serve_mode="redirect"
        )
        miss = await fetch(service.port, self.url("a.flac"))
        self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
        await self.until_stored()
        hit = await fetch(service.port, self.url("a.flac"))
        location = (hit["location"] or b"").decode()
        self.assertIn("X-Amz-Security-Token=", location)
        self.assertEqual(miss.body, self.server.fetch(location).require_success().body)
        forged = self.s3(who=replace(reader, session_token="x" * 100))
        service = await self.boot(source_s3=forged)
        response = await fetch(service.port, self.url("a.flac", "cb:forged"))
        self.assertEqual((404, "not_found"), (response.status, response.error))
