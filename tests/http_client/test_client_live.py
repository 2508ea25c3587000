"""The outbound HTTP client on real sockets, and its import in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPullProducer
from twisted.internet.ssl import platformTrust
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface import implementer

from audioproxy.http_client.client import HttpClient, Response
from tests.support.consumers import FakeConsumer
from tests.support.origins import OriginConnection, Raw, open_origin
from tests.support.service import PATIENCE, TEST_PATIENCE
from tests.support.wire import reply

reactor: Any = _reactor


OK, LENGTH = b"200 OK", b"Content-Length: 5\r\n"


class RealTests(TestCase):
    """Real sockets behave like the simulated ones"""

    timeout = TEST_PATIENCE

    def setUp(self) -> None:
        self.origin = open_origin(self)
        self.url = self.origin.url("/", "127.0.0.1")
        self.client = HttpClient(reactor, platformTrust())
        self.addCleanup(lambda: Deferred.fromCoroutine(self.client.close()))

    async def respond(self, answer: bytes) -> Response:
        """Return the response to a request, which consists of these bytes; the connection stays."""
        self.origin.put("/", Raw(answer, "hold"))
        return await self.client.request("GET", self.url, {})

    @property
    def server(self) -> OriginConnection:
        """The server's side of the newest connection."""
        return self.origin.connections[-1]

    async def test_strays(self) -> None:
        """Bytes that no request asked for are never taken for the response to another request.

        They come after a response without a body, or behind the body of another one.
        """
        stray = reply(302, headers={"Location": "https://elsewhere.test/"})
        for head, asked in ((b"204 No Content", b""), (b"304 Not Modified", b""), (OK, b"hello")):
            for delay in (0, 0.001, 0.02):
                length = LENGTH if asked else b""
                response = await self.respond(b"HTTP/1.1 %b\r\n%b\r\n" % (head, length) + asked)
                before = len(self.origin.connections)
                self.server.transport.setTcpNoDelay(True)
                reactor.callLater(delay, self.server.transport.write, stray)
                self.assertEqual(asked, await response.read(5))
                if asked:
                    # It is idle when the bytes arrive.
                    await self.server.closed
                for _ in range(20):
                    response = await self.respond(reply(200, b"right"))
                    self.assertEqual(
                        (200, b"right"), (response.status, await response.read(5)), (head, delay)
                    )
                self.assertEqual(before + 1, len(self.origin.connections), (head, delay))

    async def test_slow_reader(self) -> None:
        """While the consumer is paused, a server can send only as much as the kernel buffers."""
        size = 32 * 1024 * 1024
        response = await self.respond(reply(200, length=size))
        consumer = FakeConsumer(capacity=0)
        sending = response.stream(size).send(consumer)
        sender = Sender(self.server.transport, size)
        left, idle_iterations = size, 0
        # The transfer is blocked once 200 reactor iterations have moved nothing.
        while idle_iterations < 200:
            await reactor_iteration()
            idle_iterations = idle_iterations + 1 if sender.left == left else 0
            left = sender.left
        self.assertGreater(left, size // 2)
        self.assertLessEqual(len(consumer.data), 2 * 64 * 1024)
        consumer.on_write = consumer.drain
        consumer.drain()
        await sending
        self.assertEqual(len(consumer.data), size)


@implementer(IPullProducer)
class Sender:
    """Producer of the bytes that a server sends, as fast as they are taken."""

    def __init__(self, transport: Any, size: int) -> None:
        self.left = size
        self._transport = transport
        transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        count = min(self.left, 64 * 1024)
        self.left -= count
        self._transport.write(bytes(count))
        if not self.left:
            self._transport.unregisterProducer()

    def stopProducing(self) -> None:
        self.left = 0


def reactor_iteration() -> Deferred[None]:
    """Wait for one iteration of the reactor."""
    passed: Deferred[None] = Deferred()
    reactor.callLater(0, passed.callback, None)
    return passed


class ImportTests(SynchronousTestCase):
    """Imports that a service needs only for remote sources and stores"""

    def test_lazy_imports(self) -> None:
        """A service with local sources imports neither OpenSSL nor an HTTP client (12 MB)."""
        code = (
            "import sys, audioproxy.service, audioproxy._twisted;"
            "remote = ('OpenSSL', 'twisted.web.client', 'botocore');"
            "print([name for name in remote if name in sys.modules])"
        )
        # Import this working tree: an installed package could belong to another working tree.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            env=environment,
            timeout=PATIENCE,
        )
        self.assertEqual(b"[]\n", ran.stdout)
