"""Private parts of Twisted that the service uses: each test fails if an upgrade changes one.

If a message says that something is needless, use the public part of Twisted instead, and remove
the function from ``audioproxy/_twisted.py``. If it says that something has changed, adapt the
function.
"""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.interfaces import IPushProducer, ITCPTransport, ITransport
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import CertificateOptions
from twisted.internet.tcp import Connection, Server
from twisted.internet.testing import AccumulatingProtocol, StringTransport
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.http import HTTPChannel
from twisted.web.iweb import IResponse
from twisted.web.resource import Resource
from twisted.web.server import Site

from audioproxy._twisted import (
    HookedChannel,
    count_unsent,
    is_plain_tcp,
    limit_accepts,
    pause_until_writable,
    send_now,
    set_send_buffer,
)
from audioproxy.http_client._twisted import abort_response
from tests.support.service import PATIENCE
from tests.support.wire import Network, reply

reactor: Any = _reactor

_MUCH = bytes(8 << 20)


class Producer:
    """Push producer that counts its calls."""

    def __init__(self) -> None:
        self.paused = self.resumed = 0

    def pauseProducing(self) -> None:
        self.paused += 1

    def resumeProducing(self) -> None:
        self.resumed += 1

    def stopProducing(self) -> None:
        pass


class TransportTests(SynchronousTestCase):
    """Plain TCP transport: buffers, immediate sends and producers"""

    def setUp(self) -> None:
        self.peer, ours = socket.socketpair()
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.transport: Any = Connection(ours, Protocol(), reactor)
        self.transport.connected = True
        self.addCleanup(self.peer.close)
        self.addCleanup(ours.close)
        self.addCleanup(reactor.removeWriter, self.transport)

    def received(self) -> int:
        """Return the number of bytes that the peer can read."""
        count = 0
        while True:
            try:
                count += len(self.peer.recv(1 << 20))
            except BlockingIOError:
                return count

    def test_buffers(self) -> None:
        """Three private attributes show how many bytes are not sent; no public attribute does."""
        self.assertEqual(0, count_unsent(self.transport))
        self.transport.write(_MUCH)
        self.assertEqual(len(_MUCH), count_unsent(self.transport), "the buffers have changed")
        self.transport.doWrite()
        sent = self.received()
        self.assertEqual(len(_MUCH) - sent, count_unsent(self.transport), "`offset` has changed")
        while sent:
            self.transport.doWrite()
            sent = self.received()
        self.assertEqual(0, count_unsent(self.transport), "the buffers have changed")
        public = {name for name in ITransport if "sent" in name.lower() or "buffer" in name.lower()}
        self.assertEqual(set(), public, "`count_unsent` may be needless")

    def test_plain_tcp(self) -> None:
        """After startTLS, a transport is still a `Connection`; only its `TLS` attribute changes."""
        self.assertTrue(is_plain_tcp(self.transport))
        self.assertFalse(is_plain_tcp(StringTransport()))
        secured: Any = Server(self.peer, Protocol(), ("127.0.0.1", 1), None, 1, reactor)
        self.addCleanup(reactor.removeReader, secured)
        self.assertTrue(is_plain_tcp(secured))
        secured.startTLS(CertificateOptions())
        self.assertIsInstance(secured, Connection, "`TLS` may be needless")
        self.assertFalse(is_plain_tcp(secured), "`TLS` has changed")
        self.assertNotIn("TLS", ITCPTransport, "an interface has `TLS` now")

    def test_send_now(self) -> None:
        """The socket sends at once as much as the system accepts; `write` sends later.

        On a lost connection, `send_now` returns all bytes.
        """
        self.transport.write(b"abc")
        self.assertEqual(0, self.received(), "`send_now` is needless")
        self.transport.doWrite()
        self.assertEqual(3, self.received())
        rest = send_now(self.transport, _MUCH)
        self.assertTrue(0 < len(rest) < len(_MUCH), "`getHandle` has changed")
        self.assertEqual(len(_MUCH) - len(rest), self.received())
        self.peer.close()
        self.assertEqual(b"abc", send_now(self.transport, b"abc"), "`getHandle` has changed")

    def test_producer(self) -> None:
        """A transport pauses its producer when more bytes than its `bufferSize` are unsent.

        After `pause_until_writable`, it resumes the producer when it is writable.
        """
        producer = Producer()
        self.transport.registerProducer(producer, True)
        self.transport.doWrite()
        self.assertEqual(0, producer.resumed, "`pause_until_writable` is needless")
        pause_until_writable(self.transport)
        self.assertIn(self.transport, reactor.getWriters())
        self.transport.doWrite()
        self.assertEqual(1, producer.resumed, "`producerPaused` has changed")
        self.transport.write(bytes(65_536))
        self.assertEqual(0, producer.paused, "the default of `bufferSize` has changed")
        set_send_buffer(self.transport, 65_000)
        self.transport.write(b"x")
        self.assertEqual(1, producer.paused, "`bufferSize` has changed")


