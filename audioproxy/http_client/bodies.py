"""Bodies of requests and responses: read, forwarded or sent, with backpressure and a timeout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer, IPushProducer, IReactorTime
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import IBodyProducer, IResponse
from zope.interface import implementer

from audioproxy.concurrency.deadlines import ProgressTimeout
from audioproxy.files.streams import ConsumerGone, FileProducer, Readable
from audioproxy.http_client._twisted import abort_response
from audioproxy.http_client.errors import TooMuch, TransportError, translate_error

# The timeout in seconds for a body that is collected in memory, and the seconds without progress
# after which a streamed body fails.
_COLLECT_TIMEOUT = 15.0
STALL_TIMEOUT = 30.0


class BodyTooLarge(Exception):
    """The body of a response is longer than the caller's limit."""


class BodyCollector(Protocol):
    """Collects a small body in memory.

    :ivar done: fires with the whole body, or fails with `BodyTooLarge` or `TransportError`.
    :param extend_timeout: restart the 15 seconds with each piece of the body.
    """

    def __init__(self, clock: IReactorTime, limit: int, extend_timeout: bool) -> None:
        self._data = bytearray()
        self.done: Deferred[bytes] = Deferred(lambda _: self._end(CancelledError()))
        self._limit = limit
        self._extend_timeout = extend_timeout
        self._timeout = ProgressTimeout(clock, _COLLECT_TIMEOUT, self._stall)

    def dataReceived(self, data: bytes) -> None:
        if self._extend_timeout:
            self._timeout.reset()
        self._data += data
        if len(self._data) > self._limit:
            self._end(BodyTooLarge())

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
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
            self.done.callback(bytes(self._data))
        else:
            self.done.errback(error)


class BodyAborter(Protocol):
    """Body receiver that closes the connection instead of reading the body."""

    def connectionMade(self) -> None:
        abort_response(self)


@implementer(IPushProducer)
class BodyStream(Protocol):
    """Push producer that forwards a response's body to one consumer, at the consumer's pace.

    :param size: the stated length in bytes; None if the response states none.
    :param stall_timeout: seconds without progress after which the stream fails.
    :param closed_securely: the server closed the connection so as to mark the end of the body.
    """

    def __init__(
        self,
        clock: IReactorTime,
        response: IResponse,
        size: int | None,
        stall_timeout: float | None = None,
        closed_securely: Callable[[], bool] = lambda: False,
    ) -> None:
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
        """Send the whole body, and return a Deferred that fires when everything is written.

        It fails with `ConsumerGone`, or with `TransportError` if the body ends early or stalls.
        Cancelling it ends the stream.
        """
        self._consumer = consumer
        consumer.registerProducer(self, True)
        if self._done.called:
            # The consumer was gone before this call, so the registration has called stopProducing.
            self.discard()
            return self._done
        if not self._paused:
            self._start_timeout()
        self._response.deliverBody(self)
        if self._paused:
            # deliverBody resumes the connection, even if the consumer has paused it.
            self.pauseProducing()
        return self._done

    def discard(self) -> None:
        self._response.deliverBody(BodyAborter())

    def dataReceived(self, data: bytes) -> None:
        if self._consumer is None:
            return
        self._received += len(data)
        if self._size is not None and self._received > self._size:
            self._end(TooMuch("the body is longer than its stated length"))
            return
        if self._timeout is not None:
            self._timeout.reset()
        self._consumer.write(data)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        complete = reason.check(ResponseDone) is not None
        if reason.check(PotentialDataLoss):
            # Only the end of the connection marks the end of this body, so a truncated body would
            # look complete.
            complete = self._size is not None or self._closed_securely()
        if not complete:
            self._end(translate_error(reason.value))
        elif self._size not in (None, self._received):
            self._end(
                TransportError(f"the body has {self._received} bytes instead of {self._size}")
            )
        else:
            self._end(None)

    def pauseProducing(self) -> None:
        """Pause: the consumer's buffer is full. The timeout is suspended until the resume."""
        self._paused = True
        self._cancel_timeout()
        if self.transport is not None:
            self.transport.pauseProducing()  # type: ignore[attr-defined]

    def resumeProducing(self) -> None:
        self._paused = False
        if self._consumer is not None and self.transport is not None:
            self._start_timeout()
            self.transport.resumeProducing()  # type: ignore[attr-defined]

    def stopProducing(self) -> None:
        self._end(ConsumerGone())

    def _start_timeout(self) -> None:
        self._cancel_timeout()
        self._timeout = ProgressTimeout(self._clock, self._stall_timeout, self._stall)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()

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
class RequestBody(FileProducer):
    """A byte range of a file as the body of a request; ``on_progress`` is called for each write."""

    def __init__(self, source: Readable, start: int, stop: int) -> None:
        super().__init__(source, start, stop)
        self.length = stop - start
        self.on_progress: Callable[[], None] = lambda: None
        self.abort_connection: Callable[[], None] = lambda: None

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        sending: Deferred[None] = Deferred()

        def end(outcome: Failure | None) -> None:
            # After stopProducing, this Deferred must not fire (IBodyProducer).
            if not (isinstance(outcome, Failure) and outcome.check(ConsumerGone)):
                sending.callback(outcome)

        self.send(_ProgressConsumer(self, consumer)).addBoth(end)
        return sending

    def response_received(self) -> None:
        """Stop sending: after an early response, such as an error, the rest is not needed."""
        if not self.done.called:
            self.stopProducing()
            self.abort_connection()


@implementer(IConsumer)
@dataclass(frozen=True, slots=True)
class _ProgressConsumer:
    """Consumer of a request's body that reports each write.

    It registers no producer with the connection: Twisted's client has registered the body.
    """

    body: RequestBody
    consumer: IConsumer

    def registerProducer(self, producer: object, streaming: bool) -> None: ...

    def unregisterProducer(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.body.on_progress()
        self.consumer.write(data)
