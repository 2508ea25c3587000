"""Bodies of requests and responses: read, forwarded or sent with backpressure and a timeout."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer, IPushProducer, IReactorTime
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import IBodyProducer, IResponse
from zope.interface import implementer

from audioproxy._twisted import abort_response
from audioproxy.http_client.errors import TransportError, translate_error
from audioproxy.http_client.timeouts import ProgressTimeout
from audioproxy.streams import ConsumerGone, FileProducer, Readable

# Seconds for a body that is collected in memory, and for progress of one that is streamed.
_COLLECT_TIMEOUT = 15.0
STALL_TIMEOUT = 30.0


class BodyTooLarge(Exception):
    """The body of a response is longer than the caller's limit."""


class BodyCollector(Protocol):
    """Receives a small body into memory.

    :ivar data: the bytes received so far.
    :ivar done: fires at the end of the body, or fails with `BodyTooLarge` or `TransportError`.
    """

    def __init__(self, clock: IReactorTime, limit: int, extend_timeout: bool) -> None:
        """Start the timeout.

        :param extend_timeout: the 15 seconds start anew with every piece of the body.
        """
        self.data = bytearray()
        self.done: Deferred[None] = Deferred(lambda _: self._end(CancelledError()))
        self._limit = limit
        self._extend_timeout = extend_timeout
        self._timeout = ProgressTimeout(clock, _COLLECT_TIMEOUT, self._stall)

    def dataReceived(self, data: bytes) -> None:
        """Append bytes of the body."""
        if self._extend_timeout:
            self._timeout.reset()
        self.data += data
        if len(self.data) > self._limit:
            self._end(BodyTooLarge())

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """End the transfer: the body has ended, or the connection is lost."""
        self._end(None if reason.check(ResponseDone) else translate_error(reason.value))

    def _stall(self) -> None:
        self._end(TransportError(f"the body stalled for {_COLLECT_TIMEOUT:g} seconds"))

    def _end(self, error: Exception | None) -> None:
        self._timeout.cancel()
        if error is not None:
            abort_response(self)
        if self.done.called:
            return
        if error is None:
            self.done.callback(None)
        else:
            self.done.errback(error)


class BodyAborter(Protocol):
    """Receiver that closes the connection instead of reading the body."""

    def connectionMade(self) -> None:
        """Close the connection."""
        abort_response(self)


