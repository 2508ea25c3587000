"""Private parts of Twisted: what the installed version does, and why each of them is used.

Each test fails if a release of Twisted makes a function of `audioproxy._twisted` needless or
wrong. The docstring of the test says what to do in that case.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.interfaces import IPushProducer
from twisted.internet.testing import AccumulatingProtocol
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import URI, Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers
from twisted.web.iweb import IResponse

from audioproxy.http_client._twisted import (
    CarefulPool,
    abort_response,
    request_with_target,
    response_connection,
)
from tests.support.wire import Network, reply


class AgentCase(SynchronousTestCase):
    """Base class with Twisted's Agent in an in-memory network."""

    def setUp(self) -> None:
        self.network = Network()
        self.agent = Agent(self.network)

    def response(self, *packets: bytes) -> Any:
        """Send a request to which the peer responds with these packets, and return the response."""
        self.network.scripts.append(packets)
        fetching = self.agent.request(b"GET", b"http://a.test/")
        self.network.run()
        return self.successResultOf(fetching)

    def target(self, sending: Deferred[IResponse]) -> str:
        """Return the request target that the peer receives."""
        self.network.run()
        sending.cancel()
        self.failureResultOf(sending)
        return self.network.requests[-1].target


class RequestWithTargetTests(AgentCase):
    """`request_with_target`"""

    def test_needed(self) -> None:
        """`Agent.request` drops a semicolon at the end of a path.

        When this fails, try the Agent also with a path that begins with two slashes, on Python 3.13
        or later. If it keeps the semicolon and the two slashes, call the Agent and delete the
        function.
        """
        self.assertEqual("/a", self.target(self.agent.request(b"GET", b"http://a.test/a;")))

    def test_exact(self) -> None:
        """`request_with_target` sends the given target unchanged.

        When this fails, find out how `twisted.web.client._AgentBase` sends a given target. Until
        then, send no request to an object store: its signature would not match.
        """
        url = b"http://a.test//a;"
        endpoint = TCP4ClientEndpoint(self.network, "a.test", 80)
        sending = request_with_target(
            self.agent, endpoint, b"GET", URI.fromBytes(url), Headers(), None, b"//a;"
        )
        self.assertEqual("//a;", self.target(sending))
        self.assertEqual("a.test", self.network.requests[-1].headers["host"])


class ResponseConnectionTests(AgentCase):
    """`response_connection`"""

    def test_needed(self) -> None:
        """A response has no public attribute for its connection.

        When this fails, see whether the new attribute is the transport. If so, use it in
        `http_client.client.Response` and delete the function.
        """
        names = set(IResponse.names(all=True))
        self.assertEqual(set(), names & {"transport", "connection", "channel"})

    def test_transport(self) -> None:
        """`response_connection` returns the transport until the body is complete.

        When this fails, look in `twisted.web._newclient.Response` for its transport. Until it is
        found, no body that ends with its connection counts as complete.

        It returns None for a complete response and a foreign object.
        """
        response = self.response(reply(200, length=5))
        connection: Any = response_connection(response)
        self.assertEqual(80, connection.getPeer().port)
        connection.abortConnection()
        self.network.run()
        self.assertTrue(self.network.peers[-1].aborted)
        self.assertIsNone(response_connection(self.response(reply(200, b"hello"))))
        stranger: Any = object()
        self.assertIsNone(response_connection(stranger))


class CarefulPoolTests(AgentCase):
    """`CarefulPool`"""

    STRAY = reply(302, b"", {"Location": "/elsewhere"})

    def follow(self, first: bytes) -> tuple[int, bool]:
        """Return the status of a second request, and whether the first connection is closed."""
        self.response(first)
        return self.response(reply(200)).code, self.network.peers[0].closed

    def use(self, pool: type[HTTPConnectionPool]) -> None:
        """Send requests through a pool of a new network."""
        self.network = Network()
        self.agent = Agent(self.network, pool=pool(self.network))

    def test_needed(self) -> None:
        """Twisted's client uses a connection again that has a byte too many.

        When this fails for 204 and for the others, delete the class.
        """
        self.use(HTTPConnectionPool)
        for first in (reply(200) + self.STRAY, b"HTTP/1.1 204 No Content\r\n\r\n"):
            self.assertEqual((200, False), self.follow(first))

    def test_closed(self) -> None:
        """The connection is closed after such a byte, and after responses without a body.

        When this fails, look in `twisted.web._newclient.HTTP11ClientProtocol` for the method that
        gets the bytes behind a response. Until it is found, send no request that may get a 204.
        """
        for first in (
            *(reply(200) + self.STRAY, reply(200, b"hello") + self.STRAY),
            *(b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\n\r\n"),
        ):
            self.use(CarefulPool)
            self.assertEqual((200, True), self.follow(first), first)

    def test_idle(self) -> None:
        """A byte on an idle connection closes it."""
        self.use(CarefulPool)
        self.response(reply(200))
        self.network.peers[0].send(b"x")
        self.network.run()
        self.assertTrue(self.network.peers[0].aborted)
        self.assertEqual(200, self.response(reply(200)).code)


class AbortResponseTests(AgentCase):
    """`abort_response`"""

    def test_needed(self) -> None:
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

    def test_abort(self) -> None:
        """`abort_response` closes the connection at once, in the middle of a body.

        When this fails, look in `twisted.web._newclient.TransportProxyProducer` for the transport
        that it wraps.
        """
        receiver = AccumulatingProtocol()
        self.response(reply(200, length=5), b"he").deliverBody(receiver)
        self.network.run()
        abort_response(receiver)
        self.network.run()
        self.assertEqual(b"he", receiver.data)
        self.assertTrue(self.network.peers[-1].aborted)

    def test_nothing_to_abort(self) -> None:
        """`abort_response` has no effect before a body and after the end of a body."""
        receiver = AccumulatingProtocol()
        abort_response(receiver)
        self.response(reply(200, b"hello")).deliverBody(receiver)
        abort_response(receiver)
        self.assertEqual(b"hello", receiver.data)
