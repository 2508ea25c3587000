"""The open connections: their phases, their time limits, and which one is evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Protocol

from cachetools import TTLCache
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.shared_result import InFlightCounter
from audioproxy.observe.log_context import Logger

# Seconds between two checks for connections past their time limit.
_CHECK_INTERVAL = 5.0
# Waiting connections, and stalled ones, that are examined to find some to evict. Nearly always, the
# first one can be evicted.
_CANDIDATES = 256
# Connections that are accepted in a row, and those of them that evict others, before the open
# connections get their turn.
_MOST_ACCEPTED = 100
_MOST_EVICTED = 16
# Seconds between two checks for a connection that can be evicted, while new clients wait.
_ROOM_INTERVAL = 0.1
# Seconds between two log lines about the same.
_LOG_INTERVAL = 60.0

_log = Logger()


class Phase(Enum):
    IDLE = "waits for a request"
    READING = "has a part of a request"
    RESPONDING = "has a whole request, and its response is under way"
    REFUSED = "was refused, and its input is ignored"
    CLOSING = "is closed once all is sent"
    ABORTED = "is closed at once"


# The phases in which a connection waits for its client.
_WAITING = (Phase.IDLE, Phase.READING, Phase.REFUSED)
#: Seconds for which a stop waits for a request, from a new connection or for the rest of it.
NEW_CONNECTION_GRACE = 1.0
#: Seconds for which a connection must have been idle or stalled before a new one can evict it.
EVICTABLE_AFTER = 1.0
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

    :ivar phase_since: when the phase began or last made progress, in seconds of the clock.
    :ivar stalled_since: when the client stopped receiving, so that its response was paused.
    :ivar all_sent: the system has accepted everything that was written.
    :ivar has_unread: bytes have arrived that were not processed yet; the start of a request that is
        being read does not count.
    :ivar seconds_stalled: the seconds for which the client has received nothing although bytes wait
        for it; None where the system does not provide it.
    """

    phase: Phase
    phase_since: float
    is_new: bool
    stalled_since: float | None

    @property
    def all_sent(self) -> bool: ...
    @property
    def has_unread(self) -> bool: ...
    @property
    def seconds_stalled(self) -> float | None: ...

    def loseConnection(self) -> None:
        """Close the connection when everything is sent."""

    def abortConnection(self) -> None: ...


