"""Doubles for far files: an origin that serves ranges, and the reactor's sockets.

`FarClientCase` reads far files through a real client in an in-memory network.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, cast

from twisted.internet.defer import Deferred, execute
from twisted.internet.interfaces import IConsumer
from twisted.internet.task import Clock

from audioproxy.errors import NoSuchSource, Refusal, UpstreamUnavailable
from audioproxy.files.streams import ConsumerGone
from audioproxy.http_client.client import HttpClient, Response
from audioproxy.media.inputs import Input
from audioproxy.sources.far_files import FarFiles
from audioproxy.sources.far_source import FarReading, FarSource
from audioproxy.sources.fetch import Part
from tests.support.wire import ClientCase, Peer, Request, Script, error, reply

TAGGED = {"ETag": '"1"', "Last-Modified": "then"}

#: A source that is longer than what is requested of both of its ends.
LONG = bytes(range(250)) * 4000
START, END, MIDDLE = "0-262143", "917504-999999", "393216-917503"


def ranged(first: int, last: int, headers: Mapping[str, str] = TAGGED, status: int = 206) -> bytes:
    """Return a response with a range of the long source."""
    lines = {**headers, "Content-Range": f"bytes {first}-{last}/{len(LONG)}"}
    return reply(status, LONG[first : last + 1], lines)


def serve(peer: Peer, request: Request) -> None:
    """Return the range of the long source that a request asks for."""
    first, last = request.headers["range"].removeprefix("bytes=").split("-")
    peer.send(ranged(int(first), min(int(last), len(LONG) - 1)))


def busy(status: int = 503, seconds: str = "") -> bytes:
    """Return the response of a busy origin."""
    return reply(status, b"", {"Retry-After": seconds} if seconds else {})


def cut(response: bytes) -> Script:
    """Return a script that sends a response and closes the connection."""

    def respond(peer: Peer, _: object) -> None:
        peer.send(response)
        peer.close()

    return respond


class FakeStream:
    """A body whose bytes are sent when a test says so.

    :ivar first: the place of the next byte.
    :ivar stop: behind the last one.
    :ivar is_paused: whether the consumer takes no more now.
    """

    def __init__(self, content: bytes, first: int, stop: int) -> None:
        self.first, self.stop = first, stop
        self.is_paused = False
        self.is_discarded = False
        self._content = content
        self._consumer: Any = None
        self.done: Deferred[None] = Deferred(lambda _: self.stopProducing())

    def send(self, consumer: IConsumer) -> Deferred[None]:
        """Register with the consumer."""
        self._consumer = consumer
        cast(Any, consumer).registerProducer(self, True)
        return self.done

    def discard(self) -> None:
        """Note that nobody reads it."""
        self.is_discarded = True

    @property
    def is_open(self) -> bool:
        """Whether somebody reads it."""
        return self._consumer is not None and not self.done.called

    def arrive(self, count: int | None = None) -> None:
        """Send bytes, by default as many as the consumer takes; at the end, end."""
        while self.is_open and not self.is_paused and self.first < self.stop and count != 0:
            piece = min(16 * 1024, self.stop - self.first, count or 1 << 30)
            count = None if count is None else count - piece
            data = self._content[self.first : self.first + piece]
            self.first += piece
            self._consumer.write(data)
        if self.is_open and self.first == self.stop:
            self._consumer.unregisterProducer()
            self.done.callback(None)

    def lose(self, error: Exception) -> None:
        """Lose the connection."""
        self._consumer.unregisterProducer()
        self.done.errback(error)

    def pauseProducing(self) -> None:
        """Pause."""
        self.is_paused = True

    def resumeProducing(self) -> None:
        """Resume."""
        self.is_paused = False

    def stopProducing(self) -> None:
        """End."""
        if not self.done.called:
            self.done.errback(ConsumerGone())


class FakeVersion:
    """One version of a source, at an origin that a test plays.

    :ivar requests: the ranges that were requested.
    :ivar streams: the bodies of the responses.
    :ivar faults: raised by the next requests, in order; None for none.
    :ivar is_prompt: bytes arrive as they are requested.
    """

    name = "origin.test"

    def __init__(self, content: bytes, *, is_whole: bool = False, is_prompt: bool = True) -> None:
        self.content = content
        self.is_whole = is_whole
        self.is_prompt = is_prompt
        self.requests: list[tuple[int, int | None]] = []
        self.streams: list[FakeStream] = []
        self.faults: list[Exception | None] = []
        #: The most bytes of a response.
        self.most = 1 << 40

    async def get(self, first: int, stop: int | None) -> Part:
        """Return a response."""
        self.requests.append((first, stop))
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault
        begin = 0 if self.is_whole else first
        return self.part(begin, len(self.content) if stop is None else stop)

    def part(self, first: int, stop: int) -> Part:
        """Return a response with a range."""
        stream = FakeStream(self.content, first, min(stop, first + self.most))
        self.streams.append(stream)
        return Part(first, stream)

    def run(self) -> None:
        """Let all bytes arrive that are taken."""
        is_busy = True
        while is_busy:
            before = [stream.first for stream in self.streams], len(self.streams)
            for stream in list(self.streams):
                stream.arrive()
            is_busy = before != ([stream.first for stream in self.streams], len(self.streams))


class FakeReaders(Clock):
    """The part of a reactor that reads sockets, when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Any] = []

    def addReader(self, reader: Any) -> None:
        """Add a socket."""
        if reader not in self.readers:
            self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        """Remove a socket."""
        with suppress(ValueError):
            self.readers.remove(reader)

    def run(self) -> None:
        """Read what has come."""
        self.advance(1)
        for reader in list(self.readers):
            if reader in self.readers:
                reader.doRead()


