"""Misbehaving origins: HTTP servers in this process, over TLS or in cleartext.

An `Origin` responds to each path with the behavior that a test has registered. It records every
connection and every request, so that a test can assert that there were none. It writes HTTP/1 byte
by byte, because libraries do not let a server violate the protocol.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from OpenSSL import SSL
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import Factory
from twisted.internet.protocol import Protocol as Connection
from twisted.internet.ssl import ContextFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.support.authority import Certificate

reactor: Any = _reactor

#: Last-Modified of a file by default.
MODIFIED = "Wed, 01 Jan 2025 00:00:00 GMT"

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_CHUNK = 8000
# First bytes of a TLS handshake, which a client sends if it expects TLS on a cleartext port.
_HELLO = b"\x16\x03"


# Records


@dataclass(frozen=True, slots=True)
class Asked:
    """Received request.

    :ivar target: path and query, as received.
    :ivar headers: values by lower-case name.
    """

    method: str
    target: str
    headers: Mapping[str, str]

    @classmethod
    def read(cls, head: bytes) -> Asked:
        """Parse a request without its final blank line."""
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        pairs = (line.partition(":")[::2] for line in lines)
        return cls(method, target, {name.lower(): value.strip() for name, value in pairs})


@dataclass
class Visit:
    """Accepted connection, with or without requests.

    :ivar secured: whether the TLS handshake completed.
    :ivar requests: the requests on the connection.
    :ivar reason: why the connection ended; None while it is open.
    """

    secured: bool = False
    requests: list[Asked] = field(default_factory=list)
    reason: Failure | None = None


# Behaviors


class Behaviour(Protocol):
    """Responder to requests for a path."""

    def answer(self, call: Call) -> None:
        """Respond to the request, correctly or not."""


@dataclass(frozen=True, slots=True)
class Call:
    """Request that waits for its response.

    :ivar turn: the number of earlier requests for this path.
    """

    asked: Asked
    turn: int
    _talk: _Talk

    @property
    def wants_body(self) -> bool:
        """Whether the method is not HEAD."""
        return self.asked.method != "HEAD"

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._talk.transport.write(data)  # type: ignore[union-attr]

    def say(self, status: int, headers: Iterable[str | bytes] = (), version: str = "1.1") -> None:
        """Send a status and header lines; lines given as bytes are sent unchanged."""
        lines = [line if isinstance(line, bytes) else line.encode("latin-1") for line in headers]
        self.write(b"\r\n".join([f"HTTP/{version} {status} So".encode(), *lines, b"", b""]))

    def done(self) -> None:
        """End the response and keep the connection open for another request."""
        self._talk.answered()

    def close(self) -> None:
        """Close the connection cleanly."""
        self._talk.transport.loseConnection()  # type: ignore[union-attr]

    def tear(self) -> None:
        """Close the connection without a TLS close_notify alert."""
        # Twisted joins small TLS writes and passes them to the TCP transport one reactor turn
        # later.
        reactor.callLater(0, self._talk.wire.loseConnection)

    def abort(self) -> None:
        """Reset the connection; bytes in transit may be lost."""
        reactor.callLater(0, self._talk.wire.abortConnection)

    def hold(self, rest: Callable[[], None]) -> None:
        """Send nothing more until `Origin.release` calls ``rest``."""
        self._talk.origin.held.append(rest)


@dataclass(frozen=True, slots=True)
class Status:
    """Response with a status and a short body.

    :ivar headers: header lines; lines given as bytes are sent unchanged.
    """

    code: int
    headers: tuple[str | bytes, ...] = ()
    body: bytes = b"no"

    def answer(self, call: Call) -> None:
        call.say(self.code, [f"Content-Length: {len(self.body)}", *self.headers])
        if call.wants_body:
            call.write(self.body)
        call.done()


@dataclass(frozen=True, slots=True)
class Redirect:
    """Redirect to a location; None omits the Location header."""

    location: str | None
    status: int = 302

    def answer(self, call: Call) -> None:
        lines = () if self.location is None else (f"Location: {self.location}",)
        Status(self.status, lines, b"").answer(call)


@dataclass(frozen=True, slots=True)
class Raw:
    """Fixed bytes for every request, which need not be HTTP.

    :ivar then: what follows the bytes: ``close``, ``tear``, ``abort`` or ``hold``.
    """

    data: bytes
    then: str = "close"

    def answer(self, call: Call) -> None:
        call.write(self.data)
        call.hold(call.close) if self.then == "hold" else getattr(call, self.then)()


#: Accepts a request and does not respond.
STALL = Raw(b"", "hold")


@dataclass(frozen=True, slots=True)
class Turns:
    """One behavior per request for a path, in order; the last one serves all further requests."""

    behaviours: tuple[Behaviour, ...]

    def __init__(self, *behaviours: Behaviour) -> None:
        object.__setattr__(self, "behaviours", behaviours)

    def answer(self, call: Call) -> None:
        self.behaviours[min(call.turn, len(self.behaviours) - 1)].answer(call)


@dataclass(frozen=True, slots=True)
class Methods:
    """One behavior for HEAD and one for all other methods."""

    head: Behaviour
    get: Behaviour

    def answer(self, call: Call) -> None:
        (self.get if call.wants_body else self.head).answer(call)


@dataclass(frozen=True, slots=True)
class File:
    """File served according to RFC 9110, except for what a test changes.

    :ivar ranges: whether Range is honored; otherwise every response has the whole file.
    :ivar framing: how the body is delimited: ``length``, ``chunked`` or ``close``.
    :ivar head: status of the response to HEAD.
    :ivar head_length: Content-Length of the response to HEAD, if not the right one; ``""`` omits
        it.
    :ivar headers: further header lines; lines given as bytes are sent unchanged.
    :ivar zipped: ``asked`` compresses if Accept-Encoding allows it, ``always`` in every response.
    :ivar sent: number of body bytes before the failure; None for no failure.
    :ivar then: the failure: ``close``, ``tear``, ``abort`` or ``hold``. If ``sent`` is negative, a
        chunked body stops in the middle of the chunk after that many bytes.
    """

    data: bytes
    ranges: bool = True
    framing: str = "length"
    version: str = "1.1"
    head: int = 200
    head_length: str | None = None
    etag: str | None = '"1"'
    modified: str | None = MODIFIED
    headers: tuple[str | bytes, ...] = ()
    zipped: str = ""
    sent: int | None = None
    then: str = "close"

    def answer(self, call: Call) -> None:
        wanted = call.asked.headers
        if call.asked.method == "HEAD" and self.head != 200:
            Status(self.head).answer(call)
            return
        if self.etag is not None and wanted.get("if-match", self.etag) not in (self.etag, "*"):
            Status(412).answer(call)
            return
        status, body, lines = 200, self.data, [*self.headers]
        if self.etag is not None:
            lines.append(f"ETag: {self.etag}")
        if self.modified is not None:
            lines.append(f"Last-Modified: {self.modified}")
        if self._zips(wanted):
            body = gzip.compress(body, 1, mtime=0)
            lines.append("Content-Encoding: gzip")
        elif self.ranges:
            lines.append("Accept-Ranges: bytes")
            if (part := self._part(wanted)) is not None:
                start, end = part
                if start >= end:
                    Status(416, (f"Content-Range: bytes */{len(body)}",)).answer(call)
                    return
                lines.append(f"Content-Range: bytes {start}-{end - 1}/{len(body)}")
                status, body = 206, body[start:end]
        if not call.wants_body and self.head_length is not None:
            lines += [f"Content-Length: {self.head_length}"] if self.head_length else []
        elif self.framing == "length":
            lines.append(f"Content-Length: {len(body)}")
        elif self.framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
        call.say(status, lines, self.version)
        if not call.wants_body:
            call.done()
        elif self.sent is None:
            self._send(call, body)
            self._finish(call)
        else:
            self._go_wrong(call, body)

    def _zips(self, wanted: Mapping[str, str]) -> bool:
        asked = self.zipped == "asked" and "gzip" in wanted.get("accept-encoding", "")
        return asked or self.zipped == "always"

    def _part(self, wanted: Mapping[str, str]) -> tuple[int, int] | None:
        match = _RANGE.fullmatch(wanted.get("range", ""))
        if match is None or wanted.get("if-range", self.etag) not in (self.etag, self.modified):
            return None
        first, last = match.groups()
        if not first:
            return max(0, len(self.data) - int(last)), len(self.data)
        return int(first), min(len(self.data), int(last) + 1 if last else len(self.data))

    def _send(self, call: Call, body: bytes) -> None:
        if self.framing != "chunked":
            call.write(body)
            return
        for at in range(0, len(body), _CHUNK):
            chunk = body[at : at + _CHUNK]
            call.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))

    def _finish(self, call: Call) -> None:
        if self.framing == "chunked":
            call.write(b"0\r\n\r\n")
        if self.framing == "close" or self.version == "1.0":
            call.close()
        else:
            call.done()

    def _go_wrong(self, call: Call, body: bytes) -> None:
        assert self.sent is not None
        count = abs(self.sent)
        self._send(call, body[:count])
        if self.sent < 0:
            call.write(b"%x\r\n%s" % (_CHUNK, body[count : count + 100]))
        if self.then != "hold":
            getattr(call, self.then)()
            return

        def go_on() -> None:
            self._send(call, body[count:])
            self._finish(call)

        call.hold(go_on)


# The server


@implementer(IHandshakeListener)
class _Talk(Connection):
    """Server side of one connection; pipelined requests wait for the response under way."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.visit = Visit()
        self.gone: Deferred[None] = Deferred()
        self._received = b""
        self._busy = False

    @property
    def wire(self) -> Any:
        """The TCP transport, which is below TLS."""
        transport: Any = self.transport
        return transport.transport if self.origin.secure else transport

    def connectionMade(self) -> None:
        self.origin.visits.append(self.visit)
        self.origin.talks.add(self)

    def handshakeCompleted(self) -> None:
        self.visit.secured = True

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        if self._received.startswith(_HELLO):
            self.transport.loseConnection()  # type: ignore[union-attr]
            return
        self._next()

    def answered(self) -> None:
        if self.visit.requests[-1].headers.get("connection", "").lower() == "close":
            self.transport.loseConnection()  # type: ignore[union-attr]
            return
        self._busy = False
        # Deferred to the next reactor turn, because this may run within the previous `_next` call.
        reactor.callLater(0, self._next)

    def _next(self) -> None:
        if self._busy or self.visit.reason is not None:
            return
        head, blank, rest = self._received.partition(b"\r\n\r\n")
        if not blank:
            return
        self._received, self._busy = rest, True
        asked = Asked.read(head)
        self.visit.requests.append(asked)
        self.origin.answer(asked, self)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self.visit.reason = reason
        self.origin.talks.discard(self)
        self.gone.callback(None)


