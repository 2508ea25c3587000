"""Malformed requests, request bodies, and shutdown of the site."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from tests.server.test_channel import DATA, HEALTH, HIT, MISS, ConnectionCase, responses_of
from tests.support.http import Connection, read_response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
START = b"GET /health HTTP/1.1\r\nX-Request-Id: theirs\r\nHost: h\r\n"

#: Bytes that are refused before any header was read.
BAD_LINES = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "HTTP/0.9": b"GET /health\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "only a space": b" \r\n",
    "a method alone": b"GET\r\n",
    "a folded first header": b"GET /health HTTP/1.1\r\n Host: h\r\n\r\n",
    "three empty lines": b"\r\n\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\n",
    "a tab in the target": b"GET /a\tb HTTP/1.1\r\n",
    "NUL in the target": b"GET /a\0b HTTP/1.1\r\n",
    "no target": b"GET  HTTP/1.1\r\n",
    "a method that is not a token": b"G(E)T /health HTTP/1.1\r\n",
    "a version in small letters": b"GET /health http/1.1\r\n",
    "a future version": b"GET /health HTTP/1.2\r\n",
    "bare line feeds": b"GET /health HTTP/1.1\nHost: h\n\n\r\n",
    "a line that is too long": b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\n\r\n",
    "a line without an end": b"GET /" + b"a" * 17_000,
}

#: Headers and bodies that are refused after a valid header.
BAD_HEADERS = {
    "a line that is too long": b"X: " + b"a" * 17_000 + b"\r\n\r\n",
    "a line without an end": b"X: " + b"a" * 17_000,
    "headers that are too long together": b"X: %b\r\n" % (b"a" * 1000) * 17 + b"\r\n",
    "a folded line that is too long": b"X: a\r\n" + b" %b\r\n" % (b"a" * 1000) * 17 + b"\r\n",
    "too many headers": b"X: a\r\n" * 501 + b"\r\n",
    "a folded line": b"X: a\r\n b\r\n\r\n",
    "a line folded with a tab": b"X: a\r\n\tb: c\r\n\r\n",
    "a folded line of white space": b"X: a\r\n \r\n\r\n",
    "a folded length": b"Content-Length:\r\n 3\r\n\r\nabc",
    "no colon": b"nonsense\r\n\r\n",
    "no name": b": value\r\n\r\n",
    "a space in the name": b"X Y: value\r\n\r\n",
    "a space after the name": b"Content-Length : 3\r\n\r\n",
    "a tab after the name": b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "NUL in the name": b"X\0: value\r\n\r\n",
    "NUL in the value": b"X: val\0ue\r\n\r\n",
    "a line feed in the value": b"X: val\nue\r\n\r\n",
    "a header after a line feed": b"X: a\nContent-Length: 3\r\n\r\nabc",
    "a header after a carriage return": b"X: a\rContent-Length: 3\r\n\r\nabc",
    "a carriage return in the value": b"X: val\rue\r\n\r\n",
    "two lengths": b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "one length twice": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": b"Content-Length: 3, 3\r\n\r\nabc",
    "a negative length": b"Content-Length: -3\r\n\r\nabc",
    "a signed length": b"Content-Length: +3\r\n\r\nabc",
    "a hexadecimal length": b"Content-Length: 0x3\r\n\r\nabc",
    "a length with an underscore": b"Content-Length: 1_0\r\n\r\nabc",
    "a length with a vertical tab": b"Content-Length: \v3\r\n\r\nabc",
    "an empty length": b"Content-Length:\r\n\r\nabc",
    "a length in words": b"Content-Length: three\r\n\r\nabc",
    "a length of 5000 digits": b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nabc",
    "a length and chunks": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "chunks twice": CHUNKED * 2 + b"\r\n0\r\n\r\n",
    "no encoding": b"Transfer-Encoding:\r\n\r\n",
    "identity": b"Transfer-Encoding: identity\r\n\r\n",
    "identity in capitals": b"Transfer-Encoding: IDENTITY\r\n\r\n",
    "identity and a length": b"Transfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc",
    "chunks and identity": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "identity and chunks": b"Transfer-Encoding: identity\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "a list of chunked": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked with a parameter": b"Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n",
    "chunked with a vertical tab": b"Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n",
    "another encoding": b"Transfer-Encoding: gzip\r\n\r\nabc",
    "another encoding in chunks": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an invalid chunk size": b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a chunk size with a sign": b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc",
    "a hexadecimal prefix of a chunk size": b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc",
    "a line feed after a chunk size": b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "a line feed in a chunk extension": b"Transfer-Encoding: chunked\r\n\r\n3;a\nb\r\nabc\r\n",
    "a chunk without an end": b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n",
    "a chunk size without an end": b"Transfer-Encoding: chunked\r\n\r\n3;" + b"x" * 2000,
    "trailers without an end": b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 20_000,
}


class BadRequestTests(ConnectionCase):
    """Malformed requests: one 400 response, one access log line, and a closed connection."""

    def test_everything(self) -> None:
        """Malformed requests are a 400, with the client's request id if it was read before."""
        hidden = b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % self.harness.path(HIT)
        bad = {name: (line, None) for name, line in BAD_LINES.items()}
        bad |= {name: (START + headers, b"theirs") for name, headers in BAD_HEADERS.items()}
        for name, (data, request_id) in bad.items():
            for in_parts in (False, True):
                self.log.events.clear()
                connection = self.connect()
                # Bytes after a malformed request are ignored, even if they look like a request.
                for part in [data, hidden] if in_parts else [data + hidden]:
                    connection.send_raw(part)
                connection.send_raw(hidden * 1000)
                self.assert_bad_request(connection, name, request_id)
                self.assertEqual(1, len(responses_of(connection)), name)
                self.assertEqual(1, len(self.log.requests), name)
        self.assertEqual([], self.harness.calls)

    def test_end(self) -> None:
        """A refused client that still sends is disconnected after five seconds, or leaves first."""
        for leaves in (False, True):
            connection = self.connect()
            connection.send_raw(BAD_LINES["SSH"])
            for _ in range(5):
                self.elapse(1)
                connection.send_raw(b"x" * 100_000)
                self.assertFalse(connection.closed)
            if leaves:
                connection.leave()
                self.assertEqual((True, False), (connection.closed, connection.aborted))
            else:
                self.assert_ends(connection, 0, abort=True)

    def test_answer_that_is_read_late(self) -> None:
        """A refused client has ten minutes to read the response, and then five seconds."""
        for reads in (False, True):
            connection = self.connect(window=1)
            connection.send_raw(BAD_LINES["SSH"])
            self.assertFalse(connection.half_closed)
            if reads:
                self.elapse(300)
                connection.resume()
                self.assertTrue(connection.half_closed)
            self.assert_ends(connection, 5 if reads else 600, abort=True)

    def test_behind_a_render(self) -> None:
        """A malformed request gets its 400 after the earlier response, however slow its render."""
        for number, bad in enumerate((BAD_LINES["SSH"], START + BAD_HEADERS["two lengths"])):
            rest = b"/cb:%d" % number + MISS
            connection = self.connect()
            connection.send_raw(HEALTH)
            connection.send(self.harness.path(rest))
            connection.send_raw(bad + HEALTH)
            self.harness.render(rest).write_output(b"so")
            self.elapse(300)
            self.finish(rest, b"und")
            responses = responses_of(connection)
            self.assertEqual([200, 200, 400], [response.status for response in responses])
            self.assertEqual((b"sound", True), (responses[1].body, responses[1].complete))
            self.assert_ends(connection, 5, abort=True)


