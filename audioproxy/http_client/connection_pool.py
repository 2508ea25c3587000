"""Outbound connections: pooled, limited, tracked while open, and closed on shutdown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import idna
from cachetools import LRUCache
from twisted.internet.defer import Deferred, fail
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, wrapClientTLS
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IProtocol,
    IProtocolFactory,
    ISSLTransport,
    IStreamClientEndpoint,
)
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import URI, Agent, BrowserLikePolicyForHTTPS, HTTPConnectionPool
from twisted.web.http_headers import Headers
from twisted.web.iweb import IBodyProducer, IResponse
from zope.interface import implementer

from audioproxy._twisted import CarefulPool, monotonic_clock, request_with_target
from audioproxy.http_client.bodies import RequestBody
from audioproxy.http_client.errors import TransportError
from audioproxy.http_client.tls import AsciiNameTls

# Seconds to wait for a connection.
_CONNECT_TIMEOUT = 5.0
# Idle connections kept for each host, and the seconds that each is kept. Object stores close idle
# connections after 20 seconds or more. They are closed here earlier, since a request on a
# connection that the store has just closed would be lost.
_MAX_IDLE_PER_HOST = 100
_IDLE_TIMEOUT = 15
# Seconds to wait at shutdown until servers close their side.
_CLOSE_TIMEOUT = 1.0
# Origins whose TLS contexts and endpoints are cached. Reading the system's certificates takes some
# milliseconds.
_MAX_ORIGINS = 32
# Maximum bytes of a response's headers, together with the part of the body that arrives with them.
# That part is at most one read of the connection, and less if the response arrives in small pieces.
_MAX_HEADER_BYTES = 512 * 1024

# A name whose first label is internationalized.
_A_LABEL = re.compile(rb"xn--", re.IGNORECASE)

# The start of an interim response (RFC 9110, 15.2).
_INTERIM = re.compile(rb"HTTP/1\.[0-9] 1")
_INTERIM_LENGTH = 10

_SCHEME_AND_AUTHORITY = re.compile(rb"[a-z]+://[^/?#]*")


class ConnectionPool:
    """Twisted's Agent, its connection pool, and a registry of its open connections."""

    def __init__(self, reactor: Any, trust_root: Any) -> None:
        self._reactor = reactor
        self._trust_root = trust_root
        self._clock = monotonic_clock(reactor)
        self._pool: HTTPConnectionPool = CarefulPool(reactor)  # type: ignore[no-untyped-call]
        self._pool.maxPersistentPerHost = _MAX_IDLE_PER_HOST
        self._pool.cachedConnectionTimeout = _IDLE_TIMEOUT
        self._agent = Agent(reactor, pool=self._pool)
        self._policy = BrowserLikePolicyForHTTPS(trust_root)
        # The parsed URL and the endpoint of an origin. Making them takes longer than signing.
        self._origins: LRUCache[bytes, tuple[URI, IStreamClientEndpoint]] = LRUCache(_MAX_ORIGINS)
        self._open_connections: dict[PooledConnection, int] = {}
        self._closed = False

    def request(
        self, method: bytes, url: bytes, headers: Headers, body: IBodyProducer | None
    ) -> Deferred[IResponse]:
        """Send a request with the URL exactly as given."""
        if self._closed:
            return fail(TransportError("the service has stopped"))
        target = _SCHEME_AND_AUTHORITY.sub(b"", url, count=1)
        origin = url.removesuffix(target)
        if origin not in self._origins:
            uri = URI.fromBytes(origin)
            self._origins[origin] = uri, self._make_endpoint(uri)
        uri, endpoint = self._origins[origin]
        return request_with_target(self._agent, endpoint, method, uri, headers, body, target)

    def open(self) -> None:
        """Allow requests again after `close`."""
        self._closed = False

    async def close(self) -> None:
        """Close all connections, and abort those that are still open after a second."""
        self._closed = True
        closing: Deferred[object] = self._pool.closeCachedConnections()
        abort_call = self._clock.callLater(_CLOSE_TIMEOUT, self._abort_all)
        try:
            await closing
        finally:
            if abort_call.active():
                abort_call.cancel()
        self._abort_all()

    def _abort_all(self) -> None:
        for connection in list(self._open_connections):
            connection.abortConnection()

    def _make_endpoint(self, uri: URI) -> IStreamClientEndpoint:
        """Return the endpoint of a server."""
        endpoint: IStreamClientEndpoint
        is_hostname = _is_hostname(uri.host)
        if is_hostname:
            endpoint = HostnameEndpoint(self._reactor, uri.host, uri.port, timeout=_CONNECT_TIMEOUT)
        else:
            # `HostnameEndpoint` refuses names with an underscore, which are common in container
            # networks, and others that IDNA 2008 rejects.
            host = uri.host.decode("ascii")
            endpoint = TCP4ClientEndpoint(self._reactor, host, uri.port, timeout=_CONNECT_TIMEOUT)
        if uri.scheme == b"https":
            if is_hostname and not _A_LABEL.match(uri.host):
                tls = self._policy.creatorForNetloc(uri.host, uri.port)
            else:
                tls = AsciiNameTls(uri.host, self._trust_root)
            endpoint = wrapClientTLS(tls, endpoint)
        return _TrackingEndpoint(endpoint, self._open_connections)