class PlaintextClient:
    """`HttpClient` wrapper that requests https URLs without TLS."""

    def __init__(self, outbound: HttpClient) -> None:
        self._outbound = outbound

    async def request(self, method: str, url: str, headers: Mapping[str, str]) -> Response:
        assert url.startswith("https://"), url
        return await self._outbound.request(method, "http" + url[5:], headers)

    def is_connected(self, url: str) -> bool:
        return self._outbound.is_connected(url)


class FarClientCase(ClientCase):
    """Base class of tests of remote sources, which are opened one at a time.

    :cvar limit: AP_MAX_SRC_BYTES.
    :ivar last: the source that was opened last.
    :ivar is_connected: whether a request seems to need no new connection.
    """

    limit = 2_000_000

    def setUp(self) -> None:
        """Open no source yet, at an origin to which there seems to be a connection."""
        super().setUp()
        self.is_connected = True
        self.patch(HttpClient, "is_connected", lambda client, url: self.is_connected)
        folder: str = self.mktemp()
        os.makedirs(folder)
        self.files = FarFiles(folder, self.network, self.in_thread, self.limit)
        reactor: Any = FakeReaders()
        self.reading = FarReading(
            reactor,
            self.network,
            self.files,
            self.in_thread,
            self.can_preload,
            self.limit,
            copy_timeout=300.0,
        )
        self.last: FarSource | None = None

    def tearDown(self) -> None:
        """Close the last source, and all files."""
        self.forget()
        super().tearDown()

    def in_thread(self, work: Any) -> Any:
        """Run disk work at once."""
        return execute(work)

    async def can_preload(self) -> bool:
        """Return that children can ask for blocks."""
        return True

    def close_last(self) -> None:
        """Close the source that was opened last."""
        if self.last is not None:
            self.last.close()
            self.network.run()

    def begin_to_open(self, *responses: Script, reads: bool = True) -> Deferred[FarSource]:
        """Close the last source, and start to open one with these responses."""
        self.close_last()
        self.network.requests.clear()
        self.network.scripts[:] = responses
        return self.begin(self.open_source(reads))

    def open_source(self, reads: bool) -> Coroutine[Any, Any, FarSource]:
        """Open the source of the tests."""
        raise NotImplementedError

    def opened(self, *responses: Script, reads: bool = True) -> FarSource:
        """Open the source with these responses, one of which may be that of a busy server."""
        opening = self.begin_to_open(*responses, reads=reads)
        if not opening.called:
            self.network.advance(1)
        self.last = self.successResultOf(opening)
        # The end of the source is requested when the start is there.
        self.network.run()
        return self.last

    def opened_anew(self, *responses: Script) -> FarSource:
        """Open the source, of which nothing is known."""
        self.forget()
        return self.opened(*responses)

    def long(self) -> FarSource:
        """Open the long source, of which nothing is known."""
        return self.opened_anew(serve, serve)

    def refused(self, kind: type[Refusal], *responses: Script) -> None:
        """Assert that opening the source is refused after these responses."""
        self.exactly(self.begin_to_open(*responses), kind)
        self.assertEqual([], self.network.scripts)

    def forget(self) -> None:
        """Close the source that was opened last, and remove all files."""
        self.close_last()
        self.files.close()
        self.files.open()
        self.network.run()

    @property
    def ranges(self) -> list[str]:
        """The ranges that were requested since the source was opened; empty for the whole."""
        each_range = (each.headers.get("range", "") for each in self.network.requests)
        return [each.removeprefix("bytes=") for each in each_range]

    def read(self, found: FarSource, *responses: Script, place: int = 400_000) -> Deferred[bytes]:
        """Start to read ten bytes of a source, with these responses of its origin."""
        self.network.scripts += responses
        return self.begin(found.read(place, 10))

    def assert_read(self, found: FarSource, *responses: Script, place: int = 400_000) -> None:
        """Assert that ten bytes of the long source are read, with these responses of its origin."""
        reading = self.read(found, *responses, place=place)
        self.assertEqual(LONG[place : place + 10], self.successResultOf(reading))

    def see(self, found: FarSource, seconds: float = 60) -> Deferred[Input]:
        """Start to look at a source, without a child."""

        async def look(opened: Input) -> Input:
            return opened

        return self.begin(found.inspect(self.deadline(seconds), look))

    def complete(self, found: FarSource, seconds: float = 60) -> Deferred[None]:
        """Start to wait for the whole source."""
        return self.begin(found.complete(self.deadline(seconds)))

    def content(self, found: FarSource) -> bytes:
        """Return the content of a source that is complete."""
        assert found.descriptor is not None
        return os.pread(found.descriptor, 10**7, 0)


