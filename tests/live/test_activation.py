"""A service that systemd starts: with a socket that is open already, and somebody to report to."""

from __future__ import annotations

import os
import signal
import socket
import sys

from twisted.internet.defer import Deferred

from tests.support.service import (
    Process,
    ServiceCase,
    ask,
    children,
    reactor,
    send,
    short_flac,
    signed,
    until,
)

PATH = signed("/f:opus/plain/local://short.flac")

#: twistd, as it is where its cache of plugins cannot be written: then it imports what takes the
#: variables of systemd for itself.
TWISTD = """\
import sys, twisted.internet.endpoints
from twisted.scripts.twistd import run
sys.exit(run())
"""

#: The process that is to be started is the one that the variable names.
HAND_OVER = 'LISTEN_PID=${LISTEN_PID:-$$} exec "$@"'


class SystemdCase(ServiceCase):
    """A service that is started as systemd starts it."""

    def hand_over(self, given: socket.socket, **variables: str) -> Process:
        """Start a service with a socket; it is killed at the end at the latest."""
        words = ("-c", TWISTD, "--nodaemon", "--pidfile=", "audioproxy")
        command = ("/bin/sh", "-c", HAND_OVER, "sh", sys.executable, *words)
        environ = self.environment(**{"LISTEN_FDS": "1", **variables})
        process = Process()
        descriptors = {0: "w", 1: "r", 2: "r", 3: given.fileno()}
        reactor.spawnProcess(process, command[0], command, env=environ, childFDs=descriptors)

        async def kill() -> None:
            process.signal(signal.SIGKILL)
            await process.end()

        self.addCleanup(lambda: Deferred.fromCoroutine(kill()))
        return process

    def open(self) -> socket.socket:
        """Open a port; it is closed at the end."""
        opened = socket.create_server(("", 0))
        self.addCleanup(opened.close)
        return opened


class SocketTests(SystemdCase):
    """The port that systemd holds open"""

    async def test_restart(self) -> None:
        """Who connects before the start, or between an end and the next start, is served."""
        self.add("short.flac", short_flac())
        given = self.open()
        port = given.getsockname()[1]
        early = await send(port, PATH)
        # That port is taken, and that does not matter.
        node = self.hand_over(given, AP_PORT=str(port))
        self.assertEqual(port, await node.port())
        answer = await early.end()
        self.assertEqual((200, b"MISS"), (answer.status, answer["x-audio-proxy"]))
        await until(lambda: not children(node.pid), "the look at ffmpeg to end")
        node.signal(signal.SIGTERM)
        self.assertEqual(0, await node.end())
        between = await send(port, PATH)
        node = self.hand_over(given)
        answer = await between.end()
        self.assertEqual((200, b"HIT"), (answer.status, answer["x-audio-proxy"]))
        self.assertEqual(200, (await ask(port, b"/health")).status)

    async def test_meant_for_another(self) -> None:
        """What was handed to another process is left alone, and AP_PORT holds."""
        given = self.open()
        node = self.hand_over(given, LISTEN_PID=str(os.getpid()))
        self.assertNotEqual(given.getsockname()[1], await node.port())

    async def test_refused(self) -> None:
        """What cannot be listened on is refused at boot, in one line with the remedy."""
        with socket.socket() as given:
            for count in ("1", "two"):
                node = self.hand_over(given, LISTEN_FDS=count)
                self.assertEqual(1, await node.end())
                self.assertRegex(
                    node.stderr, r"\Aaudioproxy: LISTEN_FDS: .*; .*ListenStream=.* socket unit\n\Z"
                )


class NotifierTests(SystemdCase):
    """What systemd is told"""

    def setUp(self) -> None:
        super().setUp()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.listener.close)
        # An abstract name, which is chosen by the system.
        self.listener.bind("")
        self.listener.setblocking(False)
        self.name = self.listener.getsockname().decode().replace("\0", "@")

    def heard(self) -> bytes:
        """Return what was said next; nothing as long as nothing was."""
        try:
            return self.listener.recv(100)
        except BlockingIOError:
            return b""

    async def test_life(self) -> None:
        """It is ready when its port is open, and says when it stops."""
        given = self.open()
        node = self.hand_over(given, NOTIFY_SOCKET=self.name, LISTEN_FDS="0")
        self.assertEqual(b"READY=1", await until(self.heard, "a word"))
        self.assertEqual(200, (await ask(await node.port(), b"/ready")).status)
        self.assertEqual(b"", self.heard())
        node.signal(signal.SIGTERM)
        self.assertEqual(b"STOPPING=1", await until(self.heard, "another word"))
        self.assertEqual(0, await node.end())

    async def test_failed_start(self) -> None:
        """A start that fails is never ready."""
        taken = self.open()
        port = str(taken.getsockname()[1])
        node = self.hand_over(taken, NOTIFY_SOCKET=self.name, LISTEN_FDS="0", AP_PORT=port)
        self.assertEqual(1, await node.end())
        self.assertEqual(b"", self.heard())
