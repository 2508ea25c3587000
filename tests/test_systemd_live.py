"""systemd integration: socket activation and readiness notification."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys

from tests.support.activation import TWISTD, ActivationCase
from tests.support.programs import HELD_FFMPEG
from tests.support.service import (
    children,
    fetch,
    is_stopped,
    scrape,
    send,
    short_flac,
    signed,
    until,
)

PATH = signed("/f:opus/plain/local://short.flac")


class SocketTests(ActivationCase):
    """Socket activation: the listening socket that systemd holds open"""

    async def test_restart(self) -> None:
        """Clients that connect before a start or during a restart are served.

        `tests.handover` has two services at a time. A second socket is for the metrics.
        """
        self.add("short.flac", short_flac())
        tcp_socket = self.open()
        port = tcp_socket.getsockname()[1]
        early = await send(port, PATH)
        # AP_PORT names the port of the metrics, but a service with a socket ignores AP_PORT, and
        # AP_BIND, and says so (D59).
        metrics_port = str(self.reserve_port())
        ignored = {"AP_PORT": metrics_port, "AP_BIND": "192.0.2.1"}
        node = self.start_with_socket(tcp_socket, AP_METRICS_PORT=metrics_port, **ignored)
        self.assertEqual(port, await node.port())
        for name in ignored:
            fault = f"{name}: ignored, since systemd passes the listening socket"
            self.assertIn(fault, node.stdout)
        response = await early.end()
        self.assertEqual((200, b"MISS"), (response.status, response["x-audio-proxy"]))
        node.signal(signal.SIGTERM)
        self.assertEqual(0, await node.end())
        between = await send(port, PATH)
        sockets = tcp_socket, self.open()
        metrics_port = sockets[1].getsockname()[1]
        # As systemd does at each start without NonBlocking=.
        for each in sockets:
            each.setblocking(True)
        # The socket for the metrics takes the place of these two.
        ignored = {"AP_METRICS_BIND": "192.0.2.1", "AP_METRICS_PORT": "none"}
        node = self.start_with_socket(*sockets, **ignored)
        response = await between.end()
        self.assertEqual((200, b"HIT"), (response.status, response["x-audio-proxy"]))
        self.assertEqual([False] * 2, [os.get_blocking(each.fileno()) for each in sockets])
        for name in ignored:
            self.assertIn(f"{name}: ignored, since systemd passes", node.stdout)
        label = '{format="opus",outcome="hit"}'
        self.assertEqual(1, (await scrape(metrics_port))[f"audio_proxy_cache_lookups_total{label}"])

    async def test_hangup(self) -> None:
        """SIGHUP to all processes of the unit is logged, and has no other effect (D39)."""
        self.add("short.flac", short_flac())
        node = self.start_with_socket(self.open(), PATH=self.shadow_ffmpeg(HELD_FFMPEG))
        held = await send(await node.port(), PATH)
        (encoder,) = await until(
            lambda: [child for child in children(node.pid) if is_stopped(child)], "the encoder"
        )
        os.kill(encoder, signal.SIGHUP)
        node.signal(signal.SIGHUP)
        await node.printed(r"\[warning\] SIGHUP has no effect: .*\n", "the line")
        os.kill(encoder, signal.SIGCONT)
        response = await held.end()
        self.assertEqual((200, True), (response.status, response.complete))
        node.signal(signal.SIGTERM)
        self.assertEqual(0, await node.end())
        self.assertEqual("", node.stderr)


class NotifierTests(ActivationCase):
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
        self.assertEqual([1, 78], [await node.end(), await other.end()])
        self.assertRegex(
            other.stderr, r"\Aaudioproxy: LISTEN_FDS: .*; .*ListenStream=.* socket unit\n\Z"
        )
        self.assertEqual(b"", self.next_notification())


class JournalTests(ActivationCase):
    """Priorities of lines in the journal (JOURNAL_STREAM)"""

    async def output(self, status: int, inode: int | None = None, **variables: str) -> list[str]:
        """Return the lines of a service that has a socket in place of the journal's.

        :param inode: in JOURNAL_STREAM; by default, that of the socket.
        """
        journal, stdout = socket.socketpair()
        self.addCleanup(journal.close)
        found = os.fstat(stdout.fileno())
        with stdout:
            node = self.spawn(
                *(sys.executable, "-c", TWISTD, "--nodaemon", "--pidfile=", "audioproxy"),
                descriptors={0: "w", 1: stdout.fileno(), 2: stdout.fileno()},
                **self.environment(
                    JOURNAL_STREAM=f"{found.st_dev}:{inode or found.st_ino}", **variables
                ),
            )
        text = b""

        def received() -> bytes:
            nonlocal text
            with contextlib.suppress(BlockingIOError):
                text += journal.recv(1 << 16, socket.MSG_DONTWAIT)
            return text

        await until(lambda: node.code is not None or b"listening" in received(), "the start")
        node.signal(signal.SIGTERM)
        self.assertEqual(status, await node.end())
        received()
        return text.decode().splitlines()

    async def test_priorities(self) -> None:
        """Lines begin with a priority if stdout is the journal, and in no other case."""
        priorities = {"info": "<6>", "warning": "<4>"}
        for inode in (None, 1):
            lines = await self.output(0, inode, AP_PROT="1")
            self.assertTrue(any("AP_PROT" in line for line in lines))
            for line in lines:
                match = re.match(r"(<\d>)?\S+Z (?:request_id=\S+ )?\[(\w+)\] ", line)
                assert match is not None, line
                self.assertEqual(None if inode else priorities[match[2]], match[1])
        refused = await self.output(78, AP_KEY="short", AP_PROT="1")
        starts = [":".join(line.split(":")[:2]) for line in refused]
        self.assertEqual(["<4>audioproxy: AP_PROT", "<3>audioproxy: AP_KEY"], starts)
