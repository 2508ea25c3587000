"""Which connections can be evicted, by what the system knows about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.server.connections import NEW_CONNECTION_GRACE, Connections, Phase


@dataclass(eq=False)
class FakeConnection:
    """Connection whose state a test sets; it stays open until the test closes it.

    :ivar ended: how the connection was closed.
    """

    connections: Connections
    phase: Phase = Phase.IDLE
    phase_since: float = 0.0
    is_new: bool = False
    stalled_since: float | None = None
    all_sent: bool = True
    has_unread: bool = False
    seconds_stalled: float | None = None
    ended: list[str] = field(default_factory=list)

    def loseConnection(self) -> None:
        self.enter(Phase.CLOSING, "closed")

    def abortConnection(self) -> None:
        self.enter(Phase.ABORTED, "aborted")

    def enter(self, phase: Phase, ended: str) -> None:
        self.phase = phase
        self.ended.append(ended)
        self.connections.changed(self)


class EvictionTests(SynchronousTestCase):
    """Eviction by what the system knows about connections, and room for new ones."""

    def setUp(self) -> None:
        self.clock = Clock()

    def fill(self, *states: dict[str, object], idle: int = 0) -> list[FakeConnection]:
        """Open connections as many as the limit; their phases began two seconds ago."""
        self.connections = Connections(self.clock, len(states) + idle)
        now = self.clock.seconds()
        opened = []
        for state in [*states, *[{}] * idle]:
            connection = FakeConnection(self.connections, phase_since=now, **state)  # type: ignore[arg-type]
            self.connections.opened(connection)
            self.connections.changed(connection)
            opened.append(connection)
        self.clock.advance(2)
        return opened

    def evict(self) -> None:
        """Make room for a new connection, and open it."""
        self.connections.make_room()
        connection = FakeConnection(self.connections, phase_since=self.clock.seconds())
        self.connections.opened(connection)
        self.connections.changed(connection)

    def assert_not_evictable(self, **state: object) -> None:
        """Assert that new clients wait if all connections have a state."""
        opened = self.fill(state, state)
        self.assertEqual(0, self.connections.count_room(), state)
        self.connections.make_room()
        self.assertEqual([[], []], [each.ended for each in opened], state)

    def test_received(self) -> None:
        """A request that has arrived is never lost, although it was not read yet."""
        for phase in (Phase.IDLE, Phase.READING):
            self.assert_not_evictable(phase=phase, has_unread=True)
            first, second = self.fill({"phase": phase, "has_unread": True}, {"phase": phase})
            self.assertEqual(1, self.connections.count_room())
            self.evict()
            self.assertEqual(([], ["closed"]), (first.ended, second.ended))

    def test_refused(self) -> None:
        """Bytes after a refusal are ignored, so they do not keep a connection."""
        first, second = self.fill(
            {"phase": Phase.REFUSED, "has_unread": True}, {"has_unread": True}
        )
        self.evict()
        self.assertEqual((["aborted"], []), (first.ended, second.ended))

    def test_receiving(self) -> None:
        """A client that receives bytes from the system's buffer is not evicted, even if closing."""
        for seconds in (0.0, 0.9):
            self.assert_not_evictable(
                phase=Phase.RESPONDING, stalled_since=0.0, seconds_stalled=seconds
            )
            for phase in (Phase.CLOSING, Phase.IDLE):
                self.assert_not_evictable(phase=phase, all_sent=False, seconds_stalled=seconds)

    def test_less_than_a_second(self) -> None:
        """A client that receives something each second is not evicted."""
        just_now = self.clock.seconds() + 1.1
        self.assert_not_evictable(phase=Phase.RESPONDING, stalled_since=just_now)

    def test_not_receiving(self) -> None:
        """A client that receives nothing is evicted; where the system does not know, it may be."""
        for seconds in (1.0, None):
            for state in (
                {"phase": Phase.RESPONDING, "stalled_since": 0.0},
                {"phase": Phase.CLOSING, "all_sent": False},
                {"phase": Phase.IDLE, "all_sent": False},
            ):
                receiving = {**state, "seconds_stalled": 0.1}
                first, second = self.fill(receiving, {**state, "seconds_stalled": seconds})
                self.assertEqual(1, self.connections.count_room())
                self.evict()
                self.assertEqual(([], ["aborted"]), (first.ended, second.ended))

    def test_stalled_longest(self) -> None:
        """Of several stalled clients, the one that has stalled longest is evicted first."""
        self.clock.advance(10)
        stalled = {"phase": Phase.RESPONDING, "seconds_stalled": 5.0}
        opened = self.fill(
            {**stalled, "stalled_since": 9.0},
            {"all_sent": False, "seconds_stalled": 5.0},
            {**stalled, "stalled_since": 8.0},
            # An idle one, which a full transport has paused
            {"all_sent": False, "seconds_stalled": 5.0, "stalled_since": 7.0},
        )
        for evicted in (3, 2, 0, 1):
            self.evict()
            self.assertEqual(["aborted"], opened[evicted].ended)

    def test_close_idle(self) -> None:
        """A stop closes idle connections, but not one whose request may have arrived (D39).

        A new connection, or one with a part of a request, is closed a second later.
        """
        states = ({}, {"has_unread": True}, {"phase": Phase.RESPONDING}, {"is_new": True})
        opened = self.fill(*states, {"phase": Phase.READING})
        self.connections.close_idle()
        expected = [["closed"], [], [], [], []]
        self.assertEqual(expected, [each.ended for each in opened])
        self.clock.advance(NEW_CONNECTION_GRACE)
        expected[3:] = [["closed"], ["closed"]]
        self.assertEqual(expected, [each.ended for each in opened])
        for each in opened:
            self.connections.closed(each)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_closed_soon(self) -> None:
        """A connection that is closed in the next turn of the reactor is not evicted."""
        self.assert_not_evictable(phase=Phase.CLOSING, stalled_since=0.0)

    def test_many_receiving(self) -> None:
        """A stalled client is found behind hundreds of slow ones, after some attempts."""
        slow = {"phase": Phase.RESPONDING, "stalled_since": 0.0, "seconds_stalled": 0.1}
        *_, stalled = self.fill(*[slow] * 600, {**slow, "seconds_stalled": 2.0})
        self.assertEqual([0, 0, 1], [self.connections.count_room() for _ in range(3)])
        self.connections.make_room()
        self.assertEqual(["aborted"], stalled.ended)

    def test_several(self) -> None:
        """At most 16 connections are evicted in a row, and each once."""
        opened = self.fill(idle=20)
        for evicted, room in ((16, 4), (20, 0)):
            for _ in range(min(16, self.connections.count_room())):
                self.evict()
            self.assertEqual(evicted, sum(each.ended == ["closed"] for each in opened))
            self.assertEqual(room, self.connections.count_room())
            self.assertEqual(20, len(self.connections))
        for connection in opened:
            self.connections.closed(connection)
        self.assertEqual((20, 0), (len(self.connections), self.connections.count_room()))

    def test_notified_by_time(self) -> None:
        """A waiting listener is called once within a tenth of a second."""
        self.fill(idle=1)
        calls: list[None] = []
        self.connections.notify_of_room(lambda: calls.append(None))
        self.assertEqual([], calls)
        self.clock.advance(0.1)
        self.clock.advance(0.1)
        self.assertEqual([None], calls)

    def test_notified_by_a_close(self) -> None:
        """A waiting listener is called once when a connection closes that was not evicted."""
        evicted, first, second = self.fill(idle=3)
        self.evict()
        calls: list[None] = []
        self.connections.notify_of_room(lambda: calls.append(None))
        for connection, count in ((evicted, 0), (first, 1), (second, 1)):
            self.connections.closed(connection)
            self.assertEqual(count, len(calls))
        self.clock.advance(0.1)
        self.assertEqual(1, len(calls))

    def test_forgotten(self) -> None:
        """A listener that is closed is not called, and leaves no timer."""
        (connection,) = self.fill(idle=1)
        for _ in range(2):
            self.connections.notify_of_room(self.fail)
        self.connections.forget_notification()
        self.connections.forget_notification()
        self.connections.closed(connection)
        self.assertEqual([], self.clock.getDelayedCalls())
