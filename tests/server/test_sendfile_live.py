"""Response bodies on real sockets, with sendfile and without it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from twisted.trial.unittest import TestCase

from audioproxy.errors import RenderFailed
from audioproxy.files.scratch_files import AnonymousFile
from audioproxy.files.streams import FileProducer
from audioproxy.observe.access_log import log_request
from audioproxy.observe.metrics import Metrics
from audioproxy.render.encoded_file import EncodedFile
from audioproxy.render.output import RenderOutput
from audioproxy.server import sendfile
from audioproxy.server.channel import ProxyChannel, ProxySite
from audioproxy.server.listener import Listener
from audioproxy.web.cors import Cors
from audioproxy.web.exchange import Exchange, Instrumentation
from audioproxy.web.resource import BaseResource
from audioproxy.web.response_plan import ResponsePlan
from tests.support.http import Log
from tests.support.service import TEST_PATIENCE, Client, fetch, reactor, send, until

LARGE_DATA = os.urandom(1 << 20) * 4


class Files(BaseResource):
    """Resource that sends a range of a file at ``/START-STOP``, or all of it at ``/growing``."""

    def __init__(self, output: RenderOutput) -> None:
        instrumentation = Instrumentation(reactor.seconds, Metrics(), Cors(None), log_request)
        BaseResource.__init__(self, instrumentation)
        self.output = output

    async def route(self, exchange: Exchange, path: bytes) -> None:
        """Send the range that the path names, or the growing file."""
        if path == b"/growing":
            body = FileProducer(self.output)
            await exchange.stream(ResponsePlan(200), body)
            return
        start, stop = map(int, path.strip(b"/").split(b"-"))
        plan = ResponsePlan(200, ((b"content-length", b"%d" % (stop - start)),))
        await exchange.stream(plan, FileProducer(self.output, start, stop))


class _Channel(ProxyChannel):
    """Channel of a test, which may have no plain TCP."""

    def __init__(self, case: SendfileTests) -> None:
        ProxyChannel.__init__(self)  # type: ignore[no-untyped-call]
        self._case = case

    def connectionMade(self) -> None:
        ProxyChannel.connectionMade(self)
        self.is_plain_tcp &= self._case.uses_sendfile
        self._case.channels.append(self)


class SendfileTests(TestCase):
    """Bodies that are sent with sendfile."""

    timeout = TEST_PATIENCE
    #: Whether sendfile is used at all.
    uses_sendfile = True
    #: Failures of sendfile when a connection is lost.
    failures: tuple[OSError | None, ...] = (None,)

    def setUp(self) -> None:
        self.file = AnonymousFile()
        self.output = RenderOutput(EncodedFile(self.file), 1 << 30)
        self.addCleanup(self.output.release)
        self.moves: list[int] = []
        self.failure: OSError | None = None
        self.patch(sendfile.os, "sendfile", self.sendfile)
        self.channels: list[ProxyChannel] = []
        self.files = Files(self.output)
        site = ProxySite(self.files, reactor)
        site.protocol = partial(_Channel, self)
        listener = Listener(reactor, site)
        self.port = listener.open(0, "127.0.0.1")
        self.addCleanup(listener.close)
        self.log = Log(self)

    def sendfile(self, *words: int, real: Callable[..., int] = os.sendfile) -> int:
        """Call the real sendfile and record its results, or raise ``failure`` if it is set."""
        if self.failure is not None:
            raise self.failure
        self.moves.append(real(*words))
        return self.moves[-1]

    def grow(self, data: bytes) -> None:
        """Append to the file."""
        os.write(self.file.descriptor, data)
        self.output.update_size(self.output.written)

    async def test_ranges(self) -> None:
        """A range of a file of any length is sent exactly."""
        self.grow(LARGE_DATA)
        for start, stop in (
            (0, len(LARGE_DATA)),
            (1, len(LARGE_DATA) - 1),
            (5, 6),
            (7, 7),
            (9, 70_000),
        ):
            response = await fetch(self.port, b"/%d-%d" % (start, stop))
            self.assertEqual(response.body, LARGE_DATA[start:stop])
            self.assertTrue(response.complete)
            self.assertEqual(self.log.requests[-1].sent, stop - start)
        self.assertEqual(bool(self.moves), self.uses_sendfile)

    async def test_growing(self) -> None:
        """A growing file is sent in chunks while it grows, by small or large amounts."""
        self.grow(LARGE_DATA[:1_000_000])
        client: Client = await send(self.port, b"/growing")
        at = 1_000_000
        for more in (1, 500_000, 100, 2_000_000, 40_000, 0):
            await until(lambda at=at: client.response and len(client.response.body) == at)
            self.grow(LARGE_DATA[at : at + more])
            at += more
        self.output.end()
        response = await client.end()
        self.assertEqual(response.body, LARGE_DATA[:at])
        self.assertEqual(response["transfer-encoding"], b"chunked")
        self.assertTrue(response.complete)
        self.assertEqual(self.log.requests[-1].sent, at)
        self.assertEqual(bool(self.moves), self.uses_sendfile)

    async def test_slow_client(self) -> None:
        """A client that pauses receives every byte, and few bytes are buffered for it.

        An HTTP/1.0 client receives a growing file without chunks, until the close.
        """
        # More than the socket buffers of a connection can hold.
        for _ in range(5):
            self.grow(LARGE_DATA)
        self.output.end()
        for path in (b"/growing", b"/growing HTTP/1.0\r\nX:", b"/0-%d" % self.output.size):
            client: Client = await send(self.port, path)
            client.pause()
            await until(self.stalled)
            client.resume()
            self.assertEqual((await client.end()).body, LARGE_DATA * 5)

    def stalled(self) -> bool:
        """Return whether the client has stalled; assert that few bytes are buffered for it."""
        for channel in self.channels[-1:]:
            transport: Any = channel.transport
            self.assertLess(len(transport.dataBuffer), transport.SEND_LIMIT)
            if channel.stalled_since is not None:
                return reactor.seconds() - channel.stalled_since > 0.05
        return False

    async def test_next_request(self) -> None:
        """After a body was sent, the next request on the connection is served."""
        self.grow(LARGE_DATA)
        self.output.end()
        host = b" HTTP/1.1\r\nHost: h\r\n\r\n"
        target = b"/0-100000" + host + b"GET /growing" + host + b"GET /1-2"
        client: Client = await send(self.port, target)
        received = bytes((await client.end()).rest)
        self.assertIn(LARGE_DATA[:100_000], bytes(client.received))
        self.assertTrue(received.endswith(b"\r\n\r\n" + LARGE_DATA[1:2]), received[-100:])
        self.assertEqual(received.count(b"HTTP/1.1 200 OK"), 2)

    async def test_failure(self) -> None:
        """A render that fails ends the response early, within a chunk or between chunks."""
        for size in (100_000, 3_000_000):
            self.output.size = 0
            os.ftruncate(self.file.descriptor, 0)
            self.output.ended = False
            os.lseek(self.file.descriptor, 0, os.SEEK_SET)
            self.grow(LARGE_DATA[:size])
            client: Client = await send(self.port, b"/growing")
            await until(lambda client=client: client.response and client.response.body)
            self.output.end(RenderFailed())
            response = await client.end()
            self.assertFalse(response.complete)
            self.assertTrue(LARGE_DATA.startswith(response.body))

    async def test_file_that_shrinks(self) -> None:
        """A file that turns out too short ends the response early, with one warning."""
        self.grow(LARGE_DATA)
        for path in (b"/0-%d" % (len(LARGE_DATA) + 1), b"/growing"):
            self.log.events.clear()
            client: Client = await send(self.port, path)
            if path == b"/growing":
                await until(lambda client=client: client.response and client.response.body)
                self.output.size += 100_000
                self.output.end()
            self.assertFalse((await client.end()).complete)
            self.assert_one_warning(f"the file was shortened to {len(LARGE_DATA)} bytes or less")

    def assert_one_warning(self, error: str) -> None:
        """Assert that the log has one warning besides the line of the request, and no error."""
        self.assertEqual(self.log.errors, [])
        self.assertEqual([f"a variant cannot be read to its end: {error}"], self.log.warnings)
        self.assertEqual(self.log.requests[-1].error_code, "upstream_unavailable")

    async def test_client_that_leaves(self) -> None:
        """A request ends without an error if its client disconnects or is lost in sendfile."""
        self.grow(LARGE_DATA)
        for failure, path in product(self.failures, (b"/growing", b"/0-%d" % len(LARGE_DATA))):
            self.failure = failure
            client: Client = await send(self.port, path)
            client.pause()
            await until(lambda: self.files.active.count)
            await client.leave()
            await until(lambda: not self.files.active.count)
            self.assertEqual(self.log.errors, [])


class WrittenTests(SendfileTests):
    """`SendfileTests` where sendfile cannot be used, for example behind TLS."""

    uses_sendfile = False


class FailureTests(SendfileTests):
    """`SendfileTests` on a file system that rejects sendfile, and failures of sendfile."""

    failures = tuple(
        OSError(number, os.strerror(number))
        for number in (errno.EPIPE, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ETIMEDOUT)
    )

    def setUp(self) -> None:
        super().setUp()
        self.failure = OSError(errno.EINVAL, "Invalid argument")
        self.moves = [0]

    async def test_full_socket(self) -> None:
        """If the socket buffer is full, sending is retried later."""
        self.grow(LARGE_DATA)
        self.failure = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        client: Client = await send(self.port, b"/0-%d" % len(LARGE_DATA))
        await until(lambda: client.received)
        self.failure = None
        self.assertEqual((await client.end()).body, LARGE_DATA)

    async def test_broken_disk(self) -> None:
        """A read error of the disk ends the response early and is logged."""
        self.grow(LARGE_DATA)
        self.failure = OSError(errno.EIO, "Input/output error")
        self.patch(sendfile.os, "pread", self.sendfile)
        client: Client = await send(self.port, b"/0-%d" % len(LARGE_DATA))
        self.assertFalse((await client.end()).complete)
        self.assert_one_warning("Input/output error")
