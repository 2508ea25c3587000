"""Outbound HTTP: requests are sent exactly as given, and every wait has a timeout."""

from __future__ import annotations

import gzip
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.http_client.client import (
    USER_AGENT,
    ClientsByBundle,
    HttpClient,
    UnusableBundle,
    load_trust_root,
)
from audioproxy.http_client.errors import NameMismatch, TransportError, UntrustedCertificate
from audioproxy.http_client.ranges import ByteRange
from tests.support.authority import Authority
from tests.support.consumers import FakeConsumer
from tests.support.http import Log
from tests.support.strategies import DETERMINISTIC
from tests.support.wire import ClientCase, Peer, Script, reply, reply_without_length

#: Request targets: the part of a URL after the host. Many of them have other spellings that a
#: server may treat as equal.
TARGETS = """
    / //a /a//b/ /./a/../b/. /a%2Fb /a%2fb /%41 /a;b /;p/q /a;b/c;d /?a /?a?b /a?b;c&d=%20+e;
    /a|b^c`d /a"b<c>d /a[b]{c}\\d /% /%zz /~a /a:b@c /a?b=http://c//d /a; /a;?b /a;b; /;
""".split()
CHUNKED = {"Transfer-Encoding": "chunked"}
HELLO = reply(200, b"hello")


class RequestTests(ClientCase):
    """`HttpClient.request`: the bytes of a request"""

    def sent(
        self, url: str, headers: dict[str, str] | None = None, method: str = "GET"
    ) -> list[str]:
        """Return the lines of a request as the server read them."""
        self.network.scripts.append(reply(200))
        response = self.result_of(self.client.request(method, url, headers or {}))
        self.result_of(response.read(0))
        request = self.network.requests[-1]
        lines = [f"{name}: {value}" for name, value in request.lines]
        return [f"{request.method} {request.target}", *sorted(lines)]

    def test_headers(self) -> None:
        """A request has only the given headers, Host and User-Agent; values are sent unchanged."""
        for value in ("", 'a; b="c, d"', "attachment; filename*=UTF-8''%E2%82%AC", "a  b"):
            given = {"Range": "bytes=0-9", "X-Amz-Date": "20130524T000000Z", "if-match": value}
            self.assertEqual(
                self.sent("http://s3.test/a", given, "HEAD"),
                [
                    "HEAD /a",
                    "Host: s3.test",
                    f"If-Match: {value}",
                    "Range: bytes=0-9",
                    f"User-Agent: {USER_AGENT}",
                    "X-Amz-Date: 20130524T000000Z",
                ],
            )

    def test_spelling(self) -> None:
        """A URL is sent exactly as it is spelled, since a signature covers the spelling."""
        for target in TARGETS:
            self.assertEqual(self.sent(f"http://s3.test{target}")[0], f"GET {target}")

    def test_hosts(self) -> None:
        """Host is sent as the URL spells it, and the client connects to that name or address.

        Names that IDNA rejects are accepted: underscores and repeated hyphens.
        """
        for netloc, host, port in (
            ("s3.test", "127.0.0.1", 80),
            ("s3.test:9000", "127.0.0.1", 9000),
            ("192.0.2.7:81", "192.0.2.7", 81),
            ("[::1]", "::1", 80),
            ("[2001:db8::7]:9000", "2001:db8::7", 9000),
            ("bucket.with-dots.s3.test", "127.0.0.1", 80),
            ("under_score.s3.test:4000", "under_score.s3.test", 4000),
            ("r3---sn-4g5e.s3.test", "r3---sn-4g5e.s3.test", 80),
            ("my--bucket.s3.test", "my--bucket.s3.test", 80),
        ):
            self.assertIn(f"Host: {netloc}", self.sent(f"http://{netloc}/a"))
            self.assertEqual(self.network.destinations[-1], (host, port))

    def test_no_body(self) -> None:
        """POST and PUT without a body send ``Content-Length: 0``; other methods send none."""
        for method, count in (("POST", 1), ("PUT", 1), ("GET", 0), ("HEAD", 0), ("DELETE", 0)):
            text = "\n".join(self.sent("http://s3.test/a", {}, method))
            self.assertEqual(count, text.count("Content-Length: 0"), method)
            self.assertEqual(count, text.count("Content-Length"), method)


