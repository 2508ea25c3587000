"""Services between two buckets on a real server, and ways to it that tests watch and block."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from twisted.internet.defer import Deferred
from twisted.protocols.portforward import (
    ProxyClient,
    ProxyClientFactory,
    ProxyFactory,
    ProxyServer,
)
from twisted.python.failure import Failure
from twisted.trial.unittest import SkipTest

from audioproxy.config import BucketStore, Config, S3Config
from audioproxy.service import ProxyService, make_service
from tests.live.test_service import until_hit
from tests.support.buckets import s3_server
from tests.support.http import Response
from tests.support.origins import Asked
from tests.support.s3 import Check, Identity, S3Server
from tests.support.service import Process, ServiceCase, ask, reactor, signed, until

#: What becomes of a request: nothing special, a stop before or after so many bytes of its answer,
#: or the end of its connection.
Fate = str | int | None
HOLD, ABORTED, PASS = "hold", "cut", None

_HEAD = re.compile(rb"(?:GET|HEAD|PUT|POST|DELETE) \S+ HTTP/1\.1\r\n.*?\r\n\r\n", re.DOTALL)


class _Inner(ProxyClient):
    """The side of a server."""

    def connectionMade(self) -> None:
        self.factory.server.road.ends.add(self)
        ProxyClient.connectionMade(self)

    def dataReceived(self, data: bytes) -> None:
        if self.peer is not None:
            self.peer.back(data)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self.factory.server.road.ends.discard(self)
        ProxyClient.connectionLost(self, reason)


class _InnerFactory(ProxyClientFactory):
    protocol = _Inner
    noisy = False


class _Outer(ProxyServer):
    """The side of a client."""

    clientProtocolFactory = _InnerFactory
    reactor = reactor

    def connectionMade(self) -> None:
        self.road: Road = self.factory.road  # type: ignore[attr-defined]
        self.road.ends.add(self)
        self._left = self.road.limit
        self._asking: list[bytes] = []
        self._answering: list[bytes] = []
        if self.road.shut:
            self.close()
        else:
            ProxyServer.connectionMade(self)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self.road.ends.discard(self)
        self._asking.clear()
        self._answering.clear()
        ProxyServer.connectionLost(self, reason)

    @property
    def stands(self) -> bool:
        """Whether something waits."""
        return bool(self._asking or self._answering)

    def dataReceived(self, data: bytes) -> None:
        """Hear of what a client sends."""
        if self._asking:
            self.transport.pauseProducing()
            self._asking.append(data)
            return
        for head in _HEAD.findall(data):
            asked = Asked.read(head.partition(b"\r\n\r\n")[0])
            self.road.requests.append(asked)
            fate = self.road.rule(asked)
            if fate == ABORTED:
                self.abort()
                return
            self._left = fate if isinstance(fate, int) else self.road.limit
            if fate == HOLD:
                self.transport.pauseProducing()
                self._asking.append(data)
                return
        self.forth(data)

    def forth(self, data: bytes) -> None:
        """Send to the server."""
        if self.peer is not None:
            self.peer.transport.write(data)  # type: ignore[union-attr]

    def back(self, data: bytes) -> None:
        """Hear of what the server sends."""
        if self.peer is None:
            return  # the client is gone, and the server does not know it yet
        if self._left is not None:
            data, rest = data[: self._left], data[self._left :]
            self._left -= len(data)
            if rest:
                # The client may still drain, and so resume what is paused here.
                self.peer.transport.pauseProducing()  # type: ignore[union-attr]
                self._answering.append(rest)
        if data:
            self.pass_on(data)

    def pass_on(self, data: bytes) -> None:
        """Send to the client."""
        self.road.passed += len(data)
        self.transport.write(data)

    def go_on(self) -> None:
        """Send what waits."""
        self._left = None
        asking, self._asking = self._asking, []
        answering, self._answering = self._answering, []
        for data in asking:
            self.forth(data)
        for data in answering:
            self.pass_on(data)
        for end, waited in ((self, asking), (self.peer, answering)):
            if end is not None and waited:
                end.transport.resumeProducing()  # type: ignore[union-attr]

    def abort(self) -> None:
        """Reset the connection."""
        self.transport.abortConnection()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the connection in good order, as a server does that ends well."""
        # A transport that is full forgets it while it has a producer (Twisted 26.10).
        self.transport.unregisterProducer()
        self.transport.loseConnection()  # type: ignore[attr-defined]


