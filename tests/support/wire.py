"""In-memory network: the client's side is Twisted's own, and a test scripts the server's side.

Bytes move only in `Network.run`, and time passes only in `Network.advance`. So a test can act
between any two packets and never waits. A transport that is full, closed or aborted behaves as
Twisted's real one does; `tests.http_client.test_client_live` tests this with real sockets.
"""

from __future__ import annotations

import ssl
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote_to_bytes, urlencode, urlsplit

import h11
from minio.credentials import Credentials
from minio.signer import presign_v4, sign_v4_s3
from twisted.internet._resolver import SimpleResolverComplexifier
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.base import BaseConnector
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost, DNSLookupError
from twisted.internet.interfaces import IPushProducer, IResolverSimple, ITransport
from twisted.internet.ssl import platformTrust
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.http_client.client import HttpClient, Response

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

#: Bytes per read, and the number of unsent bytes above which a transport pauses its producer.
PACKET = 64 * 1024

_DATE = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class Request:
    """Received request, byte for byte."""

    method: str
    target: str
    lines: tuple[tuple[str, str], ...]
    body: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        """The headers by lower-case name, each of which must occur once."""
        headers = {name.lower(): value for name, value in self.lines}
        assert len(headers) == len(self.lines), f"a header occurs twice: {self.lines}"
        return headers


def read_request(data: bytes, has_body: bool = True) -> tuple[Request, bytes] | None:
    """Parse the first request and return it with the rest; return None while it is incomplete.

    :param has_body: whether to read the body, too.
    :raises h11.RemoteProtocolError: if the bytes are not HTTP.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=sys.maxsize)
    connection.receive_data(data)
    head = connection.next_event()
    if not isinstance(head, h11.Request):
        return None
    start = data.partition(b"\r\n\r\n")[0]
    assert head.http_version == b"1.1", start
    raw = head.headers.raw_items()
    lines = tuple((name.decode(), value.decode("latin-1")) for name, value in raw)
    # h11 drops a repeated Content-Length. Stores do not accept chunked requests.
    assert len(lines) == start.count(b"\r\n"), start
    assert b"transfer-encoding" not in dict(head.headers), start
    body = bytearray()
    while has_body and not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if not isinstance(event, h11.Data):
            return None
        body += event.data
    request = Request(head.method.decode(), head.target.decode(), lines, bytes(body))
    return request, connection.trailing_data[0]


def reply(
    status: int, body: bytes = b"", headers: Mapping[str, str] | None = None, length: int = -1
) -> bytes:
    """Return a response.

    :param length: the Content-Length, if it should be wrong.
    """
    lines = {"Content-Length": str(len(body) if length < 0 else length), **(headers or {})}
    return _head(status, lines) + body


def reply_without_length(
    status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    """Return a response without Content-Length; only ``headers`` may mark the end of its body."""
    return _head(status, headers or {}) + body


def chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body; the last chunk is empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def error(code: str) -> bytes:
    """Return an object store's error document."""
    texts = f"<Code>{code}</Code><Message>Not done.</Message><Key>/</Key>"
    return f"<?xml version='1.0'?>\n<Error>{texts}</Error>".encode()


def attempts(status: int, body: bytes = b"") -> list[bytes]:
    """Return the responses to a request to a store, which is repeated if the store is busy."""
    return [reply(status, body)] * (2 if status in (408, 425, 429, 500, 502, 503, 504) else 1)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {text}" for name, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


#: What a peer does on a request: send one packet, send several, or call a function.
Script = bytes | tuple[bytes, ...] | Callable[["Peer", Request], object]