class ResponseTests(ClientCase):
    """Responses are returned to the caller unchanged"""

    def test_status(self) -> None:
        """Every status is returned as it is: no redirect is followed, no challenge answered.

        Cookies are not sent back, and gzip is not decoded.
        """
        body = gzip.compress(b"a" * 1000)
        headers = {
            "Location": "http://elsewhere.test/",
            "WWW-Authenticate": "Basic",
            "Set-Cookie": "a=b; Path=/",
            "Content-Encoding": "gzip",
        }
        for status in (200, 206, 301, 302, 307, 308, 401, 403, 407, 416, 500, 503, 599, 799):
            response = self.answer(reply(status, body, headers))
            self.assertEqual((response.status, response.length), (status, len(body)))
            for name, value in headers.items():
                self.assertEqual(response.header(name), value)
            self.assertEqual(self.result_of(response.read(len(body))), body)
            self.assertNotIn("cookie", self.network.requests[-1].headers)
        self.assertEqual(set(self.network.names), {"s3.test"})

    def test_headers(self) -> None:
        """Header lookups ignore case, repeated headers are joined, and a missing header is None.

        Interim responses (1xx) are skipped. A response may arrive one byte at a time.
        """
        data = (
            b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
            b'HTTP/1.1 200 OK\r\nETAG:  "x" \r\nVary: a\r\nvary: b\r\nX-L: \xe9\r\n'
            b"Content-Length: 5\r\n\r\nhello"
        )
        for packets in ([data], [data[at : at + 1] for at in range(len(data))]):
            response = self.answer(*packets)
            for name, value in (("etag", '"x"'), ("Vary", "a, b"), ("x-l", "é"), ("link", None)):
                self.assertEqual(response.header(name), value)
            self.assertEqual((response.status, self.result_of(response.read(5))), (200, b"hello"))
        self.assertEqual(len(self.network.peers), 1)

    def test_range(self) -> None:
        """`Response.range` is what a 206 states, or a 200 that has exactly the requested range.

        `Response.total` is the size of the whole file, of an empty one too (D41).
        """
        part, found = "bytes 5-9/20", ByteRange(5, 9, 20)
        for status, asked, stated, length, expected, total in (
            (206, "bytes=5-9", part, 5, found, 20),
            (206, "bytes=0-9", part, 5, found, 20),
            (206, "bytes=5-9", "bytes 5-9/*", 5, ByteRange(5, 9, None), None),
            (206, "bytes=5-9", "", 5, None, None),
            (206, "bytes=5-9", "bytes 9-5/20", 5, None, None),
            (206, "bytes=5-9", "bytes */0", 5, None, None),
            *((status, "bytes=5-9", part, 5, found, 20) for status in (200, 203)),
            (200, "bytes=5-9", part, None, found, 20),
            (200, "bytes=5-99", "bytes 5-19/20", 15, ByteRange(5, 19, 20), 20),
            (200, "bytes=5-9", part, 20, None, 20),
            (200, "bytes=5-8", part, 5, None, 5),
            (200, "", part, 5, None, 5),
            (200, "bytes=5-9", "", 20, None, 20),
            (200, "bytes=5-9", "", None, None, None),
            (416, "bytes=5-9", "bytes */0", 0, None, 0),
            (416, "bytes=5-9", "", 0, None, None),
            (404, "bytes=5-9", part, 5, None, None),
        ):
            reply_with = reply_without_length if length is None else reply
            lines = {"Content-Range": stated} if stated else {}
            self.network.scripts.append(reply_with(status, b"x" * (length or 0), lines))
            headers = {"range": asked} if asked else {}
            url = "http://s3.test/a"
            response = self.result_of(self.client.request("GET", url, headers))
            got = response.range, response.total
            self.assertEqual((expected, total), got, (status, asked, stated, length))
            response.abort()
            self.network.run()

    def test_retry_after(self) -> None:
        """`Response.retry_after` is a number of seconds, or a date less that of the response."""
        sent, later = "Sat, 21 Nov 2026 12:00:00", "Sat, 21 Nov 2026 12:01:30"
        for text, date, seconds in (
            ("0", "", 0),
            ("120", "", 120),
            ("9" * 5000, "", 999_999_999),
            (f"{later} GMT", f"{sent} GMT", 90),
            (f"{sent} GMT", f"{later} GMT", 0),
            (f"{later} GMT", "", None),
            (f"{later} GMT", f"{sent} -0000", None),
            (f"{later} +{'9' * 30}", f"{sent} GMT", None),
            *((text, f"{sent} GMT", None) for text in ("", "soon", "-1", "1.5", "1, 2")),
        ):
            response = self.answer(reply(503, headers={"Retry-After": text, "Date": date}))
            self.assertEqual(seconds, response.retry_after, (text, date))
            response.discard()

    @DETERMINISTIC
    @given(st.lists(st.binary(max_size=40), max_size=4))
    def test_any_answer(self, packets: list[bytes]) -> None:
        """Any bytes from a server result in a response or a TransportError."""

        def respond(peer: Peer, _: object) -> None:
            peer.send(b"HTTP/1.1 ", *packets)
            peer.close()

        self.network.scripts[:] = [respond]
        fetching = self.fetch("POST")
        if isinstance(fetching.result, Failure):
            self.exactly(fetching, TransportError)
        else:
            self.successResultOf(fetching).discard()
        self.network.run()


