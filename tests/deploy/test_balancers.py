"""The configurations of HAProxy and nginx; `tests.deploy.test_cluster` runs nodes behind them."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase

from tests.deploy.balancer import (
    NODE,
    Balancer,
    HAProxy,
    Nginx,
    NginxWithOneNode,
    balance,
    installed,
    shipped,
)
from tests.support.authority import Authority, Certificate
from tests.support.service import PATIENCE, PROJECT, TEST_PATIENCE, fetch, reactor, signed
from tests.support.wire import reply

NODES = {"one": 80, "two": 81}


class NginxOutOfConnections(Nginx):
    """An nginx that can accept one client, and then has no connection left for a node."""

    connections = 3


class ClosingNode(Protocol):
    """A node that closes the first request for each path without a response, as at a stop (D39)."""

    def dataReceived(self, data: bytes) -> None:
        """Close the connection, or respond."""
        path = data.split()[1]
        if path not in self.factory.closed:  # type: ignore[union-attr]
            self.factory.closed.add(path)  # type: ignore[union-attr]
            self.transport.loseConnection()  # type: ignore[union-attr]
        else:
            self.transport.write(reply(200, b"audio"))  # type: ignore[union-attr]


class EchoNode(Protocol):
    """A node whose responses are the targets of the requests."""

    received = b""

    def dataReceived(self, data: bytes) -> None:
        """Respond to a complete request."""
        self.received += data
        if self.received.endswith(b"\r\n\r\n"):
            self.transport.write(reply(200, self.received.split()[1]))  # type: ignore[union-attr]
            self.received = b""


class BalancerTests(TestCase):
    """Load balancers accept the shipped configurations."""

    timeout = TEST_PATIENCE

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()

    def certificate(self) -> Certificate:
        """Return a certificate with its key."""
        return Authority(self.folder).issue("audio.example.com")

    async def check(self, balancer: Balancer) -> str:
        """Return the messages of a balancer about its configuration, which it must accept."""
        self.addCleanup(balancer.stop)
        status, output = await balancer.check()
        self.assertEqual(0, status, output)
        return output

    async def test_haproxy(self) -> None:
        """HAProxy accepts the file unchanged, without a warning."""
        command = [installed("haproxy"), "-c", "-V", "-f", PROJECT / "deploy/haproxy/haproxy.cfg"]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        self.assertEqual("Configuration file is valid\n", ended.stdout + ended.stderr)

    async def test_haproxy_tls(self) -> None:
        """HAProxy accepts the commented-out line for TLS, and the configuration of the tests."""
        for certificate in (None, self.certificate()):
            output = await self.check(HAProxy(self.folder, NODES, certificate))
            self.assertEqual("Configuration file is valid\n", output)

    async def test_nginx(self) -> None:
        """nginx accepts the file without a warning, with TLS too.

        nginx's check opens the listening sockets and the log files, so the test changes their
        paths.
        """
        for certificate in (None, self.certificate()):
            output = await self.check(Nginx(self.folder, NODES, certificate))
            self.assertIn("test is successful", output)
            for level in ("[warn]", "[error]"):
                self.assertNotIn(level, output)

    async def test_nginx_logs_no_url(self) -> None:
        """When no node can be reached, nothing that nginx writes contains a signature.

        nginx's own error messages quote the request, so they are disabled. This includes the
        messages of a node that is down, and those of a lack of connections, which have a higher
        level than errors.
        """
        path = signed("/f:mp3/plain/local://a.flac")
        signature = path.decode().split("/")[1]
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            for kind, status in ((Nginx, 502), (NginxOutOfConnections, 500)):
                nginx = await balance(self, kind, self.folder, {"one": closed.getsockname()[1]})
                self.assertEqual(status, (await fetch(nginx.port, path)).status)
                await nginx.stop()
                self.assertIn(f" {status} ", nginx.log.read_text())
                files = [each for each in self.folder.rglob("*") if each.is_file()]
                for output in [nginx.stderr, *(file.read_text() for file in files)]:
                    self.assertNotIn(signature, output)

    async def test_nginx_with_one_node(self) -> None:
        """A node that is written twice gets each request again that it has closed, and stays up."""
        factory = Factory.forProtocol(ClosingNode)
        factory.closed = set()  # type: ignore[attr-defined]
        node = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(node.stopListening)
        port = node.getHost().port
        nginx = await balance(self, NginxWithOneNode, self.folder, {"one": port, "again": port})
        for number in range(4):
            self.assertEqual(200, (await fetch(nginx.port, b"/%d" % number)).status)
        self.assertEqual(4, len(factory.closed))  # type: ignore[attr-defined]

    async def test_file_names(self) -> None:
        """Under /media/, a node sees the bytes of a path before its last segment, and its query.

        All other targets stay as they are. Both spellings of a path go to the same node, and the
        log has neither's signature.
        """
        signed_path = signed("/f:mp3/plain/local://a%2Fb%20%c3%BC//%2e%2e/;=@.wav")
        ports = {}
        for name in ("one", "two", "three"):
            node = reactor.listenTCP(0, Factory.forProtocol(EchoNode), interface="127.0.0.1")
            self.addCleanup(node.stopListening)
            ports[name] = node.getHost().port
        for kind in (HAProxy, Nginx):
            balancer = await balance(self, kind, self.folder, ports)
            for sent, seen in (
                (b"/media%s/episode-12.mp3", b"%s"),
                (b"/media%s/%%2F%%C3%%BC%%20%%3f.mp3?utm=/1", b"%s?utm=/1"),
                (b"/media%s/", b"%s"),
                (b"/media%s//x.mp3?", b"%s/?"),
                (b"/media%s/a.mp3/b.mp3?" + b"x" * 12_000, b"%s/a.mp3?" + b"x" * 12_000),
                (b"/media%s/" + b"n" * 12_000, b"%s"),
                *((path, path) for path in (b"%s?a/b", b"%s/x.mp3", b"/MEDIA%s/x", b"/media2%s/x")),
                *((path, path) for path in (b"/%%6dedia%s/x", b"//media%s/x", b"/x/media%s/x")),
                *((path, path) for path in (b"/", b"/?/media/x/y", b"/media", b"/media/x?a/b")),
            ):
                path = sent % signed_path if b"%s" in sent else sent
                expected = seen % signed_path if b"%s" in seen else seen
                response = await fetch(balancer.port, path)
                self.assertEqual((200, expected), (response.status, response.body), path)
            nodes = set()
            for number in range(12):
                path = signed(f"/f:mp3/plain/local://{number}.wav")
                plain = await fetch(balancer.port, path)
                named = await fetch(balancer.port, b"/media%s/%d.mp3?x" % (path, number))
                self.assertEqual(plain[NODE], named[NODE])
                self.assertNotIn(path.decode().split("/")[1], balancer.log.read_text())
                nodes.add(named[NODE])
            # nginx's hash of the ports decides how many it is.
            self.assertGreater(len(nodes), 1)

    def test_shipped(self) -> None:
        """`shipped` replaces lines of a file, and fails if the file lacks one of them."""
        text = shipped("haproxy/haproxy.cfg", {"maxconn 4000": "maxconn 81"})
        self.assertIn("\nmaxconn 81\n", text)
        self.assertNotIn("\nmaxconn 4000\n", text)
        with self.assertRaises(AssertionError):
            shipped("haproxy/haproxy.cfg", {"maxconn 81": "maxconn 82"})