class Road:
    """A port in front of a server, in this process, with its connections and requests.

    What is said over TLS passes, and is no request that could be read.

    :ivar requests: all requests so far.
    :ivar passed: bytes of answers that were sent on.
    :ivar limit: bytes of each answer, or over TLS of each connection, after which it stands still.
    :ivar rule: tells what becomes of a request; it is called before the server hears of it.
    :ivar shut: whether each connection is closed as soon as it is made.
    :ivar ends: both ends of each connection.
    """

    def __init__(self, port: int) -> None:
        self.requests: list[Asked] = []
        self.passed = 0
        self.limit: int | None = None
        self.rule: Callable[[Asked], Fate] = lambda asked: PASS
        self.shut = False
        self.ends: set[Any] = set()
        self._factory = ProxyFactory("127.0.0.1", port)
        self._factory.protocol = _Outer
        self._factory.noisy = False
        self._factory.road = self  # type: ignore[attr-defined]
        self.port = 0
        self._port: Any = None
        self.open()

    @property
    def connections(self) -> list[_Outer]:
        """The connections of clients."""
        return [end for end in self.ends if isinstance(end, _Outer)]

    @property
    def standing(self) -> int:
        """How many of them stand still."""
        return sum(end.stands for end in self.connections)

    def open(self) -> None:
        """Let clients in, at the same port as ever."""
        self._port = reactor.listenTCP(self.port, self._factory, interface="127.0.0.1")
        self.port = self._port.getHost().port

    async def close(self) -> None:
        """Let nobody in any more, and reset all connections."""
        port, self._port = self._port, None
        if port is not None:
            await port.stopListening()
        self.cut()
        await until(lambda: not self.ends, "the connections to close")

    def cut(self) -> None:
        """Reset all connections."""
        for end in list(self.ends):
            end.transport.abortConnection()

    def close_gently(self) -> None:
        """Close all connections as if everything were said."""
        for connection in self.connections:
            connection.close()

    def go_on(self) -> None:
        """Hold and limit nothing any more."""
        self.rule, self.limit = (lambda asked: PASS), None
        for connection in self.connections:
            connection.go_on()

    def count(self, method: str) -> int:
        """Return how many requests of a method there were."""
        return sum(asked.method == method for asked in self.requests)


def is_signed_url(asked: Asked) -> bool:
    """Tell whether this is what a presigned URL leads to."""
    return "X-Amz-Signature=" in asked.target


def seconds_of(asked: Asked) -> int:
    """Return how long the presigned URL of a request lives; 0 for another request."""
    match = re.search(r"X-Amz-Expires=(\d+)", asked.target)
    return int(match[1]) if match else 0


