"""Misbehaving origins: HTTP servers in this process, over TLS or in cleartext.

An `Origin` responds to each path with the behavior that a test has registered. It records every
connection and every request. h11 reads the requests; the responses are written byte by byte,
because libraries do not let a server violate the protocol.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import h11
from OpenSSL import SSL
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.protocol import Factory
from twisted.internet.protocol import Protocol as Connection
from twisted.internet.ssl import DefaultOpenSSLContextFactory
from twisted.python.failure import Failure

from tests.support.authority import Certificate
from tests.support.wire import Request, read_request

reactor: Any = _reactor

#: Last-Modified of a file by default.
MODIFIED = "Wed, 01 Jan 2025 00:00:00 GMT"

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_CHUNK = 8000


class Behavior(Protocol):
    """Responder to requests for a path."""

    def respond(self, pending: PendingResponse) -> None:
        """Respond to the request, correctly or not."""


@dataclass(frozen=True, slots=True)
class PendingResponse:
    """Request that waits for its response."""

    request: Request
    protocol: OriginConnection

    @property
    def wants_body(self) -> bool:
        """Whether the method is not HEAD."""
        return self.request.method != "HEAD"

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self.protocol.transport.write(data)

    def send_head(
        self, status: int, headers: Iterable[str | bytes] = (), version: str = "1.1"
    ) -> None:
        """Send a status and header lines; lines given as bytes are sent unchanged."""
        lines = [f"HTTP/{version} {status} So", *headers, b"", b""]
        sent = [line if isinstance(line, bytes) else line.encode("latin-1") for line in lines]
        self.write(b"\r\n".join(sent))

    def finish(self) -> None:
        """End the response; keep the connection open unless the client wants it closed."""
        if self.request.headers.get("connection", "").lower() == "close":
            self.close()

    def close(self) -> None:
        """Close the connection cleanly."""
        self.protocol.transport.loseConnection()

    def close_without_notify(self) -> None:
        """Close the connection without a TLS close_notify alert."""
        # Twisted joins small TLS writes and passes them to the TCP transport one reactor turn
        # later.
        reactor.callLater(0, self.protocol.tcp_transport.loseConnection)

    def abort(self) -> None:
        """Reset the connection; bytes in transit may be lost."""
        reactor.callLater(0, self.protocol.tcp_transport.abortConnection)

    def hold(self) -> None:
        """Send nothing more, and leave the connection open."""
        self.protocol.origin.held.append(self)


@dataclass(frozen=True, slots=True)
class Status:
    """Response with a status and a short body.

    :ivar headers: header lines; lines given as bytes are sent unchanged.
    """

    code: int
    headers: tuple[str | bytes, ...] = ()
    body: bytes = b"no"

    def respond(self, pending: PendingResponse) -> None:
        pending.send_head(self.code, [f"Content-Length: {len(self.body)}", *self.headers])
        if pending.wants_body:
            pending.write(self.body)
        pending.finish()


@dataclass(frozen=True, slots=True)
class Redirect:
    """Redirect to a location."""

    location: str
    status: int = 302

    def respond(self, pending: PendingResponse) -> None:
        Status(self.status, (f"Location: {self.location}",), b"").respond(pending)


@dataclass(frozen=True, slots=True)
class Raw:
    """Fixed bytes in response to every request; the bytes need not be HTTP.

    :ivar then: what follows the bytes: ``close``, ``close_without_notify``, ``abort`` or ``hold``.
    """

    data: bytes
    then: str = "close"

    def respond(self, pending: PendingResponse) -> None:
        pending.write(self.data)
        getattr(pending, self.then)()


#: Accepts a request and does not respond.
STALL = Raw(b"", "hold")


class BehaviorSequence:
    """One behavior per request, in order; the last one serves all further requests."""

    def __init__(self, *behaviors: Behavior) -> None:
        self._left = [*behaviors]

    def respond(self, pending: PendingResponse) -> None:
        (self._left.pop(0) if self._left[1:] else self._left[0]).respond(pending)


@dataclass(frozen=True, slots=True)
class File:
    """File served according to RFC 9110, except for what a test changes.

    :ivar ranges: whether Range is honored; otherwise every response has the whole file.
    :ivar framing: how the body is delimited: ``length``, ``chunked`` or ``close``.
    :ivar headers: further header lines; lines given as bytes are sent unchanged.
    :ivar sent: number of body bytes before the failure; None for no failure.
    :ivar then: the failure: ``close``, ``close_without_notify``, ``abort`` or ``hold``.
    """

    data: bytes = field(repr=False)
    ranges: bool = True
    framing: str = "length"
    version: str = "1.1"
    etag: str | None = '"1"'
    modified: str | None = MODIFIED
    headers: tuple[str | bytes, ...] = ()
    sent: int | None = None
    then: str = "close"

    def respond(self, pending: PendingResponse) -> None:
        wanted = pending.request.headers
        status, body, lines = 200, self.data, [*self.headers]
        if self.etag is not None:
            lines.append(f"ETag: {self.etag}")
        if self.modified is not None:
            lines.append(f"Last-Modified: {self.modified}")
        if self.ranges:
            lines.append("Accept-Ranges: bytes")
            if (part := self.part(wanted)) is not None:
                start, end = part
                if start >= end:
                    Status(416, (f"Content-Range: bytes */{len(body)}",)).respond(pending)
                    return
                lines.append(f"Content-Range: bytes {start}-{end - 1}/{len(body)}")
                status, body = 206, body[start:end]
        if self.framing == "length":
            lines.append(f"Content-Length: {len(body)}")
        elif self.framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
        pending.send_head(status, lines, self.version)
        if not pending.wants_body:
            pending.finish()
        elif self.sent is None:
            self._send(pending, body)
            if self.framing == "chunked":
                pending.write(b"0\r\n\r\n")
            if self.framing == "close" or self.version == "1.0":
                pending.close()
            else:
                pending.finish()
        else:
            self._send(pending, body[: self.sent])
            getattr(pending, self.then)()

    def part(self, wanted: Mapping[str, str]) -> tuple[int, int] | None:
        """Return the start and the end of the range that request headers ask for."""
        match = _RANGE.fullmatch(wanted.get("range", ""))
        if match is None or wanted.get("if-range", self.etag) not in (self.etag, self.modified):
            return None
        first, last = match.groups()
        if not first:
            return max(0, len(self.data) - int(last)), len(self.data)
        return int(first), min(len(self.data), int(last) + 1 if last else len(self.data))

    def _send(self, pending: PendingResponse, body: bytes) -> None:
        if self.framing != "chunked":
            pending.write(body)
            return
        for at in range(0, len(body), _CHUNK):
            chunk = body[at : at + _CHUNK]
            pending.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))


class OriginConnection(Connection):
    """Accepted connection, with or without requests, one request at a time.

    :ivar closed: called when it has ended.
    """

    transport: Any

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.requests: list[Request] = []
        self.closed: Deferred[None] = Deferred()
        self._received = b""

    @property
    def tcp_transport(self) -> Any:
        """The TCP transport, which is below TLS."""
        return self.transport.transport if self.origin.secure else self.transport

    def connectionMade(self) -> None:
        self.origin.connections.append(self)
        self.origin.protocols.add(self)

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        try:
            found = read_request(self._received)
        except h11.RemoteProtocolError:  # such as a TLS handshake on a cleartext port
            self.transport.loseConnection()
            return
        if found is not None:
            request, self._received = found
            self.requests.append(request)
            self.origin.respond(PendingResponse(request, self))

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self.origin.protocols.discard(self)
        self.closed.callback(None)


class Origin:
    """HTTP server on a free port of the loopback address.

    :param certificate: None for cleartext.
    :ivar connections: all connections in order, including those that ended during the handshake.
    :ivar held: the responses on hold.
    """

    def __init__(self, certificate: Certificate | None = None) -> None:
        self.secure = certificate is not None
        self.connections: list[OriginConnection] = []
        self.held: list[PendingResponse] = []
        self.protocols: set[OriginConnection] = set()
        self._behaviors: dict[str, Behavior] = {}
        factory = Factory.forProtocol(lambda: OriginConnection(self))
        factory.noisy = False
        if certificate is not None:
            files = str(certificate.key), str(certificate.chain)
            context = DefaultOpenSSLContextFactory(*files, SSL.TLS_SERVER_METHOD)
            self._port = reactor.listenSSL(0, factory, context, interface="127.0.0.1")
        else:
            self._port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.port: int = self._port.getHost().port

    @property
    def requests(self) -> list[Request]:
        """All requests, grouped by connection."""
        return [request for connection in self.connections for request in connection.requests]

    def requests_for(self, path: str) -> list[Request]:
        """Return the requests for a path with any query."""
        return [request for request in self.requests if request.target.partition("?")[0] == path]

    def url(self, path: str, host: str = "localhost") -> str:
        """Return the URL of a path."""
        return f"http{'s' * self.secure}://{host}:{self.port}{path}"

    def put(self, path: str, behavior: Behavior | bytes, host: str = "localhost") -> str:
        """Register a behavior for a path and return its URL; bytes are served as a `File`."""
        self._behaviors[path] = File(behavior) if isinstance(behavior, bytes) else behavior
        return self.url(path, host)

    def respond(self, pending: PendingResponse) -> None:
        """Respond to one request; an unregistered path is a 404."""
        target = pending.request.target
        path = target.partition("?")[0]
        behavior = self._behaviors.get(target) or self._behaviors.get(path) or Status(404)
        behavior.respond(pending)

    async def stop(self) -> None:
        """Close the port and all connections, and wait until they are closed."""
        await self._port.stopListening()
        closed = [protocol.closed for protocol in self.protocols]
        for protocol in list(self.protocols):
            protocol.tcp_transport.abortConnection()
        await gatherResults(closed)


def open_origin(case: Any, certificate: Certificate | None = None) -> Origin:
    """Start an origin that stops at the end of a test at the latest."""
    origin = Origin(certificate)
    case.addCleanup(origin.stop)
    return origin
