"""Hosts of https sources: redirects, certificates, spelling of URLs, and the allowlist."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IHostnameResolver
from twisted.protocols.portforward import ProxyFactory
from zope.interface import implementer

from audioproxy.engine import BootError
from audioproxy.sources import https_states
from tests.sources.test_https_live import (
    HttpsCase,
    authority,
    certificate,
    is_state_request,
    is_whole,
    sound,
)
from tests.support.origins import Origin, PendingResponse, Redirect, Status, open_origin
from tests.support.service import fetch, make_service, reactor, send, short_flac


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


@dataclass(slots=True)
class ShortLivedRedirect:
    """Redirect to a URL that is valid until the next redirect."""

    origin: Origin
    target: str
    data: bytes
    count: int = 0

    def respond(self, pending: PendingResponse) -> None:
        self.origin.put(f"{self.target}?good={self.count - 1}", Status(403))
        url = self.origin.put(f"{self.target}?good={self.count}", self.data)
        self.count += 1
        Redirect(url, 307).respond(pending)


class RedirectTests(HttpsCase):
    """Redirects, which the service follows one by one"""

    async def test_short_lived(self) -> None:
        """Redirects to short-lived URLs are followed before probe and render, and after render.

        Before a render, for each child, only where the probe was not just now.
        """
        service = self.start(variant_store=None)
        for lifetime, followed in ((0, 4), (60, 2)):
            self.patch(https_states, "_TARGET_LIFETIME", lifetime)
            path, target = f"/{lifetime}", f"/b{lifetime}"
            redirect = ShortLivedRedirect(self.origin, target, sound("a.flac", "60"))
            url = self.origin.put(path, redirect)
            response = await fetch(service.port, self.path(url, "f:opus"))
            self.assertEqual((200, True), (response.status, response.complete))
            self.assertEqual(followed, len(self.origin.requests_for(path)))
            used = {request.target for request in self.origin.requests_for(target)}
            self.assertEqual({f"{target}?good={number}" for number in range(followed)}, used)


class TrustTests(HttpsCase):
    """Verification of certificates; CertificateTests of the remote attacks has the invalid ones."""

    async def test_trusted(self) -> None:
        """Chains with an intermediate and certificates for IPv4 addresses are trusted.

        So are certificates for IPv6 addresses; the URL has the address in brackets.
        """
        chained = open_origin(self, authority().issue_through_another("localhost"))
        ip_origin = open_origin(self, certificate("127.0.0.1", "::1"))
        data = short_flac().read_bytes()
        urls = [chained.put("/a", data), ip_origin.put("/a", data, "127.0.0.1")]
        relay = ProxyFactory("127.0.0.1", ip_origin.port)
        relay.noisy = False
        with contextlib.suppress(CannotListenError):  # a machine without IPv6
            port = reactor.listenTCP(0, relay, interface="::1")
            self.addCleanup(port.stopListening)
            urls.append(f"https://[0:0::1]:{port.getHost().port}/a")
        service = self.start(source_allowlist=("localhost", "127.0.0.1", "::1"))
        for url in urls:
            for options in ("info", "f:wav"):
                response = await fetch(service.port, self.path(url, options))
                self.assertEqual((200, True), (response.status, response.complete), url)
        hosts = {request.headers["host"].rpartition(":")[0] for request in ip_origin.requests}
        self.assertEqual({"127.0.0.1", *["[::1]"] * (len(urls) - 2)}, hosts)

    def test_unusable_ssl_cert_file(self) -> None:
        """An SSL_CERT_FILE that cannot be used fails the boot with an error that names it."""
        folder = Path(self.mktemp())
        folder.mkdir()
        broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
        for name, content in (
            ("empty", b""),
            ("words", b"words\n" * 9),
            ("key", certificate("localhost").key.read_bytes()),
            ("broken", authority().bundle.read_bytes() + broken),
            ("missing", None),
            (".", None),
        ):
            if content is not None:
                (folder / name).write_bytes(content)
            self.trust(folder / name)
            error = self.assertRaises(BootError, make_service, self.config(), reactor)
            self.assertRegex(str(error), r"\ASSL_CERT_FILE: ", name)

    async def test_program(self) -> None:
        """The program reads SSL_CERT_FILE from its environment, and exits if the file is empty."""
        url = self.origin.put("/a", short_flac().read_bytes())
        empty = self.root / "empty.pem"
        empty.touch()
        good, bad = (
            self.twistd(SSL_CERT_FILE=str(bundle), AP_SOURCE_ALLOWLIST="localhost")
            for bundle in (authority().bundle, empty)
        )
        response = await fetch(await good.port(), self.path(url))
        self.assertEqual((200, True), (response.status, response.complete), good.stdout)
        self.assertEqual(1, await bad.end())
        self.assertRegex(bad.stdout + bad.stderr, r"(?m)^.*SSL_CERT_FILE: ")
        self.assertNotIn("Traceback", bad.stdout + bad.stderr)


class SpellingTests(HttpsCase):
    """Request targets that the service and ffprobe send to the origin, in canonical spelling"""

    async def test_targets(self) -> None:
        """Escapes, dot segments, empty segments, parameters and queries are kept.

        Only an empty query is removed. Characters that a URL may not contain are escaped in the
        same way as by ffmpeg.
        """
        kept = "/a%2Fb%2f%41//a//b/ /x/../a/./b /.. /a;b=c;/d?b=c%20+?d/../&e=; /%03d.flac"
        more = "//a:b@c!$&'()*,=~[] /?a=https://b//c /? /a; /a;b; /a;?b"
        marks = '|"<>^`{}\\'
        targets = {
            **{target: target.removesuffix("?") for target in f"{kept} {more}".split()},
            f"/a{'-'.join(marks)}b": f"/a{'-'.join(f'%{ord(it):02X}' for it in marks)}b",
            "/a%zz": "/a%25zz",
            "/100%": "/100%25",
        }
        service = self.start()
        clients = {}
        for target, spelled in targets.items():
            self.origin.put(spelled.partition("?")[0], sound("a.flac", "60"))
            path = self.path(self.origin.url(target), "info")
            clients[target] = await send(service.port, path)
        responses = {target: (await client.end()).status for target, client in clients.items()}
        for client, is_from in (("service", is_state_request), ("ffprobe", is_whole)):
            requested = {each.target for each in self.origin.requests if is_from(each)}
            self.assertEqual({*targets.values()}, requested, client)
        self.assertEqual({200}, {*responses.values()}, responses)


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
        # tests.grammar.test_allowlist has all forms of entries.
        for entry, admitted in (
            ("ORIGIN.Test", {name}),
            ("*.Origin.TEST", {sub, subsub}),
            ("*", {*self.HOSTS}),
            (address, {address}),
            (f"origin.test:{origin.port}", set()),
            ("https://origin.test", set()),
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

    async def test_one_404(self) -> None:
        """Refused and missing sources get equal responses; refused hosts get no connection."""
        elsewhere = open_origin(self, certificate("127.0.0.1"))
        refused = elsewhere.put("/a", short_flac().read_bytes(), "127.0.0.1")
        statuses = [self.origin.put(f"/{status}", Status(status)) for status in (401, 403, 410)]
        urls = [refused, self.origin.url("/none"), "https://user@localhost/", "http://a", *statuses]
        port, closed = self.start().port, self.start(source_allowlist=None).port
        seen = set()
        for number, url, options, method in (
            *((port, *row) for row in product(urls, ("f:wav", "info"), (b"GET", b"HEAD"))),
            (closed, self.origin.url("/a"), "f:wav", b"GET"),
        ):
            path = self.path(url, options)
            response = await fetch(number, path, method, x_request_id=b"same")
            self.assertEqual(404, response.status, url)
            seen.add((method, response.body, tuple(response.headers_without_date)))
        self.assertEqual(2, len(seen), seen)
        self.assertEqual([], elsewhere.connections)