class Connections:
    """The open connections, bounded in number and in time.

    Twisted's own timer restarts with every byte that arrives, so a client that sends one byte a
    minute would stay connected forever. It also runs while a client still receives a response.

    :param most: the most connections, or None for no limit. At the limit, a new connection evicts
        the one that has waited longest for a request, if everything is sent to it and nothing was
        received from it; otherwise the one whose client has received nothing for longest. Either
        must have lasted `EVICTABLE_AFTER`. Failing both, `count_room` returns 0.
    """

    def __init__(
        self,
        clock: IReactorTime,
        most: int | None = None,
        on_eviction: Callable[[], object] = lambda: None,
    ) -> None:
        self._clock = clock
        self._most = most
        self._on_eviction = on_eviction
        self._open: set[Connection] = set()
        self._in_flight = InFlightCounter()
        # In the order in which their phases began or made progress.
        self._waiting: dict[Connection, None] = {}
        # Connections that are sending: in the order in which they stalled, or were last examined
        # while their clients received something.
        self._sending: dict[Connection, None] = {}
        self._evicted = 0
        self._logged: TTLCache[str, bool] = TTLCache(2, _LOG_INTERVAL, clock.seconds)
        self._next_check: IDelayedCall | None = None
        self._grace: IDelayedCall | None = None
        self._on_room: Callable[[], object] | None = None
        self._next_room_check: IDelayedCall | None = None

    def __len__(self) -> int:
        return len(self._open)

    def count_room(self) -> int:
        """Return how many connections may be opened now, for some of which others are evicted."""
        if self._most is None:
            return _MOST_ACCEPTED
        free = self._most - len(self._open)
        if free > 0:
            return min(free, _MOST_ACCEPTED)
        evictable = sum(1 for _ in islice(self._find_evictable(), _MOST_EVICTED))
        if not evictable and self._is_line_due("no room"):
            _log.warn("new clients wait: all {count} connections are in use", count=len(self._open))
        return evictable

    def make_room(self) -> None:
        if self._most is None or len(self._open) < self._most:
            return
        connection = next(self._find_evictable(), None)
        if connection is not None:
            # Its place is free, although its transport is closed in the next turn of the reactor.
            self._open.discard(connection)
            self._evicted += 1
            self._on_eviction()
            # Once everything is sent, neither an orderly close nor an abort loses any byte.
            _close(connection, in_order=connection.all_sent)

    def notify_of_room(self, call: Callable[[], object]) -> None:
        """Call once a connection is closed, and in a tenth of a second at the latest.

        Whether a connection can be evicted changes with time, and without notice.
        """
        self.forget_notification()
        self._on_room = call
        self._next_room_check = self._clock.callLater(_ROOM_INTERVAL, self._notify_of_room)

    def forget_notification(self) -> None:
        self._on_room = None
        if self._next_room_check is not None and self._next_room_check.active():
            self._next_room_check.cancel()
        self._next_room_check = None

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)
        self._in_flight.begin()
        if self._next_check is None:
            self._next_check = self._clock.callLater(_CHECK_INTERVAL, self._check)

    def changed(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
        if connection.phase in _WAITING:
            self._waiting[connection] = None
        stalled = connection.stalled_since is not None and connection.phase is not Phase.ABORTED
        if stalled or connection.phase is Phase.CLOSING:
            self._sending.setdefault(connection)
        else:
            self._sending.pop(connection, None)

    def served_by_fast_path(self, connection: Connection) -> None:
        del self._waiting[connection]
        self._waiting[connection] = None

    def stalled(self, connection: Connection) -> None:
        self._sending.setdefault(connection)

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._in_flight.end()
        if not self._in_flight.count and self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None
            if self._grace is not None and self._grace.active():
                self._grace.cancel()
            self._log_evictions()
        if self._most is not None and len(self._open) < self._most:
            self._notify_of_room()

    def close_idle(self) -> None:
        """Close the connections that wait for a request.

        New connections, and those that have sent a part of a request, stay open a little longer.
        """
        self._close_waiting(keep_requests=True)
        if self._waiting:
            self._grace = self._clock.callLater(NEW_CONNECTION_GRACE, self._close_waiting)

    def count_unsent(self) -> int:
        return sum(each.phase is Phase.CLOSING and not each.all_sent for each in self._open)

    async def wait_until_closed(self, deadline: Deadline) -> None:
        """Wait until every connection is closed, or until a deadline.

        A response counts as finished when Twisted has its last bytes, which may be sent long after.
        """
        await self._in_flight.wait_until_idle(deadline)

    def _find_evictable(self) -> Iterator[Connection]:
        """Yield some connections that can be evicted: idle ones, and then stalled ones."""
        now = self._clock.seconds()
        sending = list(islice(self._sending, _CANDIDATES))
        for connection in list(islice(self._waiting, _CANDIDATES)):
            if now - connection.phase_since < EVICTABLE_AFTER:
                break
            if not connection.all_sent:
                if connection.stalled_since is None:
                    sending.append(connection)
            elif connection.phase is Phase.REFUSED or not connection.has_unread:
                yield connection
        for connection in sorted(sending, key=_last_progress):
            closed_soon = connection.phase is Phase.CLOSING and connection.all_sent
            if closed_soon or now - _last_progress(connection) < EVICTABLE_AFTER:
                continue
            seconds = connection.seconds_stalled
            if seconds is None or seconds >= EVICTABLE_AFTER:
                yield connection
            elif connection in self._sending:
                # Its client receives, so others are examined first from now on.
                self._sending[connection] = self._sending.pop(connection)

    def _close_waiting(self, *, keep_requests: bool = False) -> None:
        for connection in list(self._waiting):
            expected = connection.is_new or connection.phase is Phase.READING
            if not connection.has_unread and not (keep_requests and expected):
                connection.loseConnection()

    def _notify_of_room(self) -> None:
        call = self._on_room
        self.forget_notification()
        if call is not None:
            call()

    def _is_line_due(self, line: str) -> bool:
        is_due = line not in self._logged
        if is_due:
            self._logged[line] = True
        return is_due

    def _log_evictions(self) -> None:
        if self._evicted and self._is_line_due("evictions"):
            _log.warn(
                "closed {count} idle or stalled connections for new ones, at the limit of {most}",
                count=self._evicted,
                most=self._most,
            )
            self._evicted = 0

    def _check(self) -> None:
        self._next_check = self._clock.callLater(_CHECK_INTERVAL, self._check)
        self._log_evictions()
        for connection in list(self._open):
            limit = PHASE_TIMEOUTS.get(connection.phase)
            if connection.stalled_since is not None and connection.phase is not Phase.CLOSING:
                limit = STALL_TIMEOUT
                over = self._clock.seconds() - _last_progress(connection)
            else:
                over = self._clock.seconds() - connection.phase_since
            if limit is not None and over > limit:
                _close(connection, in_order=connection.stalled_since is None)


def _last_progress(connection: Connection) -> float:
    since = connection.stalled_since
    return connection.phase_since if since is None else since


def _close(connection: Connection, in_order: bool) -> None:
    if in_order and connection.phase in (Phase.IDLE, Phase.READING):
        connection.loseConnection()
    else:
        connection.abortConnection()