@implementer(IPushProducer)
class BodyStream(Protocol):
    """Push producer that forwards a response's body to one consumer, at the consumer's pace."""

    def __init__(
        self,
        clock: IReactorTime,
        response: IResponse,
        size: int | None,
        stall_timeout: float | None = None,
        closed_securely: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare to send.

        :param size: bytes, or None where the response does not state its length.
        :param stall_timeout: seconds without progress after which the stream fails.
        :param closed_securely: returns whether the server closed the connection in a way that
            marks the end of the body.
        """
        self._clock = clock
        self._closed_securely = closed_securely
        self._stall_timeout = stall_timeout or STALL_TIMEOUT
        self._response = response
        self._size = size
        self._received = 0
        self._paused = False
        self._consumer: IConsumer | None = None
        self._timeout: ProgressTimeout | None = None
        self._done: Deferred[None] = Deferred(lambda _: self.stopProducing())

    def send(self, consumer: IConsumer) -> Deferred[None]:
        """Send the whole body.

        :returns: fires when everything is written, or fails: with `ConsumerGone`, or with
            `TransportError` where the body ends early or stalls. Cancelling it ends the stream.
        """
        self._consumer = consumer
        consumer.registerProducer(self, True)
        if self._done.called:
            # The consumer was gone already.
            self.discard()
            return self._done
        if not self._paused:
            self._start_timeout()
        self._response.deliverBody(self)
        if self._paused:
            # deliverBody has resumed the connection.
            self.pauseProducing()
        return self._done

    def discard(self) -> None:
        """Close the connection without sending anything."""
        self._response.deliverBody(BodyAborter())

    def dataReceived(self, data: bytes) -> None:
        """Forward bytes of the body."""
        if self._consumer is None:
            return
        self._received += len(data)
        if self._size is not None and self._received > self._size:
            self._end(TransportError("the body is longer than its stated length"))
            return
        if self._timeout is not None:
            self._timeout.reset()
        self._consumer.write(data)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """End the transfer: the body has ended, or the connection is lost."""
        complete = reason.check(ResponseDone) is not None
        if reason.check(PotentialDataLoss):
            # The body ends with the connection, so an early end looks like the right one.
            complete = self._size is not None or self._closed_securely()
        if not complete:
            self._end(translate_error(reason.value))
        elif self._size not in (None, self._received):
            self._end(
                TransportError(f"the body has {self._received} bytes in place of {self._size}")
            )
        else:
            self._end(None)

    def pauseProducing(self) -> None:
        """Pause: the consumer's buffer is full. The timeout does not run meanwhile."""
        self._paused = True
        self._cancel_timeout()
        if self.transport is not None:
            self.transport.pauseProducing()  # type: ignore[attr-defined]

    def resumeProducing(self) -> None:
        """Resume: the consumer takes more."""
        self._paused = False
        if self._consumer is not None and self.transport is not None:
            self._start_timeout()
            self.transport.resumeProducing()  # type: ignore[attr-defined]

    def stopProducing(self) -> None:
        """Stop: the consumer is gone."""
        self._end(ConsumerGone())

    def _start_timeout(self) -> None:
        self._cancel_timeout()
        self._timeout = ProgressTimeout(self._clock, self._stall_timeout, self._stall)

    def _cancel_timeout(self) -> None:
        timeout, self._timeout = self._timeout, None
        if timeout is not None:
            timeout.cancel()

    def _stall(self) -> None:
        self._end(TransportError(f"the body stalled for {self._stall_timeout:g} seconds"))

    def _end(self, error: Exception | None) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        self._cancel_timeout()
        if error is not None:
            abort_response(self)
        if not isinstance(error, ConsumerGone):
            consumer.unregisterProducer()
        if error is None:
            self._done.callback(None)
        else:
            self._done.errback(error)


@implementer(IBodyProducer)
class RequestBody:
    """A byte range of a file as the body of a request.

    :ivar length: bytes.
    :ivar on_progress: called whenever bytes were written to the connection.
    :ivar abort_connection: closes the connection that the body is written to, at once.
    """

    def __init__(self, source: Readable, start: int, stop: int) -> None:
        self.length = stop - start
        self.on_progress: Callable[[], None] = lambda: None
        self.abort_connection: Callable[[], None] = lambda: None
        self._producer = FileProducer(source, start, stop)

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        """Begin to send."""
        sending: Deferred[None] = Deferred()

        def end(outcome: Failure | None) -> None:
            # After stopProducing the Deferred must not fire (IBodyProducer).
            if not (isinstance(outcome, Failure) and outcome.check(ConsumerGone)):
                sending.callback(outcome)

        self._producer.send(_ProgressConsumer(consumer, self._report_progress)).addBoth(end)
        return sending

    def response_received(self) -> None:
        """Stop sending: after an early response, such as an error, the rest is not wanted."""
        if not self._producer.done.called:
            self._producer.stopProducing()
            self.abort_connection()

    def pauseProducing(self) -> None:
        """Pause: the connection's send buffer is full."""
        self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        """Resume: the connection takes more."""
        self._producer.resumeProducing()

    def stopProducing(self) -> None:
        """Stop: the connection is lost."""
        self._producer.stopProducing()

    def _report_progress(self) -> None:
        self.on_progress()


@implementer(IConsumer)
class _ProgressConsumer:
    """The consumer of a request's body, which reports every write.

    Twisted's client has registered the body as the producer already.
    """

    def __init__(self, consumer: IConsumer, on_progress: Callable[[], None]) -> None:
        self._consumer = consumer
        self._on_progress = on_progress

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Do nothing: the request has registered the body."""

    def unregisterProducer(self) -> None:
        """Do nothing: the request unregisters the body."""

    def write(self, data: bytes) -> None:
        self._on_progress()
        self._consumer.write(data)
