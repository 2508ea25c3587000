"""HTTP without a network: an in-memory connection, a response parser and a resource harness.

`Connection` is a client of a real ``twisted.web`` site. `read_response` parses HTTP/1 (RFC 9112)
with h11, and nothing specific to the service. `ResourceHarness` is the root resource with doubles
of the store, the sources and the renders.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import h11
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.server import Site
from zope.interface import implementer

from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.grammar.request import SigningKeys, VariantRequest, parse_request
from audioproxy.grammar.signature import sign
from audioproxy.observe.access_log import log_request
from audioproxy.render.registry import RenderRegistry
from audioproxy.server.channel import ProxySite
from audioproxy.server.fast_path import FastPath
from audioproxy.variants.response_headers import VariantHeaders
from audioproxy.web.cors import Cors
from audioproxy.web.exchange import Instrumentation
from audioproxy.web.info import InfoHandler
from audioproxy.web.resource import AudioProxyResource
from audioproxy.web.variant import VariantHandler
from tests.support.engine import FakeEngine
from tests.support.renders import FakeRender, FakeRenders
from tests.support.stores import FakeStored

KEY, SALT = b"k" * 32, b"salt"
NOW = 1_800_000_000
MEDIA_CACHE_CONTROL = "public, max-age=31536000, immutable, no-transform"

# What h11 tolerates and the service must not send: other versions, lines that end with a bare LF,
# folded lines, and more than one header that frames the body.
_TOLERATED = re.compile(
    rb"(?!HTTP/1\.[01] )\A|(?<!\r)\n|\r\n[ \t]"
    rb"|(?is:\r\n(content-length|transfer-encoding):.*\r\n(content-length|transfer-encoding):)"
)


class Malformed(Exception):
    """The bytes are not an HTTP/1 response."""


@dataclass(frozen=True)
class Response:
    """Parsed HTTP/1 response.

    :ivar reason: the reason phrase after the status.
    :ivar complete: whether the end of the body was marked: by Content-Length, by the last chunk, or
        by a connection that was closed and not aborted.
    :ivar rest: the bytes after the response on the connection.
    """

    version: bytes
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    complete: bool
    rest: bytes = b""
    reason: bytes = b""

    def all(self, name: str) -> list[bytes]:
        """Return the values of all header lines with this name."""
        return [value for key, value in self.headers if key == name.lower().encode()]

    @property
    def headers_without_date(self) -> list[tuple[bytes, bytes]]:
        """The headers sorted, without Date, which changes with the clock."""
        return sorted(header for header in self.headers if header[0] != b"date")

    @property
    def fields(self) -> dict[str, bytes | None]:
        """The headers, without those that every response has; none may occur twice."""
        names = {key.decode() for key, _ in self.headers} - {"date", "server", "x-request-id"}
        return {name: self[name] for name in names}

    def __getitem__(self, name: str) -> bytes | None:
        """Return the value of a header that must not occur twice; None if it is absent."""
        values = self.all(name)
        if len(values) > 1:
            raise Malformed(f"{name} occurs {len(values)} times")
        return values[0] if values else None

    @property
    def document(self) -> Any:
        """The body parsed as JSON."""
        if self["content-type"] != b"application/json":
            raise Malformed(f"not JSON: {self}")
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The code in the error document of the body."""
        document = self.document
        if set(document) != {"error", "message"}:
            raise Malformed(f"not an error document: {document}")
        return str(document["error"])


