"""Requests to other machines: one pool of connections, and a deadline for every wait.

Nothing is followed, decoded or kept: what a server says is what a caller gets, from the status to
the last byte. URLs travel exactly as they are spelled, since a signature covers the spelling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from OpenSSL.crypto import Error as CertificateError
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.ssl import Certificate, platformTrust, trustRootFromCertificates
from twisted.web.http_headers import Headers
from twisted.web.iweb import UNKNOWN_LENGTH, IResponse

from audioproxy import __version__
from audioproxy.http_client.agent import ExactUrlAgent
from audioproxy.http_client.bodies import STALL, BodyStream, NoBody, SmallBody, Upload
from audioproxy.http_client.connections import Connections, connection_of
from audioproxy.http_client.errors import Unreachable, explain
from audioproxy.http_client.timeouts import Watch

#: What servers are told of us, by ffmpeg too.
USER_AGENT = f"audioproxy/{__version__}"

# Seconds for the headers of an answer.
_ANSWER = 15.0
# Bytes of a body that nobody wants and that is read all the same, for the connection's sake.
_SHORT = 4096
_LENGTH = re.compile(r"[0-9]{1,18}")
# RFC 7468, 2 and 5; whatever stands between two of them is a comment.
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def read_trust(path: str | None) -> Any:
    """Return what certificates are verified against.

    :param path: a PEM file that replaces the system's trust store; None is the system's.
    :raises OSError: where it cannot be read.
    :raises ValueError: where it holds no certificates.
    """
    if path is None:
        return platformTrust()
    with open(path, "rb") as file:
        text = file.read()
    blocks = _PEM.findall(text)
    if not blocks:
        raise ValueError("there is no certificate in it")
    if len(blocks) != text.count(b"-----BEGIN CERTIFICATE-----"):
        raise ValueError("there is a torn certificate in it")
    try:
        return trustRootFromCertificates([Certificate.loadPEM(block) for block in blocks])
    except CertificateError as error:
        raise ValueError("there is a broken certificate in it") from error


class HttpClient:
    """A client of HTTP/1.1 servers that all are verified against one trust store."""

    def __init__(self, reactor: Any, trust: Any) -> None:
        """Make a client.

        :param trust: from `read_trust`.
        """
        self._clock: IReactorTime = reactor
        self._connections = Connections(reactor, trust)

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Upload | None = None,
        seconds: float | None = None,
    ) -> Response:
        """Send a request and return its answer, of which only the headers have come.

        :param seconds: for which they are waited for; left out, 15.
        :raises Untrusted: where the server's certificate does not prove who it is.
        :raises Unreachable: where there is no answer, or none in time.
        """
        lines = Headers({"user-agent": [USER_AGENT]})
        for name, value in headers.items():
            lines.setRawHeaders(name, [value])
        sent = self._connections.request(method.encode("ascii"), url.encode("ascii"), lines, body)
        # Whoever calls the request off is told so. Twisted's client says, according to how far it
        # had come, that a name is not known, or that a connection was lost.
        called_off = False

        def call_off(_: object) -> None:
            nonlocal called_off
            called_off = True
            sent.cancel()

        answered: Deferred[IResponse] = Deferred(call_off)
        sent.addBoth(lambda outcome: answered.callback(outcome))
        patience = seconds or (_ANSWER if body is None else STALL)
        watch = Watch(self._clock, patience, sent.cancel)
        if body is not None:
            body.moved = watch.extend
        try:
            response = await answered
        except Exception as error:
            if called_off:
                raise CancelledError from error
            raise explain(error, watch.expired) from error
        finally:
            watch.stop()
        if body is not None:
            body.answered()
        return Response(self._clock, response, method == "HEAD")

    def agent(self, url: str) -> ExactUrlAgent:
        """Return an agent that sends requests for one URL over the connections of this client."""
        return ExactUrlAgent(self._connections, url.encode("ascii"))

    def open(self) -> None:
        """Let requests out again, after a `close`."""
        self._connections.open()

    async def close(self) -> None:
        """Close all connections, and let no request out."""
        await self._connections.close()


class Response:
    """A response whose body has not been read. It is read, or dropped.

    :ivar bodiless: it is to a HEAD, so there will be no body.
    """

    def __init__(self, clock: IReactorTime, response: IResponse, bodiless: bool) -> None:
        self.bodiless = bodiless
        self._clock = clock
        self._response = response
        # A short body may end, and its connection with it, before anyone asks for it.
        self._connection = connection_of(response)

    @property
    def status(self) -> int:
        """The status."""
        return int(self._response.code)

    @property
    def length(self) -> int | None:
        """Bytes of the body, or of the one that a GET would have; None where nothing says so."""
        if not self.bodiless:
            length = self._response.length
            return None if length is UNKNOWN_LENGTH else int(length)
        text = self.header("content-length")
        return int(text) if text is not None and _LENGTH.fullmatch(text) else None

    def header(self, name: str) -> str | None:
        """Return a header; several of one name are one list. Text outside Latin-1 cannot come."""
        values = self._response.headers.getRawHeaders(name.encode("ascii"))
        return b", ".join(values).decode("latin-1") if values else None

    async def read(self, limit: int, *, patient: bool = False) -> bytes:
        """Return the body.

        :param patient: it may take its time as long as something comes.
        :raises TooLong: for one of more than ``limit`` bytes.
        :raises Unreachable: where it does not come to its end.
        """
        reading = SmallBody(self._clock, limit, patient)
        self._response.deliverBody(reading)
        await reading.done
        return bytes(reading.data)

    async def drop(self) -> None:
        """Do without the body: read it where it is short, else close the connection."""
        if self.length is not None and self.length <= _SHORT:
            with suppress(Unreachable):
                await self.read(_SHORT)
        else:
            self._response.deliverBody(NoBody())

    def flow(self, size: int | None, seconds: float | None = None) -> BodyStream:
        """Return the body as what can be sent on.

        :param size: bytes; any other number of them is a failure. None takes any body of which the
            end is marked: by its framing, or by TLS where only the end of the connection ends it.
        :param seconds: for which more of it is waited for; left out, 30.
        """
        return BodyStream(self._clock, self._response, size, seconds, self._closed_securely)

    def _closed_securely(self) -> bool:
        return self._connection is not None and self._connection.closed_securely
