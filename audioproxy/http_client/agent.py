"""Twisted's ``IAgent`` on connections that send URLs byte for byte, for treq."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer, IResponse
from zope.interface import implementer

from audioproxy.http_client.connection_pool import ConnectionPool


@implementer(IAgent)
class ExactUrlAgent:
    """Agent that sends the URL it was created for, byte for byte.

    treq 26.7 normalizes URLs with hyperlink: it encodes ``[``, ``]`` and ``|``, and it rejects host
    names with an underscore. It also asks for gzip and decodes it. This agent removes both headers,
    so that the body is exactly what the server sent.

    :ivar response: the last response, before treq wraps it.
    """

    def __init__(self, connections: ConnectionPool, url: bytes) -> None:
        self._connections = connections
        self._url = url
        self.response: IResponse | None = None

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
        sending = self._connections.request(method, self._url, lines, bodyProducer)

        def cancel(waiter: Deferred[IResponse]) -> None:
            # When cancelled, Twisted's client fails with an error that depends on its progress,
            # such as an unknown host name or a lost connection.
            waiter.errback(CancelledError())
            sending.cancel()

        waiter: Deferred[IResponse] = Deferred(cancel)
        sending.addBoth(lambda outcome: None if waiter.called else waiter.callback(outcome))
        return waiter.addCallback(self._receive)

    def _receive(self, response: IResponse) -> IResponse:
        response.headers.removeHeader(b"content-encoding")
        self.response = response
        return response