class ResponseReader:
    """Incremental reader of the first response on a connection.

    :param method: method of the request; a response to HEAD has no body.
    """

    def __init__(self, method: bytes = b"GET") -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=sys.maxsize)
        request_method = "HEAD" if method == b"HEAD" else "GET"
        self._http.send(h11.Request(method=request_method, target="/", headers=[("Host", "x")]))
        self._start = bytearray()
        self._head: h11.Response | h11.InformationalResponse | None = None
        self._body = bytearray()
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Parse further bytes.

        :raises Malformed: if no client could parse the response.
        """
        if self._head is None:
            self._start += data
            head, end, _ = self._start.partition(b"\r\n\r\n")
            if not end:
                return
            if _TOLERATED.search(head):
                raise Malformed(f"invalid version, lines or framing in {bytes(head)!r}")
            data = bytes(self._start)
            del self._start[len(head) + 4 :]
        try:
            if data:
                self._http.receive_data(data)
            while not self._ended and (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data):
                    self._body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self._ended = True
                else:
                    assert isinstance(event, (h11.Response, h11.InformationalResponse))
                    self._head = event
                    self._ended = isinstance(event, h11.InformationalResponse)
        except h11.RemoteProtocolError as error:
            raise Malformed(f"{error} in {bytes(self._start)!r}") from error

    def response(self, closed: bool = False) -> Response | None:
        """Return the response so far; None while its headers are incomplete.

        :param closed: whether the connection was closed cleanly after the bytes so far.
        """
        head = self._head
        if head is None:
            return None
        names = dict(head.headers)
        framed = b"content-length" in names or b"transfer-encoding" in names
        return Response(
            b"HTTP/" + head.http_version,
            head.status_code,
            tuple(head.headers),
            bytes(self._body),
            self._ended or (closed and not framed),
            self._http.trailing_data[0] if self._ended else b"",
            head.reason,
        )


def read_response(data: bytes, method: bytes = b"GET", closed: bool = False) -> Response | None:
    """Parse the first response in ``data``; return None while its headers are incomplete.

    :param closed: whether the connection was closed cleanly after these bytes.
    :raises Malformed: if no client could parse the response.
    """
    reader = ResponseReader(method)
    reader.feed(data)
    return reader.response(closed)


def write_request(
    target: bytes,
    method: bytes = b"GET",
    version: bytes = b"HTTP/1.1",
    **headers: bytes | list[bytes],
) -> bytes:
    """Return the bytes of a request without a body; underscores in names become hyphens."""
    lines = [b" ".join((method, target, version)), b"Host: localhost"]
    for name, given in headers.items():
        for value in given if isinstance(given, list) else [given]:
            lines.append(name.replace("_", "-").encode() + b": " + value)
    return b"\r\n".join([*lines, b"", b""])


@implementer(ITCPTransport)
class Connection(StringTransport):
    """Client connection to a site, and the transport that the server has of it.

    :ivar closed: whether the server has closed the connection; ``aborted``, at once.
    :ivar half_closed: whether the server has closed its write side and still reads.
    :param window: number of bytes after which the client stops reading; None for no limit.
    """

    def __init__(self, site: Site, window: int | None = None) -> None:
        StringTransport.__init__(self, peerAddress=IPv4Address("TCP", "192.0.2.1", 40_000))
        self.method = b"GET"
        self.closed = self.aborted = self.half_closed = False
        self._window = window
        self._full = self._client_left = False
        self._received = 0
        self._unread = b""
        self._server: Any = site.buildProtocol(self.getPeer())
        self._server.makeConnection(self)

    # Called by the client.

    @property
    def received(self) -> bytes:
        """All bytes received from the server."""
        return self.value()[: self._received]

    @property
    def response(self) -> Response:
        """The first response, which must have arrived."""
        over = self.half_closed or (self.closed and not self.aborted)
        response = read_response(self.received, self.method, over)
        if response is None:
            raise Malformed(f"no response in {self.received!r}")
        return response

    def send(
        self,
        target: bytes,
        method: bytes = b"GET",
        version: bytes = b"HTTP/1.1",
        body: bytes = b"",
        **headers: bytes | list[bytes],
    ) -> None:
        """Send a request; see `write_request`."""
        self.method = method
        self.send_raw(write_request(target, method, version, **headers) + body)

    def send_raw(self, data: bytes) -> None:
        """Send any bytes; those that the server does not read yet are kept."""
        self._unread += data
        while self._unread and self._is_read():
            data, self._unread = self._unread, b""
            self._server.dataReceived(data)
        if self._client_left and self._is_read():
            self._lose(ConnectionDone())

    def leave(self) -> None:
        """Disconnect; a server that neither reads nor has bytes to send does not notice."""
        self._client_left = True
        if self.dataBuffer:
            # A system that has bytes for a client that has left gets a reset.
            self._lose(ConnectionLost())
        self.send_raw(b"")

    def half_close(self) -> None:
        """Close the sending side."""
        self._server.readConnectionLost()

    def pause(self, notified: bool = True) -> None:
        """Stop reading, so that everything sent from now on stays in the server's buffer.

        :param notified: whether to pause the server's producer, as a transport does over its limit.
        """
        self._full = True
        if notified and self.producer is not None:
            self.producer.pauseProducing()

    def resume(self) -> None:
        """Read everything in the server's buffer, and read on until it is full again."""
        if not self.closed:
            self._full, self._received = False, len(self.value())
            if self.producer is not None:
                self.producer.resumeProducing()
            if self.disconnecting and not self._full:
                self._lose(ConnectionDone())
            self.send_raw(b"")

    # Called by the server.

    @property
    def dataBuffer(self) -> bytes:
        return self.value()[self._received :]

    def write(self, data: bytes) -> None:
        if not self.closed:
            StringTransport.write(self, data)
            # A real transport pauses its producer on every write over its limit.
            if self._window is not None and len(self.value()) > self._window and self.producer:
                self._received = max(self._received, self._window)
                self.pause()
            elif not self._full:
                self._received = len(self.value())

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        self.disconnecting = True
        if not self._full:
            self._lose(ConnectionDone())

    def abortConnection(self) -> None:
        self.aborted = self.disconnecting = True
        self._lose(ConnectionAborted())

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def setTcpKeepAlive(self, enabled: bool) -> None:
        pass

    def loseWriteConnection(self) -> None:
        # A real transport with unsent data forgets the half-close: when its buffer is empty, it
        # only resumes its producer (Twisted 26.10).
        self.half_closed = self.half_closed or not self._full

    def resumeProducing(self) -> None:
        # A closing transport reads no more. StringTransport would raise instead.
        if not self.disconnecting:
            StringTransport.resumeProducing(self)

    def _lose(self, reason: Exception) -> None:
        """Close as a real transport does: notify the producer before the protocol."""
        if not self.closed:
            self.closed = True
            if self.producer is not None:
                self.producer.stopProducing()
            self._server.connectionLost(Failure(reason))

    def _is_read(self) -> bool:
        return not self.closed and self.producerState == "producing"