class ConnectionTests(ClientCase):
    """Connections are reused and closed"""

    def fetch_body(self, *scripts: Script) -> bytes:
        """Return the body of the response to a new request."""
        self.network.scripts += scripts
        return self.result_of(self.successResultOf(self.fetch()).read(100))

    def answer_each(self, count: int) -> None:
        """Send requests at once, and read the empty response to each."""
        fetching = [self.fetch() for _ in range(count)]
        for peer, each in zip(self.network.peers, fetching, strict=True):
            peer.send(reply(200))
            self.network.run()
            self.successResultOf(each).discard()

    def assert_closed(self, *closed: bool) -> None:
        """Assert which connections are closed."""
        self.assertEqual(list(closed), [peer.closed for peer in self.network.peers])

    def test_used_again(self) -> None:
        """Once a response is read, its connection serves the next request, unless it closes."""
        self.network.scripts += [
            reply(200, b"one"),
            reply(404, b"two", {"Connection": "close"}),
            reply(200, b"three"),
        ]
        bodies = [self.fetch_body() for _ in range(3)]
        self.assertEqual(bodies, [b"one", b"two", b"three"])
        self.assert_closed(True, False)

    def test_idle(self) -> None:
        """Concurrent requests have a connection each, which closes after 15 idle seconds."""
        self.answer_each(3)
        self.network.advance(14.9)
        self.assert_closed(False, False, False)
        self.network.advance(0.1)
        self.assert_closed(True, True, True)

    def test_closed(self) -> None:
        """Closing the client closes idle connections; it refuses requests until it is opened."""
        self.answer_each(2)
        self.assert_closed(False, False)
        self.result_of(self.client.close())
        self.assert_closed(True, True)
        self.assertEqual(self.network.getDelayedCalls(), [])
        error = self.exactly(self.fetch(), TransportError)
        self.assertEqual(str(error), "the service has stopped")
        self.client.open()
        self.result_of(self.answer(reply(200)).read(0))

    def test_discard(self) -> None:
        """Discarding a long response aborts its connection; a short one is read for reuse."""
        for head in (reply(200, length=4097), reply_without_length(200)):
            self.answer(head, b"x" * 1000).discard()
            self.network.run()
            self.assertTrue(self.peer.aborted)
        self.answer(reply(206, length=4096), b"x" * 96, b"y" * 4000).discard()
        self.network.run()
        self.result_of(self.answer(reply(200)).read(0))
        self.assertEqual(len(self.network.peers), 3)

    def test_stale(self) -> None:
        """GET and DELETE are retried if the server closes a reused connection.

        POST on a reused connection, and any request on a new connection, is not retried.
        """
        for method in ("GET", "DELETE"):
            self.fetch_body(reply(200), lambda peer, _: peer.reset(), reply(404))
            response = self.successResultOf(self.fetch(method))
            self.assertEqual(response.status, 404)
            response.discard()
        connections = len(self.network.peers)
        self.fetch_body(reply(200), lambda peer, _: peer.reset(), reply(200))
        self.exactly(self.fetch("POST"), TransportError)
        self.network.scripts[:] = [lambda peer, _: peer.close(), reply(200)]
        self.exactly(self.fetch(), TransportError)
        self.assertEqual(len(self.network.peers), connections + 1)

    def test_quiet(self) -> None:
        """Opened, closed and refused connections log nothing; the error says "refused"."""
        log = Log(self)
        self.fetch_body(reply(200))
        self.fetch_body(reply(200, b"", {"Connection": "close"}))
        self.network.refusal = ConnectionRefusedError()
        fetching = self.fetch()
        self.network.advance(1)
        self.assertIn("refused", str(self.exactly(fetching, TransportError)))
        self.assertEqual([event.get("log_format") for event in log.events], [])

    def test_unknown(self) -> None:
        """An unknown host is a TransportError that names the host."""
        self.network.unknown.add("s3.test")
        self.assertIn("s3.test", str(self.exactly(self.fetch(), TransportError)))

    def test_odd_host(self) -> None:
        """A host name that is odd for IDNA is a TransportError if it does not respond.

        One with a label that no name has is not looked up: Python's look-up fails unseen.
        """
        for host in ("a..b", ".a", "x" * 64, f"a.{'x' * 64}.test"):
            self.exactly(self.fetch(url=f"https://{host}/"), TransportError)
        self.assertEqual([], self.network.names)
        for host in ("under_score.s3.test", "r3---sn.s3.test", "-a.s3.test"):
            fetching = self.fetch(url=f"https://{host}/")
            for peer in self.network.peers:
                peer.close()
            self.network.run()
            error = self.failureResultOf(fetching).value
            self.assertIsInstance(error, TransportError, repr(error))