class BodyTests(ConnectionCase):
    """Request bodies, which the service never uses."""

    def send(self, head: bytes, *parts: bytes, method: bytes = b"GET") -> Connection:
        """Request a stored variant, with a body that arrives in parts."""
        connection = self.connect()
        target = self.harness.path(HIT)
        connection.send_raw(b"%s %s HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n" % (method, target, head))
        for part in parts:
            connection.send_raw(part)
        return connection

    def assert_body_refused(
        self, *request: bytes, method: bytes = b"GET", status: int = 400
    ) -> None:
        """Assert that a request is refused once and reached no resource."""
        connection = self.send(*request, method=method)
        code = {400: "bad_request", 404: "not_found"}[status]
        (response,) = responses_of(connection)
        self.assertEqual((status, code), (response.status, response.error))
        self.assertEqual(b"close", response["connection"])
        self.assertEqual([], self.harness.calls)
        (record,) = self.log.requests
        self.assertEqual(f"unknown {status} {code}", " ".join(str(record).split()[:3]))
        self.log.events.clear()
        self.assert_ends(connection, 5, abort=True)

    def test_small(self) -> None:
        """A body of up to 64 KiB, of any kind, is read and dropped; the connection stays open."""
        form = b"Content-Length: 3\r\nContent-Type: "
        for head, *parts in (
            (b"Content-Length: 0",),
            (b"Content-Length: 65536", b"x" * 60_000, b"x" * 5536),
            (b"Transfer-Encoding: chunked", b"8000\r\n%b\r\n" % bytes(0x8000), b"0\r\n\r\n"),
            (form + b"application/x-www-form-urlencoded", b"a=b"),
            (form + b"multipart/form-data; boundary=x", b"--x"),
        ):
            for method, status in ((b"GET", 200), (b"POST", 404)):
                connection = self.send(head, *parts, method=method)
                connection.send_raw(HEALTH)
                statuses = [response.status for response in responses_of(connection)]
                self.assertEqual([status, 200], statuses, head)
                if method == b"GET":
                    self.assertEqual(DATA, connection.response.body)

    def test_too_long(self) -> None:
        """A body over 64 KiB is a 400, with other methods a 404, and closes (Errors, 404)."""
        parts = [b"x" * 60_000, b"x" * 5537]
        for length in (b"65537", b"99999999999"):
            for body in ([b"x" * 65_537], parts, [b"x" * 90_000]):
                self.assert_body_refused(b"Content-Length: " + length, *body)
        for method in (b"POST", b"PUT", b"DELETE", b"OPTIONS", b"get", b"BREW", b"HEAD"):
            status = 400 if method == b"HEAD" else 404
            self.assert_body_refused(b"Content-Length: 65537", *parts, method=method, status=status)

    def test_endless_chunks(self) -> None:
        """A chunked body of more than 64 KiB is refused, whatever the size of its chunks."""
        head, end = b"Transfer-Encoding: chunked", b"0\r\n\r\n" + HEALTH
        for parts in (
            [b"ffffffffff\r\n" + bytes(10_000), *[bytes(10_000)] * 6],
            [*[b"1000\r\n%b\r\n" % bytes(0x1000)] * 17, end],
            [b"20000\r\n%b\r\n" % bytes(0x20000) + end],
            # All chunks arrive at once, and Twisted parses them to the end.
            [b"100\r\n%b\r\n" % bytes(0x100) * 300 + end],
        ):
            self.assert_body_refused(head, *parts)

    def test_expect(self) -> None:
        """Expect gets 100 Continue and, after the body, the response; a body has one minute."""
        head = b"Expect: 100-continue\r\nContent-Length: 3"
        connection = self.send(head)
        self.assertEqual(CONTINUE, connection.received)
        connection.send_raw(b"abc")
        response = read_response(connection.received.removeprefix(CONTINUE))
        assert response is not None
        self.assertEqual((200, DATA), (response.status, response.body))
        self.log.events.clear()
        self.assert_ends(self.send(head), 60)
        self.assertEqual([], self.log.requests)


