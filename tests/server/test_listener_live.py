"""Listening ports."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import skipUnless

from twisted.internet.error import ConnectError
from twisted.internet.tcp import Port
from twisted.trial.unittest import TestCase

from audioproxy.server.channel import ProxySite
from audioproxy.server.connections import NEW_CONNECTION_GRACE
from audioproxy.server.listener import Listener, is_live
from tests.server.test_channel import MISS
from tests.support.folders import short_folder
from tests.support.http import Log, ResourceHarness
from tests.support.service import PATIENCE, TEST_PATIENCE, Client, fetch, reactor, send, until

STORED = b"/f:wav/plain/local://a.wav"


def has_ipv6() -> bool:
    """Return whether this machine can listen on IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def is_lockable(folder: Path) -> bool:
    """Return whether nobody holds the lock of a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


class ListenerTests(TestCase):
    """One listening port with its site."""

    timeout = TEST_PATIENCE

    def setUp(self) -> None:
        """Build a listener without opening its port."""
        self.harness = ResourceHarness()
        self.listener = Listener(reactor, self.harness.site)
        self.addCleanup(self.listener.close_now)

    async def test_interfaces(self) -> None:
        """Only the given address is bound; without one, IPv4 is accepted. Port 0 is a free port."""
        for bind in ("127.0.0.1", ""):
            port = self.listener.open(0, bind)
            self.assertEqual(200, (await fetch(port, b"/health")).status)
            if bind:
                with self.assertRaises(OSError):
                    socket.create_connection(("127.0.0.2", port), timeout=PATIENCE)
                self.listener.close_now()

    @skipUnless(has_ipv6(), "This machine has no IPv6.")
    async def test_ipv6(self) -> None:
        """The listener accepts IPv6 clients on an IPv6 address and without an address."""
        for bind in ("::1", ""):
            listener = Listener(reactor, self.harness.site)
            port = listener.open(0, bind)
            with socket.create_connection(("::1", port), timeout=PATIENCE):
                await until(lambda: len(self.harness.site.connections), "the connection")
            await until(lambda: not len(self.harness.site.connections), "the connection to close")
            listener.close_now()

    async def test_unix(self) -> None:
        """A Unix socket serves its user and group; one that nobody listens on is replaced."""
        folder = short_folder(self)
        path = str(folder / "socket")
        data = bytes(200_000)
        self.harness.store_variant(STORED, data)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(path)
        self.assertFalse(is_live(path))
        self.listener.open_unix(path)
        mode = os.lstat(path).st_mode
        self.assertTrue(stat.S_ISSOCK(mode))
        self.assertEqual(0o660, stat.S_IMODE(mode))
        response = await fetch(path, self.harness.path(STORED))
        self.assertEqual((200, data), (response.status, response.body))
        self.assertTrue(is_live(path))
        error = self.assertRaises(OSError, Listener(reactor, self.harness.site).open_unix, path)
        self.assertEqual(errno.EADDRINUSE, error.errno)
        response = await fetch(path, self.harness.path(STORED))
        self.assertEqual(200, response.status)
        await self.listener.close()
        self.assertEqual([], os.listdir(folder))

    async def test_unix_refused(self) -> None:
        """A path that is no socket is never removed, and a folder that is missing is an error."""
        file = short_folder(self) / "file"
        file.write_text("kept")
        for path, code in ((file, errno.EEXIST), (file.with_name("none") / "x", errno.ENOENT)):
            error = self.assertRaises(OSError, self.listener.open_unix, str(path))
            self.assertEqual(code, error.errno)
        self.assertEqual("kept", file.read_text())

    async def test_unix_at_once(self) -> None:
        """While a service binds a path, and before it, another one is refused."""
        folder = short_folder(self)
        locked = []

        def listen(*words: Any) -> Any:
            locked.append(not is_lockable(folder))
            return reactor.listenUNIX(*words)

        self.listener = Listener(SimpleNamespace(listenUNIX=listen), self.harness.site)
        self.addCleanup(self.listener.close_now)
        self.listener.open_unix(str(folder / "socket"))
        self.assertEqual(([True], True), (locked, is_lockable(folder)))
        descriptor = os.open(folder, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        other = Listener(reactor, self.harness.site)
        with self.assertRaises(BlockingIOError):
            other.open_unix(str(folder / "other"))

    async def test_unix_not_removable(self) -> None:
        """A path that cannot be removed stays, with a warning, and the port closes all the same."""
        path = short_folder(self) / "socket"
        self.listener.open_unix(str(path))

        def refuse(path: str) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        self.patch(os, "unlink", refuse)
        log = Log(self)
        await self.listener.close()
        self.assertFalse(is_live(str(path)))
        self.assertIn(f"{path} stays: Operation not permitted", log.texts)

    async def test_unix_busy(self) -> None:
        """A socket whose queue is full has a listener all the same."""
        path = str(short_folder(self) / "socket")
        with socket.socket(socket.AF_UNIX) as busy, ExitStack() as clients:
            busy.bind(path)
            busy.listen(0)
            while True:
                client = clients.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                try:
                    client.connect(path)
                except BlockingIOError:
                    break
            self.assertTrue(is_live(path))

    async def test_unix_path_gone(self) -> None:
        """A listener whose path was removed, or replaced, closes without touching it."""
        path = short_folder(self) / "socket"
        for replacement in (None, "theirs"):
            listener = Listener(reactor, self.harness.site)
            listener.open_unix(str(path))
            path.unlink()
            if replacement is not None:
                path.write_text(replacement)
            await listener.close()
            self.assertEqual(replacement, path.read_text() if path.exists() else None)

    async def test_refused(self) -> None:
        """A port in use and an address of another machine raise OSError."""
        port = self.listener.open(0, "127.0.0.1")
        for bind in ("127.0.0.1", "192.0.2.1"):
            with self.assertRaises(OSError):
                Listener(reactor, self.harness.site).open(port, bind)

    async def test_both_families_refused(self) -> None:
        """A socket of both families that cannot be created after all is an OSError, too."""
        self.patch(socket, "has_dualstack_ipv6", iter([True, False]).__next__)
        with self.assertRaises(OSError):
            self.listener.open(0)

    async def fill(self) -> tuple[int, Client, Client]:
        """Open a port for one client at a time, and connect two; both have sent a request.

        The first one waits for a render, the second one in the system's queue.
        """
        self.harness.site = ProxySite(self.harness.resource, reactor, 1)
        self.listener = Listener(reactor, self.harness.site)
        self.addCleanup(self.listener.close_now)
        port = self.listener.open(0)
        first = await send(port, self.harness.path(MISS))
        await until(lambda: self.harness.renders.running, "the request")
        second = await send(port, b"/health")
        await until(lambda: not self.is_accepting(port), "the port to pause")
        return port, first, second

    def is_accepting(self, port: int) -> bool:
        """Return whether the reactor watches a listening port."""
        return any(
            isinstance(reader, Port) and reader.getHost().port == port
            for reader in reactor.getReaders()
        )

    async def test_full(self) -> None:
        """At the limit, a new client waits until another one is gone, and loses nothing."""
        port, first, second = await self.fill()
        for _ in range(3):
            await until(lambda: self.is_accepting(port), "the port to look again")
            await until(lambda: not self.is_accepting(port), "the port to pause")
        self.assertIsNone(second.closed)
        self.harness.render(MISS).write_output(b"sound")
        self.harness.render(MISS).end()
        self.assertTrue((await first.end()).complete)
        await until(lambda: second.response, "the response")
        self.assertEqual(b"HTTP/1.1 200", bytes(second.received[:12]))
        await second.leave()

    async def test_close_while_full(self) -> None:
        """A port that is closed while clients wait does not open again."""
        port, first, second = await self.fill()
        await self.listener.close()
        with self.assertRaises(ConnectError):
            await send(port, b"/health")
        await first.leave()
        await until(lambda: second.closed, "the waiting connection to close")
        self.assertFalse(self.is_accepting(port))

    async def test_close(self) -> None:
        """Closing refuses new clients and closes idle ones; responses in progress complete."""
        port = self.listener.open(0)
        answering = await send(port, self.harness.path(MISS))
        await until(lambda: self.harness.renders.running, "the request")
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as idle:
            await until(lambda: len(self.harness.site.connections) == 2, "the other connection")
            await self.listener.close()
            with self.assertRaises(ConnectError):
                await send(port, b"/health")
            # A new client has a second to send its request.
            self.harness.connection_clock.advance(NEW_CONNECTION_GRACE)
            await until(lambda: len(self.harness.site.connections) == 1, "one connection to close")
            self.assertEqual(b"", idle.recv(1))
        self.assertIsNone(answering.closed)
        self.harness.render(MISS).write_output(b"sound")
        self.harness.render(MISS).end()
        response = await answering.end()
        self.assertEqual((b"sound", True), (response.body, response.complete))
        self.assertEqual(
            (0, 0), (len(self.harness.site.connections), self.harness.resource.active.count)
        )

    async def test_close_twice(self) -> None:
        """Closing twice, or before the port is open, is harmless; giving up a start closes it."""
        await self.listener.close()
        self.listener.open(0)
        await self.listener.close()
        await self.listener.close()
        port = self.listener.open(0)
        for _ in range(2):
            self.listener.close_now()
        with self.assertRaises(ConnectError):
            await send(port, b"/health")
