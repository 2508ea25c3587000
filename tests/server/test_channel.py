"""How long a connection may take over what it does, and how much of it is kept meanwhile."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.support.http import Connection, Log, ResourceHarness, Response, read_response

HIT = b"/f:mp3/plain/local://stored.mp3"
MISS = b"/f:mp3/plain/local://new.mp3"
DATA = bytes(range(256)) * 2000
HEALTH = b"GET /health HTTP/1.1\r\n\r\n"
AHEAD = 64 * 1024


class LineCase(SynchronousTestCase):
    """Tests of connections, whose clock is the test's; when all have left, nothing is left.

    :ivar harness: has one stored variant; whatever else it is asked for is rendered.
    """

    def setUp(self) -> None:
        self.log = Log()
        self.addCleanup(self.log.keep())
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
        self.assertEqual([], self.harness.line_clock.getDelayedCalls())
        self.assertEqual(self.stored.opened, self.stored.closed)

    def connect(self, window: int | None = None) -> Connection:
        """Open a connection, which leaves at the end of the test at the latest."""
        connection = self.harness.connect(window)
        self._connections.append(connection)
        return connection

    def get(self, rest: bytes, window: int | None = None, **headers: bytes) -> Connection:
        """Ask for a variant."""
        connection = self.connect(window)
        connection.send(self.harness.path(rest), **headers)
        return connection

    def elapse(self, seconds: int) -> None:
        """Let time pass for the connections."""
        self.harness.line_clock.pump([1.0] * seconds)

    def turn(self) -> None:
        """Let the reactor come round."""
        self.harness.line_clock.advance(0)

    def finish(self, rest: bytes, data: bytes = b"sound") -> None:
        """Let a render put out all that it has."""
        render = self.harness.render(rest)
        render.put_out(data)
        render.end()

    def assert_ends(self, connection: Connection, limit: int, abort: bool = False) -> None:
        """Assert that a connection is closed once a limit is reached, and not before."""
        self.elapse(limit)
        self.assertFalse(connection.closed, "closed too early")
        self.elapse(6)
        self.assertTrue(connection.closed, "not closed")
        self.assertEqual(abort, connection.aborted)


def answers(connection: Connection) -> list[Response]:
    """Return all answers to GET on a connection that are there so far."""
    found: list[Response] = []
    rest = connection.received
    while rest:
        response = read_response(rest)
        assert response is not None, rest
        found.append(response)
        rest = response.rest
    return found


def count(connection: Connection) -> int:
    """Return how many good answers there are, which is quicker than to read hundreds."""
    return connection.received.count(b"HTTP/1.1 200 OK\r\n")


class TimeTests(LineCase):
    """Each phase of a connection has its time; what the client does within it does not count."""

    def test_idle(self) -> None:
        """A connection on which nothing is asked is closed after a minute."""
        self.assert_ends(self.connect(), 60)
        self.assertEqual([], self.log.requests)

    def test_slow_headers(self) -> None:
        """A request has a minute from its first byte, and no byte of it gains a second."""
        connection = self.connect()
        self.elapse(58)
        for letter in b"GET /health HTTP/1.1\r\nX-Filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"[:60]:
            connection.send_raw(bytes([letter]))
            self.assertFalse(connection.closed)
            self.elapse(1)
        self.assert_ends(connection, 0)
        self.assertEqual(b"", connection.received)
        self.assertEqual([], self.log.requests)

    def test_slow_body(self) -> None:
        """A body is a part of the request: it gets no time of its own, in either framing."""
        for framing, part in (
            (b"Content-Length: 1000", b"x"),
            (b"Transfer-Encoding: chunked", b"1\r\nx\r\n"),
        ):
            connection = self.connect()
            connection.send_raw(b"GET /health HTTP/1.1\r\n" + framing + b"\r\n\r\n")
            for _ in range(60):
                self.assertFalse(connection.closed)
                connection.send_raw(part)
                self.elapse(1)
            self.assert_ends(connection, 0)
            self.assertEqual(b"", connection.received)

    def test_request_within_its_time(self) -> None:
        """A client that takes a minute to connect and another to ask is answered."""
        connection = self.connect()
        self.elapse(59)
        connection.send_raw(HEALTH[:10])
        self.elapse(59)
        connection.send_raw(HEALTH[10:])
        self.assertEqual(200, connection.response.status)
        self.assert_ends(connection, 60)

    def test_keep_alive(self) -> None:
        """With each answer the minute starts anew."""
        connection = self.connect()
        for number in range(20):
            self.elapse(55)
            connection.send_raw(HEALTH)
            self.assertEqual(number + 1, len(answers(connection)))
        self.assert_ends(connection, 60)

    def test_waiting_for_a_render(self) -> None:
        """An answer takes as long as it takes: to begin, to go on, and to end."""
        connection = self.get(MISS)
        self.elapse(3000)
        self.harness.render(MISS).put_out(b"so")
        self.elapse(3000)
        self.assertFalse(connection.closed)
        self.finish(MISS, b"und")
        self.assertEqual((b"sound", True), (connection.response.body, connection.response.complete))
        self.assert_ends(connection, 60)

    def test_half_a_request_ahead(self) -> None:
        """Whoever begins another request during an answer has a minute for it from its end."""
        connection = self.get(MISS)
        connection.send_raw(HEALTH[:10])
        self.elapse(300)
        self.finish(MISS)
        self.assert_ends(connection, 60)

    def test_one_timer(self) -> None:
        """All connections share one timer, and the last one takes it along."""
        clock = self.harness.line_clock
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
        self.assertEqual([], clock.getDelayedCalls())


class StallTests(LineCase):
    """Readers that pause, and how long they may."""

    def test_stalled(self) -> None:
        """Who takes nothing for ten minutes is cut off, with one line in the log."""
        connection = self.get(HIT, window=1)
        self.assertEqual((1, 0), (self.stored.opened, self.stored.closed))
        self.assert_ends(connection, 600, abort=True)
        self.assertEqual((1, 1), (self.stored.opened, self.stored.closed))
        (record,) = self.log.requests
        self.assertRegex(str(record), r"\Arender 200 \S+ \S+ cache=HIT \d+ bytes in 0ms\Z")

    def test_stalled_on_a_render(self) -> None:
        """The same goes for a render that runs, from which the reader's place is taken."""
        connection = self.get(MISS, window=1)
        self.harness.render(MISS).put_out(b"sound")
        self.elapse(300)
        self.harness.render(MISS).put_out(b"and more of it")
        self.assert_ends(connection, 300, abort=True)
        self.assertEqual(1, self.harness.render(MISS).left)

    def test_waiting_is_not_stalling(self) -> None:
        """It is the render that lets this reader wait, however long ago its last byte came."""
        connection = self.get(MISS, window=1)
        self.harness.render(MISS).put_out(b"sound")
        connection.resume()
        self.elapse(3000)
        self.assertFalse(connection.closed)
        self.harness.render(MISS).put_out(b"and more of it")
        self.assert_ends(connection, 600, abort=True)

    def test_slow_reader(self) -> None:
        """Who takes something within ten minutes may go on, to the end."""
        connection = self.get(HIT, window=1)
        while not connection.response.complete:
            self.elapse(599)
            self.assertFalse(connection.closed)
            connection.resume()
        self.assertEqual(DATA, connection.response.body)
        self.elapse(599)
        connection.resume()
        self.assert_ends(connection, 60)

    def test_end_that_is_still_read(self) -> None:
        """An answer that is complete here and not there is no idle connection."""
        connection = self.connect(window=1)
        connection.send(b"/health")
        self.assertEqual(1, len(self.log.requests))
        self.elapse(120)
        self.assertFalse(connection.closed)
        connection.resume()
        self.assertTrue(connection.response.complete)
        self.assert_ends(connection, 60)

    def test_end_that_is_never_read(self) -> None:
        """It is given as long as any other part of an answer."""
        connection = self.connect(window=1)
        connection.send(b"/health")
        self.assert_ends(connection, 600, abort=True)

    def test_closing(self) -> None:
        """A connection that closes after its answer waits ten minutes for the reader."""
        for resumes in (True, False):
            connection = self.connect(window=1)
            connection.send(b"/health", connection=b"close")
            self.assertEqual(0, self.harness.resource.active.count)
            self.elapse(595)
            self.assertFalse(connection.closed)
            if resumes:
                connection.resume()
                self.assertEqual((True, False), (connection.closed, connection.aborted))
            else:
                self.assert_ends(connection, 5, abort=True)

    def test_closing_hears_nothing(self) -> None:
        """What is asked on a connection that closes is not answered."""
        connection = self.connect(window=1)
        connection.send(b"/health", connection=b"close")
        connection.send_raw(HEALTH)
        connection.resume()
        self.assertEqual(1, len(answers(connection)))
        self.assertEqual(1, len(self.log.requests))


