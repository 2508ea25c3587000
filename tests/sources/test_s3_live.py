"""Sources in a bucket: any keys, equal refusals, and no secrets in the log."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IResolverSimple
from zope.interface import implementer

from tests.support.remote import HOLD, PASS, RemoteCase
from tests.support.s3 import Identity
from tests.support.service import (
    fetch,
    generate_audio,
    long_flac,
    reactor,
    send,
    short_flac,
    signed,
    until,
)

SINE = ("-f", "lavfi", "-i", "sine=frequency=330:sample_rate=44100:duration=1.5")

# Keys with characters that a careless client, server or ffmpeg would change.
KEYS = (
    b"a b+c%20d%2Fe?f=g&h#i.flac",
    "dossier/\u00e9t\u00e9 \u2603.flac".encode(),
    b'it\'s "quoted" <;,:@$!*()[]{}|^`~=>.flac',
    b"%d-%03d.flac",
    b"-i.flac",
    b"no-ending",
)


@cache
def sound(name: str) -> bytes:
    """Return an audio file of one and a half seconds, made once for all tests."""
    return generate_audio(Path("sounds/s3", name).resolve(), *SINE).read_bytes()


class KeyTests(RemoteCase):
    """Keys of objects, on a server with a private authority's certificate."""

    tls = True

    async def test_keys(self) -> None:
        """Keys may contain characters that are special to URLs, shells or ffmpeg (D15).

        Dot segments and slashes in a key are literal and reach no other key (Source forms).
        """
        service = await self.boot()
        # Some stores refuse keys that are not UTF-8.
        no_text = b"caf\xe9 \xff\xfe.flac"
        data, size = short_flac().read_bytes(), short_flac().stat().st_size
        is_stored = self.server.request("PUT", self.sources, no_text, body=data).status == 200
        for number, key in enumerate(KEYS):
            self.put(key, data + bytes(number))
        for number, key in enumerate(KEYS):
            info = await fetch(service.port, self.url(key, "info"))
            self.assertEqual((200, size + number), (info.status, info.document["size"]), key)
        head = await fetch(service.port, self.url(no_text), b"HEAD")
        self.assertEqual(200 if is_stored else 404, head.status)
        whole = await fetch(service.port, self.url(KEYS[0]))
        self.assertEqual((200, True), (whole.status, whole.complete))
        for bucket, key in (
            *((self.sources, "a/b.flac"), (self.sources, "b.flac"), (self.variants, "b.flac")),
        ):
            self.server.put(bucket, key, data)
        for key in (
            *"a/../b.flac ./b.flac a/./b.flac ../b.flac .. a/b.flac/ a/".split(),
            f"../{self.variants}/b.flac",
        ):
            response = await fetch(service.port, self.url(key))
            self.assertEqual((404, "not_found"), (response.status, response.error), key)


class RefusalTests(RemoteCase):
    """Objects that cannot be read, and objects that are not audio."""

    async def test_one_404(self) -> None:
        """Missing, forbidden and not allowlisted objects return the same 404 (Errors, 7).

        Credentials that may not list keys can read objects.
        """
        self.put("a.flac", short_flac())
        unrestricted = await self.boot()
        refused = await self.boot(source_s3=self.s3(who=self.server.add_user("nothing")))
        no_list = await self.boot(source_s3=self.s3(who=self.server.add_user("get")))
        wrong = Identity(self.server.owner.access_key, "x" * 40)
        wrong_secret = await self.boot(source_s3=self.s3(who=wrong))
        allowlisted = await self.boot(source_allowlist=("another", f"{self.sources}-*"))
        cases = (
            # A missing key, a missing bucket and an invalid name of a bucket.
            (unrestricted, "none", self.sources),
            (unrestricted, "a.flac", "no-such-bucket"),
            (unrestricted, "a.flac", "No_Bucket"),
            (refused, "a.flac", self.sources),
            (refused, "none", self.sources),
            (no_list, "none", self.sources),
            (wrong_secret, "a.flac", self.sources),
            (allowlisted, "a.flac", self.sources),
        )
        rows = [
            (service, self.url(key, options, bucket))
            for service, key, bucket in cases
            for options in ("f:mp3", "info")
        ]
        rows += [(unrestricted, signed(path)) for path in ("/plain/s3://a", "/info/plain/s3://a")]
        expected = None
        for service, path in rows:
            response = await fetch(service.port, path, x_request_id=b"same")
            expected = expected or (response.body, response.headers_without_date)
            self.assertEqual((404, "not_found"), (response.status, response.error), path)
            self.assertEqual(expected, (response.body, response.headers_without_date), path)
            head = await fetch(service.port, path, b"HEAD", x_request_id=b"same")
            self.assertEqual((404, b""), (head.status, head.body), path)
        allowed = await self.boot(source_allowlist=(f"{self.sources[:8]}*",))
        for service in (allowed, no_list):
            self.assertEqual(200, (await fetch(service.port, self.url("a.flac"))).status)


