"""Twisted's ``IAgent`` on connections that send URLs byte for byte, for treq."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer, IResponse
from zope.interface import implementer

from audioproxy.http_client.connection_pool import ConnectionPool


@implementer(IAgent)
class ExactUrlAgent:
    """Agent for one URL, which it sends byte for byte, whatever the caller made of it.

    treq 26.7 normalizes URLs with hyperlink: it encodes ``[``, ``]`` and ``|``, and it rejects host
    names with an underscore. It also asks for gzip and decodes it; this agent hides both
    headers, so that a body is what the server sent.
    """

    def __init__(self, connections: ConnectionPool, url: bytes) -> None:
        self._connections = connections
        self._url = url

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,
    ) -> Deferred[IResponse]:
        """Send a request for the agent's URL; ``uri`` is ignored.

        :returns: fires with the response, or fails with ``CancelledError`` when it is cancelled.
        """
        lines = Headers() if headers is None else headers.copy()
        lines.removeHeader(b"accept-encoding")
        sent = self._connections.request(method, self._url, lines, bodyProducer)

        def cancel(answered: Deferred[IResponse]) -> None:
            # Twisted's client fails with other errors, which depend on its progress: an unknown
            # name, or a lost connection.
            answered.errback(CancelledError())
            sent.cancel()

        answered: Deferred[IResponse] = Deferred(cancel)
        sent.addBoth(lambda outcome: None if answered.called else answered.callback(outcome))
        return answered.addCallback(_hide_encoding)


def _hide_encoding(response: IResponse) -> IResponse:
    response.headers.removeHeader(b"content-encoding")
    return response
