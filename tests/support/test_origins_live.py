"""The tests' origins violate HTTP where a test asks for it, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.endpoints import SSL4ClientEndpoint
from twisted.internet.error import ConnectionDone
from twisted.internet.ssl import Certificate, optionsForClientTLS
from twisted.trial.unittest import TestCase

from tests.support.authority import Authority
from tests.support.http import Response
from tests.support.origins import MODIFIED, Behavior, File, Origin, open_origin
from tests.support.service import TEST_PATIENCE, fetch, reactor, send, until

DATA = bytes(range(256)) * 100


class OriginTests(TestCase):
    """Origin in cleartext."""

    timeout = TEST_PATIENCE

    def setUp(self) -> None:
        self.origin = open_origin(self)

    async def get(self, behavior: Behavior, method: bytes = b"GET", **headers: bytes) -> Response:
        """Register a behavior for a path, request the path and return the response."""
        self.origin.put("/it", behavior)
        return await fetch(self.origin.port, b"/it", method, **headers)

    async def test_conditions(self) -> None:
        """With another validator, If-Range returns the whole file."""
        for tag, status in ((b'"1"', 206), (MODIFIED.encode(), 206), (b'"2"', 200)):
            response = await self.get(File(DATA), range=b"bytes=1-2", if_range=tag)
            self.assertEqual(status, response.status, tag)

    async def test_breaks_off(self) -> None:
        """A body can end early; with Content-Length or chunks, the client can detect the end."""
        for framing in ("length", "chunked", "close"):
            whole = await self.get(File(DATA, framing=framing))
            self.assertEqual((DATA, True), (whole.body, whole.complete), framing)
            response = await self.get(File(DATA, framing=framing, sent=9000))
            self.assertEqual(DATA[:9000], response.body)
            self.assertEqual(framing == "close", response.complete)
        part = await self.get(File(DATA, sent=100), range=b"bytes=1000-")
        self.assertEqual((206, DATA[1000:1100]), (part.status, part.body))


class SecureTests(TestCase):
    """Origin over TLS."""

    timeout = TEST_PATIENCE

    def setUp(self) -> None:
        self.authority = Authority(Path(self.mktemp()))
        self.root = Certificate.loadPEM(self.authority.bundle.read_bytes())
        self.origin = open_origin(self, self.authority.issue("localhost"))

    async def fetch(self, origin: Origin) -> Any:
        """Send a request from a verifying client; return the client after the connection ends."""
        options = optionsForClientTLS("localhost", trustRoot=self.root)
        client = await send(SSL4ClientEndpoint(reactor, "127.0.0.1", origin.port, options), b"/it")
        await until(lambda: client.closed, "the connection to close")
        return client

    async def test_leave(self) -> None:
        """With a valid certificate, an origin serves as it does in cleartext.

        It can close a connection with or without a TLS close_notify alert.
        """
        url = self.origin.put("/it", File(DATA))
        client = await self.fetch(self.origin)
        self.assertEqual((DATA, True), (client.response.body, client.response.complete))
        self.assertTrue(url.startswith("https://localhost:"))
        for then, clean in (("close", True), ("close_without_notify", False), ("abort", False)):
            self.origin.put("/it", File(b"a" * 100, framing="close", sent=50, then=then))
            client = await self.fetch(self.origin)
            self.assertEqual(clean, client.closed.check(ConnectionDone) is not None, then)
            if then != "abort":
                self.assertTrue(bytes(client.received).endswith(b"a" * 50), then)