class StartTests(FarClientCase):
    """What is requested when a source of either kind is opened."""

    def test_new_connections(self) -> None:
        """Where connections have to be made, the end is requested beside the start.

        It is requested again, by its place, if that fails; and not needed for a small source.
        """
        last, small = "-131072", reply(200, b"0123456789", TAGGED)
        for end, requests in (
            (ranged(868_928, 999_999), {last, START}),
            (small, {last, START}),
            (ranged(868_928, 999_999, {"ETag": '"2"'}), {last, START, END}),
            (ranged(868_929, 999_999), {last, START, END}),
            *((reply(status), {last, START, END}) for status in (400, 416, 503)),
        ):

            def respond(peer: Peer, request: Request, end: bytes = end) -> None:
                if request.headers["range"] == f"bytes={last}" or end == small:
                    peer.send(end)
                else:
                    serve(peer, request)

            self.forget()
            self.is_connected = False
            found = self.opened(*[respond] * len(requests))
            self.is_connected = True
            self.network.run()
            self.assertEqual(requests, set(self.ranges))
            self.assertEqual([], self.network.scripts)
            if end != small:
                self.assert_read(found, place=999_990)

    def test_no_source_at_new_connections(self) -> None:
        """A source that is missing is refused, whatever the request for its end returns."""
        self.is_connected = False
        missing = reply(404, error("NoSuchKey"))
        for end in (missing, ranged(868_928, 999_999)):
            self.refused(NoSuchSource, end, missing)

    def test_known(self) -> None:
        """A source whose blocks are kept is looked up with one byte, on a kept connection."""
        self.long()
        peers = len(self.network.peers)
        for reads in (True, False, True):
            found = self.opened(serve, reads=reads)
            self.assertEqual((len(LONG), ["0-0"]), (found.size, self.ranges))
        self.assert_read(found, place=5)
        self.assertEqual((1, peers), (len(self.network.requests), len(self.network.peers)))

    def test_cut_without_a_validator(self) -> None:
        """A source without a validator whose body is cut is not requested again."""
        found = self.opened_anew(cut(reply(200, LONG[:-5], length=len(LONG))))
        self.exactly(self.complete(found), UpstreamUnavailable)