class PortTests(SynchronousTestCase):
    """Listening port: connections that are accepted in a row"""

    def test_limited_accepts(self) -> None:
        """The private loop of `doRead` accepts as many connections as the last number says.

        Without a limit, it closes each connection that the factory refuses.
        """
        accepted: list[object] = []
        factory: Any = Factory()
        factory.buildProtocol = accepted.append
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            address = listening.getsockname()
            port = reactor.adoptStreamPort(listening.fileno(), socket.AF_INET, factory)
        self.addCleanup(port.stopListening)
        clients = [socket.create_connection(address, timeout=PATIENCE) for _ in range(9)]
        for client in clients:
            self.addCleanup(client.close)
        counts = iter((2, 0, 1, 2))
        limit_accepts(port, lambda: next(counts))
        for count in (2, 2, 3, 5):
            port.doRead()
            self.assertEqual(count, len(accepted), "`numberAccepts` has changed")
        for client in clients[:5]:
            self.assertEqual(b"", client.recv(1), "`limit_accepts` may be needless")
        clients[5].setblocking(False)
        with self.assertRaises(BlockingIOError):
            clients[5].recv(1)


class Late(Resource):
    """Resource that does not respond yet."""

    isLeaf = True

    def render(self, request: Any) -> int:
        return 1


class RecordingChannel(HookedChannel):
    """Channel that counts bad requests."""

    bad_requests = 0

    def reject(self) -> None:
        self.bad_requests += 1
        self.loseConnection()


class ChannelTests(SynchronousTestCase):
    """HTTP/1 channel of a site"""

    def connect(self, channel: type[HTTPChannel]) -> Any:
        """Return a new channel with an in-memory transport."""
        site = Site(Late(), reactor=reactor, timeout=None)
        made: Any = channel()  # type: ignore[no-untyped-call]
        made.factory, made.timeOut = site, None
        made.site, made.requestFactory = site, site.requestFactory
        made.makeConnection(StringTransport())
        return made

    def test_bad_request(self) -> None:
        """A malformed request calls a hook of `HookedChannel`; Twisted alone sends a bare 400."""
        channel = self.connect(RecordingChannel)
        channel.dataReceived(b"nonsense\r\n\r\n")
        self.assertEqual(1, channel.bad_requests, "`_respondToBadRequestAndDisconnect` has changed")
        plain = self.connect(HTTPChannel)
        plain.dataReceived(b"nonsense\r\n\r\n")
        self.assertEqual(
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            plain.transport.value(),
            "`HookedChannel.reject` may be needless as a hook",
        )

    def test_unfinished(self) -> None:
        """Private attributes hold an incomplete line, and parts of an incomplete request."""
        channel = self.connect(RecordingChannel)
        channel.dataReceived(b"POST / HT")
        self.assertEqual(b"POST / HT", channel.unparsed, "`_buffer` has changed")
        channel.dataReceived(b"TP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
        self.assertEqual(b"POST", channel.command, "`_command` has changed")
        self.assertNotEqual(b"POST", channel.requests[-1].method, "`command` is needless")
        self.assertEqual(b"HTTP/1.1", channel.http_version, "`_version` has changed")
        self.assertNotEqual(
            b"HTTP/1.1", channel.requests[-1].clientproto, "`http_version` is needless"
        )

    def test_eager_reading(self) -> None:
        """A private attribute sets how many pipelined bytes a channel reads before it pauses."""
        request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        for size, state in ((16_000, "producing"), (16_500, "paused")):
            plain = self.connect(HTTPChannel)
            plain.dataReceived(request)
            plain.dataReceived(bytes(size))
            self.assertEqual(
                state,
                plain.transport.producerState,
                "the default of `_optimisticEagerReadSize` has changed",
            )
        channel = self.connect(RecordingChannel)
        channel.set_read_ahead(50_000)
        channel.dataReceived(request)
        channel.dataReceived(bytes(49_000))
        self.assertEqual(
            "producing", channel.transport.producerState, "`_optimisticEagerReadSize` has changed"
        )


class AgentTests(SynchronousTestCase):
    """Twisted's Agent in an in-memory network

    Each test fails if a release makes a function of `audioproxy.http_client._twisted` needless, and
    its docstring says what to do then. If a release makes one wrong, `tests.http_client` fails:
    look in `twisted.web._newclient` for what has changed, and send no request until then.
    """

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
