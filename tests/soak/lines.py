"""Client connections, and the ways in which clients behave on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.task import deferLater

from tests.soak.records import RequestRecord
from tests.support.service import Client, reactor

#: Seconds after which a response is overdue. It may take AP_PROBE_TIMEOUT, AP_RENDER_TIMEOUT in the
#: queue, and as long again in the render.
PATIENCE = 120


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


class ClientConnection(Client):
    """Client connection that can wait for received bytes and for its end.

    :ivar on_success_begun: called when a successful response begins to arrive.
    """

    transport: Any

    def __init__(self, method: bytes = b"GET") -> None:
        super().__init__(method)
        self.on_success_begun: Callable[[], object] = lambda: None

    def dataReceived(self, data: bytes) -> None:
        """Keep the received bytes."""
        super().dataReceived(data)
        if self.received[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 206"):
            self.on_success_begun()

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is closed."""
        if self.closed is None:
            self.transport.write(data)

    async def wait(self, condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
        """Wait for a condition or the end of the connection; return False past the deadline."""
        return await wait_for(lambda: condition() or self.closed is not None, seconds)

    async def read(self) -> bool:
        """Read until the connection is closed; return False past the deadline."""
        return await self.wait(lambda: False)

    def reset(self) -> None:
        """Abort the connection."""
        if self.closed is None:
            self.transport.abortConnection()

    def close(self) -> None:
        """Close the connection cleanly."""
        if self.closed is None:
            self.transport.loseConnection()


ClientBehavior = Callable[[ClientConnection, RequestRecord], Awaitable[None]]


async def read_to_end(connection: ClientConnection, record: RequestRecord) -> None:
    """Read the response to its end."""
    record.hung = not await connection.read()


def leaving(seconds: float, size: int, gently: bool) -> ClientBehavior:
    """Return a behavior: leave after a time or a number of bytes, whichever comes first."""

    async def behave(connection: ClientConnection, record: RequestRecord) -> None:
        await connection.wait(lambda: len(connection.received) > size, seconds)
        if connection.closed is not None:
            return
        record.causes.add("client left")
        if gently:
            connection.close()
        else:
            # After an abort, the request may never have reached the service.
            record.certain = bool(connection.received)
            connection.reset()
        await connection.wait(lambda: False, 5)

    return behave


def stalling(size: int, seconds: float) -> ClientBehavior:
    """Return a behavior: stop reading after a number of bytes, and continue after a time."""

    async def behave(connection: ClientConnection, record: RequestRecord) -> None:
        if not await connection.wait(lambda: len(connection.received) > size):
            record.hung = True
            return
        connection.pause()
        await pause(seconds)
        connection.resume()
        await read_to_end(connection, record)

    return behave
