"""Client connections, and the ways in which clients behave on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as TooLate
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from tests.soak.visits import Visit
from tests.support.service import PATIENCE, Client, reactor


async def pause(seconds: float) -> None:
    """Wait for the given number of seconds."""
    await deferLater(reactor, seconds)


async def wait_for(condition: Callable[[], object], seconds: float, step: float = 0.02) -> bool:
    """Wait until a condition is true; return False past the deadline."""
    deadline = reactor.seconds() + seconds
    while not condition():
        if reactor.seconds() > deadline:
            return False
        await pause(step)
    return True


class Line(Client):
    """Client connection that can wait for received bytes and for its end.

    :ivar began: called when a successful response begins to arrive.
    """

    def __init__(self, method: bytes = b"GET") -> None:
        super().__init__(method)
        self.began: Callable[[], object] = lambda: None
        self._watches: list[tuple[Callable[[], object], Deferred[None]]] = []

    def dataReceived(self, data: bytes) -> None:
        """Keep the received bytes."""
        first = not self.received
        super().dataReceived(data)
        if first and data[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 206"):
            self.began()
        self._look()

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """Record how the connection ended."""
        super().connectionLost(reason)
        self._look()

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is closed."""
        wire: Any = self.transport
        if self.closed is None:
            wire.write(data)

    async def wait(self, condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
        """Wait for a condition or the end of the connection; return False past the deadline."""
        if condition() or self.closed is not None:
            return True
        told: Deferred[None] = Deferred()
        self._watches.append((condition, told))
        try:
            await told.addTimeout(seconds, reactor)
        except TooLate:
            self._watches = [watch for watch in self._watches if watch[1] is not told]
            return False
        return True

    async def read(self) -> bool:
        """Read until the connection is closed; return False past the deadline."""
        return await self.wait(lambda: False)

    def reset(self) -> None:
        """Abort the connection."""
        wire: Any = self.transport
        if self.closed is None:
            wire.abortConnection()

    def close(self) -> None:
        """Close the connection cleanly."""
        wire: Any = self.transport
        if self.closed is None:
            wire.loseConnection()

    def half_close(self) -> None:
        """Close the sending side, and keep reading."""
        wire: Any = self.transport
        if self.closed is None:
            wire.loseWriteConnection()

    def _look(self) -> None:
        over = self.closed is not None
        due = [watch for watch in self._watches if over or watch[0]()]
        self._watches = [watch for watch in self._watches if watch not in due]
        for _, told in due:
            told.callback(None)


Manner = Callable[[Line, Visit], Awaitable[None]]


async def patient(line: Line, visit: Visit) -> None:
    """Read the response to its end."""
    visit.hung = not await line.read()


def leaving(seconds: float, size: int, gently: bool) -> Manner:
    """Leave after the given time or number of received bytes, whichever comes first."""

    async def behave(line: Line, visit: Visit) -> None:
        await line.wait(lambda: len(line.received) > size, seconds)
        if line.closed is not None:
            return
        visit.causes.add("client left")
        if gently:
            line.close()
        else:
            # After an abort, the request may never have reached the service.
            visit.certain = bool(line.received)
            line.reset()
        await line.wait(lambda: False, 5)

    return behave


def stalling(size: int, seconds: float) -> Manner:
    """Stop reading after the given number of bytes; continue after the given time."""

    async def behave(line: Line, visit: Visit) -> None:
        if not await line.wait(lambda: len(line.received) > size):
            visit.hung = True
            return
        line.pause()
        await pause(seconds)
        line.resume()
        await patient(line, visit)

    return behave


def half_closing(seconds: float) -> Manner:
    """Half-close after the given time; the service treats that as a client that left."""

    async def behave(line: Line, visit: Visit) -> None:
        await line.wait(lambda: False, seconds)
        if line.closed is None:
            visit.causes.add("client left")
            line.half_close()
        await patient(line, visit)

    return behave
