"""Bodies of requests and answers: read, sent on or sent, and none of them held in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer, IPushProducer, IReactorTime
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import IBodyProducer, IResponse
from zope.interface import implementer

from audioproxy.http_client.errors import Unreachable, explain
from audioproxy.http_client.timeouts import Watch
from audioproxy.streams import ConsumerGone, FileProducer, Readable

# Seconds: for the whole of a small body; and for any progress of a large one.
_SMALL = 15.0
STALL = 30.0


class TooLong(Exception):
    """The body of an answer is longer than anyone wants."""


class SmallBody(Protocol):
    """Receives a body that is small.

    :ivar data: what has come.
    :ivar done: fires at its end, or fails with `TooLong` or `Unreachable`.
    """

    def __init__(self, clock: IReactorTime, limit: int, patient: bool) -> None:
        """Wait for it.

        :param patient: it has 15 seconds for every step, and not for the whole.
        """
        self.data = bytearray()
        self.done: Deferred[None] = Deferred(lambda _: self._end(CancelledError()))
        self._limit = limit
        self._patient = patient
        self._watch = Watch(clock, _SMALL, self._stall)

    def dataReceived(self, data: bytes) -> None:
        """Keep what comes."""
        if self._patient:
            self._watch.extend()
        self.data += data
        if len(self.data) > self._limit:
            self._end(TooLong())

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """Hear that nothing more will come."""
        self._end(None if reason.check(ResponseDone) else explain(reason.value))

    def _stall(self) -> None:
        self._end(Unreachable(f"the body stalled for {_SMALL:g} seconds"))

    def _end(self, error: Exception | None) -> None:
        self._watch.stop()
        if error is not None:
            _abort(self)
        if self.done.called:
            return
        if error is None:
            self.done.callback(None)
        else:
            self.done.errback(error)


class NoBody(Protocol):
    """Receives a body that nobody wants."""

    def connectionMade(self) -> None:
        """Close the connection."""
        _abort(self)


@implementer(IPushProducer)
class BodyStream(Protocol):
    """Sends a body on to one consumer as it comes, and asks for no more than that one takes."""

    def __init__(
        self,
        clock: IReactorTime,
        response: IResponse,
        size: int | None,
        seconds: float | None = None,
        closed_securely: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare to send.

        :param size: bytes, or None where nothing says so.
        :param seconds: for which progress is waited for.
        :param closed_securely: returns whether the server closed the connection in a way that
            marks the end of the body.
        """
        self._clock = clock
        self._closed_securely = closed_securely
        self._seconds = seconds or STALL
        self._response = response
        self._size = size
        self._came = 0
        self._paused = False
        self._consumer: IConsumer | None = None
        self._watch: Watch | None = None
        self._done: Deferred[None] = Deferred(lambda _: self.stopProducing())

    def send(self, consumer: IConsumer) -> Deferred[None]:
        """Send everything.

        :returns: fires when everything is written, or fails: with `ConsumerGone`, or with
            `Unreachable` where the body ends early or stalls. Cancelling it ends the relay.
        """
        self._consumer = consumer
        consumer.registerProducer(self, True)
        if self._done.called:
            # The consumer was gone already.
            self.drop()
            return self._done
        if not self._paused:
            self._watch_again()
        self._response.deliverBody(self)
        if self._paused:
            # The delivery has let the connection go on.
            self.pauseProducing()
        return self._done

    def drop(self) -> None:
        """Close the connection; nothing was sent, and nothing will be."""
        self._response.deliverBody(NoBody())

    def dataReceived(self, data: bytes) -> None:
        """Hear of bytes from the server."""
        if self._consumer is None:
            return
        self._came += len(data)
        if self._size is not None and self._came > self._size:
            self._end(Unreachable("the body is longer than it should be"))
            return
        if self._watch is not None:
            self._watch.extend()
        self._consumer.write(data)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """Hear that the body has come to an end, be it the right one."""
        marked = reason.check(ResponseDone) is not None
        if reason.check(PotentialDataLoss):
            # Without a mark, whatever ended the connection looks like the end of the body.
            marked = self._size is not None or self._closed_securely()
        if not marked:
            self._end(explain(reason.value))
        elif self._size not in (None, self._came):
            self._end(Unreachable(f"the body has {self._came} bytes in place of {self._size}"))
        else:
            self._end(None)

    def pauseProducing(self) -> None:
        """Hear that the consumer has enough for now; until it has not, the server may wait."""
        self._paused = True
        self._forget_watch()
        if self.transport is not None:
            self.transport.pauseProducing()  # type: ignore[attr-defined]

    def resumeProducing(self) -> None:
        """Hear that the consumer wants more."""
        self._paused = False
        if self._consumer is not None and self.transport is not None:
            self._watch_again()
            self.transport.resumeProducing()  # type: ignore[attr-defined]

    def stopProducing(self) -> None:
        """Hear that the consumer is gone."""
        self._end(ConsumerGone())

    def _watch_again(self) -> None:
        self._forget_watch()
        self._watch = Watch(self._clock, self._seconds, self._stall)

    def _forget_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def _stall(self) -> None:
        self._end(Unreachable(f"the body stalled for {self._seconds:g} seconds"))

    def _end(self, error: Exception | None) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        self._forget_watch()
        if error is not None:
            _abort(self)
        if not isinstance(error, ConsumerGone):
            consumer.unregisterProducer()
        if error is None:
            self._done.callback(None)
        else:
            self._done.errback(error)