class ShutdownTests(ConnectionCase):
    """Shutdown of the site: connections are closed, and responses complete."""

    def test_waiting(self) -> None:
        """At shutdown, connections without a whole request close; refused ones in five seconds.

        A new client has a second to send its request, and any client has one to send the rest.
        """
        idle, kept, reading, late, refused = (self.connect() for _ in range(5))
        kept.send_raw(HEALTH)
        for connection in (reading, late):
            connection.send_raw(HEALTH[:-2])
        refused.send_raw(BAD_LINES["SSH"])
        self.harness.site.finish()
        self.assertFalse(idle.closed or reading.closed or late.closed)
        self.assertEqual((True, False), (kept.closed, kept.aborted))
        late.send_raw(HEALTH[-2:])
        self.assertEqual((200, True), (late.response.status, late.closed))
        self.elapse(1)
        for connection in (idle, reading):
            self.assertEqual((True, False), (connection.closed, connection.aborted))
        self.assertEqual(b"", reading.received)
        self.assertEqual(3, len(self.log.requests))
        self.assert_ends(refused, 4, abort=True)

    def test_being_answered(self) -> None:
        """At shutdown, responses in progress complete; later pipelined requests are dropped."""
        waiting, begun = self.get(MISS), self.get(HIT, window=1)
        waiting.send_raw(HEALTH)
        self.harness.site.finish()
        self.elapse(300)
        self.assertFalse(waiting.closed or begun.closed)
        self.finish(MISS)
        while not begun.closed:
            begun.resume()
        for connection, data in ((waiting, b"sound"), (begun, DATA)):
            self.assertEqual((data, True), (connection.response.body, connection.response.complete))
            self.assertEqual(b"", connection.response.rest)
            self.assertEqual((True, False), (connection.closed, connection.aborted))

    def test_new_requests(self) -> None:
        """A request during shutdown gets a response with ``Connection: close``."""
        connection = self.connect()
        self.harness.site.stopping = True
        connection.send_raw(HEALTH * 2)
        self.assertEqual(200, connection.response.status)
        self.assertEqual(
            (b"close", b""), (connection.response["connection"], connection.response.rest)
        )
        self.assertTrue(connection.closed)

    def test_end_that_is_read_late(self) -> None:
        """At shutdown, the service waits for a client that still reads its response (D39).

        A client that does not read does not extend the wait.
        """
        for reads in (True, False):
            connection = self.connect(window=1)
            self.harness.site.stopping = False
            connection.send_raw(HEALTH)
            self.harness.site.finish()
            self.assertFalse(connection.closed)
            emptied = Deferred.fromCoroutine(
                self.harness.site.connections.wait_until_closed(
                    Deadline(self.harness.connection_clock, 30)
                )
            )
            self.elapse(29)
            self.assertNoResult(emptied)
            if reads:
                connection.resume()
                self.assertEqual((True, False), (connection.closed, connection.aborted))
            else:
                self.elapse(1)
            self.successResultOf(emptied)
            connection.resume()
