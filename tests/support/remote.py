"""Services between two buckets on a real S3 server, behind proxies that record and block."""

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

#: What happens to a request: forwarded (PASS), held (HOLD), its response stopped after a number of
#: bytes, or its connection reset (ABORTED).
Fate = str | int | None
HOLD, ABORTED, PASS = "hold", "cut", None

_HEAD = re.compile(rb"(?:GET|HEAD|PUT|POST|DELETE) \S+ HTTP/1\.1\r\n.*?\r\n\r\n", re.DOTALL)


class _Inner(ProxyClient):
    """Connection to the server."""

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
    """Connection from a client."""

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
        """Whether bytes are held back."""
        return bool(self._asking or self._answering)

    def dataReceived(self, data: bytes) -> None:
        """Called with bytes from the client: apply the rule to each request in them."""
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
        """Send bytes from the server to the client, up to the limit."""
        if self.peer is None:
            return  # the client is gone, and the server has not noticed yet
        if self._left is not None:
            data, rest = data[: self._left], data[self._left :]
            self._left -= len(data)
            if rest:
                # Later bytes may still arrive: the client's transport resumes the server's when it
                # drains.
                self.peer.transport.pauseProducing()  # type: ignore[union-attr]
                self._answering.append(rest)
        if data:
            self.pass_on(data)

    def pass_on(self, data: bytes) -> None:
        """Send to the client."""
        self.road.passed += len(data)
        self.transport.write(data)

    def go_on(self) -> None:
        """Send the held bytes."""
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
        """Close the connection cleanly, as a server does after a complete response."""
        # A transport with unsent data forgets to close while it has a producer (Twisted 26.10).
        self.transport.unregisterProducer()
        self.transport.loseConnection()  # type: ignore[attr-defined]


class Road:
    """TCP proxy in this process in front of a server, which records, holds and cuts requests.

    It forwards TLS too, but cannot read the requests in it.

    :ivar requests: all requests so far.
    :ivar passed: number of response bytes sent to clients.
    :ivar limit: number of bytes of each response after which it stalls; over TLS, of each
        connection.
    :ivar rule: decides what happens to a request; called before the server receives the request.
    :ivar shut: whether to close each connection as soon as it is made.
    :ivar ends: both sides of each connection.
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
        """The connections from clients."""
        return [end for end in self.ends if isinstance(end, _Outer)]

    @property
    def standing(self) -> int:
        """The number of connections from clients that hold bytes back."""
        return sum(end.stands for end in self.connections)

    def open(self) -> None:
        """Listen for clients; a second time, on the same port."""
        self._port = reactor.listenTCP(self.port, self._factory, interface="127.0.0.1")
        self.port = self._port.getHost().port

    async def close(self) -> None:
        """Stop listening and reset all connections."""
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
        """Close all connections cleanly, as if each response were complete."""
        for connection in self.connections:
            connection.close()

    def go_on(self) -> None:
        """Remove the rule and the limit, and send all held bytes."""
        self.rule, self.limit = (lambda asked: PASS), None
        for connection in self.connections:
            connection.go_on()

    def count(self, method: str) -> int:
        """Return the number of requests with a method."""
        return sum(asked.method == method for asked in self.requests)


def is_signed_url(asked: Asked) -> bool:
    """Return whether a request is for a presigned URL."""
    return "X-Amz-Signature=" in asked.target


def seconds_of(asked: Asked) -> int:
    """Return the lifetime of a request's presigned URL in seconds; 0 for any other request."""
    match = re.search(r"X-Amz-Expires=(\d+)", asked.target)
    return int(match[1]) if match else 0


class RemoteCase(ServiceCase):
    """Base class of tests whose services have a source bucket and a variant bucket.

    :cvar tls: whether the server uses TLS.
    :ivar server: the real S3 server.
    :ivar sources: the bucket of the sources.
    :ivar variants: the bucket of the variants.
    """

    tls = False

    async def setUp(self) -> None:
        """Create the buckets."""
        super().setUp()
        self.server: S3Server = await s3_server(self.tls)
        self.sources, self.variants = self.server.make_bucket(), self.server.make_bucket()

    def require(self, check: Check) -> None:
        """Skip the test if this server does not check ``check``."""
        if check not in self.server.checks:
            raise SkipTest(f"This S3 server does not check the {check}.")

    def road(self, port: int = 0) -> Road:
        """Start a proxy to the server; it stops at the end of the test at the latest."""
        road = Road(port or self.server.port)
        self.addCleanup(lambda: Deferred.fromCoroutine(road.close()))
        return road

    def s3(self, road: Road | None = None, who: Identity | None = None, **more: Any) -> S3Config:
        """Return a configuration with the server's endpoint and with credentials."""
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
        """Start a service in this process; it stops at the end of the test at the latest."""
        service = make_service(self.config(**settings), reactor)

        def stop() -> Any:
            return service.stopService() if service.running else None

        self.addCleanup(stop)
        await service.startService()
        return service

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment variables of a service that is configured as by `config`."""
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
        """Return the signed path of an object's variant, or of its info document (``info``)."""
        raw = key.encode() if isinstance(key, str) else key
        name = quote_from_bytes(raw, safe="/")
        return signed(f"/{options}/plain/s3://{bucket or self.sources}/{name}")

    def stored(self) -> list[str]:
        """Return the names of all objects in the variant bucket."""
        return sorted(key.decode() for key in self.server.keys(self.variants))

    async def until_stored(self, count: int = 1) -> list[str]:
        """Wait until the variant bucket has at least ``count`` objects, and return their names."""
        await until(lambda: len(self.stored()) >= count, "the write-back")
        return self.stored()


async def until_miss(port: int, path: bytes) -> Response:
    """Repeat a request until it no longer joins the last render, and return the MISS (D37)."""
    while (response := await ask(port, path))["x-audio-proxy"] != b"MISS":
        if response["x-audio-proxy"] != b"COALESCED":
            raise AssertionError(f"neither COALESCED nor MISS: {response.headers}")
    return response


def key_of(response: Response) -> str:
    """Return the cache key of the variant in a response."""
    return (response["etag"] or b"").decode().strip('"')


def kept(response: Response) -> tuple[object, ...]:
    """Return the body and those headers that a variant has in every cache state."""
    names = ("content-type", "cache-control", "content-disposition", "etag")
    return (response.body, *(response[name] for name in names))


def listening(process: Process) -> Iterator[str]:
    """Yield the addresses on which a process listens, as spelled in ``/proc/net/tcp``."""
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