class DeadlineTests(ClientCase):
    """Every wait has a timeout"""

    def assert_late(
        self, fetching: Deferred[Any], seconds: float, text: str = "no response in time"
    ) -> None:
        """Assert that a request fails after exactly this many seconds."""
        self.network.advance(seconds - 0.1)
        self.assertNoResult(fetching)
        self.network.advance(0.1)
        self.assertEqual(str(self.exactly(fetching, TransportError)), text)

    def test_headers(self) -> None:
        """Headers time out after 15 seconds, TLS handshake included, or as the caller sets.

        The connection is aborted.
        """
        for url, options, seconds in (
            ("http://s3.test/", {}, 15),
            ("http://s3.test/", {"timeout": 600}, 600),
            ("https://s3.test/", {}, 15),
        ):
            self.assert_late(self.fetch("GET", url, **options), seconds)
            self.assertTrue(self.peer.aborted)

    def test_connecting(self) -> None:
        """Connecting to a host times out after 5 seconds."""
        self.network.silent = True
        self.assert_late(self.fetch(), 5, "no connection in time")

    def test_incomplete_headers(self) -> None:
        """All headers must arrive within 15 seconds, even if the server keeps sending slowly."""
        fetching = self.fetch()
        self.peer.send(b"HTTP/1.1 200 OK\r\n")
        for n in range(14):
            self.network.advance(1)
            self.peer.send(b"X-%d: a\r\n" % n)
        self.network.run()
        self.assert_late(fetching, 1)
        self.assertTrue(self.peer.aborted)

    def test_endless(self) -> None:
        """Endless headers fail before 1 MiB of them is read."""
        fetching = self.fetch()
        self.peer.send(b"HTTP/1.1 200 OK\r\n", b"X-Filler: %b\r\n" % (b"x" * 8000) * 1000)
        unread_before = self.peer.unread
        self.network.run()
        self.exactly(fetching, TransportError)
        self.assertTrue(self.peer.aborted)
        self.assertLess(unread_before - self.peer.unread, 1024 * 1024)

    def test_many(self) -> None:
        """Responses with 100 KB of headers are accepted, several on one connection."""
        for _ in range(10):
            head = reply(200, b"hello", {f"X-{n}": "x" * 1000 for n in range(100)})
            response = self.answer(head)
            self.assertEqual(response.header("x-99"), "x" * 1000)
            self.assertEqual(self.result_of(response.read(5)), b"hello")
        self.assertEqual(len(self.network.peers), 1)

    def test_stale(self) -> None:
        """The 15 seconds for the headers include the time spent on a stale connection."""
        self.result_of(self.answer(reply(200)).read(0))
        fetching = self.fetch()
        self.network.advance(10)
        self.peer.reset()
        self.network.run()
        self.assertEqual(len(self.network.peers), 2)
        self.assert_late(fetching, 5)

    def test_body(self) -> None:
        """Reading a small body times out after 15 seconds in all, from the start of the read."""
        response = self.answer(reply(200, length=100), b"x")
        self.network.advance(14)
        reading = self.begin(response.read(100))
        for _ in range(14):
            self.network.advance(1)
            self.peer.send(b"x")
        self.assert_late(reading, 1, "the body stalled for 15 seconds")
        self.assertTrue(self.peer.aborted)


