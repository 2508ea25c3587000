"""Connections to other machines: made, bounded, kept for a while, and closed at the end."""

from __future__ import annotations

import re
from typing import Any

import idna
from twisted.internet.defer import Deferred, fail
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, wrapClientTLS
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IProtocol,
    IProtocolFactory,
    IReactorTime,
    ISSLTransport,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Factory
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import (
    URI,
    Agent,
    BrowserLikePolicyForHTTPS,
    HostnameCachingHTTPSPolicy,
    HTTPConnectionPool,
)
from twisted.web.http_headers import Headers
from twisted.web.iweb import IBodyProducer, IResponse
from zope.interface import implementer

from audioproxy.http_client.bodies import Upload
from audioproxy.http_client.errors import Unreachable
from audioproxy.recent import Recent

# Seconds to connect.
_CONNECT = 5.0
# Connections to one host that are kept, and seconds for which an idle one is. Object stores close
# theirs after 20 seconds and more; a request on one that was just closed would be lost.
_KEPT = 100
_KEPT_SECONDS = 15
# Seconds for the others to say goodbye.
_CLOSE = 1.0
# Hosts whose TLS contexts, and how they are reached, are kept. To read the system's certificates
# takes some milliseconds.
_HOSTS = 32
# Bytes of the headers of an answer, and of what is read with them of its body: a few at most where
# it comes in small pieces, and as much as the connection reads at a time where it does not.
_HEADERS = 512 * 1024

_TARGET = re.compile(rb"[a-z]+://[^/?#]*")


class Connections:
    """Twisted's client, with all of its connections in view."""

    def __init__(self, reactor: Any, trust: Any) -> None:
        self._reactor = reactor
        self._clock: IReactorTime = reactor
        self._pool = HTTPConnectionPool(reactor)
        self._pool.maxPersistentPerHost = _KEPT
        self._pool.cachedConnectionTimeout = _KEPT_SECONDS
        self._agent = Agent(reactor, pool=self._pool)
        self._policy = HostnameCachingHTTPSPolicy(BrowserLikePolicyForHTTPS(trust), _HOSTS)
        # To make one costs as much as to sign a request.
        self._endpoints: Recent[tuple[bytes, bytes, int], IStreamClientEndpoint] = Recent(_HOSTS)
        self._open: set[Connection] = set()
        self._closed = False

    def request(
        self, method: bytes, url: bytes, headers: Headers, body: IBodyProducer | None
    ) -> Deferred[IResponse]:
        """Send a request, whose URL travels exactly as it is spelled."""
        if self._closed:
            return fail(Unreachable("the service has ended"))
        uri = URI.fromBytes(url)
        key = (uri.scheme, uri.host, uri.port)
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            try:
                endpoint = self._endpoint(uri)
            except UnicodeError:
                return fail(Unreachable("TLS has no such names of hosts"))
            self._endpoints.keep(key, endpoint)
        # Twisted 26.10's public method spells the URL anew, and so loses a `;` at the end of a
        # path; with Python 3.13 it makes four slashes of two at the beginning of one.
        target = _TARGET.sub(b"", url, count=1)
        sent: Deferred[IResponse] = self._agent._requestWithEndpoint(
            key, endpoint, method, uri, headers, body, target
        )
        return sent

    def open(self) -> None:
        """Let requests out, as they are from the beginning, after a `close` too."""
        self._closed = False

    async def close(self) -> None:
        """Close all, those in use as well; who does not take leave in a second is cut off."""
        self._closed = True
        closing: Deferred[object] = self._pool.closeCachedConnections()
        cutting = self._clock.callLater(_CLOSE, self._cut)
        try:
            await closing
        finally:
            if cutting.active():
                cutting.cancel()
        self._cut()

    def _cut(self) -> None:
        for connection in list(self._open):
            connection.abortConnection()

    def _endpoint(self, uri: URI) -> IStreamClientEndpoint:
        """Return how to reach a server.

        :raises UnicodeError: over TLS, where the host has no name as IDNA knows them.
        """
        plain: IStreamClientEndpoint
        if _is_name(uri.host):
            plain = HostnameEndpoint(self._reactor, uri.host, uri.port, timeout=_CONNECT)
        else:
            # Names with an underscore, say, as containers have them among themselves.
            host = uri.host.decode("ascii")
            plain = TCP4ClientEndpoint(self._reactor, host, uri.port, timeout=_CONNECT)
        if uri.scheme == b"https":
            plain = wrapClientTLS(self._policy.creatorForNetloc(uri.host, uri.port), plain)
        return _Endpoint(plain, self._open)


@implementer(IStreamClientEndpoint)
class _Endpoint:
    """Makes connections that are in view, and no news for the log."""

    def __init__(self, endpoint: IStreamClientEndpoint, opened: set[Connection]) -> None:
        self._endpoint = endpoint
        self._opened = opened

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        if isinstance(protocolFactory, Factory):
            protocolFactory.noisy = False
        wrapping = _Wrapping(protocolFactory, self._opened)
        connecting: Deferred[Any] = self._endpoint.connect(wrapping)
        return connecting.addCallback(lambda wrapper: wrapper.wrappedProtocol)


class _Wrapping(WrappingFactory):
    noisy = False

    def __init__(self, factory: IProtocolFactory, opened: set[Connection]) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self.protocol = Connection
        self.opened = opened


class Connection(ProtocolWrapper):
    """One connection, between its transport and Twisted's client.

    That one reads headers without a limit. So from a request on, until its answer's body is asked
    for, only so many bytes may come: once the headers are complete, it reads no more until then.

    :ivar closed_securely: the server has closed it with TLS's close_notify, which cannot be forged
        (RFC 8446, 6.1).
    """

    transport: Any
    factory: Any
    closed_securely = False
    _came: int | None = None

    def connectionMade(self) -> None:
        """Come into view."""
        self.factory.opened.add(self)
        ProtocolWrapper.connectionMade(self)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """Go out of it."""
        self.factory.opened.discard(self)
        # Twisted reports an end of TLS without that message as ConnectionLost.
        secure = ISSLTransport.providedBy(self.transport)
        self.closed_securely = secure and reason.check(ConnectionDone) is not None
        ProtocolWrapper.connectionLost(self, reason)

    def abortConnection(self) -> None:
        """Close it at once: over TLS, ``loseConnection`` waits for the other side."""
        self.transport.abortConnection()

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Let a body know where it goes."""
        if isinstance(producer, Upload):
            producer.abort = self.abortConnection
        self.transport.registerProducer(producer, streaming)

    def write(self, data: bytes) -> None:
        """Send, after which an answer may come."""
        self._came = 0
        self.transport.write(data)

    def writeSequence(self, data: Any) -> None:
        """Send, after which an answer may come."""
        self._came = 0
        self.transport.writeSequence(data)

    def resumeProducing(self) -> None:
        """Read on: the body, or the beginning of nothing."""
        self._came = None
        self.transport.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        """Hear from the server."""
        if self._came is not None:
            self._came += len(data)
            if self._came > _HEADERS:
                self.abortConnection()
                return
        self.wrappedProtocol.dataReceived(data)


def connection_of(response: IResponse) -> Connection | None:
    """Return the connection of a response that has just come; None where it has ended by now.

    Twisted 26.10 has no public way from a response to its connection.
    """
    connection = getattr(getattr(response, "_transport", None), "_producer", None)
    return connection if isinstance(connection, Connection) else None


def _is_name(host: bytes) -> bool:
    """Tell whether Twisted takes this for a host's name or address."""
    try:
        idna.encode(host.decode("ascii"))
    except UnicodeError:
        return b":" in host
    return True
