"""systemd integration: socket activation and readiness notification."""

from __future__ import annotations

import os
import signal
import socket
import sys

from tests.support import service
from tests.support.service import (
    WITHOUT_FFMPEG_CHECK,
    Process,
    ServiceCase,
    fetch,
    send,
    short_flac,
    signed,
    until,
)

PATH = signed("/f:opus/plain/local://short.flac")

#: Program that imports twisted.internet.endpoints and then runs twistd. The import reads and
#: removes systemd's variables. twistd itself imports the module first if it cannot write its plugin
#: cache.
TWISTD = f"import twisted.internet.endpoints\n{WITHOUT_FFMPEG_CHECK}{service.TWISTD}"

#: Shell command that sets LISTEN_PID to the id of its own process, unless LISTEN_PID is set. `exec`
#: then replaces the shell with the service, which keeps this id.
SET_LISTEN_PID = 'LISTEN_PID=${LISTEN_PID:-$$} exec "$@"'


class SystemdCase(ServiceCase):
    """Service that is started as systemd starts it."""

    def start_with_socket(self, tcp_socket: socket.socket, **variables: str) -> Process:
        """Start a service with an open socket."""
        words = ("-c", TWISTD, "--nodaemon", "--pidfile=", "audioproxy")
        command = ("/bin/sh", "-c", SET_LISTEN_PID, "sh", sys.executable, *words)
        environ = self.environment(**{"LISTEN_FDS": "1", **variables})
        descriptors = {0: "w", 1: "r", 2: "r", 3: tcp_socket.fileno()}
        return self.spawn(*command, descriptors=descriptors, **environ)

    def open(self) -> socket.socket:
        """Open a listening socket; close it at the end of the test."""
        opened = socket.create_server(("", 0))
        self.addCleanup(opened.close)
        return opened


class SocketTests(SystemdCase):
    """Socket activation: the listening socket that systemd holds open"""

    async def test_restart(self) -> None:
        """Clients that connect before a start or during a restart are served."""
        self.add("short.flac", short_flac())
        tcp_socket = self.open()
        port = tcp_socket.getsockname()[1]
        early = await send(port, PATH)
        # AP_PORT names a port that is already taken, but a service with a socket ignores AP_PORT,
        # and AP_BIND, which it says (D59).
        node = self.start_with_socket(tcp_socket, AP_PORT=str(port), AP_BIND="192.0.2.1")
        self.assertEqual(port, await node.port())
        self.assertIn("AP_BIND: ignored, since systemd passes the listening socket", node.stdout)
        response = await early.end()
        self.assertEqual((200, b"MISS"), (response.status, response["x-audio-proxy"]))
        node.signal(signal.SIGTERM)
        self.assertEqual(0, await node.end())
        between = await send(port, PATH)
        node = self.start_with_socket(tcp_socket)
        response = await between.end()
        self.assertEqual((200, b"HIT"), (response.status, response["x-audio-proxy"]))
        self.assertEqual(200, (await fetch(port, b"/health")).status)


class NotifierTests(SystemdCase):
    """Notifications to systemd (NOTIFY_SOCKET)"""

    def setUp(self) -> None:
        super().setUp()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.listener.close)
        # With an empty address, Linux chooses a name in the abstract namespace.
        self.listener.bind("")
        self.listener.setblocking(False)
        self.name = self.listener.getsockname().decode().replace("\0", "@")

    def next_notification(self) -> bytes:
        """Return the next notification, or ``b""`` if there is none."""
        try:
            return self.listener.recv(100)
        except BlockingIOError:
            return b""

    async def test_start_and_stop(self) -> None:
        """The service notifies systemd when its port is open and when it stops.

        A socket for another process (LISTEN_PID) is ignored, and AP_PORT applies.
        """
        tcp_socket = self.open()
        pid = str(os.getpid())
        node = self.start_with_socket(tcp_socket, NOTIFY_SOCKET=self.name, LISTEN_PID=pid)
        self.assertEqual(b"READY=1", await until(self.next_notification, "READY=1"))
        port = await node.port()
        self.assertNotEqual(tcp_socket.getsockname()[1], port)
        self.assertEqual(200, (await fetch(port, b"/ready")).status)
        self.assertEqual(b"", self.next_notification())
        node.signal(signal.SIGTERM)
        self.assertEqual(b"STOPPING=1", await until(self.next_notification, "STOPPING=1"))
        self.assertEqual(0, await node.end())

    async def test_failed_start(self) -> None:
        """A start that fails notifies nobody; for an unusable socket it names the remedy."""
        taken = self.open()
        port = str(taken.getsockname()[1])
        variables = {"NOTIFY_SOCKET": self.name, "AP_PORT": port}
        node = self.start_with_socket(taken, **variables, LISTEN_FDS="0")
        with socket.socket() as unusable:
            other = self.start_with_socket(unusable, **variables)
        self.assertEqual([1, 1], [await node.end(), await other.end()])
        self.assertRegex(
            other.stderr, r"\Aaudioproxy: LISTEN_FDS: .*; .*ListenStream=.* socket unit\n\Z"
        )
        self.assertEqual(b"", self.next_notification())
