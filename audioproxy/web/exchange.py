"""One request, its one response and its one log line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from audioproxy.errors import QueueFull, RangeNotSatisfiable, Refusal, UpstreamUnavailable
from audioproxy.files.streams import ByteStream
from audioproxy.observe.access_log import AccessLogEntry
from audioproxy.observe.log_context import Logger
from audioproxy.web.instrumentation import Instrumentation
from audioproxy.web.response_plan import Conditions

# Headers that may be set before a request is refused, and that do not apply to a refusal.
_VARIANT_HEADERS = (
    b"accept-ranges",
    b"content-disposition",
    b"content-range",
    b"etag",
    b"x-audio-proxy",
)
# The status in the log for a client that disconnected before the response began. It is never sent.
# nginx introduced it.
_CLIENT_GONE = 499
# The request ids of clients that are accepted (D27).
_REQUEST_ID = re.compile(rb"[!-~]{1,200}")
# Random bits in a generated request id: as many as in a UUID, so that no two requests share one.
# It is no secret, so a generator without a system call is enough.
_ID_BITS = 128
_random = Random()

_log = Logger()


class Exchange:
    """A request and its only response.

    :ivar request_id: the client's own id or a new one (D27).
    :ivar endpoint: the endpoint class for the log and the metrics.
    :ivar finished: fires once, when the response is complete or the client has disconnected.
    :ivar disconnected: the client has disconnected before the response was complete.
    """

    def __init__(
        self,
        request: Any,
        instrumentation: Instrumentation,
    ) -> None:
        # This comes first: a Deferred that is requested after a disconnect never fires.
        gone: Deferred[None] = request.notifyFinish()
        self.finished: Deferred[None] = Deferred()
        self.disconnected = False
        self.endpoint = "unknown"
        self._request = request
        self._instrumentation = instrumentation
        self._since = instrumentation.seconds()
        self._error_code: str | None = None
        self._options: str | None = None
        self._source: bytes | None = None
        self._cache: str | None = None
        self._open = True
        request_id = choose_request_id(
            request.requestHeaders.getRawHeaders(b"x-request-id", [b""])[0]
        )
        self.request_id = request_id.decode("ascii")
        # By default, Twisted adds a Content-Type of HTML to a response without one.
        request.defaultContentType = None
        request.setHeader(b"x-request-id", request_id)
        instrumentation.cors.add_to(request.responseHeaders)
        gone.addBoth(self._close)

    @property
    def method(self) -> bytes:
        """The request's method, as sent."""
        return bytes(self._request.method)

    def header(self, name: bytes) -> bytes | None:
        """Return a request header; several headers of one name are joined to a list."""
        values = self._request.requestHeaders.getRawHeaders(name)
        return b", ".join(values) if values else None

    @property
    def conditions(self) -> Conditions:
        """The parts of the request besides the URL that the response depends on."""
        return Conditions(
            self.method,
            self.header(b"if-none-match"),
            self.header(b"if-range"),
            self.header(b"range"),
        )

    def set_log_subject(self, source: bytes, options: str | None = None) -> None:
        """Set the canonical source, and the canonical options of a variant, for the log (D28)."""
        self._source = source
        self._options = options

    def set_cache_state(self, state: str) -> None:
        """Set the cache state for the X-Audio-Proxy header and the log."""
        self._cache = state
        self._request.setHeader(b"x-audio-proxy", state.encode("ascii"))

    def set_headers(self, headers: Mapping[bytes, bytes]) -> None:
        """Set response headers; `stream` or `respond` sends them."""
        for name, value in headers.items():
            self._request.setHeader(name, value)

    def respond(self, status: int, body: bytes | None = None) -> None:
        """Respond with a body in memory, or with headers alone."""
        if not self._open:
            return
        self._set_status(status)
        if body is not None:
            self._request.setHeader(b"content-length", b"%d" % len(body))
            self._request.write(body)
        self._request.finish()

    def respond_json(self, status: int, document: object) -> None:
        """Respond with a JSON document."""
        self._request.setHeader(b"content-type", b"application/json")
        self.respond(status, json.dumps(document).encode("ascii"))

    def refuse(self, refusal: Refusal) -> None:
        """Respond with an error document, or abort a response that has begun.

        A stream that failed is never finished: with its last chunk, it would look complete.
        """
        self._error_code = refusal.code
        if not self._open:
            return
        if self._request.startedWriting:
            abort(self._request.channel)
            return
        headers = self._request.responseHeaders
        for name in _VARIANT_HEADERS:
            headers.removeHeader(name)
        self._cache = None
        headers.setRawHeaders(b"cache-control", [refusal.cache_control.encode("ascii")])
        if isinstance(refusal, RangeNotSatisfiable):
            headers.setRawHeaders(b"content-range", [b"bytes */%d" % refusal.size])
        if isinstance(refusal, QueueFull):
            headers.setRawHeaders(b"retry-after", [b"%d" % refusal.retry_after])
        self.respond_json(refusal.status, {"error": refusal.code, "message": refusal.message})

    async def stream(self, status: int, stream: ByteStream) -> None:
        """Respond with a byte stream, at the pace of the client.

        :raises Refusal: where the stream fails, after the response has begun.
        """
        if not self._open:
            stream.discard()
            return
        self._set_status(status)
        try:
            await stream.send(self._request)
        except (EOFError, OSError) as error:
            # Something else shortened or damaged the file of a variant.
            _log.warn("a variant cannot be read to its end: {error}", error=error)
            raise UpstreamUnavailable from error
        if self._open:
            self._request.finish()

    def _set_status(self, status: int) -> None:
        # Twisted 26.10 has no reason phrases for 422 and 429, and sends "Unknown Status".
        self._request.setResponseCode(status, HTTPStatus(status).phrase.encode("ascii"))

    def _close(self, outcome: object) -> None:
        self._open = False
        self.disconnected = isinstance(outcome, Failure)
        status = self._request.code if self._request.startedWriting else _CLIENT_GONE
        if self.disconnected and self._error_code is None:
            _log.debug("the client has disconnected", request_id=self.request_id)
        self._instrumentation.metrics.request_ended(self.endpoint, status)
        try:
            self._instrumentation.access_log(self._log_entry(status))
        finally:
            self.finished.callback(None)

    def _log_entry(self, status: int) -> AccessLogEntry:
        return AccessLogEntry(
            request_id=self.request_id,
            endpoint=self.endpoint,
            status=status,
            error_code=self._error_code,
            options=self._options,
            source=self._source,
            cache=self._cache,
            sent=self._request.sentLength,
            milliseconds=round((self._instrumentation.seconds() - self._since) * 1000),
        )


def choose_request_id(client_id: bytes) -> bytes:
    """Return the request id: the client's own if it is valid, else a new one (D27)."""
    if client_id and _REQUEST_ID.fullmatch(client_id):
        return client_id
    return b"%032x" % _random.getrandbits(_ID_BITS)


def abort(channel: Any) -> None:
    """Close a connection at once; ``loseConnection`` would wait for a client that stalls."""
    # An HTTP/2 stream aborts itself; an HTTP/1 channel leaves that to its transport.
    getattr(channel, "abortConnection", channel.transport.abortConnection)()
