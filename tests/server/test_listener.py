"""Ports that open and close, and how many clients a limit of descriptors has room for."""

from __future__ import annotations

import resource
import socket
from unittest import skipUnless

from twisted.internet.error import ConnectError
from twisted.trial.unittest import SynchronousTestCase, TestCase

from audioproxy.server.listener import Listener, most_clients
from tests.server.test_channel import MISS
from tests.support.http import ResourceHarness
from tests.support.service import ask, reactor, send, until


def has_ipv6() -> bool:
    """Tell whether this machine can listen on IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class MostClientsTests(SynchronousTestCase):
    """Clients never take the descriptors that the work needs."""

    def most(self, limit: int, children: int) -> int:
        """Return how many there may be under a limit."""
        self.patch(resource, "getrlimit", lambda which: (limit, limit))
        return most_clients(children)

    def test_limits(self) -> None:
        """Each takes two, its connection and a file; what is left is for children and the rest."""
        for limit, children in ((1024, 8), (4096, 20), (16_384, 4), (65_536, 100), (500, 8)):
            most = self.most(limit, children)
            self.assertGreaterEqual(limit - 2 * most, 256 + 8 * children)
            self.assertLessEqual(limit - 2 * most, 256 + 8 * children + 1)

    def test_room_for_nobody(self) -> None:
        """Under a limit that is too low for the work alone there are a few clients all the same."""
        for limit, children in ((0, 1), (64, 1), (256, 100), (90, 0)):
            self.assertEqual(16, self.most(limit, children))

    def test_no_limit(self) -> None:
        """Without any limit there is room for thousands."""
        self.assertGreater(self.most(resource.RLIM_INFINITY, 8), 4000)


class ListenerTests(TestCase):
    """One port with its site."""

    def setUp(self) -> None:
        """Build, and open nothing yet."""
        self.harness = ResourceHarness()
        self.listener = Listener(reactor, self.harness.site)
        self.addCleanup(self.listener.give_up)

    async def assert_closed(self, port: int) -> None:
        """Assert that nobody listens."""
        with self.assertRaises(ConnectError):
            await send(port, b"/health")

    async def test_every_interface(self) -> None:
        """Without an address it listens everywhere, on a port that the system chooses."""
        port = self.listener.open(0)
        self.assertEqual(200, (await ask(port, b"/health")).status)

    async def test_one_interface(self) -> None:
        """With an address it listens there and nowhere else."""
        port = self.listener.open(0, "127.0.0.1")
        self.assertEqual(200, (await ask(port, b"/health")).status)
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.2", port), timeout=5)

    @skipUnless(has_ipv6(), "This machine has no IPv6.")
    async def test_ipv6(self) -> None:
        """An address of IPv6 is one too, and is among all interfaces."""
        for bind in ("::1", ""):
            listener = Listener(reactor, self.harness.site)
            port = listener.open(0, bind)
            with socket.create_connection(("::1", port), timeout=5):
                await until(lambda: len(self.harness.site.connections), "the connection")
            await until(lambda: not len(self.harness.site.connections), "its end")
            listener.give_up()

    async def test_refused(self) -> None:
        """A port that is taken, and an address that is not ours, are errors of the system."""
        port = self.listener.open(0, "127.0.0.1")
        for bind in ("127.0.0.1", "192.0.2.1"):
            with self.assertRaises(OSError):
                Listener(reactor, self.harness.site).open(port, bind)

    async def test_close(self) -> None:
        """It takes no more clients, closes those that wait, and lets the others have the end."""
        port = self.listener.open(0)
        answering = await send(port, self.harness.path(MISS))
        await until(lambda: self.harness.rendering, "the request")
        with socket.create_connection(("127.0.0.1", port), timeout=5) as idle:
            await until(lambda: len(self.harness.site.connections) == 2, "the other connection")
            await self.listener.close()
            await self.assert_closed(port)
            await until(lambda: len(self.harness.site.connections) == 1, "its end")
            self.assertEqual(b"", idle.recv(1))
        self.assertIsNone(answering.closed)
        self.harness.render(MISS).put_out(b"sound")
        self.harness.render(MISS).end()
        response = await answering.end()
        self.assertEqual((b"sound", True), (response.body, response.complete))
        self.assertEqual(
            (0, 0), (len(self.harness.site.connections), self.harness.resource.active.count)
        )

    async def test_close_twice(self) -> None:
        """To close what is closed, or was never open, is no error."""
        await self.listener.close()
        self.listener.open(0)
        await self.listener.close()
        await self.listener.close()
        self.listener.give_up()

    async def test_give_up(self) -> None:
        """A start that comes to nothing leaves no port open."""
        port = self.listener.open(0)
        self.listener.give_up()
        await self.assert_closed(port)