class Log:
    """Observer that collects log events.

    :param case: the test until whose end it collects; without one, call `start`.
    """

    def __init__(self, case: SynchronousTestCase | None = None) -> None:
        self.events: list[LogEvent] = []
        if case is not None:
            case.addCleanup(self.start())

    def start(self) -> Callable[[], None]:
        """Start collecting and return a function that stops it."""
        globalLogPublisher.addObserver(self.events.append)
        return lambda: globalLogPublisher.removeObserver(self.events.append)

    @property
    def requests(self) -> list[Any]:
        """The access log records of requests."""
        return [event["record"] for event in self.events if "record" in event]

    @property
    def texts(self) -> list[str]:
        """The texts of all events but those of requests."""
        return [str(formatEvent(event)) for event in self.events if "record" not in event]

    @property
    def warnings(self) -> list[str]:
        """The texts of the warnings among them."""
        found = [event for event in self.events if event.get("log_level") is LogLevel.warn]
        return [str(formatEvent(event)) for event in found if "record" not in event]

    @property
    def errors(self) -> list[LogEvent]:
        """The events of the levels error and critical, which a healthy service never logs."""
        return [
            event for event in self.events if event.get("log_level", LogLevel.info) > LogLevel.warn
        ]


class ResourceHarness(FakeEngine):
    """Root resource around a `FakeEngine`, with renders that a test controls.

    Every source exists. All doubles add to ``calls``, so that a test can assert which of them were
    not called.

    :ivar connection_clock: the clock of the connections; everything else uses ``clock``.
    :ivar fast_path: the fast path, which the site uses only if ``fast`` is true.
    """

    def __init__(
        self,
        *,
        origin: str | None = None,
        insecure: bool = False,
        key: bytes | None = KEY,
        previous: Sequence[tuple[bytes, bytes]] = (),
        has_store: bool = True,
        presign_ttl: int | None = None,
        now: float = NOW,
        fast: bool = False,
        cache_tag: CacheTagHeader | None = None,
    ) -> None:
        super().__init__(probes=2, max_source=1_000_000)
        self.sources.default_size = 1000
        self.now = now
        self.renders = FakeRenders(self.calls)
        self.instrumentation = Instrumentation(
            self.clock.seconds, self.metrics, Cors(origin), log_request
        )
        self.metrics_instrumentation = replace(self.instrumentation, cors=Cors(None))
        store: Any = self.store if has_store else None
        variants = VariantHandler(
            self.metrics,
            cast(RenderRegistry, self.renders),
            self.preparer,
            store,
            lambda: self.now,
            presign_ttl,
            None if presign_ttl is None else presign,
            store if presign_ttl is None else None,
            cache_tag,
        )
        self.resource = AudioProxyResource(
            self.instrumentation,
            SigningKeys(() if key is None else ((key, SALT), *previous), insecure),
            variants,
            InfoHandler(self.sources, self.prober, cache_tag),
            self.slots,
            self.readiness,
        )
        self.fast_path = FastPath(self.resource.verified_paths, variants, self.instrumentation)
        self.connection_clock = Clock()
        self.site = ProxySite(
            self.resource, self.connection_clock, fast_path=self.fast_path if fast else None
        )

    def called_methods(self) -> list[str]:
        """Return the names of all methods of doubles that were called, in order."""
        return [name for name, _ in self.calls]

    def path(self, rest: bytes) -> bytes:
        """Return the signed path for ``rest``, which starts with a slash."""
        return b"/" + sign(KEY, SALT, rest) + rest

    def connect(self, window: int | None = None) -> Connection:
        """Open a connection."""
        return Connection(self.site, window)

    def fetch(self, target: bytes, method: bytes = b"GET", **headers: Any) -> Response:
        """Send one request and return its response, which must arrive at once."""
        connection = self.connect()
        connection.send(target, method, **headers)
        response = connection.response
        if response.rest:
            raise Malformed(f"bytes after the response: {response.rest!r}")
        return response

    def fetch_signed(self, rest: bytes, method: bytes = b"GET", **headers: Any) -> Response:
        """Sign a path, request it and return the response."""
        return self.fetch(self.path(rest), method, **headers)

    def store_variant(self, rest: bytes, data: bytes, stored: int | None = None) -> FakeStored:
        """Store bytes as the variant that an unsigned path names.

        :param stored: Unix seconds at which it was stored; None without a record.
        """
        variant = self.store.stored[key_of(rest)] = FakeStored(data, stored)
        return variant

    def render(self, rest: bytes) -> FakeRender:
        """Return the running render of the variant that an unsigned path names."""
        return self.renders.running[key_of(rest)]


def presign(key: str, seconds: int, headers: VariantHeaders) -> str:
    """Return a URL that states the key and the lifetime."""
    return f"https://store.example/{key}?expires={seconds}"


def key_of(rest: bytes) -> str:
    """Return the cache key of the variant that an unsigned path names."""
    request = parse_request(rest, None)
    assert isinstance(request, VariantRequest)
    return request.key
