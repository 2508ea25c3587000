"""One request, its one response and its one log line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from audioproxy.errors import QueueFull, RangeNotSatisfiable, Refusal
from audioproxy.log_context import Logger
from audioproxy.streams import ByteStream
from audioproxy.web.access_log import AccessLogEntry
from audioproxy.web.instrumentation import Instrumentation
from audioproxy.web.response_plan import Conditions

# What may have been set by the time a request is refused, and is not true of a refusal.
_OF_A_VARIANT = (
    b"accept-ranges",
    b"content-disposition",
    b"content-range",
    b"etag",
    b"x-audio-proxy",
)
# What the log says of a client that left before it got so much as a header. No answer bears this
# status; nginx gave it its meaning.
_CLIENT_GONE = 499
# D27.
_REQUEST_ID = re.compile(rb"[!-~]{1,200}")
# Bytes of chance in an id of ours: as many as a random UUID has, and no two requests share one.
_ID_BYTES = 16

_log = Logger()


class Exchange:
    """A request and the one answer that it gets, however that goes.

    :ivar request_id: the client's own id or a new one (D27).
    :ivar endpoint: the endpoint class that the log names.
    :ivar finished: fires once, when the answer is complete or the client is gone.
    """

    def __init__(
        self,
        request: Any,
        instrumentation: Instrumentation,
    ) -> None:
        # First of all: asked for after a disconnect, the notice never comes.
        gone: Deferred[None] = request.notifyFinish()
        self.finished: Deferred[None] = Deferred()
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
        # Without this, Twisted calls an answer HTML that says nothing of its type.
        request.defaultContentType = None
        request.setHeader(b"x-request-id", request_id)
        instrumentation.cors.add_to(request.responseHeaders)
        gone.addBoth(self._close)

    @property
    def method(self) -> bytes:
        """The request's method as the client spelled it."""
        return bytes(self._request.method)

    def header(self, name: bytes) -> bytes | None:
        """Return a request header; several of one name are one list."""
        values = self._request.requestHeaders.getRawHeaders(name)
        return b", ".join(values) if values else None

    @property
    def conditions(self) -> Conditions:
        """What the response depends on besides the URL."""
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
        """Say where the answer comes from, to the client and to the log."""
        self._cache = state
        self._request.setHeader(b"x-audio-proxy", state.encode("ascii"))

    def set_headers(self, headers: Mapping[bytes, bytes]) -> None:
        """Set response headers; `stream` or `respond` sends them."""
        for name, value in headers.items():
            self._request.setHeader(name, value)

    def respond(self, status: int, body: bytes | None = None) -> None:
        """Answer with a body that is at hand, or with headers alone."""
        if not self._open:
            return
        self._set_status(status)
        if body is not None:
            self._request.setHeader(b"content-length", b"%d" % len(body))
            self._request.write(body)
        self._request.finish()

    def respond_json(self, status: int, document: object) -> None:
        """Answer with a JSON document."""
        self._request.setHeader(b"content-type", b"application/json")
        self.respond(status, json.dumps(document).encode("ascii"))

    def refuse(self, refusal: Refusal) -> None:
        """Answer with an error document, or break the answer off that has begun.

        A stream that failed is never finished: its closing chunk would make it look whole.
        """
        self._error_code = refusal.code
        if not self._open:
            return
        if self._request.startedWriting:
            abort(self._request.channel)
            return
        headers = self._request.responseHeaders
        for name in _OF_A_VARIANT:
            headers.removeHeader(name)
        self._cache = None
        headers.setRawHeaders(b"cache-control", [refusal.cache_control.encode("ascii")])
        if isinstance(refusal, RangeNotSatisfiable):
            headers.setRawHeaders(b"content-range", [b"bytes */%d" % refusal.size])
        if isinstance(refusal, QueueFull):
            headers.setRawHeaders(b"retry-after", [b"%d" % refusal.retry_after])
        self.respond_json(refusal.status, {"error": refusal.code, "message": refusal.message})

    async def stream(self, status: int, flow: ByteStream) -> None:
        """Answer with bytes that come from elsewhere, as fast as the client takes them.

        :raises Refusal: where what is behind them fails; the answer has begun then.
        """
        if not self._open:
            flow.discard()
            return
        self._set_status(status)
        await flow.send(self._request)
        if self._open:
            self._request.finish()

    def _set_status(self, status: int) -> None:
        # Twisted 26.10 has no words for 422 and 429, and says "Unknown Status".
        self._request.setResponseCode(status, HTTPStatus(status).phrase.encode("ascii"))

    def _close(self, outcome: object) -> None:
        self._open = False
        status = self._request.code if self._request.startedWriting else _CLIENT_GONE
        if isinstance(outcome, Failure) and self._error_code is None:
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


def choose_request_id(theirs: bytes) -> bytes:
    """Return the id of a request: the client's own where that will do, else a new one (D27)."""
    if _REQUEST_ID.fullmatch(theirs):
        return theirs
    return os.urandom(_ID_BYTES).hex().encode("ascii")


def abort(channel: Any) -> None:
    """Close a connection at once: ``loseConnection`` would wait for a reader that stalls."""
    # An HTTP/2 stream aborts itself; an HTTP/1 channel leaves that to its transport.
    getattr(channel, "abortConnection", channel.transport.abortConnection)()
