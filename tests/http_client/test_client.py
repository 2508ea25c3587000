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
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import platformTrust
from twisted.protocols import tls
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase

from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import USER_AGENT, HttpClient, Response, load_trust_root
from audioproxy.http_client.errors import TransportError, UntrustedCertificate
from tests.support.consumers import FakeConsumer
from tests.support.http import Log
from tests.support.strategies import DETERMINISTIC
from tests.support.wire import ClientCase, Peer, chunk, reply, reply_without_length

#: Request targets: the part of a URL after the host. Many of them have other spellings that a
#: server may treat as equal.
TARGETS = """
    / //a /a//b/ /./a/../b/. /a%2Fb /a%2fb /%41 /a;b /;p/q /a;b/c;d /?a /?a?b /a?b;c&d=%20+e;
    /a|b^c`d /a"b<c>d /a[b]{c}\\d /% /%zz /~a /a:b@c /a?b=http://c//d
""".split()


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

    def test_whole(self) -> None:
        """A request has only the given headers, Host and User-Agent, and no Accept-Encoding."""
        given = {"Range": "bytes=0-9", "X-Amz-Date": "20130524T000000Z", "if-match": '"a, b"'}
        self.assertEqual(
            self.sent("http://s3.test/a", given, "HEAD"),
            [
                "HEAD /a",
                "Host: s3.test",
                'If-Match: "a, b"',
                "Range: bytes=0-9",
                f"User-Agent: {USER_AGENT}",
                "X-Amz-Date: 20130524T000000Z",
            ],
        )

    def test_values(self) -> None:
        """Header values are sent unchanged."""
        for value in ("", 'a; b="c, d"', "attachment; filename*=UTF-8''%E2%82%AC", "a  b"):
            self.assertIn(f"X-A: {value}", self.sent("http://s3.test/", {"x-a": value}))

    def test_spelling(self) -> None:
        """A URL is sent exactly as it is spelled, since a signature covers the spelling."""
        for target in TARGETS:
            self.assertEqual(self.sent(f"http://s3.test{target}")[0], f"GET {target}")

    def test_empty_path_parameters(self) -> None:
        """Empty path parameters, as in ``/a;``, are sent as they are spelled."""
        for target in ("/a;", "/a;?b", "/a;b;", "/;"):
            self.assertEqual(self.sent(f"http://s3.test{target}")[0], f"GET {target}")

    @DETERMINISTIC
    @given(st.text("/.;?&=%2Fab|~", max_size=12).map(lambda text: f"/{text}"))
    def test_any_spelling(self, target: str) -> None:
        """Any target is sent as it is spelled, except that a final ``?`` may be dropped."""
        self.assertIn(
            self.sent(f"http://s3.test{target}")[0],
            (f"GET {target}", f"GET {target[:-1]}") if target.endswith("?") else (f"GET {target}",),
        )

    def test_hosts(self) -> None:
        """Host is sent as the URL spells it, and the client connects to that name or address."""
        for netloc, host, port in (
            ("s3.test", "127.0.0.1", 80),
            ("s3.test:9000", "127.0.0.1", 9000),
            ("192.0.2.7:81", "192.0.2.7", 81),
            ("[::1]", "::1", 80),
            ("[2001:db8::7]:9000", "2001:db8::7", 9000),
            ("bucket.with-dots.s3.test", "127.0.0.1", 80),
        ):
            self.assertIn(f"Host: {netloc}", self.sent(f"http://{netloc}/a"))
            self.assertEqual(self.network.destinations[-1], (host, port))

    def test_hosts_rejected_by_idna(self) -> None:
        """Hosts that IDNA rejects are accepted: underscores and repeated hyphens."""
        for host in ("under_score.s3.test", "r3---sn-4g5e.s3.test", "my--bucket.s3.test"):
            self.assertIn(f"Host: {host}", self.sent(f"http://{host}/a"))

    def test_bodiless_methods(self) -> None:
        """POST and PUT without a body send ``Content-Length: 0``; other methods send none."""
        for method in ("POST", "PUT"):
            lines = self.sent("http://s3.test/?uploads=", {}, method)
            self.assertIn("Content-Length: 0", lines)
        for method in ("GET", "HEAD", "DELETE"):
            lines = self.sent("http://s3.test/", {}, method)
            self.assertFalse([line for line in lines if line.startswith("Content-Length")])