class PooledConnection(ProtocolWrapper):
    """One connection, wrapped around Twisted's client protocol.

    Twisted's client does not limit response headers. This class therefore limits the bytes that
    arrive between a request and `resumeProducing`. Twisted's client pauses the connection when the
    headers are complete, and resumes it when the body is read.

    :ivar has_interim: the response under way was preceded by an interim one, such as 103, which
        Twisted's client ignores.
    :ivar closed_securely: the server has closed the connection with TLS's close_notify, which
        cannot be forged (RFC 8446, 6.1).
    """

    transport: Any
    closed_securely = False
    has_interim = False
    _header_bytes: int | None = None
    _status_line = b""
    # Bytes are being passed on, and whether the connection is to be paused after that.
    _is_receiving = False
    _pauses_later = False

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """Note how the connection was closed."""
        # Twisted reports a TLS connection that ends without close_notify as ConnectionLost.
        secure = ISSLTransport.providedBy(self.transport)
        self.closed_securely = secure and reason.check(ConnectionDone) is not None
        ProtocolWrapper.connectionLost(self, reason)

    def abortConnection(self) -> None:
        """Close the connection at once: over TLS, ``loseConnection`` waits for the peer."""
        self.transport.abortConnection()

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Register a request's body, and let it abort this connection."""
        if isinstance(producer, RequestBody):
            producer.abort_connection = self.abortConnection
        self.transport.registerProducer(producer, streaming)

    def write(self, data: bytes) -> None:
        """Send bytes of a request, and start to count the bytes of its response."""
        self._expect_response()
        self.transport.write(data)

    def writeSequence(self, data: Any) -> None:
        """Send bytes of a request, and start to count the bytes of its response."""
        self._expect_response()
        self.transport.writeSequence(data)

    def pauseProducing(self) -> None:
        """Pause the connection, once all bytes are passed on that have arrived.

        Twisted's client pauses for each response, and often resumes at once: the whole body came
        with the headers. This saves two system calls.
        """
        if self._is_receiving:
            self._pauses_later = True
        else:
            self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Resume the connection to read the body, which has no limit here."""
        self._header_bytes = None
        if self._pauses_later:
            self._pauses_later = False
        else:
            self.transport.resumeProducing()

    def _expect_response(self) -> None:
        self._header_bytes = 0
        self._status_line = b""
        self.has_interim = False

    def dataReceived(self, data: bytes) -> None:
        """Pass bytes to Twisted's client, or abort the connection if the headers are too long."""
        if self._header_bytes is not None:
            if len(self._status_line) < _INTERIM_LENGTH:
                self._status_line += data[: _INTERIM_LENGTH - len(self._status_line)]
                self.has_interim = _INTERIM.match(self._status_line) is not None
            self._header_bytes += len(data)
            if self._header_bytes > _MAX_HEADER_BYTES:
                self.abortConnection()
                return
        self._is_receiving = True
        self.wrappedProtocol.dataReceived(data)
        self._is_receiving = False
        if self._pauses_later:
            self._pauses_later = False
            self.transport.pauseProducing()


class _ConnectionFactory(WrappingFactory):
    noisy = False
    protocol: Any = PooledConnection


@implementer(IStreamClientEndpoint)
@dataclass(frozen=True, slots=True)
class _TrackingEndpoint:
    """Endpoint that registers each of its connections while it is open."""

    endpoint: IStreamClientEndpoint
    open_connections: dict[PooledConnection, int]

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        factory = _ConnectionFactory(protocolFactory)  # type: ignore[no-untyped-call]
        factory.protocols = self.open_connections
        connecting: Deferred[Any] = self.endpoint.connect(factory)
        return connecting.addCallback(lambda wrapper: wrapper.wrappedProtocol)


def _is_hostname(host: bytes) -> bool:
    """Return whether Twisted's ``HostnameEndpoint`` accepts a host, as a name or an address."""
    try:
        idna.encode(host.decode("ascii"))
    except UnicodeError:
        return b":" in host
    return True
