"""Hosts of https sources: certificates, spelling of URLs, and equal refusals."""

from __future__ import annotations

import contextlib
from itertools import product

from twisted.internet.error import CannotListenError
from twisted.protocols.portforward import ProxyFactory

from tests.sources.test_https_live import (
    HttpsCase,
    authority,
    certificate,
    is_state_request,
    is_whole,
    sound,
)
from tests.support.origins import Status, open_origin
from tests.support.service import fetch, reactor, short_flac


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
        paths = [self.path(url, options) for url in urls for options in ("info", "f:wav")]
        for path, response in zip(paths, await self.fetch_all(service.port, paths), strict=True):
            self.assertEqual((200, True), (response.status, response.complete), path)
        hosts = {request.headers["host"].rpartition(":")[0] for request in ip_origin.requests}
        self.assertEqual({"127.0.0.1", *["[::1]"] * (len(urls) - 2)}, hosts)

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
        for spelled in targets.values():
            self.origin.put(spelled.partition("?")[0], sound("a.flac", "60"))
        paths = [self.path(self.origin.url(target), "info") for target in targets]
        responses = await self.fetch_all(self.start().port, paths)
        self.assertEqual([200] * len(paths), [response.status for response in responses])
        for client, is_from in (("service", is_state_request), ("ffprobe", is_whole)):
            requested = {each.target for each in self.origin.requests if is_from(each)}
            self.assertEqual({*targets.values()}, requested, client)


class AllowlistTests(HttpsCase):
    """Hosts in AP_SOURCE_ALLOWLIST"""

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
