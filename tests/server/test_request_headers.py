"""Host, Connection and empty lines of requests, by RFC 9112."""

from __future__ import annotations

from email.utils import formatdate

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.server.request import connection_options, is_host
from tests.server.test_channel import DATA, HIT, ConnectionCase, count, responses_of
from tests.support.http import NOW, Connection
from tests.support.strategies import DETERMINISTIC

#: Values of Host, all valid (RFC 9112, 3.2; RFC 3986, 3.2.2).
HOSTS = (
    b"",
    *b":80 h h: h:8080 Proxy.Example. under_score-d.example caf%C3%A9.example".split(),
    *b"a!$&'()*+;=~ 192.0.2.1:4000 [::1] [2001:DB8::192.0.2.1]:4000 [v1.a:b]".split(),
)

#: Values of Host, all invalid. A comma joins two values.
BAD_HOSTS = (
    *(b"a b", b"a\tb", b"a, b", b"caf\xc3\xa9.example", b"a\x01", b"a\x7f"),
    *b"a,b a/b a@b user:password@b http://a a?b a#b a\\b a:b a:80:80 a:+80 a:-1 a% a%2".split(),
    *b'a%gg "a" <a> ::1 [::1 ::1] [] [1] [::1::] [::g] [::1%25eth0] [::1]a'.split(),
    *b"[192.0.2.1] [v.a] [v1.] [a]".split(),
)


class GrammarTests(SynchronousTestCase):
    """The grammars of Host, which is a host and possibly a port, and of Connection."""

    @DETERMINISTIC
    @given(st.binary(max_size=40))
    def test_any_bytes(self, value: bytes) -> None:
        """Any bytes are valid or invalid; a space, a slash and an at sign are always invalid."""
        is_host(b"[%s]" % value)
        self.assertFalse(is_host(value) and not set(b" /@,?#\r\n\0").isdisjoint(value))

    def test_options(self) -> None:
        """Options in any number of lines are case-insensitive, with commas and white space."""
        for lines, options in (
            ([], set()),
            ([b""], set()),
            ([b"close"], {b"close"}),
            ([b"Close, TE"], {b"close", b"te"}),
            ([b"TE,\tCLOSE ,"], {b"close", b"te"}),
            ([b"keep-alive", b"close"], {b"close", b"keep-alive"}),
            ([b"closed, not-close"], {b"closed", b"not-close"}),
        ):
            self.assertEqual(options, connection_options(lines))


class RequestCase(ConnectionCase):
    """Requests for a stored variant, with the fast path and without."""

    def setUp(self) -> None:
        super().setUp()
        # The fast path serves only paths that were verified before.
        self.get(HIT)
        self.log.events.clear()

    def request(self, *lines: bytes, version: bytes = b"HTTP/1.1") -> bytes:
        """Return a request with these header lines."""
        first = b"GET %b %b" % (self.harness.path(HIT), version)
        return b"\r\n".join([first, *lines, b"", b""])

    def send(self, data: bytes, fast: bool) -> Connection:
        """Send bytes on a new connection."""
        self.harness.site.fast_path = self.harness.fast_path if fast else None
        connection = self.connect()
        connection.send_raw(data)
        return connection

    def assert_refused(self, data: bytes, request_id: bytes | None = None) -> None:
        """Assert that bytes are a 400 with and without the fast path, and reach no resource."""
        self.harness.calls.clear()
        for fast in (False, True):
            self.log.events.clear()
            connection = self.send(data + self.request(b"Host: h"), fast)
            self.assert_bad_request(connection, data, request_id)
            self.assertEqual((1, 1), (len(responses_of(connection)), len(self.log.requests)), data)
        self.assertEqual([], self.harness.calls, data)


class HostOfRequestTests(RequestCase):
    """Each HTTP/1.1 request has exactly one valid Host (RFC 9112, 3.2)."""

    def test_valid(self) -> None:
        """Names, addresses and an empty value are valid, each with a port or without."""
        for fast in (False, True):
            for host in HOSTS:
                connection = self.send(self.request(b"hOST: \t" + host), fast)
                self.assertEqual((200, False), (connection.response.status, connection.closed))

    def test_none(self) -> None:
        """HTTP/1.1 without a Host is a 400, whatever the form of the target; HTTP/1.0 is not."""
        self.assert_refused(self.request(b"X-Request-Id: theirs"), b"theirs")
        for line in (b"OPTIONS * HTTP/1.1", b"GET http://h/health HTTP/1.1", b"POST / HTTP/1.1"):
            self.assert_refused(line + b"\r\nContent-Length: 3\r\n\r\nabc")
        connection = self.send(self.request(version=b"HTTP/1.0"), True)
        self.assertEqual(200, connection.response.status)

    def test_two(self) -> None:
        """Two lines of Host are a 400, even if they are equal or if one is empty."""
        for one, other in ((b"a", b"b"), (b"a", b"a"), (b"", b"a"), (b"a", b"")):
            for version in (b"HTTP/1.1", b"HTTP/1.0"):
                lines = (b"Host: " + one, b"X-Request-Id: theirs", b"HOST:" + other)
                self.assert_refused(self.request(*lines, version=version), b"theirs")

    def test_invalid(self) -> None:
        """An invalid Host is a 400."""
        for host in BAD_HOSTS:
            for version in (b"HTTP/1.1", b"HTTP/1.0"):
                self.assert_refused(self.request(b"Host: " + host, version=version))

    def test_expect(self) -> None:
        """A client that is refused gets no 100 Continue before."""
        self.assert_refused(self.request(b"Expect: 100-continue", b"Content-Length: 3"))


