"""Connections of the HTTP server: time limits, stalled clients and pipelined requests."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.support.http import Connection, Log, ResourceHarness, Response, read_response

HIT = b"/f:mp3/plain/local://stored.mp3"
MISS = b"/f:mp3/plain/local://new.mp3"
DATA = bytes(range(256)) * 2000
HEALTH = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
MAX_PIPELINED_BYTES = 64 * 1024


class ConnectionCase(SynchronousTestCase):
    """Connections with a fake clock; everything must be released at the end of a test.

    :ivar harness: the service; it has one stored variant and renders other variants.
    """

    def setUp(self) -> None:
        self.log = Log(self)
        self.harness = ResourceHarness()
        self.stored = self.harness.store_variant(HIT, DATA)
        self._connections: list[Connection] = []

    def tearDown(self) -> None:
        for connection in self._connections:
            connection.resume()
            connection.leave()
        self.assertEqual([], self.log.errors)
        self.assertEqual(0, self.harness.resource.active.count)
        self.assertEqual(0, len(self.harness.site.connections))
        self.assertEqual([], self.harness.connection_clock.getDelayedCalls())
        self.assertEqual(self.stored.opened, self.stored.closed)

    def connect(self, window: int | None = None) -> Connection:
        """Open a connection that is closed at the end of the test at the latest."""
        connection = self.harness.connect(window)
        self._connections.append(connection)
        return connection

    def get(self, rest: bytes, window: int | None = None, **headers: bytes) -> Connection:
        """Request a variant on a new connection."""
        connection = self.connect(window)
        connection.send(self.harness.path(rest), **headers)
        return connection

    def elapse(self, seconds: int) -> None:
        """Advance the clock of the connections, second by second."""
        self.harness.connection_clock.pump([1.0] * seconds)

    def run_reactor_turn(self) -> None:
        """Run one turn of the reactor."""
        self.harness.connection_clock.advance(0)

    def finish(self, rest: bytes, data: bytes = b"sound") -> None:
        """Write the whole output of a render, and end the render."""
        render = self.harness.render(rest)
        render.write_output(data)
        render.end()

    def assert_ends(self, connection: Connection, limit: int, abort: bool = False) -> None:
        """Assert that a connection is closed shortly after a time limit, and not before."""
        self.elapse(limit)
        self.assertFalse(connection.closed, "closed too early")
        self.elapse(6)
        self.assertTrue(connection.closed, "not closed")
        self.assertEqual(abort, connection.aborted)

    def assert_bad_request(
        self, connection: Connection, what: object, request_id: bytes | None = None
    ) -> None:
        """Assert that the last response is a 400, with its log line.

        The sending side is closed after it.
        """
        (*_, response) = responses_of(connection)
        self.assertEqual((400, "bad_request"), (response.status, response.error), what)
        self.assertEqual((b"close", True), (response["connection"], response.complete), what)
        self.assertEqual(b"no-store", response["cache-control"], what)
        self.assertRegex(response["x-request-id"] or b"", request_id or rb"\A[0-9a-f]{32}\Z", what)
        self.assertIsNotNone(response["date"], what)
        *_, record = self.log.requests
        line = f"unknown 400 bad_request {len(response.body)} bytes in 0ms"
        self.assertEqual(line, str(record), what)
        self.assertEqual(response["x-request-id"], record.request_id.encode(), what)
        self.assertEqual((True, False), (connection.half_closed, connection.closed), what)


def responses_of(connection: Connection) -> list[Response]:
    """Return all responses to GET that a connection has received so far."""
    found: list[Response] = []
    rest = connection.received
    while rest:
        response = read_response(rest)
        assert response is not None, rest
        found.append(response)
        rest = response.rest
    return found


def count(connection: Connection) -> int:
    """Return the number of 200 responses; faster than parsing hundreds of responses."""
    return connection.received.count(b"HTTP/1.1 200 OK\r\n")


class TimeTests(ConnectionCase):
    """Time limits of each phase of a connection; received bytes do not extend them."""

    def test_slow_requests(self) -> None:
        """A request with its body must end a minute after its first byte; no byte adds time."""
        start = b"GET /health HTTP/1.1\r\nHost: h\r\n"
        for head, part in (
            (b"G", b"E"),
            (start + b"X: ", b"x"),
            (start + b"Content-Length: 1000\r\n\r\n", b"x"),
            (start + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        ):
            connection = self.connect()
            self.elapse(58)
            connection.send_raw(head)
            for _ in range(60):
                self.assertFalse(connection.closed)
                connection.send_raw(part)
                self.elapse(1)
            self.assert_ends(connection, 0)
            self.assertEqual(b"", connection.received)
        self.assertEqual([], self.log.requests)

    def test_keep_alive(self) -> None:
        """A connection closes after a minute without a request; a request has its own minute."""
        connection = self.connect()
        for number in range(20):
            self.elapse(55)
            connection.send_raw(HEALTH[:10])
            self.elapse(55)
            connection.send_raw(HEALTH[10:])
            self.assertEqual(number + 1, len(responses_of(connection)))
        self.assert_ends(connection, 60)

    def test_waiting_for_a_render(self) -> None:
        """A response has no time limit while it waits for a render; the next request has one."""
        for ahead in (b"", HEALTH[:10]):
            rest = b"/cb:%d" % len(ahead) + MISS
            connection = self.get(rest)
            connection.send_raw(ahead)
            self.elapse(1500)
            self.harness.render(rest).write_output(b"so")
            self.elapse(1500)
            self.assertFalse(connection.closed)
            self.finish(rest, b"und")
            response = connection.response
            self.assertEqual((b"sound", True), (response.body, response.complete))
            self.assert_ends(connection, 60)

    def test_one_timer(self) -> None:
        """All connections share one timer, which stops when the last connection is closed."""
        clock = self.harness.connection_clock
        self.assertEqual([], clock.getDelayedCalls())
        first, second = self.connect(), self.connect()
        for _ in range(3):
            self.assertEqual(1, len(clock.getDelayedCalls()))
            self.elapse(7)
        first.leave()
        self.assertEqual(1, len(clock.getDelayedCalls()))
        second.leave()
        self.assertEqual([], clock.getDelayedCalls())
        self.assert_ends(self.connect(), 60)
        self.assertEqual([], self.log.requests)


class StallTests(ConnectionCase):
    """Clients that stop reading their response."""

    def test_stalled(self) -> None:
        """A client that reads nothing for ten minutes is disconnected and logged once."""
        connection = self.get(HIT, window=1)
        self.assertEqual((1, 0), (self.stored.opened, self.stored.closed))
        self.assert_ends(connection, 600, abort=True)
        self.assertEqual((1, 1), (self.stored.opened, self.stored.closed))
        (record,) = self.log.requests
        self.assertRegex(str(record), r"\Arender 200 \S+ \S+ cache=HIT \d+ bytes in 0ms\Z")

    def test_stalled_on_a_render(self) -> None:
        """A client leaves a render whose bytes it does not read for ten minutes, not a slow one."""
        connection = self.get(MISS, window=1)
        render = self.harness.render(MISS)
        render.write_output(b"sound")
        connection.resume()
        self.elapse(3000)
        render.write_output(b"and more of it")
        self.elapse(300)
        render.write_output(b"and still more of it")
        self.assert_ends(connection, 300, abort=True)
        self.assertEqual(1, render.left)

    def test_half_closed(self) -> None:
        """A client that sends no more may read late what was written for it."""
        for sent in (HEALTH, HEALTH[:-2] + b"Connection: close\r\n\r\n"):
            connection = self.connect()
            connection.pause(notified=False)
            connection.send_raw(sent)
            connection.half_close()
            self.elapse(2)
            self.assertFalse(connection.closed, sent)
            connection.resume()
            self.elapse(6)
            self.assertTrue(connection.closed, sent)
            self.assertTrue(connection.response.complete, sent)
        connection = self.get(HIT, window=1)
        connection.half_close()
        self.elapse(20)
        self.assertFalse(connection.closed)
        while not connection.closed:
            connection.resume()
            self.run_reactor_turn()
        self.assertEqual((DATA, False), (connection.response.body, connection.aborted))

    def test_slow_reader(self) -> None:
        """A slow client that reads something every ten minutes receives the whole response."""
        connection = self.get(HIT, window=500)
        while not connection.response.complete:
            self.elapse(599)
            self.assertFalse(connection.closed)
            connection.resume()
        self.assertEqual(DATA, connection.response.body)
        self.assert_ends(connection, 60)

    def test_end_that_is_read_late(self) -> None:
        """A client has ten minutes to read the end of a response, whether or not it is the last.

        A request on a connection that is closing gets no response.
        """
        for headers in ({}, {"connection": b"close"}):
            for resumes in (True, False):
                self.log.events.clear()
                connection = self.connect(window=1)
                connection.send(b"/health", **headers)
                self.assertEqual(0, self.harness.resource.active.count)
                if headers:
                    connection.send_raw(HEALTH)
                self.elapse(595)
                self.assertFalse(connection.closed)
                if not resumes:
                    self.assert_ends(connection, 5, abort=True)
                    continue
                connection.resume()
                self.assertEqual(1, len(responses_of(connection)))
                self.assertEqual(1, len(self.log.requests))
                self.assertTrue(connection.response.complete)
                if headers:
                    self.assertEqual((True, False), (connection.closed, connection.aborted))
                else:
                    self.assert_ends(connection, 60)


class PipelineTests(ConnectionCase):
    """Pipelined requests, which arrive before earlier requests have a response."""

    def pipeline(self, size: int) -> Connection:
        """Request a render, then pipeline ``size`` bytes of requests; the last may be cut off."""
        connection = self.get(MISS)
        rest = (HEALTH * (size // len(HEALTH) + 1))[:size]
        for at in range(0, size, 5000):
            connection.send_raw(rest[at : at + 5000])
        return connection

    def test_order(self) -> None:
        """Responses are sent in the order of the requests, however long one takes."""
        connection = self.connect()
        targets = (
            b"/health",
            self.harness.path(MISS),
            b"/nowhere",
            self.harness.path(HIT),
            b"/ready",
        )
        for target in targets:
            connection.send(target)
        self.assertEqual([200], [response.status for response in responses_of(connection)])
        self.finish(MISS)
        self.assertEqual(
            [200, 200, 404, 200, 200], [got.status for got in responses_of(connection)]
        )
        self.assertEqual([b"sound", DATA], [responses_of(connection)[at].body for at in (1, 3)])
        self.assertFalse(connection.closed)

    def test_pipelined_requests(self) -> None:
        """During each response, 64 KiB of requests are kept, and all get a response."""
        connection = self.pipeline(MAX_PIPELINED_BYTES)
        self.assertFalse(connection.closed)
        self.finish(MISS)
        self.run_reactor_turn()
        self.assertEqual(1 + MAX_PIPELINED_BYTES // len(HEALTH), count(connection))
        # The last pipelined request was incomplete; this is the rest of it.
        connection.send_raw(HEALTH[MAX_PIPELINED_BYTES % len(HEALTH) :])
        self.assertEqual(2 + MAX_PIPELINED_BYTES // len(HEALTH), count(connection))
        self.run_reactor_turn()
        connection.send(self.harness.path(b"/cb:2" + MISS))
        connection.send_raw(HEALTH * (MAX_PIPELINED_BYTES // len(HEALTH)))
        self.assertFalse(connection.closed)

    def test_pipelined_limit(self) -> None:
        """A client that pipelines more than 64 KiB is disconnected and leaves its render."""
        connection = self.pipeline(MAX_PIPELINED_BYTES + 1)
        self.assertTrue(connection.aborted)
        self.assertEqual(1, self.harness.render(MISS).left)
        self.assertEqual(1, len(self.log.requests))
        connection = self.connect()
        for _ in range(5):
            connection.send_raw(HEALTH * 1000)
        self.assertTrue(connection.aborted)

    def test_leaving(self) -> None:
        """A client that disconnects leaves its render at once, whatever it pipelined."""
        for count, size in enumerate((0, 20_000, MAX_PIPELINED_BYTES), start=1):
            connection = self.pipeline(size)
            self.assertEqual(count - 1, self.harness.render(MISS).left)
            connection.leave()
            self.assertEqual(count, self.harness.render(MISS).left)

    def test_hundreds_at_once(self) -> None:
        """Hundreds of pipelined requests, with or without bodies, are split over reactor turns.

        Between the turns, the reactor can serve other clients. Requests of a client that has
        disconnected are dropped.
        """
        body = b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
        for request, leaves in ((HEALTH, False), (body, False), (HEALTH, True)):
            connection = self.connect()
            connection.send_raw(request * 500)
            self.assertIn(count(connection), range(1, 50))
            if leaves:
                connection.leave()
            logged = len(self.log.requests)
            self.run_reactor_turn()
            if leaves:
                self.assertEqual(logged, len(self.log.requests))
            else:
                self.assertEqual(500, count(connection))
                self.assert_ends(connection, 60)

    def test_unread_responses(self) -> None:
        """Pipelined requests wait until the client reads, for ten minutes at most."""
        for reads in (True, False):
            connection = self.connect(window=2000)
            connection.send_raw(HEALTH * 500)
            self.run_reactor_turn()
            few = count(connection)
            self.assertLess(few, 15)
            self.elapse(590)
            self.assertEqual(few, count(connection))
            if not reads:
                self.assert_ends(connection, 10, abort=True)
                continue
            for _ in range(500):
                connection.resume()
                self.run_reactor_turn()
            self.assertEqual(500, count(connection))
            self.assert_ends(connection, 60)

    def test_last_request(self) -> None:
        """Requests after one that closes the connection are dropped."""
        for version, close in ((b"1.1", b"Connection: close\r\n"), (b"1.0", b"")):
            connection = self.connect()
            last = b"GET /health HTTP/" + version + b"\r\nHost: h\r\n" + close + b"\r\n"
            connection.send_raw(HEALTH * 3 + last + HEALTH)
            self.run_reactor_turn()
            self.assertEqual(4, len(responses_of(connection)))
            self.assertEqual((True, False), (connection.closed, connection.aborted))
