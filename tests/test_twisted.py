"""Private parts of Twisted's client, and why each of them is used.

Each test fails if a release of Twisted makes a function of `audioproxy.http_client._twisted`
needless, and its docstring says what to do then. If a release makes one wrong, `tests.http_client`
fails: look in `twisted.web._newclient` for what has changed, and send no request until then.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IPushProducer
from twisted.internet.testing import AccumulatingProtocol
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.iweb import IResponse

from audioproxy.http_client._twisted import abort_response
from tests.support.wire import Network, reply


class NeededTests(SynchronousTestCase):
    """Twisted's Agent in an in-memory network"""

    def setUp(self) -> None:
        self.network = Network()
        self.agent = Agent(self.network, pool=HTTPConnectionPool(self.network))

    def response(self, packet: bytes, url: bytes = b"http://a.test/") -> Any:
        """Send a request to which the peer responds with a packet, and return the response."""
        self.network.scripts.append(packet)
        fetching = self.agent.request(b"GET", url)
        self.network.run()
        return self.successResultOf(fetching)

    def test_request_with_target(self) -> None:
        """`Agent.request` drops a semicolon at the end of a path.

        When this fails, try the Agent also with a path that begins with two slashes, on Python 3.13
        or later. If it keeps the semicolon and the two slashes, call the Agent and delete the
        function.
        """
        self.response(reply(200), b"http://a.test/a;")
        self.assertEqual("/a", self.network.requests[-1].target)

    def test_response_connection(self) -> None:
        """A response has no public attribute for its connection.

        When this fails, see whether the new attribute is the transport. If so, use it in
        `http_client.client.Response` and delete the function.
        """
        names = set(IResponse.names(all=True))
        self.assertEqual(set(), names & {"transport", "connection", "channel"})

    def test_careful_pool(self) -> None:
        """Twisted's client uses a connection again that has a byte too many.

        When this fails for 204 and for the others, delete the class.
        """
        stray = reply(302, b"", {"Location": "/elsewhere"})
        for first in (reply(200) + stray, b"HTTP/1.1 204 No Content\r\n\r\n"):
            self.setUp()
            self.response(first)
            self.assertEqual(200, self.response(reply(200)).code)
            self.assertFalse(self.network.peers[0].closed)

    def test_abort_response(self) -> None:
        """The transport of a body's receiver can pause, but cannot abort the connection.

        When this fails, call ``self.transport.abortConnection()`` in `http_client.bodies` and
        delete the function.
        """
        receiver = AccumulatingProtocol()
        self.response(reply(200, length=5)).deliverBody(receiver)
        transport: Any = receiver.transport
        self.assertTrue(callable(IPushProducer(transport).pauseProducing))
        self.assertFalse(hasattr(transport, "abortConnection"))
        abort_response(receiver)
