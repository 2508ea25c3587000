"""Outbound connections: limited, registered while open, and the endpoints that make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import idna
from twisted.internet.defer import Deferred
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
from twisted.web.client import URI
from zope.interface import implementer

from audioproxy.http_client.bodies import RequestBody
from audioproxy.http_client.errors import TransportError
from audioproxy.http_client.public_addresses import PublicEndpoint
from audioproxy.http_client.tls import HostTls, is_address

# Seconds to wait for a connection.
_CONNECT_TIMEOUT = 5.0
# Maximum bytes of a response's headers, with the part of the body that arrives in the same read.
_MAX_HEADER_BYTES = 512 * 1024
# The longest label of a name (RFC 1035, 2.3.4).
_MAX_LABEL = 63


class PooledConnection(ProtocolWrapper):
    """One connection, wrapped around Twisted's client protocol.

    Twisted's client does not limit response headers. This class limits the bytes that arrive
    between a request and `resumeProducing`: the client pauses the connection when the headers are
    complete, and resumes it when the body is read.

    :ivar closed_securely: the server has closed the connection with TLS's close_notify, which
        cannot be forged (RFC 8446, 6.1).
    """

    transport: Any
    closed_securely = False
    _header_bytes: int | None = None
    # Bytes are being passed on; the connection is to be paused after that; it is paused.
    _is_receiving = False
    _pauses_later = False
    _is_paused = False

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        # Twisted reports a TLS connection that ends without close_notify as ConnectionLost.
        secure = ISSLTransport.providedBy(self.transport)
        self.closed_securely = secure and reason.check(ConnectionDone) is not None
        ProtocolWrapper.connectionLost(self, reason)

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Register a request's body, and let it abort this connection."""
        if isinstance(producer, RequestBody):
            producer.abort_connection = self.abortConnection
        self.transport.registerProducer(producer, streaming)

    def write(self, data: bytes) -> None:
        self._header_bytes = 0
        self.transport.write(data)

    def writeSequence(self, data: Any) -> None:
        self._header_bytes = 0
        self.transport.writeSequence(data)

    def pauseProducing(self) -> None:
        """Pause the connection, once all bytes are passed on that have arrived.

        Twisted's client pauses for each response, and often resumes at once: the whole body came
        with the headers. This saves two system calls.
        """
        self._pauses_later = self._is_receiving
        if not self._is_receiving:
            self._is_paused = True
            self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Resume the connection to read the body, which has no limit here.

        TLS passes on all that it has read, also after a pause. So a connection may be paused, and
        about to be paused again.
        """
        self._header_bytes = None
        self._pauses_later = False
        if self._is_paused:
            self._is_paused = False
            self.transport.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        if self._header_bytes is not None:
            self._header_bytes += len(data)
            if self._header_bytes > _MAX_HEADER_BYTES:
                self.abortConnection()
                return
        self._is_receiving = True
        self.wrappedProtocol.dataReceived(data)
        self._is_receiving = False
        if self._pauses_later:
            self.pauseProducing()


class _ConnectionFactory(WrappingFactory):
    noisy = False
    protocol: Any = PooledConnection


@implementer(IStreamClientEndpoint)
@dataclass(frozen=True, slots=True)
class _TrackingEndpoint:
    endpoint: IStreamClientEndpoint
    open_connections: dict[PooledConnection, int]

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        factory = _ConnectionFactory(protocolFactory)  # type: ignore[no-untyped-call]
        factory.protocols = self.open_connections
        connecting: Deferred[Any] = self.endpoint.connect(factory)
        return connecting.addCallback(lambda wrapper: wrapper.wrappedProtocol)


def make_endpoint(
    reactor: Any,
    uri: URI,
    trust_root: Any,
    open_connections: dict[PooledConnection, int],
    *,
    public_only: bool = False,
) -> IStreamClientEndpoint:
    """Return the endpoint of a server, which registers its connections while they are open."""
    host = uri.host.decode("ascii")
    if not (is_address(host) or all(0 < len(each) <= _MAX_LABEL for each in host.split("."))):
        # Twisted 26.10: the look-up of such a name never ends, since Python raises UnicodeError.
        raise TransportError("the host is not a valid name")
    endpoint: IStreamClientEndpoint
    if public_only:
        endpoint = PublicEndpoint(reactor, host, uri.port, _CONNECT_TIMEOUT)
    elif is_address(host) or _is_valid_idna(host):
        endpoint = HostnameEndpoint(reactor, uri.host, uri.port, timeout=_CONNECT_TIMEOUT)
    else:
        # `HostnameEndpoint` refuses names with an underscore, which are common in container
        # networks, and others that IDNA 2008 rejects.
        endpoint = TCP4ClientEndpoint(reactor, host, uri.port, timeout=_CONNECT_TIMEOUT)
    if uri.scheme == b"https":
        endpoint = wrapClientTLS(HostTls(host, trust_root), endpoint, reactor)
    return _TrackingEndpoint(endpoint, open_connections)


def _is_valid_idna(host: str) -> bool:
    try:
        idna.encode(host)
    except UnicodeError:
        return False
    return True
