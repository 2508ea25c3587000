"""Nodes behind proxies, whose responses a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import maybeDeferred
from twisted.internet.protocol import Factory, Protocol

from tests.support.service import reactor
from tests.support.wire import chunk, reply, reply_without_length

#: Bytes of the first part of a stream.
HALF = 65536


class Connection(Protocol):
    """Connection of a proxy to a node.

    :ivar target: that of the latest request.
    :ivar headers: its headers by lower-case name.
    :ivar is_lost: whether the proxy has closed it.
    """

    factory: Node

    def __init__(self) -> None:
        self.received = b""
        self.is_lost = False

    def connectionMade(self) -> None:
        """Register the connection."""
        self.factory.open.add(self)

    def dataReceived(self, data: bytes) -> None:
        """Respond to each request."""
        self.received += data
        while b"\r\n\r\n" in self.received:
            head, _, self.received = self.received.partition(b"\r\n\r\n")
            start, *lines = head.decode("latin-1").split("\r\n")
            self.target = start.split(" ")[1]
            self.headers = {
                name.lower(): text.strip() for name, _, text in (x.partition(":") for x in lines)
            }
            # HAProxy checks with HTTP/1.0.
            if self.target in ("/ready", "/health"):
                is_good = self.factory.is_ready or self.target == "/health"
                self.write(reply(200 if is_good else 503, headers={"Connection": "close"}))
                self.close()
                self.factory.checks += 1
            else:
                self.factory.connections.append(self)
                self.factory.respond(self)

    def connectionLost(self, reason: Any = None) -> None:
        """Record the end."""
        self.is_lost = True
        self.factory.open.discard(self)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self.transport.write(data)  # type: ignore[union-attr]

    def close(self) -> None:
        """Close the connection without a response, as a node that stops does (D39)."""
        self.transport.loseConnection()  # type: ignore[union-attr]


def echo(connection: Connection) -> None:
    """Respond with the target, and with the request id and the trace that have arrived."""
    names = connection.headers.keys() & {"x-request-id", "traceparent"}
    shown = {f"x-seen-{name}": connection.headers[name] for name in names}
    body = connection.target.encode("latin-1")
    connection.write(reply(200, body, {"X-Name": connection.factory.name, **shown}))


def start_stream(connection: Connection) -> None:
    """Send the first half of a stream."""
    headers = {"Transfer-Encoding": "chunked", "Content-Type": "audio/mpeg"}
    connection.write(reply_without_length(200, chunk(bytes(HALF)), headers))


class Node(Factory):
    """Node whose responses a test chooses; it listens until the test ends.

    :ivar respond: called for each request, except for health checks.
    :ivar connections: the connection of each request.
    :ivar open: the open connections.
    :ivar checks: number of health checks.
    """

    protocol = Connection
    noisy = False

    def __init__(self, name: str, host: str, respond: Callable[[Connection], None]) -> None:
        self.name, self.respond = name, respond
        self.connections: list[Connection] = []
        self.open: set[Connection] = set()
        self.checks, self.is_ready = 0, True
        self.port = reactor.listenTCP(0, self, interface=host)

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        await maybeDeferred(self.port.stopListening)
        for connection in [*self.open]:
            connection.transport.abortConnection()  # type: ignore[union-attr]
