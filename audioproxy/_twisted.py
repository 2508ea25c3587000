"""Private and undocumented parts of Twisted that the package uses, each behind one function.

``tests/test_twisted.py`` fails when a release makes one of them needless or changes it. Nothing
here imports ``twisted.web.client``: a service of local files starts without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.protocol import Factory, Protocol

if TYPE_CHECKING:
    from twisted.internet.interfaces import IStreamClientEndpoint
    from twisted.web.client import URI, Agent
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

    Twisted 26.10: ``Agent.request`` serializes the URL anew and so loses a ``;`` at the end of a
    path; with Python 3.13 it turns two slashes at the beginning of one into four. A signature
    covers the target as it was. Needless when ``Agent`` takes a target, or keeps the URL as given.
    """
    key = (uri.scheme, uri.host, uri.port)
    sent: Deferred[IResponse] = agent._requestWithEndpoint(
        key, endpoint, method, uri, headers, body, target
    )
    return sent


def response_connection(response: IResponse) -> object | None:
    """Return the transport of the connection that a response came on; None where it has ended.

    Twisted 26.10: ``IResponse`` does not name its connection, which alone tells whether TLS ended
    with close_notify. Needless when ``IResponse`` gives access to its transport.
    """
    proxy: Any = getattr(response, "_transport", None)
    return getattr(proxy, "_producer", None)


def abort_response(receiver: Protocol) -> None:
    """Close the connection of a response at once, from the protocol that receives its body.

    Twisted 26.10: the protocol's transport is a proxy without ``abortConnection``, and over TLS
    ``loseConnection`` waits for a server that may never answer. Needless when ``deliverBody``
    connects the protocol to a transport with ``abortConnection``.
    """
    proxy: Any = receiver.transport
    connection = proxy._producer if proxy is not None else None
    if connection is not None:
        connection.abortConnection()


def silence_factory(factory: IProtocolFactory) -> None:
    """Keep a factory from logging each start and stop.

    Twisted 26.10: factories log both at info level, and the connection pool of ``Agent`` makes one
    for each connection. ``Factory.noisy``, which stops that, is not documented. Needless when
    factories are silent by default.
    """
    if isinstance(factory, Factory):
        factory.noisy = False
