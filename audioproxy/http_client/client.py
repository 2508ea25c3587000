"""HTTP/1.1 client on Twisted's Agent, with a timeout for every wait.

It does not follow redirects, decode bodies or cache responses: callers get each response as the
server sent it. The URL is sent exactly as given, since a signature covers its bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from cachetools import LRUCache
from OpenSSL.crypto import Error as CertificateError
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.ssl import Certificate, platformTrust, trustRootFromCertificates
from twisted.web.client import URI, Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers
from twisted.web.iweb import UNKNOWN_LENGTH, IResponse

from audioproxy import __version__
from audioproxy._twisted import monotonic_clock
from audioproxy.concurrency.deadlines import ProgressTimeout
from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.errors import Unusable, reason_of
from audioproxy.http_client._twisted import (
    CarefulPool,
    has_idle_connection,
    request_with_target,
    response_connection,
)
from audioproxy.http_client.bodies import (
    STALL_TIMEOUT,
    BodyAborter,
    BodyCollector,
    BodyStream,
    RequestBody,
)
from audioproxy.http_client.connection import PooledConnection, make_endpoint
from audioproxy.http_client.errors import TransportError, translate_error
from audioproxy.http_client.ranges import ByteRange, parse_content_range

#: The User-Agent of all requests, including those of ffmpeg.
USER_AGENT = f"audioproxy/{__version__}"
# Seconds to wait for the headers of a response.
_HEADERS_TIMEOUT = 15.0
# Idle connections kept for each host, and the seconds for each. Object stores close them after 20
# seconds or more, and a request on a connection that was just closed would be lost.
_MAX_IDLE_PER_HOST = 100
_IDLE_TIMEOUT = 15
# Seconds to wait at shutdown until servers close their side.
_CLOSE_TIMEOUT = 1.0
# Origins whose endpoints are cached. Reading the system's certificates takes some milliseconds.
_MAX_ORIGINS = 32
# Bytes up to which a discarded body is read, so that its connection can be reused.
_DISCARD_LIMIT = 4096
_NO_CODINGS = frozenset(("", "identity", "none", "binary", "8bit", "utf-8", "utf8", "aws-chunked"))
# Files with all CA certificates of the system, as ffmpeg needs one: Debian, Fedora, SUSE, Alpine.
_SYSTEM_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
# Statuses of responses with the whole file, unless a careless server sends a range with them (D41).
_WHOLE = (200, 203)
_SECONDS = re.compile("[0-9]+")
_SCHEME_AND_AUTHORITY = re.compile("[a-z]+://[^/?#]*")
# RFC 7468, 2 and 5; text between two certificates is a comment.
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def load_trust_root(path: str | None) -> Any:
    """Return the trust root of a PEM file; None for the certificates of the system."""
    if path is None:
        return platformTrust()
    with open(path, "rb") as file:
        text = file.read()
    blocks = _PEM.findall(text)
    if not blocks:
        raise ValueError("it contains no certificate")
    if len(blocks) != text.count(b"-----BEGIN CERTIFICATE-----"):
        raise ValueError("it contains an incomplete certificate")
    try:
        return trustRootFromCertificates([Certificate.loadPEM(block) for block in blocks])
    except CertificateError as error:
        raise ValueError("it contains an invalid certificate") from error


class HttpClient:
    """An HTTP/1.1 client with a connection pool and one trust root for all servers.

    :param public_only: connect to public addresses alone; a request to a host without one raises
        `PrivateAddress`.
    """

    def __init__(self, reactor: Any, trust_root: Any, *, public_only: bool = False) -> None:
        self.clock = monotonic_clock(reactor)
        self._reactor = reactor
        self._trust_root = trust_root
        self._public_only = public_only
        self._pool: HTTPConnectionPool = CarefulPool(reactor)  # type: ignore[no-untyped-call]
        self._pool.maxPersistentPerHost = _MAX_IDLE_PER_HOST
        self._pool.cachedConnectionTimeout = _IDLE_TIMEOUT
        self._agent = Agent(reactor, pool=self._pool)
        # The parsed URL and the endpoint of an origin. Making them takes longer than signing.
        self._origins: LRUCache[bytes, tuple[URI, IStreamClientEndpoint]] = LRUCache(_MAX_ORIGINS)
        self._open_connections: dict[PooledConnection, int] = {}
        self._closed = False

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: RequestBody | None = None,
        timeout: float | None = None,
    ) -> Response:
        """Send a request and return the response once its headers have arrived.

        :param timeout: seconds without progress until the headers arrive. The default is 15, or 30
            for a request with a body.
        """
        if self._closed:
            raise TransportError("the service has stopped")
        header_lines = Headers({"user-agent": [USER_AGENT]})
        for name, value in headers.items():
            header_lines.setRawHeaders(name, [value])
        target = _SCHEME_AND_AUTHORITY.sub("", url, count=1).encode("ascii")
        uri, endpoint = self._find_origin(url.encode("ascii").removesuffix(target))
        sending = request_with_target(
            self._agent, endpoint, method.encode("ascii"), uri, header_lines, body, target
        )
        # A cancelled caller must get CancelledError; the error of Twisted's client depends on its
        # progress.
        result: SharedResult[IResponse] = SharedResult(sending.cancel)
        sending.addBoth(result.fire)
        seconds = timeout or (_HEADERS_TIMEOUT if body is None else STALL_TIMEOUT)
        progress_timeout = ProgressTimeout(self.clock, seconds, sending.cancel)
        if body is not None:
            body.on_progress = progress_timeout.reset
        try:
            response = await result.wait()
        except Exception as error:
            if not result.fired:
                raise
            raise translate_error(error, progress_timeout.expired) from error
        finally:
            progress_timeout.cancel()
        if body is not None:
            body.response_received()
        (asked,) = header_lines.getRawHeaders("range", [""])
        return Response(self.clock, response, asked)

    def is_connected(self, url: str) -> bool:
        """Return whether a request would use an open connection, and so need no handshake."""
        target = _SCHEME_AND_AUTHORITY.sub("", url, count=1)
        found = self._origins.get(url.removesuffix(target).encode("ascii"))
        return found is not None and has_idle_connection(self._pool, found[0])

    def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        """Refuse further requests, and close all connections; after a second, abort the rest."""
        self._closed = True
        closing: Deferred[object] = self._pool.closeCachedConnections()
        abort_call = self.clock.callLater(_CLOSE_TIMEOUT, self._abort_all)
        try:
            await closing
        finally:
            if abort_call.active():
                abort_call.cancel()
        self._abort_all()
        # The connection of a response that has ended meanwhile is in the pool again.
        await self._pool.closeCachedConnections()

    def _abort_all(self) -> None:
        for connection in list(self._open_connections):
            connection.abortConnection()

    def _find_origin(self, origin: bytes) -> tuple[URI, IStreamClientEndpoint]:
        if origin not in self._origins:
            uri = URI.fromBytes(origin)
            endpoint = make_endpoint(
                self._reactor,
                uri,
                self._trust_root,
                self._open_connections,
                public_only=self._public_only,
            )
            self._origins[origin] = uri, endpoint
        return self._origins[origin]


class Response:
    """A response whose headers have arrived. The body must be read, streamed or discarded.

    :ivar length: the body's length in bytes; None if it is not stated.
    :param asked: the Range header of the request; empty without one.
    """

    def __init__(self, clock: IReactorTime, response: IResponse, asked: str) -> None:
        self._clock = clock
        self._response = response
        self._asked = asked
        self.status = int(response.code)
        self.length = None if response.length is UNKNOWN_LENGTH else int(response.length)
        # The connection is looked up now: after a short body it may close before the body is read.
        connection = response_connection(response)
        self._connection = connection if isinstance(connection, PooledConnection) else None

    def header(self, name: str) -> str | None:
        """Return a header's value, decoded as Latin-1; repeated lines are joined by commas."""
        values = self._response.headers.getRawHeaders(name.encode("ascii"))
        return b", ".join(values).decode("latin-1") if values else None

    def date(self, name: str) -> datetime | None:
        return parse_date(self.header(name))

    def headers_with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the headers whose names begin with ``prefix``, by the rest of the name."""
        lines = self._response.headers.getAllRawHeaders()
        named = ((name.decode("latin-1").lower(), b", ".join(values)) for name, values in lines)
        return {
            name.removeprefix(prefix): value.decode("latin-1")
            for name, value in named
            if name.startswith(prefix)
        }

    @property
    def range(self) -> ByteRange | None:
        """The bytes of the file that the body has; None for the whole file, and where unknown.

        A body of another length than its range may be any. Some servers send the range that was
        asked for with 200 (D41). A 200 with any other Content-Range has the whole file.
        """
        found, _ = self._content_range
        if found is None or self.length not in (None, found.size):
            return None
        is_exact = self.status in _WHOLE and found.is_answer_to(self._asked)
        return found if self.status == 206 or is_exact else None

    @property
    def total(self) -> int | None:
        """Bytes of the whole file, as a 200, 206 or 416 states them; None where it does not."""
        if (found := self.range) is not None:
            return found.total
        if self.status in _WHOLE:
            return self.length
        return self._content_range[1] if self.status == 416 else None

    @property
    def _content_range(self) -> tuple[ByteRange | None, int | None]:
        return parse_content_range(self.header("content-range") or "")

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the server accepts the request again; None where it says nothing.

        A date is compared with that of the response, so the clock of this machine does not matter.
        """
        text = self.header("retry-after") or ""
        if _SECONDS.fullmatch(text) is not None:
            return float(text[:9])
        date, sent = self.date("retry-after"), self.date("date")
        if date is None or sent is None:
            return None
        return max(0.0, (date - sent).total_seconds())

    @property
    def is_encoded(self) -> bool:
        """Whether the body has a content coding.

        Some values of Content-Encoding encode nothing: charsets and transfer encodings by mistake,
        and ``aws-chunked``, which stores keep of how an object was uploaded.
        """
        codings = (self.header("content-encoding") or "").lower().split(",")
        return not _NO_CODINGS.issuperset(coding.strip() for coding in codings)

    async def read(self, limit: int, *, extend_timeout: bool = False) -> bytes:
        """Return the body, or raise `BodyTooLarge`.

        :param extend_timeout: the timeout of 15 seconds applies to each piece, not to the whole.
        """
        return await self._collect(limit, extend_timeout)

    def discard(self) -> None:
        """Discard the body: read a short one to reuse the connection, or close the connection."""
        if self.length is not None and self.length <= _DISCARD_LIMIT:
            # If the body fails, its connection is closed, and nobody needs the error.
            self._collect(_DISCARD_LIMIT).addErrback(lambda failure: b"")
        else:
            self.abort()

    def _collect(self, limit: int, extend_timeout: bool = False) -> Deferred[bytes]:
        collector = BodyCollector(self._clock, limit, extend_timeout)
        self._response.deliverBody(collector)
        return collector.done

    def abort(self) -> None:
        """Close the connection without reading the body."""
        self._response.deliverBody(BodyAborter())

    def stream(self, size: int | None, stall_timeout: float | None = None) -> BodyStream:
        """Return the body as a stream, which fails with another length than ``size``.

        :param size: None accepts any body with a marked end. HTTP framing marks the end, and so
            does TLS for a body that ends with the connection.
        """
        return BodyStream(self._clock, self._response, size, stall_timeout, self._closed_securely)

    def _closed_securely(self) -> bool:
        return self._connection is not None and self._connection.closed_securely


