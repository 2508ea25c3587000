"""Hostile or broken clients, which do not affect other clients."""

from __future__ import annotations

import contextlib  # trial would take a module attribute `suppress` as a setting
import os
import signal
import socket
import struct
from functools import partial
from types import SimpleNamespace
from typing import Any

from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from audioproxy.server.channel import ProxySite
from audioproxy.server.listener import Listener
from tests.server.test_channel import HIT, MISS
from tests.support.http import Log, ResourceHarness
from tests.support.service import (
    PATIENCE,
    TEST_PATIENCE,
    Client,
    ServiceCase,
    descriptors,
    encoders,
    fetch,
    long_flac,
    reactor,
    scrape,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)

LONG = signed("/f:mp3/t:0:200/plain/local://long.flac")
SHORT = signed("/f:mp3/plain/local://short.flac")
HEALTH = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"


def get(target: bytes) -> bytes:
    """Return a GET request."""
    return b"GET " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n"


def reset(client: socket.socket) -> None:
    """Reset a connection, as the system does when a program crashes."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def half_close(client: socket.socket) -> None:
    """Close the sending side of a connection."""
    client.shutdown(socket.SHUT_WR)


def has_response(client: socket.socket) -> bool:
    """Return whether bytes have arrived that the client has not read."""
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return bool(client.recv(1, socket.MSG_PEEK))
    return False


def receive(client: socket.socket) -> bytes:
    """Return all bytes that arrive until the server closes a connection."""
    return b"".join(iter(lambda: client.recv(65_536), b""))


def has_ended(client: socket.socket) -> bool:
    """Return whether the server has closed a connection without a response."""
    client.setblocking(False)
    try:
        return not client.recv(1)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def connect_and_send(
    case: TestCase, port: int, data: bytes = b"", window: int | None = None
) -> socket.socket:
    """Connect, and send bytes; the socket is closed before the service is stopped.

    :param window: size of the receive buffer in bytes, if not the system's default.
    """
    client = socket.socket()
    case.addCleanup(client.close)
    client.settimeout(PATIENCE)
    if window is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    client.connect(("127.0.0.1", port))
    client.sendall(data)
    return client


class ClientCase(ServiceCase):
    """Service with a source of ten minutes and a source of one second."""

    def setUp(self) -> None:
        """Add the sources."""
        super().setUp()
        self.add("long.flac", long_flac())
        self.add("short.flac", short_flac())
        self.log = Log(self)

    async def assert_all_closed(self, before: int) -> None:
        """Wait until this process has as many descriptors as before; assert no logged errors."""
        await until(lambda: descriptors(os.getpid()) <= before, "the descriptors to be closed")
        self.assertEqual([], self.log.errors)

    async def start_stopped_render(self, port: int, pid: int | None = None) -> tuple[Client, int]:
        """Start a render, and stop its encoder with SIGSTOP; return its client and encoder."""
        client = await send(port, LONG)
        await until(lambda: len(client.received) > 10_000, "a part of the stream")
        (encoder,) = encoders(pid)
        os.kill(encoder, signal.SIGSTOP)
        return client, encoder


class ManyConnectionsTests(ClientCase):
    """Many connections that are idle or stalled."""

    async def test_many_connections(self) -> None:
        """Hundreds of idle, slow and stalled connections do not delay other clients."""
        process = self.twistd()
        port, metrics_port = await process.port(), await process.metrics_port()
        miss = await fetch(port, SHORT)
        tag = (await until_hit(port, SHORT))["etag"] or b""
        await scrape(metrics_port)
        before = descriptors(process.pid)

        first, encoder = await self.start_stopped_render(port, process.pid)
        idle = [connect_and_send(self, port) for _ in range(300)]
        slow = [connect_and_send(self, port, HEALTH[:-2] + b"X-Slow: ") for _ in range(100)]
        stalled = [connect_and_send(self, port, get(LONG), window=4096) for _ in range(40)]
        await until(lambda: all(map(has_response, stalled)), "responses to begin")

        for _ in range(3):
            hit = await fetch(port, SHORT)
            self.assertEqual((b"HIT", miss.body), (hit["x-audio-proxy"], hit.body))
            self.assertEqual(304, (await fetch(port, SHORT, if_none_match=tag)).status)
            head = await fetch(port, SHORT, b"HEAD")
            self.assertEqual((200, b"%d" % len(miss.body)), (head.status, head["content-length"]))
            self.assertEqual("ok", (await fetch(port, b"/health")).document["status"])
            self.assertEqual(200, (await fetch(port, b"/ready")).status)
            series = await scrape(metrics_port)
            self.assertEqual(1, series["audio_proxy_renders_running"])
            for client in slow:
                client.send(b"x")
        os.kill(encoder, signal.SIGCONT)
        response = await first.end()
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertGreater(len(response.body), 3_000_000)

        for client in (*idle, *slow, *stalled):
            client.close()
        await until(lambda: descriptors(process.pid) <= before, "the descriptors to be closed")
        for word in ("[error]", "Traceback", "Unhandled"):
            self.assertNotIn(word, process.stdout + process.stderr)


class DisconnectTests(ClientCase):
    """Connections that end in unusual ways."""

    async def test_reset(self) -> None:
        """A connection reset at any moment leaks nothing and does not affect other connections."""
        port = self.start().port
        await fetch(port, SHORT)
        await until_hit(port, SHORT)
        before = descriptors(os.getpid())
        unaffected = await send(port, LONG)
        for data in (
            *(b"", HEALTH[:10], HEALTH, HEALTH * 1500, b"nonsense\r\n"),
            b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc",
            *(get(SHORT), get(LONG), get(LONG) + HEALTH * 100, get(LONG) + b"nonsense\r\n"),
        ):
            for waits in (False, True):
                client = connect_and_send(self, port, data, window=4096)
                if waits and data.startswith(b"GET /") and data.endswith(b"\r\n\r\n"):
                    await until(lambda client=client: has_response(client), "a response")
                reset(client)
        response = await unaffected.end()
        self.assertEqual((200, True), (response.status, response.complete))
        await self.assert_all_closed(before)


class SiteTests(TestCase):
    """A site on a real port, with clients that a service meets rarely or wants to be rid of."""

    timeout = TEST_PATIENCE

    def open(self, speed: float, most: int | None = None) -> int:
        """Open a port, and return it.

        :param speed: of the site's clock: on a slow machine, no limit of time is met by accident.
        :param most: connections.
        """
        self.harness, self.log, self.evictions = ResourceHarness(), Log(self), [0]
        clock: Any = SimpleNamespace(
            seconds=lambda: reactor.seconds() * speed,
            callLater=lambda delay, *call: reactor.callLater(delay / speed, *call),
        )
        self.harness.store_variant(HIT, bytes(1 << 20))
        site = ProxySite(
            self.harness.resource, clock, most, on_eviction=partial(self.evictions.append, 1)
        )
        listener = Listener(reactor, site)
        self.addCleanup(site.finish)
        self.addCleanup(listener.close_now)
        return listener.open(0, "127.0.0.1")

    async def test_burst(self) -> None:
        """In a burst far above the limit, each client gets its response in an idle one's place."""
        # Each second, as many as there are places make room.
        port = self.open(4, 16)
        clients = [connect_and_send(self, port, HEALTH) for _ in range(48)]
        await until(lambda: all(map(has_response, clients)), "all responses")
        for client in clients:
            self.assertTrue(client.recv(64).startswith(b"HTTP/1.1 200"))
        self.assertEqual(32, sum(self.evictions))

    async def test_stalled_at_the_limit(self) -> None:
        """If clients that receive nothing have all places, they make room for a new one."""
        port, hit = self.open(1, 16), get(self.harness.path(HIT))
        stalled = [connect_and_send(self, port, hit * 9, window=4096) for _ in range(16)]
        await until(lambda: all(map(has_response, stalled)), "responses to begin")
        self.assertEqual(200, (await fetch(port, b"/health")).status)

    async def test_half_closed(self) -> None:
        """A client that closes its sending side gets the responses to its whole requests.

        Its connection is closed then, or at once if there is no whole request.
        """
        port = self.open(1 / PATIENCE)
        hit, miss = get(self.harness.path(HIT)), get(self.harness.path(MISS))
        for sent, count in (
            *((b"", 0), (HEALTH[:10], 0), (HEALTH, 1), (HEALTH * 9, 9), (HEALTH + b"GET /", 1)),
            *((hit + HEALTH, 2), (miss, 1)),
        ):
            client = connect_and_send(self, port, sent)
            half_close(client)
            receiving = deferToThread(receive, client)
            if sent == miss:
                await until(lambda: self.harness.renders.running, "the render")
                self.harness.render(MISS).write_output(b"sound")
                self.harness.render(MISS).end()
            received = await receiving
            self.assertEqual(count, received.count(b"HTTP/1.1 200 OK"), sent)
            self.assertEqual(sent == miss, received.endswith(b"\r\nsound\r\n0\r\n\r\n"))
        self.assertEqual([], self.log.errors)

    async def test_half_closed_and_waiting(self) -> None:
        """A response that does not begin in time is given up: 499, and its render is left."""
        port = self.open(5)
        client = connect_and_send(self, port, get(self.harness.path(MISS)))
        await until(lambda: self.harness.renders.running, "the render")
        half_close(client)
        await until(lambda: has_ended(client), "the connection to be closed")
        self.assertEqual([499], [each.status for each in self.log.requests])
        self.assertEqual(1, self.harness.render(MISS).left)
