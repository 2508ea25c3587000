"""What the system knows about a connection."""

from __future__ import annotations

import contextlib  # trial would take a module attribute `suppress` as a setting
import socket
import struct
import sys
from typing import Any
from unittest import skipUnless

from twisted.internet import reactor as _reactor
from twisted.internet.protocol import Protocol
from twisted.internet.tcp import Connection
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import TestCase

from audioproxy.server.socket_state import has_unread, seconds_stalled
from tests.support.service import PATIENCE, TEST_PATIENCE, until

reactor: Any = _reactor


class SocketStateTests(TestCase):
    """A TCP connection on the loopback interface."""

    timeout = TEST_PATIENCE

    def setUp(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(PATIENCE)
            self.client = socket.create_connection(listening.getsockname(), timeout=PATIENCE)
            self.socket, _ = listening.accept()
        self.addCleanup(self.client.close)
        self.addCleanup(self.socket.close)
        self.socket.setblocking(False)
        self.transport = Connection(self.socket, Protocol(), reactor)  # type: ignore[no-untyped-call]

    def wait_for_input(self) -> None:
        """Wait until the end of the connection, or bytes, have arrived."""
        self.socket.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            self.socket.recv(1, socket.MSG_PEEK)
        self.socket.setblocking(False)

    def test_unread(self) -> None:
        """Bytes that have arrived are unread until the server reads them."""
        self.assertFalse(has_unread(self.transport))
        self.client.sendall(b"GET")
        self.wait_for_input()
        for _ in range(2):
            self.assertTrue(has_unread(self.transport))
        self.socket.recv(3)
        self.assertFalse(has_unread(self.transport))

    def test_lost(self) -> None:
        """A client that has closed or reset its connection has sent nothing more."""
        self.client.close()
        self.wait_for_input()
        self.assertFalse(has_unread(self.transport))
        self.setUp()
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.close()
        self.wait_for_input()
        self.assertFalse(has_unread(self.transport))

    def fill(self) -> None:
        """Send until the system accepts no more."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.socket.send(bytes(1 << 16))

    def seconds(self) -> float:
        """Return for how long the client has stalled."""
        seconds = seconds_stalled(self.transport)
        assert seconds is not None
        return seconds

    @skipUnless(sys.platform == "linux", "Only Linux provides the time.")
    async def test_stalled(self) -> None:
        """A client stalls while its window is full, until it receives something."""
        self.fill()
        # The system probes the full window meanwhile.
        await until(lambda: self.seconds() >= 1.0, "the client to stall")

        def receives() -> bool:
            self.client.recv(1 << 16)
            self.fill()
            return 0 < self.seconds() < 0.9

        await until(receives, "the client to receive")

    def test_not_stalled(self) -> None:
        """A client has not stalled if the system accepts more bytes for it."""
        for data in (b"", b"x"):
            self.socket.send(data)
            self.assertEqual(0, seconds_stalled(self.transport))

    def test_no_time(self) -> None:
        """On systems without the time, only a client that is certainly not stalled has one."""
        self.patch(sys, "platform", "unknown")
        self.assertEqual(0, seconds_stalled(self.transport))
        self.fill()
        self.assertIsNone(seconds_stalled(self.transport))

    def test_no_socket(self) -> None:
        """A transport without a socket has no unread bytes, and no time."""
        transport = StringTransport()
        self.assertFalse(has_unread(transport))
        self.assertIsNone(seconds_stalled(transport))
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            self.socket = left
            self.fill()
            self.transport = Connection(left, Protocol(), reactor)  # type: ignore[no-untyped-call]
            self.assertIsNone(seconds_stalled(self.transport))