class PipelineTests(LineCase):
    """Requests that come before the answers to those in front of them."""

    def ask_ahead(self, size: int) -> Connection:
        """Ask for a render, and send so many bytes of requests and part of one behind it."""
        connection = self.get(MISS)
        rest = (HEALTH * (size // len(HEALTH) + 1))[:size]
        for at in range(0, size, 5000):
            connection.send_raw(rest[at : at + 5000])
        return connection

    def test_order(self) -> None:
        """Answers come in the order of their requests, however long one takes."""
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
        self.assertEqual([200], [answer.status for answer in answers(connection)])
        self.finish(MISS)
        self.assertEqual([200, 200, 404, 200, 200], [got.status for got in answers(connection)])
        self.assertEqual([b"sound", DATA], [answers(connection)[at].body for at in (1, 3)])
        self.assertFalse(connection.closed)

    def test_ahead(self) -> None:
        """64 KiB of requests are kept while an answer takes its time, and all are answered."""
        connection = self.ask_ahead(AHEAD)
        self.assertFalse(connection.closed)
        self.finish(MISS)
        self.turn()
        self.assertEqual(1 + AHEAD // len(HEALTH), count(connection))
        # One was cut through by the limit.
        connection.send_raw(HEALTH[AHEAD % len(HEALTH) :])
        self.assertEqual(2 + AHEAD // len(HEALTH), count(connection))

    def test_ahead_again(self) -> None:
        """Each answer has room for as much."""
        connection = self.ask_ahead(AHEAD // len(HEALTH) * len(HEALTH))
        self.finish(MISS)
        self.turn()
        connection.send(self.harness.path(b"/cb:2" + MISS))
        connection.send_raw(HEALTH * (AHEAD // len(HEALTH)))
        self.assertFalse(connection.closed)

    def test_too_far_ahead(self) -> None:
        """Who sends more is cut off, and gives up the place at the render."""
        connection = self.ask_ahead(AHEAD + 1)
        self.assertTrue(connection.aborted)
        self.assertEqual(1, self.harness.render(MISS).left)
        self.assertEqual(1, len(self.log.requests))

    def test_leaving(self) -> None:
        """A client that leaves is noticed at once, whatever it sent ahead."""
        for count, size in enumerate((0, 20_000, AHEAD), start=1):
            connection = self.ask_ahead(size)
            self.assertEqual(count - 1, self.harness.render(MISS).left)
            connection.leave()
            self.assertEqual(count, self.harness.render(MISS).left)

    def test_hundreds_at_once(self) -> None:
        """Who asks for a thousand things at once lets others have their turn in between."""
        connection = self.connect()
        connection.send_raw(HEALTH * 1000)
        self.assertIn(count(connection), range(1, 50))
        self.turn()
        self.assertEqual(1000, count(connection))
        self.assert_ends(connection, 60)

    def test_hundreds_again_and_again(self) -> None:
        """Who asks faster than that is cut off too, once there is 64 KiB of it."""
        connection = self.connect()
        for _ in range(5):
            connection.send_raw(HEALTH * 1000)
        self.assertTrue(connection.aborted)

    def test_leaving_in_between(self) -> None:
        """Requests of a client that has left are not answered any more."""
        connection = self.connect()
        connection.send_raw(HEALTH * 1000)
        connection.leave()
        count = len(self.log.requests)
        self.turn()
        self.assertEqual(count, len(self.log.requests))

    def test_answers_nobody_takes(self) -> None:
        """No answer is made for a client that has yet to take the ones before."""
        connection = self.connect(window=2000)
        connection.send_raw(HEALTH * 1000)
        self.turn()
        few = count(connection)
        self.assertLess(few, 15)
        self.elapse(590)
        self.assertEqual(few, count(connection))
        for _ in range(1000):
            connection.resume()
            self.turn()
        self.assertEqual(1000, count(connection))
        self.assert_ends(connection, 60)

    def test_answers_nobody_ever_takes(self) -> None:
        """After ten minutes such a client is cut off."""
        connection = self.connect(window=2000)
        connection.send_raw(HEALTH * 1000)
        self.assert_ends(connection, 600, abort=True)

    def test_requests_with_bodies(self) -> None:
        """A body between two requests does not change any of this."""
        connection = self.connect()
        request = b"GET /health HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
        connection.send_raw(request * 500)
        self.assertIn(count(connection), range(1, 50))
        self.turn()
        self.assertEqual(500, count(connection))
        self.assertEqual({200}, {answer.status for answer in answers(connection)})

    def test_last_request(self) -> None:
        """What stands behind a request to close is dropped."""
        for version, close in ((b"1.1", b"Connection: close\r\n"), (b"1.0", b"")):
            connection = self.connect()
            last = b"GET /health HTTP/" + version + b"\r\n" + close + b"\r\n"
            connection.send_raw(HEALTH * 3 + last + HEALTH)
            self.turn()
            self.assertEqual(4, len(answers(connection)))
            self.assertEqual((True, False), (connection.closed, connection.aborted))