class CancelledTests(ClientCase):
    """Cancelled requests end at once, and their connections are closed"""

    def cancel(self, fetching: Deferred[Any]) -> None:
        """Cancel a request and assert that it fails with CancelledError."""
        self.assertNoResult(fetching)
        fetching.cancel()
        self.network.run()
        self.exactly(fetching, CancelledError)

    def test_connecting(self) -> None:
        """A request cancelled while it connects opens no connection."""
        for url in ("http://s3.test/", "https://s3.test/"):
            self.cancel(Deferred.fromCoroutine(self.client.request("GET", url, {})))
        self.assertEqual(self.network.peers, [])

    def test_receiving(self) -> None:
        """Cancelling before, within or after the headers of a response aborts the connection."""
        for packets in ((), (b"HTTP/1.1 200 OK\r\nETag:",)):
            self.network.scripts.append(packets)
            self.cancel(self.fetch())
            self.assertTrue(self.peer.aborted)
        self.cancel(self.begin(self.answer(reply(200, length=5), b"he").read(5)))
        self.assertTrue(self.peer.aborted)

    def test_again(self) -> None:
        """Cancelling a request on a reused connection does not cause a retry."""
        self.result_of(self.answer(reply(200)).read(0))
        self.cancel(self.fetch())
        self.assertEqual(len(self.network.requests), 2)


