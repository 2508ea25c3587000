"""One request and its one response: sent, counted and logged once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer, IProducer
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, datetimeToString
from twisted.web.http_headers import Headers
from twisted.web.server import version
from zope.interface import implementer

from audioproxy.errors import Refusal, Stopping, UpstreamUnavailable
from audioproxy.files.streams import ByteStream
from audioproxy.grammar.request import InfoRequest, VariantRequest
from audioproxy.observe.access_log import AccessLog, AccessLogEntry, log_request
from audioproxy.observe.log_context import Logger
from audioproxy.web.conditions import Conditions
from audioproxy.web.cors import Cors
from audioproxy.web.request_id import find_request_id, new_request_id
from audioproxy.web.response_plan import ResponsePlan, plan_refusal

if TYPE_CHECKING:
    from audioproxy.observe.metrics import Metrics

# The status in the log for a client that disconnected before the response began. It is never sent.
# nginx introduced it.
_CLIENT_GONE = 499

_log = Logger()


@implementer(IConsumer)
class Exchange:
    """A request and its only response, of which it counts the first byte.

    :ivar subject: the parsed URL, whose canonical source and options are logged (D28), or None.
    :ivar plan: the response as far as it is known, for the log.
    :ivar finished: fires once, when the response is complete or the client has disconnected.
    :ivar abandoned: a stop no longer waits for the response.
    """

    def __init__(self, request: Any, instrumentation: Instrumentation) -> None:
        # This comes first: a Deferred that is requested after a disconnect never fires.
        gone: Deferred[None] = request.notifyFinish()
        self.finished: Deferred[None] = Deferred()
        self.disconnected = self.abandoned = False
        self.endpoint = "unknown"
        self.pair: int | None = None
        self.subject: VariantRequest | InfoRequest | None = None
        self.plan = ResponsePlan(_CLIENT_GONE)
        self._request = request
        self._instrumentation = instrumentation
        self._since = instrumentation.seconds()
        self._open = self._is_silent = True
        client_ids = request.requestHeaders.getRawHeaders(b"x-request-id", (b"",))
        request_id = (
            find_request_id(client_ids[0], self.header(b"traceparent") or b"") or new_request_id()
        )
        self.request_id = request_id.decode("ascii")
        # By default, Twisted adds a Content-Type of HTML to a response without one.
        request.defaultContentType = None
        request.setHeader(b"x-request-id", request_id)
        instrumentation.cors.add_to(request.responseHeaders)
        gone.addBoth(self._close)

    @property
    def method(self) -> bytes:
        return bytes(self._request.method)

    def header(self, name: bytes) -> bytes | None:
        values = self._request.requestHeaders.getRawHeaders(name)
        return b", ".join(values) if values else None

    @cached_property
    def conditions(self) -> Conditions:
        names = b"if-none-match", b"if-range", b"range"
        return Conditions(self.method, *map(self.header, names))

    def respond(self, plan: ResponsePlan) -> None:
        if not self._open:
            return
        self._set_head(plan)
        if plan.body is not None:
            self.write(plan.body)
        self._finish()

    def refuse(self, refusal: Refusal) -> None:
        """Respond with an error document, or abort a response that has begun.

        A stream that failed is never finished: with its last chunk, it would look complete.
        """
        if not self._open:
            return
        _log.debug("refused: {reason}", reason=str(refusal), request_id=self.request_id)
        is_stop = isinstance(refusal, Stopping)
        if self._request.startedWriting:
            self.plan = self.plan._replace(error_code=refusal.log_code or refusal.code)
            self.abandoned = is_stop
            if not is_stop:
                self._instrumentation.metrics.response_cut(by_stop=False)
            abort(self._request.channel)
        elif is_stop:
            self.plan = self.plan._replace(error_code=refusal.code)
            close(self._request.channel)
        else:
            self.respond(plan_refusal(refusal))

    async def stream(self, plan: ResponsePlan, stream: ByteStream) -> None:
        if not self._open:
            stream.discard()
            return
        self._set_head(plan)
        try:
            await stream.send(self)
        except (EOFError, OSError) as error:
            # Something else shortened or damaged the file of a variant.
            _log.warn("a variant cannot be read to its end: {error}", error=error)
            raise UpstreamUnavailable from error
        if self._open:
            self._finish()

    def write(self, data: bytes) -> None:
        self._count_first_byte()
        self._request.write(data)

    @property
    def take_file(self) -> Callable[[int, int, int], int | None] | None:
        take = getattr(self._request, "take_file", None)
        if take is None:
            return None

        def take_counted(*piece: int) -> int | None:
            taken: int | None = take(*piece)
            if taken is not None:
                self._count_first_byte()
            return taken

        return take_counted

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        self._request.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        self._request.unregisterProducer()

    def _finish(self) -> None:
        # Headers alone are sent now.
        self._count_first_byte()
        self._request.finish()

    def _set_head(self, plan: ResponsePlan) -> None:
        headers: Headers = self._request.responseHeaders
        names = {name for name, _ in plan.headers}
        for name, _ in self.plan.headers:
            if name not in names:
                headers.removeHeader(name)
        for name, value in plan.headers:
            headers.setRawHeaders(name, [value])
        self._request.setResponseCode(plan.status, _reason(plan.status))
        self.plan = plan

    def _count_first_byte(self) -> None:
        is_first, self._is_silent = self._is_silent, False
        state = self.plan.cache_state
        if is_first and self._open and self.method == b"GET" and state is not None:
            seconds = self._instrumentation.seconds() - self._since
            self._instrumentation.metrics.first_bytes[state].observe(seconds)

    def _close(self, outcome: object) -> None:
        self._open = False
        self.disconnected = isinstance(outcome, Failure)
        plan = self.plan
        if not self._request.startedWriting:
            plan = plan._replace(status=_CLIENT_GONE)
        if self.disconnected and self.abandoned:
            _log.warn(
                "a stop has cut this response after {sent} bytes",
                sent=self._request.sentLength,
                request_id=self.request_id,
            )
            if self._request.startedWriting:
                self._instrumentation.metrics.response_cut(by_stop=True)
        elif self.disconnected and plan.error_code is None:
            _log.debug("the client has disconnected", request_id=self.request_id)
        try:
            self._instrumentation.complete(
                plan,
                self.endpoint,
                self.request_id,
                self.subject,
                self.pair,
                self._request.sentLength,
                self._since,
            )
        finally:
            self.finished.callback(None)


@dataclass(frozen=True, slots=True)
class Instrumentation:
    seconds: Callable[[], float]
    metrics: Metrics
    cors: Cors
    access_log: AccessLog = log_request

    def complete(
        self,
        plan: ResponsePlan,
        endpoint: str,
        request_id: str,
        subject: VariantRequest | InfoRequest | None,
        pair: int | None,
        sent: int,
        since: float,
        *,
        at_once: bool = False,
    ) -> None:
        """Count and log a request whose response is complete, or whose client has disconnected.

        :param sent: bytes of the body that were sent.
        :param since: when the request arrived, in seconds of the clock.
        :param at_once: the first byte of the response is sent now, and not counted yet.
        """
        seconds = self.seconds() - since
        if at_once and plan.cache_state is not None:
            self.metrics.first_bytes[plan.cache_state].observe(seconds)
        self.metrics.request_ended(endpoint, plan.status, pair, sent)
        self.access_log(
            AccessLogEntry(
                request_id,
                endpoint,
                plan.status,
                plan.error_code,
                subject.canonical if isinstance(subject, VariantRequest) else None,
                None if subject is None else subject.source.canonical,
                plan.cache_state,
                sent,
                round(seconds * 1000),
            )
        )

    def format_response(
        self, plan: ResponsePlan, request_id: bytes, now: float, body: bytes
    ) -> bytes:
        """Return the bytes of a response, as Twisted sends it on a connection that stays open."""
        return b"".join(
            (
                _format_status(plan.status),
                _format_date(int(now)),
                b"X-Request-Id: ",
                request_id,
                b"\r\n",
                _format_headers(self.cors.headers),
                _format_headers(plan.headers),
                b"\r\n",
                body,
            )
        )


def abort(channel: Any) -> None:
    """Close a connection at once; ``loseConnection`` would wait for a client that stalls."""
    # An HTTP/2 stream aborts itself; an HTTP/1 channel leaves that to its transport.
    getattr(channel, "abortConnection", channel.transport.abortConnection)()


def close(channel: Any) -> None:
    """Close a connection without a response, once those of earlier requests are sent."""
    # Twisted ends an HTTP/2 stream in order only after a response.
    (channel.loseConnection if isinstance(channel, HTTPChannel) else channel.abortConnection)()


@lru_cache
def _reason(status: int) -> bytes:
    # Twisted 26.10 has no reason phrases for 422 and 429, and sends "Unknown Status".
    return HTTPStatus(status).phrase.encode("ascii")


@lru_cache
def _format_status(status: int) -> bytes:
    return b"HTTP/1.1 %d %s\r\nServer: %s\r\n" % (status, _reason(status), version)


@lru_cache(1)
def _format_date(second: int) -> bytes:
    return b"Date: %s\r\n" % datetimeToString(second)


# Most requests are for few variants, and the headers of a variant are the same each time.
@lru_cache(4096)
def _format_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    # Twisted spells the names.
    spelled = Headers({name: [value] for name, value in headers})
    return b"".join(b"%s: %s\r\n" % (name, value) for name, (value,) in spelled.getAllRawHeaders())
