"""The open connections: their phases, their time limits, and which one is evicted."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import islice
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from audioproxy.in_flight_counter import InFlightCounter

# Seconds between two checks for connections past their time limit.
_CHECK_INTERVAL = 5.0
# Closable connections that are examined to find one to evict. Nearly always, the first one can be
# evicted.
_CANDIDATES = 64
# Seconds for which a client may stall before its connection can be evicted for a new one.
_STALL_UNDER_PRESSURE = 30.0
# Seconds between two log lines about new connections that were refused.
_LOG_INTERVAL = 60.0

_log = Logger()


class Phase(Enum):
    """The phase of a connection."""

    IDLE = "waits for a request"
    READING = "has a part of a request"
    RESPONDING = "has a whole request, and its response is under way"
    REFUSED = "was refused, and its input is ignored"
    CLOSING = "is closed once all is sent"
    ABORTED = "is closed at once"


#: The phases in which a connection can be evicted for a new one, once everything is sent.
CLOSABLE = (Phase.IDLE, Phase.READING, Phase.REFUSED, Phase.CLOSING)

#: The time limit of each phase in seconds. A response has no time limit.
PHASE_TIMEOUTS: Mapping[Phase, float] = {
    Phase.IDLE: 60.0,
    Phase.READING: 60.0,
    Phase.REFUSED: 5.0,
    Phase.CLOSING: 600.0,
}

#: Seconds for which a client may receive nothing although bytes are ready for it. This happens
#: while a player is paused.
STALL_TIMEOUT = 600.0


class Connection(Protocol):
    """One connection, as `Connections` uses it.

    :ivar phase: its current phase.
    :ivar phase_since: when the phase began or last made progress, in seconds of the clock.
    :ivar stalled_since: when the client stopped receiving, so that its response was paused; None
        where no response is paused.
    :ivar all_sent: the system has accepted everything that was written.
    """

    phase: Phase
    phase_since: float
    stalled_since: float | None

    @property
    def all_sent(self) -> bool: ...  # noqa: D102

    def loseConnection(self) -> None:
        """Close the connection when everything is sent."""

    def abortConnection(self) -> None:
        """Close the connection at once."""


class Connections:
    """The open connections, bounded in number and in time.

    Twisted's own timer restarts with every byte that arrives, so a client that sends one byte a
    minute would stay connected forever. It also runs while a client still receives the end of a
    response.
    """

    def __init__(self, clock: IReactorTime, most: int | None = None) -> None:
        """Begin without connections.

        :param most: the most connections, or None for no limit. At the limit, a new connection
            evicts the connection that has been closable longest and has sent everything. If there
            is none, it evicts the connection that has been closable longest, or else the one that
            has been stalled longest. Either must have made no progress for more than half a minute.
            Otherwise the new connection is refused.
        """
        self._clock = clock
        self._most = most
        self._open: set[Connection] = set()
        self._in_flight = InFlightCounter()
        # Both are in the order in which connections were added.
        self._closable: dict[Connection, None] = {}
        self._stalled: dict[Connection, None] = {}
        self._logged: float | None = None
        self._next_check: IDelayedCall | None = None

    def __len__(self) -> int:
        return len(self._open)

    def make_room(self) -> bool:
        """Evict a connection if the limit is reached; return whether there is room for another."""
        if self._most is None or len(self._open) < self._most:
            return True
        connection = self._find_evictable()
        if connection is None:
            self._log_no_room()
            return False
        # Once everything is sent, neither an orderly close nor an abort loses any byte.
        _close(connection, in_order=connection.all_sent)
        return True

    def opened(self, connection: Connection) -> None:
        """Register a new connection."""
        self._open.add(connection)
        self._in_flight.begin()
        if self._next_check is None:
            self._next_check = self._clock.callLater(_CHECK_INTERVAL, self._close_expired)

    def changed(self, connection: Connection) -> None:
        """Record that a connection's phase changed, or that it stalls or makes progress again."""
        if connection.phase in CLOSABLE:
            self._closable.setdefault(connection)
        else:
            self._closable.pop(connection, None)
        if connection.stalled_since is not None and connection.phase is not Phase.ABORTED:
            self._stalled.setdefault(connection)
        else:
            self._stalled.pop(connection, None)

    def served_by_fast_path(self, connection: Connection) -> None:
        """Move a connection to the end of the closable ones: the fast path has just answered it."""
        del self._closable[connection]
        self._closable[connection] = None

    def closed(self, connection: Connection) -> None:
        """Unregister a connection."""
        self._open.discard(connection)
        self._in_flight.end()
        if not self._open and self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None

    def close_idle(self) -> None:
        """Close the connections that wait for a request, or would be closed soon anyway."""
        for connection in list(self._closable):
            connection.loseConnection()

    async def wait_until_closed(self, seconds: float) -> None:
        """Wait until every connection is closed, for ``seconds`` at most.

        A response counts as finished when its last bytes are handed to Twisted. They may be sent
        long after that.
        """
        await self._in_flight.wait_until_idle(self._clock, seconds)

    def _find_evictable(self) -> Connection | None:
        for connection in islice(self._closable, _CANDIDATES):
            if connection.all_sent and connection.phase is not Phase.CLOSING:
                return connection
        for connections in (self._closable, self._stalled):
            longest = next(iter(connections), None)
            if longest is not None and self._waited(longest) > _STALL_UNDER_PRESSURE:
                return longest
        return None

    def _waited(self, connection: Connection) -> float:
        """Return the seconds since the connection last made progress."""
        since = connection.stalled_since
        return self._clock.seconds() - (connection.phase_since if since is None else since)

    def _log_no_room(self) -> None:
        now = self._clock.seconds()
        if self._logged is None or now - self._logged > _LOG_INTERVAL:
            self._logged = now
            _log.warn("no room for more connections: {count} are open", count=len(self._open))

    def _close_expired(self) -> None:
        self._next_check = self._clock.callLater(_CHECK_INTERVAL, self._close_expired)
        for connection in list(self._open):
            limit = PHASE_TIMEOUTS.get(connection.phase)
            if connection.stalled_since is not None and connection.phase is not Phase.CLOSING:
                limit = STALL_TIMEOUT
                over = self._waited(connection)
            else:
                over = self._clock.seconds() - connection.phase_since
            if limit is not None and over > limit:
                _close(connection, in_order=connection.stalled_since is None)


def _close(connection: Connection, in_order: bool) -> None:
    if in_order and connection.phase in (Phase.IDLE, Phase.READING):
        connection.loseConnection()
    else:
        connection.abortConnection()
