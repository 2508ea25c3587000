"""The limit of connections, and eviction for new connections."""

from __future__ import annotations

import resource

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.server.channel import ProxySite
from audioproxy.server.listener import max_clients
from tests.server.test_channel import HEALTH, HIT, MISS, ConnectionCase, responses_of


class ConnectionLimitTests(ConnectionCase):
    """Eviction of connections of a site."""

    def limit(self, most: int) -> None:
        """Replace the site with one that has a limit of connections."""
        self.evictions = 0
        self.harness.site = ProxySite(
            self.harness.resource, self.harness.connection_clock, most, on_eviction=self.evicted
        )

    def evicted(self) -> None:
        """Count an eviction."""
        self.evictions += 1

    def assert_room(self, count: int) -> None:
        """Assert how many connections may be opened now."""
        self.assertEqual(count, self.harness.site.connections.count_room())

    def logged(self, word: str) -> list[str]:
        """Return the log lines with a word."""
        lines = [event["log_format"].format(**event) for event in self.log.events]
        return [line for line in lines if word in line]

    def test_no_limit(self) -> None:
        """Without a limit, any number of connections is accepted, 100 in a row."""
        connections = [self.connect() for _ in range(500)]
        self.assertEqual(500, len(self.harness.site.connections))
        self.assert_room(100)
        self.assertFalse(any(connection.closed for connection in connections))

    def test_below_the_limit(self) -> None:
        """Below the limit, there is room for the rest, and nothing is evicted."""
        self.limit(150)
        for opened, room in ((0, 100), (50, 100), (99, 1)):
            for _ in range(opened):
                self.connect()
            self.assert_room(room)
            self.elapse(2)
        self.connect()
        self.assertEqual(0, self.evictions)

    def test_longest_wait(self) -> None:
        """The connection that has waited longest for the end of a request is closed cleanly.

        A response on the fast path begins another wait. So does the first byte of a request, and
        later bytes do not.
        """
        hit = b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % self.harness.path(HIT)
        self.get(HIT)
        for sent, later in ((b"", False), (HEALTH, True), (hit, True), (b"G", True), (b"E", False)):
            self.limit(3)
            self.harness.site.fast_path = self.harness.fast_path
            first = self.connect()
            if sent == b"E":
                first.send_raw(b"G")
            self.elapse(1)
            second, third = self.connect(), self.connect()
            self.elapse(1)
            first.send_raw(sent)
            self.elapse(1)
            fourth = self.connect()
            evicted, kept = (second, first) if later else (first, second)
            self.assertEqual((True, False), (evicted.closed, evicted.aborted), sent)
            self.assertFalse(kept.closed or third.closed or fourth.closed, sent)
            self.assertEqual((1, 3), (self.evictions, len(self.harness.site.connections)))

    def test_less_than_a_second(self) -> None:
        """Until a connection has been idle for a second, new clients wait."""
        self.limit(2)
        first, second = self.connect(), self.connect()
        second.send_raw(HEALTH)
        self.assert_room(0)
        self.harness.connection_clock.advance(0.9)
        self.assert_room(0)
        second.send_raw(HEALTH)
        self.harness.connection_clock.advance(0.2)
        self.assert_room(1)
        self.connect()
        self.assertEqual((True, False), (first.closed, second.closed))
        self.assert_room(0)

    def test_pipelined(self) -> None:
        """A pipelined request that waits for its turn is not lost, however long the turns take."""
        self.limit(1)
        connection = self.connect()
        connection.send_raw(HEALTH * 5)
        self.harness.connection_clock.rightNow += 2
        self.assert_room(0)
        self.run_reactor_turn()
        self.assertEqual(5, len(responses_of(connection)))
        self.elapse(1)
        self.assert_room(1)

    def test_being_answered(self) -> None:
        """Connections with a response in progress stay; if all have one, new clients wait."""
        self.limit(2)
        first, second = self.get(MISS), self.get(HIT)
        second.send(self.harness.path(b"/cb:1" + MISS))
        self.elapse(500)
        self.assert_room(0)
        self.finish(MISS)
        self.assert_room(0)
        self.elapse(1)
        third = self.connect()
        self.assertEqual((True, False, False), (first.closed, second.closed, third.closed))
        self.assertEqual(b"sound", first.response.body)

    def test_waiting_clients_are_logged_once_a_minute(self) -> None:
        """The lack of room for connections is logged at most once a minute."""
        self.limit(1)
        self.get(MISS)
        for seconds, lines in ((0, 1), (0, 1), (59, 1), (2, 2)):
            self.elapse(seconds)
            self.assert_room(0)
            self.assertEqual(lines, len(self.logged("wait")))
        self.assertEqual("new clients wait: all 1 connections are in use", self.logged("wait")[0])

    def test_evictions_are_logged_once_a_minute(self) -> None:
        """Evictions are counted, and their number is logged after seconds, then once a minute."""
        self.limit(2)
        for _ in range(5):
            self.connect()
            self.elapse(1)
        line = "closed {} idle or stalled connections for new ones, at the limit of 2"
        self.assertEqual((3, [line.format(3)]), (self.evictions, self.logged("limit")))
        self.connect()
        self.connect()
        self.elapse(50)
        self.assertEqual(1, len(self.logged("limit")))
        self.elapse(20)
        self.assertEqual((5, [line.format(2)]), (self.evictions, self.logged("limit")[1:]))

    def test_last_evictions(self) -> None:
        """Evictions are logged when the last connection is closed, unless that is too soon."""
        self.limit(2)
        for seen in (0, 1):
            first, second = self.connect(), self.connect()
            self.elapse(1)
            third = self.connect()
            self.assertEqual((True, seen), (first.closed, len(self.logged("limit"))))
            second.leave()
            third.leave()
            self.assertEqual(1, len(self.logged("limit")))

    def test_lingering(self) -> None:
        """A client with unread bytes of a response is evicted after one whose bytes are sent."""
        self.limit(3)
        connections = [self.connect() for _ in range(3)]
        for connection in connections[:2]:
            connection.pause(notified=False)
            connection.send_raw(HEALTH)
        self.elapse(1)
        for aborted in ([False, False], [True, False]):
            self.connect()
            self.assertTrue(connections[2].closed)
            self.assertEqual(aborted, [each.aborted for each in connections[:2]])


class MaxClientsTests(SynchronousTestCase):
    """Maximum number of clients, which leaves file descriptors for child processes."""

    def test_limits(self) -> None:
        """Each client may use two descriptors; 256, and 8 for each child process, stay free.

        Under a limit that is too low for the service itself, 16 clients are allowed; without a
        limit, thousands.
        """
        for limit, children, most in (
            *((1024, 8, 352), (4096, 20, 1840), (16_384, 4, 8048), (65_536, 100, 32_240)),
            *((501, 8, 90), (354, 8, 17), (352, 8, 16), (0, 1, 16), (64, 1, 16), (256, 100, 16)),
            (resource.RLIM_INFINITY, 8, 8032),
        ):
            self.assertEqual(most, max_clients(children, limit), (limit, children))