@implementer(ITransport, IPushProducer)
class _ClientTransport:
    """Client side of a connection."""

    def __init__(self, connector: _Connector) -> None:
        self.sent, self.unsent = bytearray(), bytearray()
        self.unread: deque[bytes | Exception] = deque()
        self.window: int | None = None
        self.reading, self.disconnecting, self.aborted, self.closed = True, False, False, False
        self.producer: Any = None
        self._paused = False
        self._connector = connector

    def connect(self) -> None:
        """Complete the attempt to connect."""
        self.protocol: Any = self._connector.buildProtocol(self.getPeer())
        self.protocol.makeConnection(self)

    def failIfNotConnected(self, reason: Exception) -> None:
        """End the attempt to connect."""
        self._connector.connectionFailed(Failure(reason))

    def write(self, data: bytes) -> None:
        if self.closed or self.aborted or not data:
            return
        self.unsent += data
        # A real transport pauses its producer on every write over its limit.
        if self.producer is not None and len(self.unsent) > PACKET:
            self._paused = True
            self.producer.pauseProducing()

    def writeSequence(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert self.producer is None and streaming, "only one push producer can be registered"
        self.producer = producer
        if self.closed:
            producer.stopProducing()

    def unregisterProducer(self) -> None:
        self.producer = None

    def pauseProducing(self) -> None:
        self.reading = False

    def resumeProducing(self) -> None:
        if not self.closed and not self.disconnecting:
            self.reading = True

    def stopProducing(self) -> None:
        self.loseConnection()

    def loseConnection(self) -> None:
        if not self.closed:
            self.disconnecting, self.reading = True, False

    def abortConnection(self) -> None:
        if not self.closed and not self.aborted:
            self.aborted = True
            self._connector.reactor.callLater(0, self.lose, ConnectionAborted())

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def getPeer(self) -> Any:
        return self._connector.getDestination()

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", 40_000)

    def step(self) -> bool:
        """Move one packet in one direction; return whether there was one to move."""
        if self.closed or self.aborted:
            return False
        return self._step_out() or self._step_in()

    def _step_out(self) -> bool:
        window = PACKET if self.window is None else min(PACKET, self.window - len(self.sent))
        if self.unsent and window > 0:
            self.sent += self.unsent[:window]
            del self.unsent[:window]
        elif self.unsent or not (self._paused or self.disconnecting):
            return False
        if not self.unsent:
            if self.producer is not None and self._paused:
                self._paused = False
                self.producer.resumeProducing()
            elif self.disconnecting:
                self.lose(ConnectionDone())
            else:
                self._paused = False
        return True

    def _step_in(self) -> bool:
        if not (self.unread and self.reading):
            return False
        packet = self.unread.popleft()
        if isinstance(packet, bytes):
            self.protocol.dataReceived(packet)
        else:
            self.lose(packet)
        return True

    def lose(self, reason: Exception) -> None:
        """End the connection; notify the producer before the protocol."""
        if self.closed:
            return
        self.closed = True
        producer, self.producer = self.producer, None
        if producer is not None:
            producer.stopProducing()
        self.protocol.connectionLost(Failure(reason))
        self._connector.connectionLost(Failure(reason))


class Peer:
    """Server side of one connection.

    :ivar requests: the completely received requests.
    :ivar sends_close_notify: whether to respond to the client's TLS close_notify alert.
    """

    def __init__(self, wire: _ClientTransport, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.sends_close_notify = True
        self._wire = wire
        self._decrypted = bytearray()
        self._parsed = self._tls_bytes_read = 0
        self._tls: ssl.SSLObject | None = None
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        if context is not None:
            self._tls = context.wrap_bio(self._in, self._out, server_side=True)

    @property
    def received(self) -> bytes:
        """All received bytes, decrypted."""
        return bytes(self._wire.sent if self._tls is None else self._decrypted)

    @property
    def unread(self) -> int:
        """The number of sent bytes that the client has not read."""
        return sum(len(packet) for packet in self._wire.unread if isinstance(packet, bytes))

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._wire.closed

    @property
    def aborted(self) -> bool:
        """Whether the client aborted the connection."""
        return self._wire.aborted

    def send(self, *packets: bytes) -> None:
        """Send packets; the client reads each packet separately."""
        for packet in packets:
            if self._tls is not None:
                self._tls.write(packet)
            self._pass_on(packet if self._tls is None else self._out.read())

    def close(self) -> None:
        """Close the connection cleanly."""
        self._wire.unread.append(ConnectionDone())

    def reset(self) -> None:
        """Reset the connection and drop the bytes that the client has not read."""
        self._wire.unread.clear()
        self._wire.unread.append(ConnectionLost())

    def set_window(self, window: int | None) -> None:
        """Set how many bytes the peer reads on the whole connection; None for no limit."""
        self._wire.window = window

    def receive(self) -> list[Request]:
        """Return the requests that have arrived since the last call."""
        if self._tls is not None and self._tls_bytes_read < len(self._wire.sent):
            self._in.write(bytes(self._wire.sent[self._tls_bytes_read :]))
            self._tls_bytes_read = len(self._wire.sent)
            self._run_tls(self._tls)
            self._pass_on(self._out.read())
        new: list[Request] = []
        # A TLS handshake in cleartext is not HTTP, and has no blank line.
        while b"\r\n\r\n" in (data := self.received[self._parsed :]):
            found = read_request(data)
            if found is None:
                break
            request, rest = found
            self._parsed = len(self.received) - len(rest)
            new.append(request)
        self.requests += new
        return new

    def step(self) -> bool:
        """Move one packet in one direction; return whether there was one to move."""
        return self._wire.step()

    def _pass_on(self, data: bytes) -> None:
        for start in range(0, len(data), PACKET):
            self._wire.unread.append(data[start : start + PACKET])

    def _run_tls(self, tls: ssl.SSLObject) -> None:
        try:
            tls.do_handshake()
            while data := tls.read(PACKET):
                self._decrypted += data
        except ssl.SSLWantReadError:
            return
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError:
            self.close()
            return
        if self.sends_close_notify:
            # The client has sent its close_notify alert.
            tls.unwrap()
            self._pass_on(self._out.read())
            self.close()


class _Connector(BaseConnector):
    """Attempt to connect, and its connection."""

    transport: Any

    def __init__(self, network: Network, host: str, port: int, factory: Any, timeout: float):
        super().__init__(factory, timeout, network)  # type: ignore[arg-type]
        self._host, self._port = host, port

    def getDestination(self) -> Any:
        kind = IPv6Address if ":" in self._host else IPv4Address
        return kind("TCP", self._host, self._port)

    def _makeTransport(self) -> Any:
        return _ClientTransport(self)


@implementer(IResolverSimple)
class Network(MemoryReactorClock):
    """Reactor whose outgoing connections lead to peers that a test controls.

    :ivar peers: the peers of all connections so far, in order.
    :ivar requests: the completely received requests of all peers, in order.
    :ivar scripts: scripts for the next requests, whichever peer receives them. Without a script, a
        peer does not respond.
    :ivar names: the looked-up host names.
    :ivar unknown: host names that do not resolve.
    :ivar destinations: the addresses and ports of all attempts to connect.
    :ivar refusal: the error of attempts to connect, if set.
    :ivar silent: whether attempts to connect stay without a result.
    :ivar context: the TLS context of peers; None for cleartext.
    :ivar on_connect: called with each new peer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peers: list[Peer] = []
        self.requests: list[Request] = []
        self.scripts: list[Script] = []
        self.names: list[str] = []
        self.unknown: set[str] = set()
        self.destinations: list[tuple[str, int]] = []
        self.refusal: Exception | None = None
        self.silent = False
        self.context: ssl.SSLContext | None = None
        self.on_connect: Callable[[Peer], object] = lambda peer: None
        self.nameResolver = SimpleResolverComplexifier(self)

    def connectTCP(
        self, host: str, port: int, factory: Any, timeout: float = 30, bindAddress: Any = None
    ) -> _Connector:
        connector = _Connector(self, host, port, factory, timeout)
        connector.connect()
        self.destinations.append((host, port))
        if not self.silent:
            self.callLater(0, self._complete, connector)
        return connector

    def getHostByName(self, name: str, timeout: object = ()) -> Deferred[str]:
        self.names.append(name)
        if name in self.unknown:
            return fail(DNSLookupError())
        is_address = isIPAddress(name) or isIPv6Address(name)
        return succeed(name if is_address else "127.0.0.1")

    def _complete(self, connector: _Connector) -> None:
        if connector.state != "connecting":
            return
        if self.refusal is not None:
            connector.connectionFailed(Failure(self.refusal))
        else:
            connector.transport.connect()
            self.peers.append(Peer(connector.transport, self.context))
            self.on_connect(self.peers[-1])

    def run(self) -> None:
        """Move all packets that can be moved now."""
        busy = True
        while busy:
            Clock.advance(self, 0)
            steps = [peer.step() for peer in self.peers]
            busy = any(steps) or self._is_due()
            for peer in self.peers:
                for request in peer.receive():
                    busy = True
                    self.requests.append(request)
                    self._run_script(peer, request)

    def advance(self, amount: float) -> None:
        """Advance the clock; move all packets before and after."""
        self.run()
        Clock.advance(self, amount)
        self.run()

    def _is_due(self) -> bool:
        return any(call.getTime() <= self.seconds() for call in self.getDelayedCalls())

    def _run_script(self, peer: Peer, request: Request) -> None:
        if not self.scripts:
            return
        script = self.scripts.pop(0)
        if callable(script):
            script(peer, request)
        else:
            peer.send(*([script] if isinstance(script, bytes) else script))


def is_signed(request: Request, secret: str) -> bool:
    """Return whether a request has the signature that MinIO's client gives it for a secret.

    Like a store, this uses only the received request and the secret.
    """
    given = request.headers["authorization"]
    credential, names, _ = (word.partition("=")[2].rstrip(",") for word in given.split()[1:])
    key, _, region, *_ = credential.split("/")
    signed = {name: request.headers[name] for name in names.split(";")}
    sent = {name for name in request.headers if name == "host" or name.startswith("x-amz-")}
    assert sent <= signed.keys(), "a header that must be signed is not signed"
    expected = sign_v4_s3(
        method=request.method,
        url=_encoded(f"http://s3.test{request.target}"),
        region=region,
        headers=signed,
        credentials=Credentials(key, secret),
        content_sha256=request.headers["x-amz-content-sha256"],
        date=datetime.strptime(request.headers["x-amz-date"], _DATE),
    )
    return given == expected["Authorization"]


def is_presigned(method: str, url: str, secret: str) -> bool:
    """Return whether a URL has the signature that MinIO's client gives it for a secret."""
    unsigned, _, signature = url.rpartition("&X-Amz-Signature=")
    path, _, query = unsigned.partition("?")
    given = dict(parse_qsl(query, strict_parsing=True))
    assert given.pop("X-Amz-Algorithm") == "AWS4-HMAC-SHA256"
    assert given.pop("X-Amz-SignedHeaders") == "host"
    key, _, region, *_ = given.pop("X-Amz-Credential").split("/")
    expected = presign_v4(
        method=method,
        region=region,
        credentials=Credentials(key, secret),
        date=datetime.strptime(given.pop("X-Amz-Date"), _DATE),
        expires=int(given.pop("X-Amz-Expires")),
        url=_encoded(f"{path}?{urlencode(given)}"),
    )
    return expected.query.endswith(f"&X-Amz-Signature={signature}")


def _encoded(url: str) -> SplitResult:
    """Return a URL with its path and its query in the canonical encoding."""
    parts = urlsplit(url)
    path = quote(unquote_to_bytes(parts.path), safe="/-_.~")
    query = urlencode(parse_qsl(parts.query, keep_blank_values=True), quote_via=quote)
    return SplitResult(parts.scheme, parts.netloc, path, query, "")


class ClientCase(SynchronousTestCase):
    """Base class of tests of a client in an in-memory network.

    Every test must leave no open connections and no delayed calls behind.
    """

    def setUp(self) -> None:
        self.network = Network()
        self.client = HttpClient(self.network, platformTrust())

    def tearDown(self) -> None:
        closing = self.begin(self.client.close())
        self.successResultOf(closing)
        self.assertEqual([peer for peer in self.network.peers if not peer.closed], [], "not closed")
        self.assertEqual(self.network.getDelayedCalls(), [], "delayed calls")

    def deadline(self, seconds: float) -> Deadline:
        """Return a deadline on the network's clock."""
        return Deadline(self.network, seconds)

    def begin(self, work: Coroutine[Any, Any, T]) -> Deferred[T]:
        """Start a coroutine and run the network until nothing moves."""
        begun = Deferred.fromCoroutine(work)
        self.network.run()
        return begun

    @property
    def peer(self) -> Peer:
        """The server's end of the newest connection."""
        return self.network.peers[-1]

    def fetch(
        self, method: str = "GET", url: str = "http://s3.test/a", **options: Any
    ) -> Deferred[Response]:
        """Start a request without headers."""
        return self.begin(self.client.request(method, url, {}, **options))

    def answer(self, *packets: bytes, method: str = "GET") -> Response:
        """Return the response to a request, which consists of these packets."""
        self.network.scripts.append(packets)
        return self.result_of(self.client.request(method, "http://s3.test/a", {}))

    def result_of(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, which must complete while the clock stands still."""
        result: T = self.successResultOf(self.begin(work))
        return result

    def error_of(self, work: Coroutine[Any, Any, Any], kind: type[E]) -> E:
        """Return the error, of exactly this type, with which a coroutine fails at once."""
        return self.exactly(self.begin(work), kind)

    def exactly(self, begun: Deferred[Any], kind: type[E]) -> E:
        """Return the error, of exactly this type, with which a Deferred has failed."""
        error = self.failureResultOf(begun).value
        self.assertIs(type(error), kind, error)
        return error


class RetryCase(ClientCase):
    """Base class of tests of a client that tries again after some seconds."""

    def result_of(self, work: Coroutine[Any, Any, T]) -> T:
        result: T = self.successResultOf(self._retry(work))
        return result

    def error_of(self, work: Coroutine[Any, Any, Any], kind: type[E]) -> E:
        return self.exactly(self._retry(work), kind)

    def _retry(self, work: Coroutine[Any, Any, T]) -> Deferred[T]:
        begun = self.begin(work)
        for _ in range(10):
            if not begun.called:
                self.network.advance(1)
        return begun