def parse_date(text: str | None) -> datetime | None:
    """Return the date in a header (RFC 9110, 5.6.7), in a known time zone; None for other text."""
    try:
        date = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo is not None else None


class UnusableBundle(Unusable):
    """A CA bundle cannot be read."""


class ClientsByBundle:
    """One client for each CA bundle, constructed when it is first needed.

    Two stores with the same bundle share a client and its connection pool. A client that connects
    to public addresses alone shares them with no other.

    :ivar ca_file: PEM file of the certificates that are trusted by default, if the system has one.
    """

    def __init__(self, reactor: Any, ssl_cert_file: str | None) -> None:
        self.ca_file = ssl_cert_file or next(filter(os.path.isfile, _SYSTEM_CA_FILES), None)
        self._reactor = reactor
        self._ssl_cert_file = ssl_cert_file
        self._clients: dict[tuple[str | None, bool], HttpClient] = {}

    def client(self, bundle: str | None = None, *, public_only: bool = False) -> HttpClient:
        """Return the client that trusts a bundle, by default SSL_CERT_FILE or the system's."""
        path = bundle or self._ssl_cert_file
        key = path, public_only
        if key not in self._clients:
            try:
                trust_root = load_trust_root(path)
            except (OSError, ValueError) as error:
                raise UnusableBundle(
                    f"no certificates could be read ({reason_of(error)})",
                    "a file of certificates in PEM form is required",
                ) from error
            self._clients[key] = HttpClient(self._reactor, trust_root, public_only=public_only)
        return self._clients[key]

    def open(self) -> None:
        for client in self._clients.values():
            client.open()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
