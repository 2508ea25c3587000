"""The registry of open connections: eviction and time limits."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.server.connections import PHASE_TIMEOUTS, STALL_TIMEOUT, Connections, Phase
from tests.support.http import Log


class FakeConnection:
    """Connection whose state a test sets."""

    def __init__(self, table: Connections, clock: Clock, phase: Phase = Phase.IDLE) -> None:
        self.phase = phase
        self.phase_since = clock.seconds()
        self.stalled_since: float | None = None
        self.all_sent = True
        self.end = ""
        self._table, self._clock = table, clock
        table.opened(self)
        table.changed(self)

    def enter(self, phase: Phase) -> None:
        """Enter a phase."""
        self.phase, self.phase_since = phase, self._clock.seconds()
        self._table.changed(self)

    def stall(self) -> None:
        """Start to stall: the client reads nothing from now on."""
        self.stalled_since, self.all_sent = self._clock.seconds(), False
        self._table.changed(self)

    def loseConnection(self) -> None:
        self._end("in order")

    def abortConnection(self) -> None:
        self._end("aborted")

    def _end(self, how: str) -> None:
        self.end = how
        self.enter(Phase.ABORTED)
        self._table.closed(self)


class ConnectionsTests(SynchronousTestCase):
    """`Connections`"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.registry = Connections(self.clock, 2)

    def connect(self, phase: Phase = Phase.IDLE) -> FakeConnection:
        """Open a connection, one second after the previous one."""
        self.clock.advance(1)
        return FakeConnection(self.registry, self.clock, phase)

    def test_room(self) -> None:
        """Below the limit, or without a limit, no connection is evicted."""
        connections = [self.connect()]
        self.assertTrue(self.registry.make_room())
        self.assertEqual(("", 1), (connections[0].end, len(self.registry)))
        self.assertTrue(Connections(self.clock).make_room())

    def test_longest_idle(self) -> None:
        """The connection that has waited longest for a request is closed cleanly."""
        first, second = self.connect(), self.connect()
        self.assertTrue(self.registry.make_room())
        self.assertEqual(("in order", ""), (first.end, second.end))

    def test_answered_at_once(self) -> None:
        """A connection that has just sent a response is evicted after those that wait longer."""
        first, second = self.connect(), self.connect()
        self.registry.served_by_fast_path(first)
        self.assertTrue(self.registry.make_room())
        self.assertEqual(("", "in order"), (first.end, second.end))

    def test_busy(self) -> None:
        """Connections with a response in progress stay; a repeated lack of room is logged once."""
        log = Log()
        self.addCleanup(log.start())
        busy = [self.connect(Phase.RESPONDING) for _ in range(2)]
        self.assertFalse(self.registry.make_room())
        self.assertFalse(self.registry.make_room())
        self.assertEqual(["", ""], [connection.end for connection in busy])
        self.assertEqual(1, len(log.events))

    def test_unsent(self) -> None:
        """A connection with unsent bytes is evicted last, and only after half a minute."""
        waiting, free = self.connect(), self.connect()
        waiting.all_sent = False
        self.assertTrue(self.registry.make_room())
        self.assertEqual(("", "in order"), (waiting.end, free.end))
        self.connect(Phase.RESPONDING)
        self.assertFalse(self.registry.make_room())
        self.clock.advance(30)
        self.assertTrue(self.registry.make_room())
        self.assertEqual("aborted", waiting.end)

    def test_stalled(self) -> None:
        """A client that reads nothing of its response for half a minute can be evicted."""
        stalled, _ = self.connect(Phase.RESPONDING), self.connect(Phase.RESPONDING)
        stalled.stall()
        self.clock.advance(30)
        self.assertFalse(self.registry.make_room())
        self.clock.advance(1)
        self.assertTrue(self.registry.make_room())
        self.assertEqual("aborted", stalled.end)

    def test_limits(self) -> None:
        """Every phase except RESPONDING has a time limit, after which the connection is closed."""
        for phase, seconds in PHASE_TIMEOUTS.items():
            connection = self.connect(phase)
            self.clock.advance(seconds)
            self.assertEqual("", connection.end, phase)
            self.clock.advance(5.1)
            waits = phase in (Phase.IDLE, Phase.READING)
            self.assertEqual("in order" if waits else "aborted", connection.end, phase)
        answering = self.connect(Phase.RESPONDING)
        self.clock.pump([5] * 1000)
        self.assertEqual("", answering.end)
        answering.stall()
        self.clock.pump([5] * int(STALL_TIMEOUT / 5))
        self.assertEqual("", answering.end)
        self.clock.advance(5)
        self.assertEqual("aborted", answering.end)

    def test_close_idle(self) -> None:
        """At shutdown idle connections are closed, and the last response ends the wait."""
        idle, busy = self.connect(), self.connect(Phase.RESPONDING)
        self.registry.close_idle()
        self.assertEqual(("in order", ""), (idle.end, busy.end))
        waiting = Deferred.fromCoroutine(self.registry.wait_until_closed(30))
        self.assertNoResult(waiting)
        busy.loseConnection()
        self.successResultOf(waiting)
        self.assertEqual([], self.clock.getDelayedCalls())
