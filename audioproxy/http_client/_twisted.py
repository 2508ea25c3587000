"""Private and undocumented parts of Twisted's HTTP client, each in one place.

``tests/test_twisted.py`` fails when a release makes one of them unnecessary, and
``tests/http_client`` when it changes one.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.web._newclient import HTTP11ClientProtocol
from twisted.web.client import URI, Agent, HTTPConnectionPool, _HTTP11ClientFactory
from twisted.web.http_headers import Headers
from twisted.web.iweb import IBodyProducer, IResponse


def request_with_target(
    agent: Agent,
    endpoint: IStreamClientEndpoint,
    method: bytes,
    uri: URI,
    headers: Headers,
    body: IBodyProducer | None,
    target: bytes,
) -> Deferred[IResponse]:
    """Send a request with exactly this request target.

    Twisted 26.10: ``Agent.request`` serializes the URL again and so loses a ``;`` at the end of a
    path. With Python 3.13 it turns two slashes at the beginning of a path into four. A signature
    covers the target exactly as it was given. Unnecessary when ``Agent`` accepts a target, or keeps
    the URL as given.
    """
    key = (uri.scheme, uri.host, uri.port)
    sent: Deferred[IResponse] = agent._requestWithEndpoint(
        key, endpoint, method, uri, headers, body, target
    )
    return sent


def response_connection(response: IResponse) -> object | None:
    """Return the transport of the connection of a response, or None if the connection has ended.

    Twisted 26.10: ``IResponse`` does not expose its connection, which alone shows whether TLS ended
    with close_notify. Unnecessary when ``IResponse`` gives access to its transport.
    """
    proxy: Any = getattr(response, "_transport", None)
    return getattr(proxy, "_producer", None)


def abort_response(receiver: Protocol) -> None:
    """Close the connection of a response at once, from the protocol that receives its body.

    Twisted 26.10: the protocol's transport is a proxy without ``abortConnection``, and over TLS
    ``loseConnection`` waits for a server that may never respond. Unnecessary when ``deliverBody``
    connects the protocol to a transport with ``abortConnection``.
    """
    proxy: Any = receiver.transport
    connection = proxy._producer if proxy is not None else None
    if connection is not None:
        connection.abortConnection()


def has_idle_connection(pool: HTTPConnectionPool, uri: URI) -> bool:
    """Return whether a request to an origin would use a connection that is open.

    Twisted 26.10: a pool does not tell. Unnecessary when it does.
    """
    return bool(pool._connections.get((uri.scheme, uri.host, uri.port)))


class _CarefulProtocol(HTTP11ClientProtocol):
    transport: Any
    _currentRequest: Any

    def _finishResponse_WAITING(self, rest: bytes) -> None:
        if self._parser is not None and (rest or self._parser.response.code in (204, 304)):
            self._currentRequest.persistent = False
        super()._finishResponse_WAITING(rest)

    _finishResponse_TRANSMITTING = _finishResponse_WAITING

    def dataReceived(self, data: bytes) -> None:
        if self._parser is None:
            self.transport.abortConnection()
        else:
            super().dataReceived(data)  # type: ignore[no-untyped-call]


class _CarefulFactory(_HTTP11ClientFactory):
    noisy = False

    def buildProtocol(self, addr: object) -> _CarefulProtocol:
        return _CarefulProtocol(self._quiescentCallback)  # type: ignore[no-untyped-call]


class CarefulPool(HTTPConnectionPool):
    """A pool that closes each connection on which a byte comes that no request asked for.

    Twisted 26.10: ``HTTP11ClientProtocol`` ignores bytes that come with the end of a response, and
    takes those that come later for the response to the next request. A server that sends a body
    after 204 or 304, which have none, may send it at any time, so that no request may follow.
    Unnecessary when the protocol closes such connections.
    """

    _factory = _CarefulFactory