class ResponseTests(ClientCase):
    """Responses are returned to the caller unchanged"""

    def get(self, *packets: bytes, method: str = "GET") -> Response:
        """Return the client's response for these packets of the server."""
        self.network.scripts.append(packets)
        return self.result_of(self.client.request(method, "http://s3.test/a", {}))

    def test_status(self) -> None:
        """Every status is returned as it is: no redirect is followed, no challenge answered."""
        for status in (200, 206, 301, 302, 307, 308, 401, 403, 407, 416, 500, 503, 599, 799):
            headers = {"Location": "http://elsewhere.test/", "WWW-Authenticate": "Basic"}
            response = self.get(reply(status, b"as it is", headers))
            self.assertEqual(response.status, status)
            self.assertEqual(response.header("location"), "http://elsewhere.test/")
            self.assertEqual(self.result_of(response.read(8)), b"as it is")
        self.assertEqual(self.network.names, ["s3.test"] * len(self.network.names))

    def test_no_cookies(self) -> None:
        """Cookies of a response are not sent with the next request."""
        self.result_of(self.get(reply(200, b"", {"Set-Cookie": "a=b; Path=/"})).discard())
        self.result_of(self.get(reply(200)).discard())
        self.assertNotIn("cookie", self.network.requests[-1].headers)

    def test_not_decoded(self) -> None:
        """A gzip body is returned undecoded, together with its Content-Encoding."""
        body = gzip.compress(b"a" * 1000)
        response = self.get(reply(200, body, {"Content-Encoding": "gzip"}))
        self.assertEqual(
            (response.length, response.header("content-encoding")), (len(body), "gzip")
        )
        self.assertEqual(self.result_of(response.read(len(body))), body)

    def test_headers(self) -> None:
        """Header lookups ignore case, repeated headers are joined, and a missing header is None."""
        response = self.get(
            b'HTTP/1.1 200 OK\r\nETAG:  "x" \r\nVary: a\r\nvary: b\r\nX-L: \xe9\r\n'
            b"Content-Length: 0\r\n\r\n"
        )
        self.assertEqual(response.header("etag"), '"x"')
        self.assertEqual(response.header("Vary"), "a, b")
        self.assertEqual(response.header("x-l"), "é")
        self.assertIsNone(response.header("content-type"))
        self.result_of(response.discard())

    def test_length(self) -> None:
        """`Response.length` is the Content-Length, for HEAD too, or None without one."""
        for length in (0, 5, 10**15):
            response = self.get(reply(200, length=length), method="HEAD")
            self.assertEqual((response.length, response.is_head), (length, True))
        self.assertIsNone(self.get(reply_without_length(200), method="HEAD").length)
        for data, length in (
            (reply(200, b"hello"), 5),
            (reply(200), 0),
            (reply_without_length(200), None),
            (reply_without_length(200, b"", {"Transfer-Encoding": "chunked"}), None),
        ):
            response = self.get(data)
            self.assertEqual((response.length, response.is_head), (length, False))
            self.result_of(response.discard())

    def test_invalid_length(self) -> None:
        """`Response.length` is None if Content-Length for HEAD is anything but ASCII digits."""
        for text in ("", "-1", "5, 6", "0x10", "1e3", "²", "five", "+5", "5.0"):
            head = reply_without_length(200, b"", {"Content-Length": text})
            self.assertIsNone(self.get(head, method="HEAD").length, text)

    def test_length_too_long_for_int(self) -> None:
        """`Response.length` is None for a Content-Length with too many digits for `int`."""
        head = reply_without_length(200, b"", {"Content-Length": "9" * 5000})
        self.assertIsNone(self.get(head, method="HEAD").length)

    def test_body_of_a_head(self) -> None:
        """A response to HEAD has no body, and its connection serves the next request."""
        response = self.get(reply(200, length=5), method="HEAD")
        self.assertEqual(self.result_of(response.read(5)), b"")
        self.result_of(self.get(reply(200), method="HEAD").discard())
        self.assertEqual(len(self.network.peers), 1)

    def test_interim_answers(self) -> None:
        """The client skips interim responses (1xx)."""
        response = self.get(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n", reply(200, b"hello"))
        self.assertEqual((response.status, self.result_of(response.read(5))), (200, b"hello"))

    def test_in_small_packets(self) -> None:
        """A response may arrive one byte at a time."""
        data = reply(206, b"hello", {"ETag": '"x"'})
        response = self.get(*(data[n : n + 1] for n in range(len(data))))
        self.assertEqual((response.status, response.header("etag")), (206, '"x"'))
        self.assertEqual(self.result_of(response.read(5)), b"hello")

    def test_not_http(self) -> None:
        """Malformed HTTP/1.1 is a TransportError, and the connection is closed."""
        for data in (
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            b"HTTP/1.1 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n" % (b"9" * 5000),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: bzip2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX-Long: %b\r\n\r\n" % (b"x" * 20_000),
            b"\x00" * 20_000,
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        ):
            self.network.scripts.append(data)
            self.error_of(self.client.request("GET", "http://s3.test/", {}), TransportError)
            self.assertTrue(self.network.peers[-1].closed, data[:60])

    @DETERMINISTIC
    @given(st.lists(st.binary(max_size=40), max_size=4))
    def test_any_answer(self, packets: list[bytes]) -> None:
        """Any bytes from a server result in a response or a TransportError."""

        def respond(peer: Peer, _: object) -> None:
            peer.send(b"HTTP/1.1 ", *packets)
            peer.close()

        self.network.scripts[:] = [respond]
        fetching = self.begin(self.client.request("POST", "http://s3.test/", {}))
        if isinstance(fetching.result, Failure):
            self.exactly(fetching, TransportError)
        else:
            self.result_of(self.successResultOf(fetching).discard())
        self.network.run()

    def test_too_long(self) -> None:
        """Reading a body longer than the limit raises BodyTooLarge and aborts the connection."""
        response = self.get(reply(200, length=100_000), b"x" * 5)
        reading = self.begin(response.read(10))
        self.network.peers[-1].send(b"x" * 50_000)
        self.network.run()
        self.exactly(reading, BodyTooLarge)
        self.assertTrue(self.network.peers[-1].aborted)


class ConnectionTests(ClientCase):
    """Connections are reused and closed"""

    def fetch(self, method: str = "GET") -> Deferred[Response]:
        """Start a request."""
        return self.begin(self.client.request(method, "http://s3.test/a", {}))

    def fetch_body(self, method: str = "GET") -> bytes:
        """Return the body of the response to a new request."""
        return self.result_of(self.successResultOf(self.fetch(method)).read(100))

    def test_used_again(self) -> None:
        """Once a response is read, its connection serves the next request."""
        self.network.scripts += [reply(200, b"one"), reply(404, b"two"), reply(200, length=9)]
        self.assertEqual(self.fetch_body(), b"one")
        self.assertEqual(self.fetch_body(), b"two")
        self.fetch_body("HEAD")
        self.assertEqual(len(self.network.peers), 1)

    def test_concurrent_requests(self) -> None:
        """Concurrent requests have a connection each."""
        fetching = [self.fetch() for _ in range(3)]
        self.assertEqual(len(self.network.peers), 3)
        for peer in self.network.peers:
            peer.send(reply(200))
        self.network.run()
        for each in fetching:
            self.result_of(self.successResultOf(each).discard())

    def test_not_used_again(self) -> None:
        """After a response with ``Connection: close``, the next request uses a new connection."""
        self.network.scripts += [reply(200, b"one", {"Connection": "close"}), reply(200, b"two")]
        self.assertEqual((self.fetch_body(), self.fetch_body()), (b"one", b"two"))
        self.assertEqual(len(self.network.peers), 2)
        self.assertTrue(self.network.peers[0].closed)

    def test_idle(self) -> None:
        """The client closes idle connections after 15 seconds."""
        self.network.scripts.append(reply(200))
        self.fetch_body()
        self.network.advance(14.9)
        self.assertFalse(self.network.peers[0].closed)
        self.network.advance(0.1)
        self.assertTrue(self.network.peers[0].closed)

    def test_discard(self) -> None:
        """Discarding a long response aborts its connection instead of reading the body."""
        for head in (reply(200, length=10**9), reply_without_length(200)):
            self.network.scripts.append((head, b"x" * 1000))
            self.result_of(self.successResultOf(self.fetch()).discard())
            self.network.run()
            self.assertTrue(self.network.peers[-1].aborted)

    def test_discard_short(self) -> None:
        """Discarding a short response reads it, so that its connection serves the next request."""
        self.network.scripts += [(reply(206, length=2), b"x", b"y"), reply(200)]
        self.result_of(self.successResultOf(self.fetch()).discard())
        self.fetch_body()
        self.assertEqual(len(self.network.peers), 1)

    def test_discard_broken(self) -> None:
        """Discarding a short response ends without an error if its body is cut off or late."""
        self.network.scripts += [(reply(206, length=2), b"x")] * 2
        discarding = [self.begin(self.successResultOf(self.fetch()).discard()) for _ in range(2)]
        self.network.peers[0].reset()
        self.network.advance(15)
        for each in discarding:
            self.successResultOf(each)

    def test_closed(self) -> None:
        """Closing the client closes its idle connections at once."""
        pending = [self.fetch(), self.fetch()]
        for peer, fetching in zip(self.network.peers, pending, strict=True):
            peer.send(reply(200))
            self.network.run()
            self.result_of(self.successResultOf(fetching).read(0))
        self.assertEqual([peer.closed for peer in self.network.peers], [False, False])
        self.result_of(self.client.close())
        self.assertEqual([peer.closed for peer in self.network.peers], [True, True])
        self.assertEqual(self.network.getDelayedCalls(), [])

    def test_stale(self) -> None:
        """GET, HEAD and DELETE are retried if the server closes a reused connection."""
        for method in ("GET", "HEAD", "DELETE"):
            self.network.scripts += [reply(200), lambda peer, _: peer.reset(), reply(404)]
            self.fetch_body()
            response = self.successResultOf(self.fetch(method))
            self.assertEqual(response.status, 404)
            self.result_of(response.discard())

    def test_stale_post(self) -> None:
        """POST is not retried if the server closes a reused connection."""
        self.network.scripts += [reply(200), lambda peer, _: peer.reset(), reply(200)]
        self.fetch_body()
        self.exactly(self.fetch("POST"), TransportError)
        self.network.scripts.clear()

    def test_new_connection_lost(self) -> None:
        """A request is not retried if a new connection closes."""
        self.network.scripts.append(lambda peer, _: peer.close())
        self.exactly(self.fetch(), TransportError)
        self.assertEqual(len(self.network.peers), 1)

    def test_quiet(self) -> None:
        """Opened, closed and refused connections log nothing."""
        log = Log()
        self.addCleanup(log.start())
        self.network.scripts += [reply(200), reply(200, b"", {"Connection": "close"})]
        self.fetch_body()
        self.fetch_body()
        self.network.refusal = ConnectionRefusedError()
        fetching = self.fetch()
        self.network.advance(1)
        self.exactly(fetching, TransportError)
        self.assertEqual([event.get("log_format") for event in log.events], [])


class DeadlineTests(ClientCase):
    """Every wait has a timeout"""

    def fetch(self, url: str = "http://s3.test/a") -> Deferred[Response]:
        """Start a request."""
        return self.begin(self.client.request("GET", url, {}))

    def assert_late(self, fetching: Deferred[Response], seconds: float) -> None:
        """Assert that a request fails after exactly this many seconds."""
        self.network.advance(seconds - 0.1)
        self.assertNoResult(fetching)
        self.network.advance(0.1)
        self.exactly(fetching, TransportError)

    def test_connecting(self) -> None:
        """Connecting to a host times out after 5 seconds."""
        self.network.silent = True
        self.assert_late(self.fetch(), 5)

    def test_answer(self) -> None:
        """Waiting for the headers times out after 15 seconds, and the connection is aborted."""
        fetching = self.fetch()
        self.assert_late(fetching, 15)
        self.assertTrue(self.network.peers[0].aborted)

    def test_longer_timeout(self) -> None:
        """A caller can set a longer timeout for the headers."""
        fetching = self.begin(self.client.request("GET", "http://s3.test/a", {}, timeout=600))
        self.assert_late(fetching, 600)

    def test_incomplete_headers(self) -> None:
        """All headers must arrive within 15 seconds, even if the server keeps sending slowly."""
        fetching = self.fetch()
        self.network.peers[0].send(b"HTTP/1.1 200 OK\r\n")
        for n in range(14):
            self.network.advance(1)
            self.network.peers[0].send(b"X-%d: a\r\n" % n)
        self.network.run()
        self.assert_late(fetching, 1)
        self.assertTrue(self.network.peers[0].aborted)

    def test_handshake(self) -> None:
        """The 15 seconds for the headers include the TLS handshake."""
        fetching = self.fetch("https://s3.test/")
        self.assert_late(fetching, 15)
        self.assertTrue(self.network.peers[0].aborted)

    def test_endless(self) -> None:
        """Endless headers fail before 1 MiB of them is read."""
        fetching = self.fetch()
        peer = self.network.peers[0]
        peer.send(b"HTTP/1.1 200 OK\r\n", b"X-Filler: %b\r\n" % (b"x" * 8000) * 1000)
        unread_before = peer.unread
        self.network.run()
        self.exactly(fetching, TransportError)
        self.assertTrue(peer.aborted)
        self.assertLess(unread_before - peer.unread, 1024 * 1024)

    def test_many(self) -> None:
        """Responses with 100 KB of headers are accepted, several on one connection."""
        for _ in range(10):
            head = reply(200, b"hello", {f"X-{n}": "x" * 1000 for n in range(100)})
            self.network.scripts.append(head)
            response = self.successResultOf(self.fetch())
            self.assertEqual(response.header("x-99"), "x" * 1000)
            self.assertEqual(self.result_of(response.read(5)), b"hello")
        self.assertEqual(len(self.network.peers), 1)

    def test_stale(self) -> None:
        """The 15 seconds for the headers include the time spent on a stale connection."""
        self.network.scripts.append(reply(200))
        self.result_of(self.successResultOf(self.fetch()).read(0))
        fetching = self.fetch()
        self.network.advance(10)
        self.network.peers[0].reset()
        self.network.run()
        self.assertEqual(len(self.network.peers), 2)
        self.assert_late(fetching, 5)

    def test_body(self) -> None:
        """Reading a small body times out after 15 seconds in all."""
        self.network.scripts.append((reply(200, length=100), b"x"))
        reading = self.begin(self.successResultOf(self.fetch()).read(100))
        for _ in range(14):
            self.network.advance(1)
            self.network.peers[0].send(b"x")
        self.network.advance(0.9)
        self.assertNoResult(reading)
        self.network.advance(0.1)
        self.exactly(reading, TransportError)
        self.assertTrue(self.network.peers[0].aborted)

    def test_in_time(self) -> None:
        """A response that arrives in time leaves no timer behind."""
        self.network.scripts.append(reply(200, b"hello"))
        response = self.successResultOf(self.fetch())
        self.network.advance(14)
        self.assertEqual(self.result_of(response.read(5)), b"hello")


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
            fetching = Deferred.fromCoroutine(self.client.request("GET", url, {}))
            self.cancel(fetching)
        self.assertEqual(self.network.peers, [])

    def test_waiting(self) -> None:
        """Cancelling a request before the response begins aborts the connection."""
        self.cancel(self.begin(self.client.request("GET", "http://s3.test/", {})))
        self.assertTrue(self.network.peers[0].aborted)

    def test_again(self) -> None:
        """Cancelling a request on a reused connection does not cause a retry."""
        self.network.scripts.append(reply(200))
        self.result_of(self.result_of(self.client.request("GET", "http://s3.test/", {})).read(0))
        self.cancel(self.begin(self.client.request("GET", "http://s3.test/", {})))
        self.assertEqual(len(self.network.requests), 2)

    def test_incomplete_headers(self) -> None:
        """Cancelling a request in the middle of the headers aborts the connection."""
        self.network.scripts.append(b"HTTP/1.1 200 OK\r\nETag:")
        self.cancel(self.begin(self.client.request("GET", "http://s3.test/", {})))
        self.assertTrue(self.network.peers[0].aborted)

    def test_reading(self) -> None:
        """Cancelling the read of a body aborts the connection."""
        self.network.scripts.append((reply(200, length=5), b"he"))
        response = self.result_of(self.client.request("GET", "http://s3.test/", {}))
        self.cancel(self.begin(response.read(5)))
        self.assertTrue(self.network.peers[0].aborted)


class RefusedTests(ClientCase):
    """Servers that cannot be reached"""

    def test_refused(self) -> None:
        """A refused connection is a TransportError that says so."""
        self.network.refusal = ConnectionRefusedError()
        fetching = self.begin(self.client.request("GET", "http://s3.test/", {}))
        self.network.advance(1)
        self.assertIn("refused", str(self.exactly(fetching, TransportError)))

    def test_unknown(self) -> None:
        """An unknown host is a TransportError that names the host."""
        self.network.unknown.add("s3.test")
        error = self.error_of(self.client.request("GET", "http://s3.test/", {}), TransportError)
        self.assertIn("s3.test", str(error))

    def test_server_closes(self) -> None:
        """A connection that closes before the headers are complete is a TransportError."""
        for packets in ((), (b"HTTP/1.1 200 OK\r\nContent-Le",)):

            def respond(peer: Peer, _: object, packets: tuple[bytes, ...] = packets) -> None:
                peer.send(*packets)
                peer.close()

            self.network.scripts.append(respond)
            self.error_of(self.client.request("POST", "http://s3.test/", {}), TransportError)

    def test_host_invalid_in_certificates(self) -> None:
        """A host name that no certificate can contain is a TransportError, not a crash."""
        for host in ("under_score.s3.test", "r3---sn.s3.test", "-a.s3.test", "a..b"):
            fetching = self.begin(self.client.request("GET", f"https://{host}/", {}))
            for peer in self.network.peers:
                peer.close()
            self.network.run()
            error = self.failureResultOf(fetching).value
            self.assertIsInstance(error, TransportError, repr(error))


class TrustCase(ClientCase):
    """TLS servers with a certificate of a private CA."""

    AUTHORITY = trustme.CA()

    def setUp(self) -> None:
        super().setUp()
        # Twisted 26.10 batches small TLS writes with the global reactor's clock and has no public
        # setting for another clock.
        self.patch(tls, "_get_default_clock", lambda: self.network)
        bundle = self.mktemp()
        self.AUTHORITY.cert_pem.write_to_path(bundle)
        self.client = HttpClient(self.network, load_trust_root(bundle))

    def serve(self, certificate: trustme.LeafCert) -> None:
        """Use TLS with this certificate for all servers."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        self.network.context = context

    def get(self, host: str = "s3.test") -> Deferred[bytes]:
        """Start a request, and return the body of its response."""

        async def get() -> bytes:
            response = await self.client.request("GET", f"https://{host}/a", {})
            return await response.read(100)

        return self.begin(get())


class TrustTests(TrustCase):
    """Certificates are always verified"""

    def assert_untrusted(self, host: str = "s3.test") -> str:
        """Return why a server's certificate is rejected; assert that no request is sent."""
        fetching = self.get(host)
        self.network.run()
        self.assertEqual(self.network.requests, [])
        return str(self.exactly(fetching, UntrustedCertificate))

    def test_trusted(self) -> None:
        """The client accepts a certificate for the server's name, wildcard or IP address."""
        self.serve(self.AUTHORITY.issue_cert("s3.test", "*.s3.test", "127.0.0.1", "::1"))
        for host in ("s3.test", "bucket.s3.test", "127.0.0.1:8443", "[::1]:8443"):
            self.network.scripts.append(reply(200, b"hello"))
            self.assertEqual(self.successResultOf(self.get(host)), b"hello")

    def test_used_again(self) -> None:
        """A verified TLS connection is reused for the next request."""
        self.serve(self.AUTHORITY.issue_cert("s3.test"))
        self.network.scripts += [reply(200, b"one"), reply(200, b"two")]
        self.assertEqual(self.successResultOf(self.get()), b"one")
        self.assertEqual(self.successResultOf(self.get()), b"two")
        self.assertEqual(len(self.network.peers), 1)

    def test_unknown_ca(self) -> None:
        """A certificate of an unknown CA is rejected."""
        self.serve(trustme.CA().issue_cert("s3.test"))
        self.assertEqual(self.assert_untrusted(), "the certificate is not trusted")

    def test_for_another_name(self) -> None:
        """A certificate for another name or address is rejected."""
        self.serve(self.AUTHORITY.issue_cert("s3.test", "*.s3.test", "192.0.2.7"))
        for host in ("other.test", "a.b.s3.test", "s3.test.other", "192.0.2.8"):
            self.assertEqual(self.assert_untrusted(host), "the certificate is for another name")

    def test_expired(self) -> None:
        """An expired certificate is rejected."""
        yesterday = datetime.now(UTC) - timedelta(days=1)
        past = self.AUTHORITY.issue_cert(
            "s3.test", not_before=yesterday - timedelta(days=9), not_after=yesterday
        )
        self.serve(past)
        self.assertEqual(self.assert_untrusted(), "the certificate is not trusted")

    def test_not_tls(self) -> None:
        """A server that does not speak TLS is a TransportError, not an UntrustedCertificate."""
        fetching = self.get()
        self.network.peers[0].send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        self.network.run()
        self.exactly(fetching, TransportError)

    def test_server_closes(self) -> None:
        """A connection that closes during the TLS handshake is a TransportError."""
        fetching = self.get()
        self.network.peers[0].close()
        self.network.run()
        self.exactly(fetching, TransportError)

    def test_system(self) -> None:
        """A private CA is rejected if only the system's CAs are trusted."""
        self.serve(self.AUTHORITY.issue_cert("s3.test"))
        self.client = HttpClient(self.network, load_trust_root(None))
        self.assertEqual(self.assert_untrusted(), "the certificate is not trusted")

    def test_closed(self) -> None:
        """Closing the client closes its idle TLS connections."""
        self.serve(self.AUTHORITY.issue_cert("s3.test"))
        self.network.scripts.append(reply(200))
        self.successResultOf(self.get())
        self.result_of(self.client.close())
        self.assertTrue(self.network.peers[0].closed)

    def test_close_without_close_notify(self) -> None:
        """Closing the client closes a TLS connection in 15 seconds, even without close_notify."""
        self.serve(self.AUTHORITY.issue_cert("s3.test"))
        self.network.scripts.append(reply(200))
        self.successResultOf(self.get())
        self.network.peers[0].sends_close_notify = False
        closing = self.begin(self.client.close())
        self.network.advance(15)
        closed = self.network.peers[0].closed
        self.network.peers[0].close()
        self.network.peers[0].reset()
        self.assertTrue(closed)
        self.successResultOf(closing)

    def test_body_that_is_cut(self) -> None:
        """A body with a length or chunks fails over TLS if the connection ends early."""
        self.serve(self.AUTHORITY.issue_cert("s3.test"))
        for packets in (
            (reply(200, length=10), b"hello"),
            (reply_without_length(200, b"", {"Transfer-Encoding": "chunked"}), chunk(b"hello")),
        ):
            self.network.scripts.append(packets)
            fetching = self.get()
            self.network.peers[-1].close()
            self.network.run()
            self.exactly(fetching, TransportError)


class LoadTrustRootTests(SynchronousTestCase):
    """`load_trust_root`"""

    ONE, OTHER = trustme.CA(), trustme.CA()

    def write(self, data: bytes) -> str:
        """Write a file and return its path."""
        path = Path(self.mktemp())
        path.write_bytes(data)
        return str(path)

    def test_several(self) -> None:
        """Every certificate of a bundle is trusted; text and keys between them are ignored."""
        one, other = (each.cert_pem.bytes() for each in (self.ONE, self.OTHER))
        for data in (
            one + other,
            b"# Subject: one\n\xc3\xa9\xff\n" + one + b"\n\nother\n=====\n" + other + b"the end",
            one.replace(b"\n", b"\r\n") + other.replace(b"\n", b"\r\n"),
            one + self.ONE.private_key_pem.bytes() + other,
        ):
            trust = load_trust_root(self.write(data))
            self.assertEqual(len(trust._caCerts), 2)

    def test_nothing(self) -> None:
        """A file without a certificate raises ValueError."""
        for data in (b"", b"nothing\n", self.ONE.private_key_pem.bytes(), b"\x30\x82" * 99):
            self.assertRaises(ValueError, load_trust_root, self.write(data))

    def test_broken(self) -> None:
        """A bundle with one invalid certificate raises ValueError."""
        whole = self.ONE.cert_pem.bytes()
        begin, end = b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n"
        for block in (begin + end, begin + b"AAAA\n" + end, begin + b"!\n" + end):
            self.assertRaises(ValueError, load_trust_root, self.write(whole + block))

    def test_truncated(self) -> None:
        """A bundle that ends inside a certificate raises ValueError."""
        whole = self.ONE.cert_pem.bytes()
        self.assertRaises(ValueError, load_trust_root, self.write(whole + whole[: len(whole) // 2]))

    def test_missing(self) -> None:
        """A bundle that cannot be read raises the system's OSError."""
        missing = self.mktemp()
        self.assertRaises(FileNotFoundError, load_trust_root, missing)
        Path(missing).mkdir()
        self.assertRaises(IsADirectoryError, load_trust_root, missing)

    def test_system(self) -> None:
        """Without a bundle the system's CAs are trusted."""
        self.assertIs(type(load_trust_root(None)), type(platformTrust()))


class ServerProtocol(Protocol):
    """Server side of a connection, which answers any data with the test's response."""

    def __init__(self, server: RealTests) -> None:
        self.server = server

    def connectionMade(self) -> None:
        self.server.connections.append(self)
        self.ended: Deferred[BaseException] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        if self.server.answer:
            self.transport.write(self.server.answer)

    def connectionLost(self, reason: Failure) -> None:
        self.ended.callback(reason.value)


class RealTests(TestCase):
    """Real sockets behave like the simulated ones"""

    timeout = 10

    def setUp(self) -> None:
        self.connections: list[ServerProtocol] = []
        self.answer = reply(200, b"hello")
        factory = Factory.forProtocol(lambda: ServerProtocol(self))
        factory.noisy = False
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        self.port = port
        self.url = f"http://127.0.0.1:{port.getHost().port}/"
        self.client = HttpClient(reactor, platformTrust())
        self.addCleanup(lambda: Deferred.fromCoroutine(self.client.close()))

    async def test_used_again_and_closed(self) -> None:
        """One TCP connection serves two requests, and closes with the client."""
        for _ in range(2):
            response = await self.client.request("GET", self.url, {})
            self.assertEqual(await response.read(5), b"hello")
        self.assertEqual(len(self.connections), 1)
        await self.client.close()
        self.assertIsInstance(await self.connections[0].ended, ConnectionDone)

    async def test_refused(self) -> None:
        """A connection to a closed port is a TransportError."""
        await self.port.stopListening()
        with self.assertRaises(TransportError):
            await self.client.request("GET", self.url, {})

    async def test_cancelled(self) -> None:
        """Cancelling a request closes its TCP connection at once."""
        self.answer = b"HTTP/1.1 200 OK\r\n"
        fetching = Deferred.fromCoroutine(self.client.request("GET", self.url, {}))
        while not self.connections:
            await reactor_iteration()
        fetching.cancel()
        with self.assertRaises(CancelledError):
            await fetching
        await self.connections[0].ended

    async def test_discard(self) -> None:
        """Discarding a long response closes its TCP connection at once."""
        self.answer = reply(200, length=10**9) + b"x" * 1000
        await (await self.client.request("GET", self.url, {})).discard()
        await self.connections[0].ended

    async def test_slow_reader(self) -> None:
        """While the consumer is paused, a server can send only as much as the kernel buffers."""
        size = 64 * 1024 * 1024
        self.answer = reply(200, length=size)
        response = await self.client.request("GET", self.url, {})
        consumer = FakeConsumer(capacity=0)
        sending = response.stream(size).send(consumer)
        server = self.connections[0].transport
        server.write(bytes(size))
        left, idle_iterations = size, 0
        # The transfer is blocked once 200 reactor iterations have moved nothing.
        while idle_iterations < 200:
            await reactor_iteration()
            now = len(server.dataBuffer) - server.offset + server._tempDataLen
            idle_iterations = idle_iterations + 1 if now == left else 0
            left = now
        self.assertGreater(left, size // 2)
        self.assertLessEqual(len(consumer.data), 2 * 64 * 1024)
        consumer.on_write = consumer.drain
        consumer.drain()
        await sending
        self.assertEqual(len(consumer.data), size)


def reactor_iteration() -> Deferred[None]:
    """Wait for one iteration of the reactor."""
    passed: Deferred[None] = Deferred()
    reactor.callLater(0, passed.callback, None)
    return passed