class OldVersionTests(RequestCase):
    """HTTP/1.0 requests."""

    def test_chunked(self) -> None:
        """HTTP/1.0 has no chunked bodies: 400 (RFC 9112, 6.1)."""
        lines = (b"Host: h", b"Transfer-Encoding: chunked")
        self.assert_refused(self.request(*lines, version=b"HTTP/1.0") + b"0\r\n\r\n")

    def test_keep_alive(self) -> None:
        """The connection is closed after the response, also with ``keep-alive`` in a list."""
        for option in (b"keep-alive", b"TE, Keep-Alive", b"close, keep-alive"):
            data = self.request(b"Connection: " + option, version=b"HTTP/1.0")
            connection = self.send(data * 2, True)
            self.assertEqual(1, connection.received.count(b"HTTP/1.0 200 OK\r\n"))
            self.assertEqual(DATA, connection.response.body)
            self.assertEqual((True, False), (connection.closed, connection.aborted))


class CloseTests(RequestCase):
    """Requests that close their connection (RFC 9112, 9.6)."""

    def test_close(self) -> None:
        """``close`` anywhere in the lines of Connection closes, and the response says so."""
        for lines in (
            [b"Connection: close, TE"],
            [b"Connection: TE,close"],
            [b"Connection: keep-alive , CLOSE"],
            [b"Connection: keep-alive", b"Connection: close"],
            [b"Connection: close", b"Connection: TE"],
            [b"Connection: te", b"Accept: */*", b"connection:\tkeep-alive,\tclose"],
        ):
            for fast in (False, True):
                connection = self.send(self.request(b"Host: h", *lines) * 2, fast)
                (response,) = responses_of(connection)
                self.assertEqual((200, b"close"), (response.status, response["connection"]), lines)
                self.assertEqual((True, False), (connection.closed, connection.aborted), lines)

    def test_other_options(self) -> None:
        """Other options, and words that contain ``close``, keep the connection open."""
        for options in (b"keep-alive, TE", b"closed", b"not-close", b""):
            for fast in (False, True):
                connection = self.send(self.request(b"Host: h", b"Connection: " + options), fast)
                self.assertEqual(200, connection.response.status)
                self.assertIsNone(connection.response["connection"])
                self.assertFalse(connection.closed, options)


class EmptyLineTests(RequestCase):
    """Empty lines before a request (RFC 9112, 2.2)."""

    def test_skipped(self) -> None:
        """Up to two empty lines before each request are skipped, in one packet or in several."""
        request = self.request(b"Host: h")
        for fast in (False, True):
            for empty in (b"\r\n", b"\r\n\r\n"):
                connection = self.send((empty + request) * 3 + empty, fast)
                self.assertEqual((3, False), (count(connection), connection.closed))
                connection.send_raw(request)
                for byte in empty:
                    connection.send_raw(bytes([byte]))
                connection.send_raw(request)
                self.run_reactor_turn()
                self.assertEqual((5, False), (count(connection), connection.closed))

    def test_after_each_request(self) -> None:
        """Empty lines of one request do not count for another, which took the fast path."""
        request = self.request(b"Host: h")
        connection = self.send(request + b"\r\n\r\n", True)
        connection.send_raw(request)
        connection.send_raw(b"\r\n\r\n" + request)
        self.assertEqual((3, False), (count(connection), connection.closed))

    def test_after_a_body(self) -> None:
        """An empty line after a body is skipped."""
        post = self.request(b"Host: h", b"Content-Length: 3") + b"abc\r\n"
        connection = self.send(post * 2, True)
        self.assertEqual((2, False), (count(connection), connection.closed))

    def test_too_many(self) -> None:
        """A third empty line is a 400, also after a request."""
        connection = self.send(self.request(b"Host: h") + b"\r\n\r\n\r\n", True)
        self.assertEqual([200, 400], [response.status for response in responses_of(connection)])

    def test_alone(self) -> None:
        """A client that sends only an empty line is disconnected after a minute."""
        self.assert_ends(self.send(b"\r\n", True), 60)


class PreconditionTests(RequestCase):
    """Preconditions other than those of caches and ranges."""

    def test_ignored(self) -> None:
        """``If-Match`` and conditions on dates are ignored.

        So is a date that is the Last-Modified of the variant: the ETag names all that it has.
        """
        self.harness.store_variant(HIT, DATA, stored=NOW)
        date = formatdate(NOW, usegmt=True).encode()
        self.assertEqual(date, self.get(HIT).response["last-modified"])
        for line in (
            b'If-Match: "other"',
            b"If-Match: *",
            b"If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT",
            b"If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT",
            b"If-Modified-Since: " + date,
        ):
            for fast in (False, True):
                connection = self.send(self.request(b"Host: h", line), fast)
                self.assertEqual(200, connection.response.status, line)