class RemoteCase(ServiceCase):
    """Tests that run services between two buckets.

    :cvar tls: whether the server has TLS.
    :ivar server: the real S3 server.
    :ivar sources: the bucket of the sources.
    :ivar variants: the bucket of the variants.
    """

    tls = False

    async def setUp(self) -> None:
        """Make the buckets."""
        super().setUp()
        self.server: S3Server = await s3_server(self.tls)
        self.sources, self.variants = self.server.make_bucket(), self.server.make_bucket()

    def require(self, check: Check) -> None:
        """Skip what this server lets pass."""
        if check not in self.server.checks:
            raise SkipTest(f"This S3 server does not check the {check}.")

    def road(self, port: int = 0) -> Road:
        """Build a road to the server, which is closed at the end at the latest."""
        road = Road(port or self.server.port)
        self.addCleanup(lambda: Deferred.fromCoroutine(road.close()))
        return road

    def s3(self, road: Road | None = None, who: Identity | None = None, **more: Any) -> S3Config:
        """Return how to reach the server, and who to be there."""
        who = who or self.server.owner
        scheme = "https" if self.tls else "http"
        return S3Config(
            **{
                "endpoint": f"{scheme}://127.0.0.1:{(road or self.server).port}",
                "access_key_id": who.access_key,
                "secret_access_key": who.secret_key,
                "session_token": who.session_token,
                "region": self.server.region,
                "ca_bundle": self.server.ca_bundle,
                **more,
            }
        )

    def config(self, **settings: Any) -> Config:
        """Return a configuration with both buckets."""
        return super().config(
            **{
                "source_s3": self.s3(),
                "variant_s3": self.s3(),
                "variant_store": BucketStore(self.variants),
                "local_root": None,
                **settings,
            }
        )

    async def boot(self, **settings: Any) -> ProxyService:
        """Start a service in this process; it is stopped at the end at the latest."""
        service = make_service(self.config(**settings), reactor)

        def stop() -> Any:
            return service.stopService() if service.running else None

        self.addCleanup(stop)
        await service.startService()
        return service

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of a service as `config` has it."""
        environ = {
            "AP_VARIANT_STORE": f"s3://{self.variants}",
            "AP_S3_ENDPOINT": self.server.endpoint,
            "AP_S3_CA_BUNDLE": self.server.ca_bundle or "",
            "AWS_ACCESS_KEY_ID": self.server.access_key,
            "AWS_SECRET_ACCESS_KEY": self.server.secret_key,
            "AWS_REGION": self.server.region,
        }
        return super().environment(**{**environ, **variables})

    def put(self, key: str | bytes, source: Path | bytes) -> str:
        """Write a source and return its entity tag."""
        data = source if isinstance(source, bytes) else source.read_bytes()
        return self.server.put(self.sources, key, data)

    def url(self, key: str | bytes, options: str = "f:mp3", bucket: str = "") -> bytes:
        """Return the signed path of a variant of an object, or of what it is (``info``)."""
        raw = key.encode() if isinstance(key, str) else key
        name = quote_from_bytes(raw, safe="/")
        return signed(f"/{options}/plain/s3://{bucket or self.sources}/{name}")

    def stored(self) -> list[str]:
        """Return the names of all objects in the bucket of the variants."""
        return sorted(key.decode() for key in self.server.keys(self.variants))

    async def until_stored(self, count: int = 1) -> list[str]:
        """Wait until there are so many, and return their names."""
        await until(lambda: len(self.stored()) >= count, "the write-back")
        return self.stored()


async def until_miss(port: int, path: bytes) -> Response:
    """Ask until nobody may join the last render any more, and return the next (D37)."""
    while (response := await ask(port, path))["x-audio-proxy"] != b"MISS":
        if response["x-audio-proxy"] != b"COALESCED":
            raise AssertionError(f"neither attached nor rendered: {response.headers}")
    return response


def key_of(response: Response) -> str:
    """Return the cache key of a variant that was answered with."""
    return (response["etag"] or b"").decode().strip('"')


def kept(response: Response) -> tuple[object, ...]:
    """Return what is the same of a variant wherever it comes from."""
    names = ("content-type", "cache-control", "content-disposition", "etag")
    return (response.body, *(response[name] for name in names))


def listening(process: Process) -> Iterator[str]:
    """Yield the addresses at which a process listens, as the system writes them."""
    sockets = set()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            sockets.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                yield fields[1]


__all__ = [
    "ABORTED",
    "HOLD",
    "PASS",
    "RemoteCase",
    "Road",
    "is_signed_url",
    "kept",
    "key_of",
    "listening",
    "seconds_of",
    "until_hit",
    "until_miss",
]