class TrustTests(ClientCase):
    """TLS servers with a certificate of a private CA, which is always verified"""

    AUTHORITY = trustme.CA()

    def setUp(self) -> None:
        super().setUp()
        bundle = self.mktemp()
        self.AUTHORITY.cert_pem.write_to_path(bundle)
        self.client = HttpClient(self.network, load_trust_root(bundle))

    def test_bundle(self) -> None:
        """Every certificate of a bundle is trusted; text and keys between them are ignored."""
        others = [trustme.CA() for _ in range(2)]
        one, other = (each.cert_pem.bytes() for each in others)
        for text in (
            b"# Subject: one\n\xc3\xa9\xff\n" + one + b"\n\nother\n=====\n" + other + b"the end",
            one.replace(b"\n", b"\r\n") + other.replace(b"\n", b"\r\n"),
            one + others[0].private_key_pem.bytes() + other,
        ):
            bundle = Path(self.mktemp())
            bundle.write_bytes(text)
            self.client = HttpClient(self.network, load_trust_root(str(bundle)))
            for number, authority in enumerate(others):
                self.serve(authority.issue_cert("*.s3.test"))
                found = self.get(f"{number}.s3.test", HELLO)
                self.assertEqual(b"hello", self.successResultOf(found))
            self.result_of(self.client.close())

    def serve(self, certificate: trustme.LeafCert) -> None:
        """Use TLS with this certificate for all servers."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        self.network.context = context

    def get(self, host: str = "s3.test", *scripts: Script) -> Deferred[bytes]:
        """Start a request, and return the body of its response."""

        async def get() -> bytes:
            response = await self.client.request("GET", f"https://{host}/a", {})
            return await response.read(100)

        self.network.scripts += scripts
        return self.begin(get())

    def test_trusted(self) -> None:
        """The client accepts a certificate for the server's name, wildcard or IP address.

        It may be of an intermediate authority, which the server sends.
        """
        authority = self.AUTHORITY.create_child_ca()
        self.serve(authority.issue_cert("s3.test", "*.s3.test", "127.0.0.1", "::1"))
        for host in ("s3.test", "bucket.s3.test", "127.0.0.1:8443", "[::1]:8443"):
            self.assertEqual(self.successResultOf(self.get(host, HELLO)), b"hello")

    def test_names_that_idna_rejects(self) -> None:
        """Names that IDNA 2008 rejects are sent and matched as they are, also by a wildcard."""
        names = "my_show my--assets r3---sn-4g5e a- -a xn--i-7iq xn--mnchen-3ya".split()
        self.serve(self.AUTHORITY.issue_cert("*.s3.test", "xn--mnchen-3ya.test"))
        for host in (*(f"{name}.s3.test" for name in names), "xn--mnchen-3ya.test"):
            self.assertEqual(self.successResultOf(self.get(host, HELLO)), b"hello", host)
            self.assertEqual(self.network.requests[-1].headers["host"], host)
        requests = len(self.network.requests)
        for host in ("a_b.c.s3.test", "my_show.s3.test2", "xn--i-7iq.test", "a_b.test"):
            error = self.exactly(self.get(host), NameMismatch)
            self.assertEqual(str(error), "the certificate is for another name", host)
        self.serve(trustme.CA().issue_cert("*.s3.test"))
        self.exactly(self.get("an_other.s3.test"), UntrustedCertificate)
        self.assertEqual(len(self.network.requests), requests)

    def test_numbers(self) -> None:
        """A number in another spelling than that of an address is a name, as in the look-up.

        A certificate for the address that it may stand for is for another name.
        """
        addresses = "127.0.0.1 93.184.216.34 10.0.0.1".split()
        self.serve(self.AUTHORITY.issue_cert("*.s3.test", *addresses))
        numbers = "2130706433 1572395042 1_0 0 0x7f.1 127.1 1.2.3 010.0.0.1 127.0.0.01 1.2.3.4.5"
        for host in numbers.split():
            error = self.exactly(self.get(host), NameMismatch)
            self.assertEqual(str(error), "the certificate is for another name", host)
        self.assertEqual([], self.network.requests)

    def test_untrusted(self) -> None:
        """A certificate of an unknown CA, for another name or address, or expired is rejected.

        So is a self-signed one. No request is sent. If only the system's CAs are trusted, a private
        CA is unknown.
        """
        right = self.AUTHORITY.issue_cert("s3.test", "*.s3.test", "192.0.2.7")
        yesterday = datetime.now(UTC) - timedelta(days=1)
        expired = self.AUTHORITY.issue_cert(
            "s3.test", not_before=yesterday - timedelta(days=9), not_after=yesterday
        )
        lone = trustme.CA()
        self_signed = trustme.LeafCert(lone.private_key_pem.bytes(), lone.cert_pem.bytes(), [])
        system_only = HttpClient(self.network, load_trust_root(None))
        untrusted = (UntrustedCertificate, "the certificate is not trusted")
        another_name = (NameMismatch, "the certificate is for another name")
        for certificate, host, client, (kind, reason) in (
            (trustme.CA().issue_cert("s3.test"), "s3.test", self.client, untrusted),
            (self_signed, "s3.test", self.client, untrusted),
            (expired, "s3.test", self.client, untrusted),
            (right, "other.test", self.client, another_name),
            (right, "a.b.s3.test", self.client, another_name),
            (right, "s3.test.other", self.client, another_name),
            (right, "192.0.2.8", self.client, another_name),
            (right, "s3.test", system_only, untrusted),
        ):
            self.client = client
            self.serve(certificate)
            fetching = self.get(host)
            self.network.run()
            self.assertEqual(str(self.exactly(fetching, kind)), reason, host)
        self.assertEqual(self.network.requests, [])

    def test_not_tls(self) -> None:
        """A server that does not speak TLS, or closes, is not an UntrustedCertificate."""
        for packets in ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), ()):
            fetching = self.get()
            self.peer.send(*packets)
            self.peer.close()
            self.network.run()
            self.exactly(fetching, TransportError)

    def test_end_without_close_notify(self) -> None:
        """A body of unknown length that ends without TLS's close_notify is truncated (D48)."""
        self.serve(self.AUTHORITY.issue_cert("s3.test"))
        self.network.scripts.append(reply_without_length(200, b"hello"))
        response = self.result_of(self.client.request("GET", "https://s3.test/a", {}))
        sending = response.stream(None).send(FakeConsumer())
        self.peer.close()
        self.network.run()
        self.exactly(sending, TransportError)

    def test_close_without_close_notify(self) -> None:
        """Closing the client closes a TLS connection in 15 seconds, even without close_notify."""
        self.serve(self.AUTHORITY.issue_cert("s3.test"))
        self.successResultOf(self.get("s3.test", HELLO))
        self.peer.sends_close_notify = False
        closing = self.begin(self.client.close())
        self.network.advance(15)
        closed = self.peer.closed
        self.peer.close()
        self.peer.reset()
        self.assertTrue(closed)
        self.successResultOf(closing)