@implementer(IResolverSimple)
class AllNames:
    """A resolver to which all names are those of this machine."""

    def getHostByName(self, name: str, timeout: object = ()) -> Deferred[str]:
        """Return the address of this machine."""
        return succeed("127.0.0.1")


class AddressingTests(RemoteCase):
    """Virtual-host addressing over TLS, where the certificate must match the bucket's host."""

    tls = True

    async def test_virtual(self) -> None:
        """With virtual-host addressing, the service and clients reach the buckets."""
        self.addCleanup(reactor.installNameResolver, reactor.nameResolver)
        reactor.installResolver(AllNames())
        server = self.server
        self.put("a b.m4a", sound("a.m4a"))
        endpoint = f"https://{server.domain}:{server.port}"
        s3 = self.s3(endpoint=endpoint, addressing="virtual")
        service = await self.boot(source_s3=s3, variant_s3=s3, serve_mode="redirect")
        port = service.port
        path = self.url("a b.m4a")
        miss = await fetch(port, path)
        self.assertEqual((200, True), (miss.status, miss.complete))
        await self.until_stored()
        hit = await fetch(port, path)
        self.assertEqual(302, hit.status)
        location = (hit["location"] or b"").decode()
        own = f"https://{self.variants}.{server.domain}:{server.port}/"
        self.assertTrue(location.startswith(own), location)
        self.assertEqual(miss.body, server.fetch(location).require_success().body)
        no_label = await fetch(port, self.url("a", bucket="UPPER"))
        self.assertEqual((404, "not_found"), (no_label.status, no_label.error))


class LogTests(RemoteCase):
    """Output on stdout and stderr (Request log, 5)."""

    async def test_no_secrets_in_log(self) -> None:
        """No signature, key or token is in the debug log, however a request ends."""
        reader = self.server.add_user("get")
        if "session token" in self.server.checks:
            reader = self.server.temporary_credentials(reader)
        for name in ("a.flac", "b.flac"):
            self.put(name, short_flac())
        self.put("text.mp3", b"No sound, but words.\n" * 500)
        self.put("long.flac", long_flac())
        relay = self.relay()
        node = self.twistd(
            AP_LOG_LEVEL="debug",
            AP_S3_ENDPOINT=f"http://127.0.0.1:{relay.port}",
            AP_SERVE_MODE="redirect",
            AWS_ACCESS_KEY_ID=reader.access_key,
            AWS_SECRET_ACCESS_KEY=reader.secret_key,
            AWS_SESSION_TOKEN=reader.session_token or "",
            AP_VARIANT_S3_ENDPOINT=self.server.endpoint,
            AP_VARIANT_S3_ACCESS_KEY_ID=self.server.owner.access_key,
            AP_VARIANT_S3_SECRET_ACCESS_KEY=self.server.owner.secret_key,
            AP_VARIANT_S3_REGION=self.server.region,
        )
        port = await node.port()
        self.assertEqual(200, (await fetch(port, self.url("a.flac"))).status)
        await self.until_stored()
        self.assertEqual(302, (await fetch(port, self.url("a.flac"))).status)
        self.assertEqual(415, (await fetch(port, self.url("text.mp3"))).status)
        # Break connections during a render, and then the look-up of another source.
        later = "bytes=262144-"
        relay.rule = lambda each: 100_000 if each.headers["range"].startswith(later) else PASS
        stream = await send(port, self.url("long.flac"))
        await until(lambda: stream.response and relay.stalled, "a stalled connection to the store")
        relay.rule = lambda request: HOLD
        others = [await send(port, self.url("b.flac", options)) for options in ("f:mp3", "info")]
        await until(lambda: relay.stalled >= 3, "the look-ups")
        await relay.close()
        self.assertFalse((await stream.end()).complete)
        self.assertEqual([502, 502], [(await client.end()).status for client in others])
        self.assertEqual(502, (await fetch(port, self.url("text.mp3"))).status)
        node.signal(15)
        self.assertEqual(0, await node.end())
        # The log names bucket and key of the source, which an operator needs to find the fault.
        self.assertRegex(
            node.stdout, rf"render 200 upstream_unavailable .*{self.sources}/long\.flac"
        )
        output = node.stdout + node.stderr
        self.assertIn("[debug]", output)
        words = ["X-Amz-", "x-amz-", "Signature", "Credential", "AWS4"]
        words += [reader.access_key, reader.secret_key, reader.session_token or words[0]]
        for word in (*words, self.server.owner.access_key, self.server.owner.secret_key):
            self.assertNotIn(word, output)
