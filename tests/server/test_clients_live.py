"""Hostile or broken clients, which do not affect other clients."""

from __future__ import annotations

import contextlib  # trial would take a module attribute `suppress` as a setting
import os
import re
import resource
import signal
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import TypeVar

from audioproxy.server import channel, connections
from tests.support.http import Log, read_response
from tests.support.service import (
    PATIENCE,
    Process,
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

T = TypeVar("T")

LONG = signed("/f:mp3/t:0:200/plain/local://long.flac")
SHORT = signed("/f:mp3/plain/local://short.flac")
HEALTH = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"


def get(target: bytes) -> bytes:
    """Return a GET request."""
    return b"GET " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n"


def connect_and_send(port: int, data: bytes = b"", window: int | None = None) -> socket.socket:
    """Connect, and send bytes.

    :param window: size of the receive buffer in bytes, if not the system's default.
    """
    client = socket.socket()
    client.settimeout(PATIENCE)
    if window is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    client.connect(("127.0.0.1", port))
    client.sendall(data)
    return client


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


def has_ended(client: socket.socket, skip: bool = False) -> bool:
    """Return whether the server has closed a connection without a response.

    :param skip: read and ignore a response.
    """
    client.setblocking(False)
    try:
        while client.recv(65_536):
            if not skip:
                return False
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


class ClientCase(ServiceCase):
    """Service with a source of ten minutes and a source of one second."""

    def setUp(self) -> None:
        """Add the sources."""
        super().setUp()
        self.add("long.flac", long_flac())
        self.add("short.flac", short_flac())
        self._sockets: list[socket.socket] = []
        self.addCleanup(self.close_sockets)

    def connect_and_send(
        self, port: int, data: bytes = b"", window: int | None = None
    ) -> socket.socket:
        """Connect, and send bytes; close the socket at the end of the test."""
        client = connect_and_send(port, data, window)
        self._sockets.append(client)
        return client

    def close_sockets(self) -> None:
        """Close all sockets."""
        for client in self._sockets:
            client.close()

    def assert_no_errors(self, process: Process) -> None:
        """Assert that a service logged no errors."""
        for word in ("[error]", "Traceback", "Unhandled"):
            self.assertNotIn(word, process.stdout + process.stderr)


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

        first = await send(port, LONG)
        await until(lambda: len(first.received) > 1_000_000, "a part of the stream")
        (encoder,) = encoders(process.pid)
        os.kill(encoder, signal.SIGSTOP)
        for _ in range(300):
            self.connect_and_send(port)
        for _ in range(100):
            self.connect_and_send(port, HEALTH[:-2] + b"X-Slow: ")
        stalled = [self.connect_and_send(port, get(LONG), window=4096) for _ in range(40)]
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
            for client in self._sockets[300:400]:
                client.send(b"x")
        os.kill(encoder, signal.SIGCONT)
        response = await first.end()
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertGreater(len(response.body), 3_000_000)

        self.close_sockets()
        await until(lambda: descriptors(process.pid) <= before, "the descriptors to be closed")
        self.assert_no_errors(process)

    async def test_connection_limit(self) -> None:
        """At the connection limit, a new client replaces the client that was idle longest."""
        self.patch(connections, "EVICTABLE_AFTER", 0.1)
        # With so few descriptors, the service admits only its minimum of connections.
        self.patch(resource, "getrlimit", lambda which: (64, 64))
        port = self.start().port
        idle = [self.connect_and_send(port) for _ in range(40)]
        streaming = await send(port, LONG)
        await until(lambda: streaming.response, "the headers")
        idle += [self.connect_and_send(port) for _ in range(40)]
        self.assertEqual(200, (await fetch(port, b"/health")).status)
        closed = [client for client in idle if has_ended(client)]
        self.assertIn(len(closed), range(60, 80))
        self.assertEqual(idle[: len(closed)], closed)
        self.assertTrue((await streaming.end()).complete)

    async def test_burst(self) -> None:
        """A burst of clients far above the limit: each gets its response.

        The clients keep their connections open, so each place is taken from an idle client.
        """
        self.patch(resource, "getrlimit", lambda which: (64, 64))
        self.patch(connections, "EVICTABLE_AFTER", 0.1)
        service = self.start()
        clients = [self.connect_and_send(service.port, HEALTH) for _ in range(160)]
        await until(lambda: all(map(has_response, clients)), "all responses")
        for client in clients:
            self.assertTrue(client.recv(64).startswith(b"HTTP/1.1 200"))
        series = await scrape(service.metrics_port)
        self.assertEqual(144, series["audio_proxy_connection_evictions_total"])

    async def test_stalled_at_the_limit(self) -> None:
        """If clients that receive nothing have all places, they make room for a new one."""
        self.patch(resource, "getrlimit", lambda which: (64, 64))
        port = self.start().port
        await fetch(port, LONG)
        await until_hit(port, LONG)
        stalled = [self.connect_and_send(port, get(LONG) * 9, window=4096) for _ in range(16)]
        await until(lambda: all(map(has_response, stalled)), "responses to begin")
        self.assertEqual(200, (await fetch(port, b"/health")).status)

    async def test_thousands_of_requests_at_once(self) -> None:
        """A client that pipelines thousands of requests is served, and does not block others."""
        port = self.start().port
        pipelining = self.connect_and_send(port, b"GET /health HTTP/1.1\r\nHost:\r\n\r\n" * 2000)
        await fetch(port, b"/health")
        received = bytearray()
        pipelining.setblocking(False)

        def count() -> int:
            with contextlib.suppress(BlockingIOError):
                received.extend(pipelining.recv(1 << 20))
            return received.count(b"HTTP/1.1 200")

        self.assertLess(count(), 2000)
        await until(lambda: count() == 2000, "all responses")


class AmbiguousRequestTests(ClientCase):
    """Requests whose host, length or end another server may read in another way."""

    async def test_responses(self) -> None:
        """Such requests are a 400, and no request after them is read.

        Empty lines between requests are skipped, and any ``close`` ends the connection.
        """
        process = self.twistd()
        port = await process.port()
        await fetch(port, SHORT)
        await until_hit(port, SHORT)
        hit, end = get(SHORT), b"\r\n\r\n"
        bare = hit.removesuffix(b"Host: h" + end)
        refused = (
            bare + b"\r\n",
            hit[:-2] + b"Host: h" + end,
            bare + b"Host: h/a" + end,
            hit[:-2] + b"Transfer-Encoding: identity" + end,
            hit[:-2] + b"X: a\r\n b" + end,
            b"\r\n" * 3 + hit,
        )
        closing = (
            hit[:-2] + b"Connection: close, TE" + end,
            hit[:-2] + b"Connection: TE\r\nConnection: close" + end,
            b"\r\n" * 2 + hit[:-2] + b"Connection: keep-alive,close" + end,
        )
        for data, statuses in (
            *((data, [b"200", b"400"]) for data in refused),
            *((data, [b"200", b"200"]) for data in closing),
        ):
            client = self.connect_and_send(port, hit + data + hit)
            received = b"".join(iter(lambda client=client: client.recv(65_536), b""))
            self.assertEqual(statuses, re.findall(rb"HTTP/1\.1 (\d+) ", received), data)
        expected = len(refused)
        await until(lambda: process.stdout.count("unknown 400 bad_request") == expected, "the log")
        self.assert_no_errors(process)


class DisconnectTests(ClientCase):
    """Connections that end in unusual ways."""

    async def test_huge_headers(self) -> None:
        """A client that sends oversized headers gets a 400, even while it is still sending."""
        process = self.twistd()
        port = await process.port()
        for size in (20_000, 2_000_000):
            client = self.connect_and_send(
                port, b"GET /health HTTP/1.1\r\nX-Request-Id: mine\r\nHost: h\r\nX: "
            )
            client.sendall(b"a" * size)
            received = b"".join(iter(lambda client=client: client.recv(65_536), b""))
            response = read_response(received, closed=True)
            assert response is not None
            self.assertEqual((400, "bad_request"), (response.status, response.error))
            self.assertEqual(
                (b"close", b"mine"), (response["connection"], response["x-request-id"])
            )
            # The service has stopped reading; further bytes do no harm.
            client.sendall(b"a" * 100_000)
            client.close()
        await until(lambda: process.stdout.count("unknown 400 bad_request") == 2, "the log")
        self.assert_no_errors(process)

    async def test_half_closed(self) -> None:
        """A client that closes its sending side gets the responses to its whole requests.

        Its connection is closed then, or at once if there is no whole request.
        """
        # On a busy machine, a render may need more than a second for its first bytes.
        self.patch(channel, "HALF_CLOSE_TIMEOUT", PATIENCE)
        service = self.start()
        await fetch(service.port, signed("/f:mp3/plain/local://short.flac"))
        before = descriptors(os.getpid())
        for sent, count in (
            *((b"", 0), (HEALTH[:10], 0), (HEALTH, 1), (HEALTH * 9, 9), (HEALTH + b"GET /", 1)),
            (get(SHORT) + get(signed("/info/plain/local://short.flac")), 2),
            (get(signed("/f:ogg/t:0:30/plain/local://long.flac")), 1),
        ):
            client = self.connect_and_send(service.port, sent)
            half_close(client)
            received = bytearray()

            def has_all(client: socket.socket = client, received: bytearray = received) -> bool:
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while data := client.recv(65_536):
                        received.extend(data)
                    return True
                return False

            await until(has_all, "the connection to be closed")
            self.assertEqual(count, received.count(b"HTTP/1.1 200 OK"), sent)
            if b"chunked" in received:
                self.assertTrue(received.endswith(b"0\r\n\r\n"))
            client.close()
        await until(lambda: descriptors(os.getpid()) <= before, "the descriptors to be closed")

    async def test_half_closed_and_waiting(self) -> None:
        """A response that does not begin in time is given up: the client may be gone.

        Its render is cancelled, and the log has 499.
        """
        self.patch(channel, "HALF_CLOSE_TIMEOUT", 0.2)
        log = Log()
        self.addCleanup(log.start())
        service = self.start(variant_store=None, max_concurrency=1, queue_size=1)
        running = self.connect_and_send(service.port, get(LONG), window=4096)
        await until(lambda: has_response(running), "the stream to begin")
        client = self.connect_and_send(service.port, get(SHORT))
        half_close(client)
        await until(lambda: has_ended(client), "the connection to be closed")
        self.assertEqual([499], [each.status for each in log.requests if each.status != 200])
        reset(running)
        await until(lambda: not encoders(), "the encoder to end")

    async def test_reset(self) -> None:
        """A connection reset at any moment leaks nothing and does not affect other connections."""
        process = self.twistd()
        port = await process.port()
        await fetch(port, SHORT)
        await until_hit(port, SHORT)
        before = descriptors(process.pid)
        unaffected = await send(port, LONG)
        for data in (
            *(b"", HEALTH[:10], HEALTH, HEALTH * 1500, b"nonsense\r\n"),
            b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc",
            *(get(SHORT), get(LONG), get(LONG) + HEALTH * 100, get(LONG) + b"nonsense\r\n"),
        ):
            for waits in (False, True):
                client = connect_and_send(port, data, window=4096)
                if waits and data.startswith(b"GET /") and data.endswith(b"\r\n\r\n"):
                    await until(lambda client=client: has_response(client), "a response")
                reset(client)
        response = await unaffected.end()
        self.assertEqual((200, True), (response.status, response.complete))
        await until(lambda: descriptors(process.pid) <= before, "the descriptors to be closed")
        self.assert_no_errors(process)

    async def test_leaving_the_queue(self) -> None:
        """A client that disconnects while it waits for a slot is removed from the queue."""
        port = self.start(max_concurrency=1, queue_size=1).port
        running = await send(port, LONG)
        await until(lambda: running.response, "the headers")
        (encoder,) = encoders()
        os.kill(encoder, signal.SIGSTOP)
        disconnects = ((reset, b""), (half_close, b""), (socket.socket.close, HEALTH * 1000))
        for number, (disconnect, pipelined) in enumerate(disconnects):
            target = signed(f"/cb:{number}/plain/local://short.flac")
            client = connect_and_send(port, get(target) + pipelined)
            await until_queued(port, 1)
            refused = await fetch(port, signed("/cb:x/plain/local://short.flac"))
            self.assertEqual((429, "queue_full"), (refused.status, refused.error))
            disconnect(client)
            await until_queued(port, 0)
            client.close()
        await running.leave()
        os.kill(encoder, signal.SIGKILL)


async def poll(request: Callable[[], Awaitable[T]], condition: Callable[[T], bool]) -> None:
    """Repeat a request until its response meets a condition."""
    deadline = reactor.seconds() + PATIENCE
    while not condition(response := await request()):
        if reactor.seconds() > deadline:
            raise AssertionError(f"the last response is {response}")


async def until_queued(port: int, count: int) -> None:
    """Wait until `count` renders are queued for a slot."""
    await poll(lambda: fetch(port, b"/ready"), lambda seen: seen.document["queued"] == count)