class LoadTrustRootTests(SynchronousTestCase):
    """`load_trust_root`"""

    def write(self, data: bytes) -> str:
        """Write a file and return its path."""
        path = Path(self.mktemp())
        path.write_bytes(data)
        return str(path)

    def test_invalid(self) -> None:
        """A file without certificates, or with an invalid or truncated one, raises ValueError."""
        authority = trustme.CA()
        whole, key = authority.cert_pem.bytes(), authority.private_key_pem.bytes()
        begin, end = b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n"
        for data in (
            *(b"", b"nothing\n", key, b"\x30\x82" * 99),
            *(whole + begin + text + end for text in (b"", b"AAAA\n", b"!\n")),
            whole + whole[: len(whole) // 2],
        ):
            self.assertRaises(ValueError, load_trust_root, self.write(data))

    def test_missing(self) -> None:
        """A bundle that cannot be read raises the system's OSError."""
        missing = self.mktemp()
        self.assertRaises(FileNotFoundError, load_trust_root, missing)
        Path(missing).mkdir()
        self.assertRaises(IsADirectoryError, load_trust_root, missing)


class ClientsByBundleTests(SynchronousTestCase):
    """`ClientsByBundle`"""

    def setUp(self) -> None:
        folder = Path(self.mktemp())
        folder.mkdir()
        self.bundle = str(Authority(folder).bundle)
        self.empty = str(folder / "empty.pem")
        Path(self.empty).touch()

    def make(self, ssl_cert_file: str | None = None) -> ClientsByBundle:
        """Return the clients of a service with this SSL_CERT_FILE."""
        return ClientsByBundle(MemoryReactorClock(), ssl_cert_file)

    def test_shared(self) -> None:
        """Each CA bundle has one client, whether SSL_CERT_FILE or another variable names it.

        A client that connects to public addresses alone shares no connection with another.
        `ca_file`, which is passed to ffmpeg, is the path in SSL_CERT_FILE.
        """
        default, clients = self.make(), self.make(self.bundle)
        self.assertIs(clients.client(), clients.client())
        self.assertIs(clients.client(), clients.client(self.bundle))
        self.assertIsNot(default.client(), default.client(self.bundle))
        self.assertIsNot(default.client(), default.client(public_only=True))
        self.assertEqual(self.bundle, clients.ca_file)

    def test_unusable(self) -> None:
        """The error for an unusable CA bundle names the fault and the required form."""
        for clients, bundle in (
            (self.make(self.empty), None),
            (self.make(), self.empty),
            (self.make(), f"{self.empty}.none"),
        ):
            error = self.assertRaises(UnusableBundle, clients.client, bundle)
            self.assertTrue(str(error).startswith("no certificates could be read ("))
            self.assertTrue(str(error).endswith("a file of certificates in PEM form is required"))
