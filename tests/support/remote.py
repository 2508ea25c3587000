"""Services with two buckets on a real S3 server, and proxies that record or hold requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from twisted.protocols.portforward import ProxyClient, ProxyClientFactory, ProxyFactory, ProxyServer
from twisted.python.failure import Failure
from twisted.trial.unittest import SkipTest

from audioproxy.config import BucketStore, Config, S3Config
from audioproxy.service import AudioProxy
from tests.support.buckets import s3_server
from tests.support.http import Response
from tests.support.s3 import Check, Identity
from tests.support.service import ServiceCase, reactor, signed, until
from tests.support.wire import Request, read_request

#: What happens to a request: forwarded (PASS), held (HOLD), its response stopped after a number of
#: bytes, or its connection reset (ABORTED).
RequestAction = str | int | None
HOLD, ABORTED, PASS = "hold", "reset", None

_HEAD = re.compile(rb"(?:GET|HEAD|PUT|POST|DELETE) \S+ HTTP/1\.1\r\n.*?\r\n\r\n", re.DOTALL)


class _ServerConnection(ProxyClient):
    """Connection to the server."""

    def connectionMade(self) -> None:
        self.factory.server.relay.ends.add(self)
        ProxyClient.connectionMade(self)

    def dataReceived(self, data: bytes) -> None:
        if self.peer is not None:
            self.peer.forward_response(data)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self.factory.server.relay.ends.discard(self)
        ProxyClient.connectionLost(self, reason)


class _ServerConnectionFactory(ProxyClientFactory):
    protocol = _ServerConnection
    noisy = False


class _ClientConnection(ProxyServer):
    """Connection from a client."""

    clientProtocolFactory = _ServerConnectionFactory
    reactor = reactor

    def connectionMade(self) -> None:
        self.relay: Relay = self.factory.relay  # type: ignore[attr-defined]
        self.relay.ends.add(self)
        self._remaining_bytes: int | None = None
        self._held_requests: list[bytes] = []
        self._held_responses: list[bytes] = []
        ProxyServer.connectionMade(self)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self.relay.ends.discard(self)
        self._held_requests.clear()
        self._held_responses.clear()
        ProxyServer.connectionLost(self, reason)

    @property
    def is_stalled(self) -> bool:
        """Whether bytes are held back."""
        return bool(self._held_requests or self._held_responses)

    def dataReceived(self, data: bytes) -> None:
        """Called with bytes from the client: apply the rule to each request in them."""
        if self._held_requests:
            self.transport.pauseProducing()
            self._held_requests.append(data)
            return
        for head in _HEAD.findall(data):
            found = read_request(head, has_body=False)
            assert found is not None
            request, _ = found
            self.relay.requests.append(request)
            action = self.relay.rule(request)
            if action == ABORTED:
                self.transport.abortConnection()  # type: ignore[attr-defined]
                return
            self._remaining_bytes = action if isinstance(action, int) else None
            if action == HOLD:
                self.transport.pauseProducing()
                self._held_requests.append(data)
                return
        self.send_to_server(data)

    def send_to_server(self, data: bytes) -> None:
        """Send to the server."""
        if self.peer is not None:
            self.peer.transport.write(data)  # type: ignore[union-attr]

    def forward_response(self, data: bytes) -> None:
        """Send bytes from the server to the client, up to the limit."""
        if self.peer is None:
            return  # the client is gone, and the server has not noticed yet
        if self._remaining_bytes is not None:
            data, rest = data[: self._remaining_bytes], data[self._remaining_bytes :]
            self._remaining_bytes -= len(data)
            if rest:
                # Later bytes may still arrive: the client's transport resumes the server's when it
                # drains.
                self.peer.transport.pauseProducing()  # type: ignore[union-attr]
                self._held_responses.append(rest)
        if data:
            self.transport.write(data)

    def release(self) -> None:
        """Send the held bytes."""
        self._remaining_bytes = None
        requests, self._held_requests = self._held_requests, []
        responses, self._held_responses = self._held_responses, []
        for data in requests:
            self.send_to_server(data)
        for data in responses:
            self.transport.write(data)
        for end, waited in ((self, requests), (self.peer, responses)):
            if end is not None and waited:
                end.transport.resumeProducing()  # type: ignore[union-attr]


class Relay:
    """TCP proxy to a server, in this process, that records, holds or aborts requests.

    It forwards TLS too, but cannot read the requests in it.

    :param port: of the server, at 127.0.0.1.
    :ivar address: at which it listens.
    :ivar requests: all requests so far.
    :ivar rule: decides what happens to a request; called before the server receives the request.
    :ivar ends: both sides of each connection.
    """

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.address = address
        self.requests: list[Request] = []
        self.rule: Callable[[Request], RequestAction] = lambda request: PASS
        self.ends: set[Any] = set()
        self._factory = ProxyFactory("127.0.0.1", port)
        self._factory.protocol = _ClientConnection
        self._factory.noisy = False
        self._factory.relay = self  # type: ignore[attr-defined]
        self.port = 0
        self._port: Any = None
        self.open()

    @property
    def connections(self) -> list[_ClientConnection]:
        """The connections from clients."""
        return [end for end in self.ends if isinstance(end, _ClientConnection)]

    @property
    def stalled(self) -> int:
        """The number of connections from clients that hold bytes back."""
        return sum(end.is_stalled for end in self.connections)

    def open(self) -> None:
        """Listen for clients; after `close`, on the same port as before."""
        self._port = reactor.listenTCP(self.port, self._factory, interface=self.address)
        self.port = self._port.getHost().port

    async def close(self) -> None:
        """Stop listening and reset all connections."""
        port, self._port = self._port, None
        if port is not None:
            await port.stopListening()
        self.reset_all()
        await until(lambda: not self.ends, "the connections to close")

    def reset_all(self) -> None:
        """Reset all connections."""
        for end in list(self.ends):
            end.transport.abortConnection()

    def release(self) -> None:
        """Remove the rule, and send all held bytes."""
        self.rule = lambda request: PASS
        for connection in self.connections:
            connection.release()


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
        self.server = await s3_server(self.tls)
        self.sources, self.variants = self.server.make_bucket(), self.server.make_bucket()

    def require(self, check: Check) -> None:
        """Skip the test if this server does not perform ``check``."""
        if check not in self.server.checks:
            raise SkipTest(f"This S3 server does not check the {check}.")

    def relay(self, address: str = "127.0.0.1") -> Relay:
        """Start a proxy to the server; it stops at the end of the test at the latest."""
        relay = Relay(self.server.port, address)
        self.addCleanup(relay.close)
        return relay

    def s3(self, relay: Relay | None = None, who: Identity | None = None, **more: Any) -> S3Config:
        """Return a configuration with the server's endpoint and with credentials."""
        who = who or self.server.owner
        scheme = "https" if self.tls else "http"
        return S3Config(
            **{
                "endpoint": f"{scheme}://127.0.0.1:{(relay or self.server).port}",
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

    async def boot(self, **settings: Any) -> AudioProxy:
        """Start a service in this process."""
        service = self.new_service(**settings)
        await service.startService()
        return service

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment variables of a service that is configured as by `config`."""
        store = {
            "AP_VARIANT_STORE": f"s3://{self.variants}",
            "AP_S3_ENDPOINT": self.server.endpoint,
            "AP_S3_CA_BUNDLE": self.server.ca_bundle or "",
            "AWS_ACCESS_KEY_ID": self.server.owner.access_key,
            "AWS_SECRET_ACCESS_KEY": self.server.owner.secret_key,
            "AWS_REGION": self.server.region,
        }
        return super().environment(**{**store, **variables})

    def put(self, key: str | bytes, source: Path | bytes) -> str:
        """Write a source and return its entity tag."""
        data = source if isinstance(source, bytes) else source.read_bytes()
        return self.server.put(self.sources, key, data)

    def url(self, key: str | bytes, options: str = "f:mp3", bucket: str = "") -> bytes:
        """Return an object's signed path; the options ``info`` select its info document."""
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


def key_of(response: Response) -> str:
    """Return the cache key of the variant in a response."""
    return (response["etag"] or b"").decode().strip('"')


def body_and_headers(response: Response) -> tuple[object, ...]:
    """Return the body and those headers that a variant has in every cache state."""
    names = ("content-type", "cache-control", "content-disposition", "etag")
    return (response.body, *(response[name] for name in names))