class Origin:
    """HTTP server on a free port of the loopback address.

    :param certificates: none for cleartext. Each connection uses the next certificate, and all
        further connections use the last one.
    :ivar visits: all connections in order, including those that ended during the handshake.
    :ivar held: functions that continue the responses on hold.
    """

    def __init__(self, *certificates: Certificate) -> None:
        self.secure = bool(certificates)
        self.visits: list[Visit] = []
        self.held: list[Callable[[], None]] = []
        self.talks: set[_Talk] = set()
        self._behaviours: dict[str, Behaviour] = {}
        self._turns: dict[str, int] = {}
        factory = Factory.forProtocol(_Talk)
        factory.noisy = False
        factory.buildProtocol = lambda address: _Talk(self)  # type: ignore[method-assign]
        if certificates:
            context = _Contexts(certificates)
            self._port = reactor.listenSSL(0, factory, context, interface="127.0.0.1")
        else:
            self._port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.port: int = self._port.getHost().port

    @property
    def requests(self) -> list[Asked]:
        """All requests, grouped by connection."""
        return [asked for visit in self.visits for asked in visit.requests]

    def asked(self, path: str) -> list[Asked]:
        """Return the requests for a path with any query."""
        return [asked for asked in self.requests if asked.target.partition("?")[0] == path]

    def url(self, path: str, host: str = "localhost") -> str:
        """Return the URL of a path."""
        return f"http{'s' * self.secure}://{host}:{self.port}{path}"

    def put(self, path: str, behaviour: Behaviour | bytes, host: str = "localhost") -> str:
        """Register a behavior for a path and return its URL; bytes are served as a `File`."""
        self._behaviours[path] = File(behaviour) if isinstance(behaviour, bytes) else behaviour
        self._turns.pop(path, None)
        return self.url(path, host)

    def put_chain(self, path: str, hops: int, end: str) -> str:
        """Register a chain of redirects to the URL ``end`` and return the URL of the first."""
        for hop in range(hops):
            there = end if hop == hops - 1 else f"{path}-{hop + 1}"
            self.put(f"{path}-{hop}", Redirect(there))
        return self.url(f"{path}-0")

    def answer(self, asked: Asked, talk: _Talk) -> None:
        """Respond to one request; an unregistered path is a 404."""
        path = asked.target.partition("?")[0]
        behaviour = self._behaviours.get(asked.target) or self._behaviours.get(path) or Status(404)
        turn = self._turns.get(path, 0)
        self._turns[path] = turn + 1
        behaviour.answer(Call(asked, turn, talk))

    def release(self) -> None:
        """Continue all responses on hold."""
        held, self.held = self.held, []
        for rest in held:
            rest()

    async def stop(self) -> None:
        """Close the port and all connections, and wait until they are closed."""
        await self._port.stopListening()
        talks = list(self.talks)
        for talk in talks:
            talk.wire.abortConnection()
        await gatherResults([talk.gone for talk in talks])


class _Contexts(ContextFactory):
    """Context factory for listenSSL, which requests a context for each connection."""

    isClient = False

    def __init__(self, certificates: Iterable[Certificate]) -> None:
        *self._first, self._last = [_context(certificate) for certificate in certificates]

    def getContext(self) -> SSL.Context:
        return self._first.pop(0) if self._first else self._last


def _context(certificate: Certificate) -> SSL.Context:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.use_certificate_chain_file(str(certificate.chain))
    context.use_privatekey_file(str(certificate.key))
    return context


def open_origin(case: Any, *certificates: Certificate) -> Origin:
    """Start an origin that stops at the end of a test at the latest."""
    origin = Origin(*certificates)
    case.addCleanup(lambda: Deferred.fromCoroutine(origin.stop()))
    return origin