@implementer(IBodyProducer)
class Upload:
    """A stretch of a file as the body of a request.

    :ivar length: bytes.
    :ivar moved: called whenever some of them have been taken.
    :ivar abort: closes the connection that they go to, at once.
    """

    def __init__(self, source: Readable, start: int, stop: int) -> None:
        self.length = stop - start
        self.moved: Callable[[], None] = lambda: None
        self.abort: Callable[[], None] = lambda: None
        self._feed = FileProducer(source, start, stop)

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        """Begin to send."""
        sending: Deferred[None] = Deferred()

        def end(outcome: Failure | None) -> None:
            # One who was told to stop says nothing more.
            if not (isinstance(outcome, Failure) and outcome.check(ConsumerGone)):
                sending.callback(outcome)

        self._feed.send(_Wire(consumer, self._has_moved)).addBoth(end)
        return sending

    def answered(self) -> None:
        """Hear that there is an answer. With an early one, a refusal say, the rest is not sent."""
        if not self._feed.done.called:
            self._feed.stopProducing()
            self.abort()

    def pauseProducing(self) -> None:
        """Hear that the connection has enough for now."""
        self._feed.pauseProducing()

    def resumeProducing(self) -> None:
        """Hear that the connection takes more."""
        self._feed.resumeProducing()

    def stopProducing(self) -> None:
        """Hear that the connection is gone."""
        self._feed.stopProducing()

    def _has_moved(self) -> None:
        self.moved()


@implementer(IConsumer)
class _Wire:
    """The consumer that a request gives its body, which knows its producer already."""

    def __init__(self, consumer: IConsumer, moved: Callable[[], None]) -> None:
        self._consumer = consumer
        self._moved = moved

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Do nothing: the request has registered the body."""

    def unregisterProducer(self) -> None:
        """Do nothing: the request does."""

    def write(self, data: bytes) -> None:
        self._moved()
        self._consumer.write(data)


def _abort(receiver: Protocol) -> None:
    """Close a response's connection at once.

    ``loseConnection`` over TLS waits for a server that may never answer. Twisted 26.10 has no
    public way from a body to the connection's end.
    """
    proxy: Any = receiver.transport
    connection = proxy._producer if proxy is not None else None
    if connection is not None:
        connection.abortConnection()
