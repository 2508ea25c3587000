"""HTTP client and helpers that other tests in this folder rely on."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase

from tests.support.http import Malformed
from tests.support.service import Process, children, fetch, reactor, resident_bytes, send, until


class UntilTests(TestCase):
    """The helper `until`."""

    async def test_until(self) -> None:
        """`until` returns the first true value; at its deadline it names what it waited for."""
        values = [0, "", None, "value", "another"]
        self.assertEqual("value", await until(lambda: values.pop(0)))
        self.assertEqual(["another"], values)
        with self.assertRaisesRegex(AssertionError, "the end of time"):
            await until(lambda: False, "the end of time", seconds=0.01)


class FixedResponseServer(Protocol):
    """Server that sends the same bytes to every client, and then may close the connection."""

    def __init__(self, response_bytes: bytes, keep_open: bool) -> None:
        self.response_bytes, self.keep_open = response_bytes, keep_open

    def dataReceived(self, data: bytes) -> None:
        """Respond once the request is complete."""
        if data.endswith(b"\r\n\r\n"):
            self.factory.received_bytes = data  # type: ignore[union-attr]
            self.transport.write(self.response_bytes)  # type: ignore[union-attr]
            if not self.keep_open:
                self.transport.loseConnection()  # type: ignore[union-attr]


class ClientTests(TestCase):
    """The helpers `fetch` and `send`."""

    def serve(self, response_bytes: bytes, keep_open: bool = False) -> Any:
        """Return a port whose server sends these bytes."""
        factory = Factory.forProtocol(lambda: FixedResponseServer(response_bytes, keep_open))
        factory.noisy = False
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return port

    async def test_request_and_response(self) -> None:
        """`fetch` sends exactly the given request and returns the complete response."""
        port = self.serve(b"HTTP/1.1 206 X\r\nContent-Length: 3\r\n\r\nabc")
        response = await fetch(port.getHost().port, b"/a?b", b"GET", if_range=b"x")
        self.assertEqual((206, b"abc", True), (response.status, response.body, response.complete))
        received_bytes = port.factory.received_bytes
        self.assertTrue(received_bytes.startswith(b"GET /a?b HTTP/1.1\r\n"))
        self.assertIn(b"\r\nif-range: x\r\n", received_bytes)

    async def test_no_response(self) -> None:
        """`fetch` fails the test if there is no response or a malformed one."""
        with self.assertRaises(AssertionError):
            await fetch(self.serve(b"").getHost().port, b"/")
        with self.assertRaises(Malformed):
            await fetch(self.serve(b"junk\r\n\r\n").getHost().port, b"/")

    async def test_response_so_far(self) -> None:
        """A body without a length is complete only if the server closes the connection cleanly.

        `start_next` forgets a response.
        """
        data = b"HTTP/1.0 200 OK\r\n\r\nabc"
        client = await send(self.serve(data, keep_open=True).getHost().port, b"/")
        await until(lambda: client.received.endswith(b"abc"))
        self.assertEqual((b"abc", False), (client.response.body, client.response.complete))
        client.start_next()
        self.assertIsNone(client.response)
        await client.leave()
        response = await fetch(self.serve(data).getHost().port, b"/")
        self.assertEqual((b"abc", True), (response.body, response.complete))


class ProcessTests(TestCase):
    """`Process`, and the helpers that read /proc."""

    def run_python(self, script: str) -> Process:
        """Start Python with a script."""
        process = Process()
        reactor.spawnProcess(process, sys.executable, [sys.executable, "-c", script])
        return process

    async def test_output_and_status(self) -> None:
        """`Process` keeps stdout and stderr apart, and returns the program's exit status."""
        process = self.run_python(
            "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
        )
        self.assertEqual(3, await process.end())
        self.assertEqual(("out\n", "err\n"), (process.stdout, process.stderr))

    async def test_signal(self) -> None:
        """`Process` returns a signal as a negative status; `children` lists running children."""
        process = self.run_python("print('up', flush=True); input()")
        await until(lambda: process.stdout, "the program to start")
        self.assertEqual([process.pid], children())
        self.assertGreater(resident_bytes(process.pid), 1_000_000)
        self.assertTrue(Path(f"/proc/{process.pid}").exists())
        process.signal(signal.SIGKILL)
        self.assertEqual(-signal.SIGKILL, await process.end())
        self.assertEqual([], children())
        process.signal(signal.SIGKILL)
