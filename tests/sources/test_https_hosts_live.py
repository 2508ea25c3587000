"""Hosts of https sources: redirects, certificates, spelling of URLs, and the allowlist."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IHostnameResolver
from twisted.protocols.portforward import ProxyFactory
from twisted.trial.unittest import SkipTest
from zope.interface import implementer

from audioproxy.backends import BootError
from audioproxy.service import make_service
from tests.sources.test_https_live import HttpsCase, authority, certificate
from tests.support.authority import Authority
from tests.support.http import Response
from tests.support.origins import File, Methods, PendingResponse, Redirect, Status, open_origin
from tests.support.service import fetch, reactor, send, short_flac, signed


@implementer(IHostnameResolver)
class FakeResolver:
    """Resolver that maps made-up host names to this machine, or to no address.

    :ivar lookups: the names that were looked up.
    """

    def __init__(self, *unknown: str) -> None:
        self.lookups: list[str] = []
        self._unknown = unknown

    def resolveHostName(
        self, resolutionReceiver: Any, hostName: str, portNumber: int = 0, *_: Any, **__: Any
    ) -> Any:
        self.lookups.append(hostName)
        resolutionReceiver.resolutionBegan(self)
        if hostName not in self._unknown:
            resolutionReceiver.addressResolved(IPv4Address("TCP", "127.0.0.1", portNumber))
        resolutionReceiver.resolutionComplete()
        return self

    def install(self, case: Any) -> None:
        """Replace the reactor's resolver until the end of a test, but not ffmpeg's resolver."""
        case.addCleanup(reactor.installNameResolver, reactor.installNameResolver(self))


class RedirectTests(HttpsCase):
    """Redirects, which the service follows one by one"""

    def setUp(self) -> None:
        super().setUp()
        self.service = self.start()

    async def assert_refused(self, url: str, status: int) -> Response:
        """Require a refusal for HEAD and GET, info and render; return the last response."""
        for options in ("info", "f:wav"):
            head = await fetch(self.service.port, self.path(url, options), b"HEAD")
            response = await fetch(self.service.port, self.path(url, options))
            self.assertEqual((status, status), (head.status, response.status), (url, options))
        return response

    async def test_every_kind(self) -> None:
        """Five redirects of any status and spelling are followed; a sixth gives 502 (D48)."""
        port = self.origin.port
        first = self.origin.put("/a/1", Redirect("2", 301))
        self.origin.put("/a/2", Redirect("../b/./3", 302))
        self.origin.put("/b/3", Redirect(f"//LOCALHOST:{port}/b/4", 303))
        self.origin.put("/b/4", Redirect("?q=1#here", 307))
        self.origin.put("/b/4?q=1", Redirect(f"HTTPS://localhost:{port}/a.flac#there", 308))
        self.origin.put("/a.flac", short_flac().read_bytes())
        self.add("a.flac", short_flac())
        for options in ("info", "f:wav"):
            local = await fetch(self.service.port, signed(f"/{options}/plain/local://a.flac"))
            remote = await fetch(self.service.port, self.path(first, options))
            self.assertEqual((200, True, local.body), (remote.status, remote.complete, remote.body))
        one_more = self.origin.put("/0", Redirect("/a/1"))
        self.assertEqual("upstream_unavailable", (await self.assert_refused(one_more, 502)).error)

    async def test_loop(self) -> None:
        """A redirect loop gives 502 after six requests, on HEAD too (D48)."""
        url = self.origin.put("/a", Redirect("/b"))
        self.origin.put("/b", Redirect("/a"))
        response = await self.assert_refused(url, 502)
        self.assertEqual("upstream_unavailable", response.error)
        # The service gets two HEAD and two GET requests, and sends six requests for each.
        self.assertEqual(4 * 6, len(self.origin.requests))

    async def test_not_allowed(self) -> None:
        """A redirect to a host that is not allowed gives the same 404 as a missing source."""
        elsewhere = open_origin(self, certificate("localhost", "127.0.0.1"))
        target_url = elsewhere.put("/a", short_flac().read_bytes(), "127.0.0.1")
        url = self.origin.put("/a", Redirect(target_url))
        response = await self.assert_refused(url, 404)
        missing = await self.assert_refused(self.origin.url("/none"), 404)
        self.assertEqual(missing.body, response.body)
        self.assertEqual([], elsewhere.connections)

    async def test_invalid_location(self) -> None:
        """A redirect without a location, or with an invalid or forbidden one, gives 404 (D48)."""
        cleartext = open_origin(self)
        target_url = cleartext.put("/a", short_flac().read_bytes())
        locations = [None, target_url, f"https://me@localhost:{self.origin.port}/", "data:,a"]
        for location in (*locations, "ftp://localhost/", "https://localhost:0/", "/a b", "/\xe9"):
            url = self.origin.put("/a", Redirect(location))
            self.assertEqual("not_found", (await self.assert_refused(url, 404)).error, location)
        self.assertEqual([], cleartext.connections)

    async def test_redirect_on_get(self) -> None:
        """A redirect that only GET requests get is not followed: the response is 415."""
        elsewhere = open_origin(self, certificate("localhost"))
        target_url = elsewhere.put("/a", short_flac().read_bytes())
        good = File(short_flac().read_bytes(), ranges=False)
        for number, location in enumerate((target_url, "/good")):
            url = self.origin.put(f"/{number}", Methods(good, Redirect(location)))
            self.assertEqual(415, (await fetch(self.service.port, self.path(url))).status)
        self.assertEqual([], elsewhere.connections)
        self.assertEqual([], self.origin.requests_for("/good"))

    async def test_short_lived(self) -> None:
        """Redirects to short-lived URLs are followed before probe and render, and after render."""
        data, redirect = short_flac().read_bytes(), ShortLivedRedirect()
        url = self.origin.put("/a", redirect)
        redirect.data = data
        response = await fetch(self.service.port, self.path(url))
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertEqual(
            ["HEAD"] * 3, [request.method for request in self.origin.requests_for("/a")]
        )
        used = {request.target for request in self.origin.requests if request.target != "/a"}
        self.assertEqual({"/b?good=0", "/b?good=1", "/b?good=2"}, used)


class ShortLivedRedirect:
    """Redirect to a URL that is valid until the next redirect."""

    data = b""

    def respond(self, pending: PendingResponse) -> None:
        origin = pending._protocol.origin
        origin.put(f"/b?good={pending.earlier_requests - 1}", Status(403))
        origin.put(f"/b?good={pending.earlier_requests}", self.data)
        Redirect(f"/b?good={pending.earlier_requests}", 307).respond(pending)


class TrustTests(HttpsCase):
    """Verification of certificates"""

    async def test_not_trusted(self) -> None:
        """An invalid certificate gives 502, and the origin gets no request (D48)."""
        untrusted_authority = Authority(Path(self.mktemp()).resolve())
        service = self.start(source_allowlist=("localhost", "127.0.0.1"))
        for name, bad, host in (
            ("unknown", untrusted_authority.issue("localhost"), "localhost"),
            ("self-signed", untrusted_authority.make_self_signed("localhost"), "localhost"),
            ("expired", authority().issue_expired("localhost"), "localhost"),
            ("another name", certificate("another.test"), "localhost"),
            ("no address", certificate("localhost"), "127.0.0.1"),
        ):
            origin = open_origin(self, bad)
            url = origin.put("/a", short_flac().read_bytes(), host)
            for options in ("f:wav", "info"):
                response = await fetch(service.port, self.path(url, options))
                self.assertEqual(
                    (502, "upstream_unavailable"), (response.status, response.error), name
                )
                head = await fetch(service.port, self.path(url, options), b"HEAD")
                self.assertEqual(502, head.status)
            self.assertEqual([], origin.requests, name)

    async def test_later_certificate(self) -> None:
        """An origin whose certificate is invalid after the first connection gives 502 (D48)."""
        bad = Authority(Path(self.mktemp()).resolve()).issue("localhost")
        origin = open_origin(self, certificate("localhost"), bad)
        url = origin.put("/a", short_flac().read_bytes())
        response = await fetch(self.start().port, self.path(url))
        self.assertEqual((502, "upstream_unavailable"), (response.status, response.error))
        self.assertEqual([], [v.requests for v in origin.connections[1:] if v.requests])

    async def test_trusted(self) -> None:
        """Chains with an intermediate and certificates for IPv4 addresses are trusted."""
        chained = open_origin(self, authority().issue_through_another("localhost"))
        ip_origin = open_origin(self, certificate("127.0.0.1"))
        service = self.start(source_allowlist=("localhost", "127.0.0.1"))
        data = short_flac().read_bytes()
        for url in (chained.put("/a", data), ip_origin.put("/a", data, "127.0.0.1")):
            response = await fetch(service.port, self.path(url))
            self.assertEqual((200, True), (response.status, response.complete), response.body[:200])

    async def test_ipv6(self) -> None:
        """A certificate for an IPv6 address is trusted; the URL has the address in brackets."""
        origin = open_origin(self, certificate("::1"))
        relay = ProxyFactory("127.0.0.1", origin.port)
        relay.noisy = False
        try:
            port = reactor.listenTCP(0, relay, interface="::1")
        except CannotListenError as error:
            raise SkipTest("This machine has no IPv6.") from error
        self.addCleanup(port.stopListening)
        origin.put("/a", short_flac().read_bytes())
        service = self.start(source_allowlist=("::1",))
        host = f"[::1]:{port.getHost().port}"
        for options in ("info", "f:wav"):
            response = await fetch(
                service.port, self.path(f"https://[0:0::1]:{host[6:]}/a", options)
            )
            self.assertEqual((200, True), (response.status, response.complete), response.body[:200])
        self.assertEqual({host}, {request.headers["host"] for request in origin.requests})

    def test_unusable_ssl_cert_file(self) -> None:
        """An SSL_CERT_FILE that cannot be used fails the boot with an error that names it."""
        folder = Path(self.mktemp())
        folder.mkdir()
        key = certificate("localhost").key.read_bytes()
        for name, content in (("empty", b""), ("words", b"words\n" * 9), ("key", key)):
            (folder / name).write_bytes(content)
        broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
        (folder / "broken").write_bytes(authority().bundle.read_bytes() + broken)
        for name in ("empty", "words", "key", "broken", "missing", "."):
            self.trust(folder / name)
            error = self.assertRaises(BootError, make_service, self.config(), reactor)
            self.assertRegex(str(error), r"\ASSL_CERT_FILE: ", name)

    async def test_program(self) -> None:
        """The program reads SSL_CERT_FILE from its environment, and exits if the file is empty."""
        url = self.origin.put("/a", short_flac().read_bytes())
        settings = {"AP_SOURCE_ALLOWLIST": "localhost"}
        empty = self.root / "empty.pem"
        empty.touch()
        good = self.twistd(SSL_CERT_FILE=str(authority().bundle), **settings)
        bad = self.twistd(SSL_CERT_FILE=str(empty), **settings)
        response = await fetch(await good.port(), self.path(url))
        self.assertEqual((200, True), (response.status, response.complete), good.stdout)
        self.assertEqual(1, await bad.end())
        self.assertRegex(bad.stdout + bad.stderr, r"(?m)^.*SSL_CERT_FILE: ")
        self.assertNotIn("Traceback", bad.stdout + bad.stderr)


class SpellingTests(HttpsCase):
    """Request targets that the service and ffprobe send to the origin, in canonical spelling"""

    async def check(self, targets: Mapping[str, str]) -> None:
        """Require that the service and ffprobe request each URL in its canonical spelling."""
        service = self.start()
        clients = {}
        for target, spelled in targets.items():
            self.origin.put(spelled.partition("?")[0], short_flac().read_bytes())
            path = self.path(self.origin.url(target), "info")
            clients[target] = await send(service.port, path)
        responses = {target: (await client.end()).status for target, client in clients.items()}
        for client, wanted in (("service", None), ("ffprobe", "bytes=0-")):
            requested = {a.target for a in self.origin.requests if a.headers.get("range") == wanted}
            self.assertEqual({*targets.values()}, requested, client)
        self.assertEqual({200}, {*responses.values()}, responses)

    async def test_kept(self) -> None:
        """Escapes, dot segments, empty segments, parameters and queries are kept.

        Only an empty query is removed.
        """
        targets = "/a%2Fb%2f%41//a//b/ /x/../a/./b /.. /a;b=c;/d?b=c%20+?d/../&e=; /%03d.flac"
        more = "//a:b@c!$&'()*,=~[] /?a=https://b//c /?"
        await self.check(
            {target: target.removesuffix("?") for target in f"{targets} {more}".split()}
        )

    async def test_parameter_without_text(self) -> None:
        """A semicolon at the end of a path is kept."""
        await self.check({target: target for target in ("/a;", "/a;b;", "/a;?b")})

    async def test_escaped(self) -> None:
        """Characters that a URL may not contain are escaped in the same way as by ffmpeg."""
        marks = '|"<>^`{}\\'
        escaped = {f"/a{'-'.join(marks)}b": f"/a{'-'.join(f'%{ord(it):02X}' for it in marks)}b"}
        await self.check({**escaped, "/a%zz": "/a%25zz", "/100%": "/100%25"})


class AllowlistTests(HttpsCase):
    """Hosts in AP_SOURCE_ALLOWLIST"""

    HOSTS = ("origin.test", "a.origin.test", "b.a.origin.test", "xorigin.test", "127.0.0.1")

    async def test_entries(self) -> None:
        """An entry allows only the hosts that it matches; no other host is looked up."""
        origin = open_origin(self, certificate(*self.HOSTS))
        origin.put("/a", short_flac().read_bytes())
        resolver = FakeResolver()
        resolver.install(self)
        name, sub, subsub, _, address = self.HOSTS
        for entry, admitted in (
            (name, {name}),
            ("ORIGIN.Test", {name}),
            ("*.Origin.TEST", {sub, subsub}),
            ("*.a.origin.test", {subsub}),
            ("*", {*self.HOSTS}),
            (address, {address}),
            ("origin*", set()),
            ("*origin.test", set()),
            ("a.*.test", set()),
            ("*.*", set()),
            (f"origin.test:{origin.port}", set()),
            ("https://origin.test", set()),
            ("", set()),
            (None, set()),
        ):
            entries = None if entry is None else ("nobody.test", entry)
            service = self.start(source_allowlist=entries, variant_store=None)
            resolver.lookups.clear()
            before = len(origin.requests)
            for host in self.HOSTS:
                spelled = host.replace("origin", "Origin").replace(".test", ".test.")
                path = self.path(origin.url("/a", spelled), "info")
                status = (await fetch(service.port, path, b"HEAD")).status
                self.assertEqual(200 if host in admitted else 404, status, (entry, host))
            self.assertLessEqual({*resolver.lookups}, admitted)
            self.assertEqual(len(admitted), len(origin.requests) - before)

    async def test_ipv6_entries(self) -> None:
        """An entry for an IPv6 address has no brackets, and matches any spelling of the address."""
        resolver = FakeResolver()
        resolver.install(self)
        refused = self.path("https://[::1]:1/a"), self.path("https://[0:0::1]:1/a")
        for entry, status in (("::1", 502), ("[::1]", 404), ("::2", 404), ("::*", 404)):
            service = self.start(source_allowlist=(entry,))
            for path in refused:
                self.assertEqual(status, (await fetch(service.port, path)).status, entry)

    async def test_one_404(self) -> None:
        """Refused and missing sources get equal responses; refused hosts get no connection."""
        elsewhere = open_origin(self, certificate("127.0.0.1"))
        refused = elsewhere.put("/a", short_flac().read_bytes(), "127.0.0.1")
        gone = [self.origin.put(f"/{status}", Status(status)) for status in (401, 403, 410)]
        service, without_allowlist = self.start(), self.start(source_allowlist=None)
        seen = set()
        for url in (
            refused,
            self.origin.url("/none"),
            *gone,
            "https://user@localhost/",
            "http://a",
        ):
            for options in ("f:wav", "info"):
                for method in (b"GET", b"HEAD"):
                    path = self.path(url, options)
                    response = await fetch(service.port, path, method, x_request_id=b"same")
                    self.assertEqual(404, response.status, url)
                    seen.add((method, response.body, tuple(response.headers_without_date)))
        response = await fetch(
            without_allowlist.port, self.path(self.origin.url("/a")), x_request_id=b"same"
        )
        seen.add((b"GET", response.body, tuple(response.headers_without_date)))
        self.assertEqual(2, len(seen), seen)
        self.assertEqual([], elsewhere.connections)
