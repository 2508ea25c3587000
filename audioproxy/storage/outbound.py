"""Requests to other machines: one pool of connections, a deadline for every wait, bodies that flow.

Nothing is followed, decoded or kept: what a server says is what a caller gets, from the status to
the last byte. URLs travel exactly as they are spelled, since a signature covers the spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cryptography.x509 import load_pem_x509_certificates
from OpenSSL.crypto import X509
from OpenSSL.SSL import Error as TlsError
from service_identity import VerificationError
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import (
    IConsumer,
    IDelayedCall,
    IPushProducer,
    IReactorTime,
)
from twisted.internet.protocol import Protocol
from twisted.internet.ssl import Certificate, platformTrust, trustRootFromCertificates
from twisted.python.failure import Failure
from twisted.web.client import (
    Agent,
    BrowserLikePolicyForHTTPS,
    HostnameCachingHTTPSPolicy,
    HTTPConnectionPool,
    ResponseDone,
)
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import UNKNOWN_LENGTH, IBodyProducer, IResponse
from zope.interface import implementer

from audioproxy import __version__
from audioproxy.storage.feed import ConsumerGone, Feed
from audioproxy.storage.interfaces import Readable

#: What servers are told of us, by ffmpeg too.
USER_AGENT = f"audioproxy/{__version__}"

# Seconds: to connect; for the headers of an answer; and for any progress of a body.
_CONNECT = 5.0
_ANSWER = 15.0
_STALL = 30.0
# Connections to one host that are kept, and seconds for which an idle one is. Object stores close
# theirs after 20 seconds and more; a request on one that was just closed would be lost.
_KEPT = 32
_KEPT_SECONDS = 15
# Hosts whose TLS contexts are kept. To read the system's certificates takes some milliseconds.
_CONTEXTS = 32


class Unreachable(Exception):
    """There was no answer, or not the whole of one. The text says why."""


class Untrusted(Unreachable):
    """The other side could not prove by its certificate who it is."""


class TooLong(Exception):
    """The body of an answer is longer than anyone wants."""


def read_trust(path: str | None) -> Any:
    """Return what certificates are verified against.

    :param path: a PEM file that replaces the system's trust store; None is the system's.
    :raises OSError: where it cannot be read.
    :raises ValueError: where it holds no certificates.
    """
    if path is None:
        return platformTrust()
    with open(path, "rb") as file:
        found = load_pem_x509_certificates(file.read())
    return trustRootFromCertificates([Certificate(X509.from_cryptography(one)) for one in found])


class Outbound:
    """A client of HTTP/1.1 servers that all are verified against one trust store."""

    def __init__(self, reactor: Any, trust: Any) -> None:
        """Make a client.

        :param trust: from `read_trust`.
        """
        self._clock: IReactorTime = reactor
        self._pool = HTTPConnectionPool(reactor)
        self._pool.maxPersistentPerHost = _KEPT
        self._pool.cachedConnectionTimeout = _KEPT_SECONDS
        policy = HostnameCachingHTTPSPolicy(BrowserLikePolicyForHTTPS(trust), _CONTEXTS)
        self._agent = Agent(reactor, policy, connectTimeout=_CONNECT, pool=self._pool)

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: Upload | None = None
    ) -> Answer:
        """Send a request and return its answer, of which only the headers have come.

        :raises Untrusted: where the server's certificate does not prove who it is.
        :raises Unreachable: where there is no answer, or none in time.
        """
        lines = Headers({"user-agent": [USER_AGENT]})
        for name, value in headers.items():
            lines.setRawHeaders(name, [value])
        sent: Deferred[IResponse] = self._agent.request(
            method.encode("ascii"), url.encode("ascii"), lines, body
        )
        watch = Watch(self._clock, _ANSWER if body is None else _STALL, sent.cancel)
        if body is not None:
            body.moved = watch.extend
        try:
            response = await sent
        except Exception as error:
            raise _explain(error, watch.expired) from error
        finally:
            watch.stop()
        return Answer(self._clock, response, method == "HEAD")

    async def close(self) -> None:
        """Close the connections that nobody uses."""
        await self._pool.closeCachedConnections()


class Answer:
    """A response whose body has not been read. It is read, or dropped.

    :ivar bodiless: it is to a HEAD, so there will be no body.
    """

    def __init__(self, clock: IReactorTime, response: IResponse, bodiless: bool) -> None:
        self.bodiless = bodiless
        self._clock = clock
        self._response = response

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
        return int(text) if text is not None and text.isdecimal() else None

    def header(self, name: str) -> str | None:
        """Return a header; several of one name are one list. Text outside Latin-1 cannot come."""
        values = self._response.headers.getRawHeaders(name.encode("ascii"))
        return b", ".join(values).decode("latin-1") if values else None

    async def read(self, limit: int) -> bytes:
        """Return the body.

        :raises TooLong: for one of more than ``limit`` bytes.
        :raises Unreachable: where it does not come to its end.
        """
        reading = _Body(self._clock, limit)
        self._response.deliverBody(reading)
        await reading.done
        return bytes(reading.data)

    def drop(self) -> None:
        """Close the connection, unless there is no body to come."""
        self._response.deliverBody(_Dropped())

    def flow(self, size: int | None) -> Relay:
        """Return the body as what can be sent on.

        :param size: bytes; any other number of them is a failure. None takes any body of which the
            end is marked.
        """
        return Relay(self._clock, self._response, size)


class Watch:
    """Calls something off that makes no progress for a while."""

    def __init__(self, clock: IReactorTime, seconds: float, call_off: Callable[[], object]) -> None:
        self.expired = False
        self._seconds = seconds
        self._call_off = call_off
        self._deadline: IDelayedCall = clock.callLater(seconds, self._expire)

    def extend(self) -> None:
        """Hear of progress."""
        if self._deadline.active():
            self._deadline.reset(self._seconds)

    def stop(self) -> None:
        """Watch no more."""
        if self._deadline.active():
            self._deadline.cancel()

    def _expire(self) -> None:
        self.expired = True
        self._call_off()


class _Body(Protocol):
    """Receives a body that is small."""

    def __init__(self, clock: IReactorTime, limit: int) -> None:
        self.data = bytearray()
        self.done: Deferred[None] = Deferred(lambda _: self._end(CancelledError()))
        self._limit = limit
        self._watch = Watch(clock, _ANSWER, self._stall)

    def dataReceived(self, data: bytes) -> None:
        self.data += data
        if len(self.data) > self._limit:
            self._end(TooLong())

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        self._end(None if reason.check(ResponseDone) else _explain(reason.value))

    def _stall(self) -> None:
        self._end(Unreachable(f"the body stalled for {_ANSWER:g} seconds"))

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


class _Dropped(Protocol):
    """Receives a body that nobody wants."""

    def connectionMade(self) -> None:
        _abort(self)


@implementer(IPushProducer)
class Relay(Protocol):
    """Sends a body on to one consumer as it comes, and asks for no more than that one takes."""

    def __init__(self, clock: IReactorTime, response: IResponse, size: int | None) -> None:
        self._clock = clock
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
        if not self._paused:
            self._watch_again()
        self._response.deliverBody(self)
        if self._paused:
            # The delivery has let the connection go on.
            self.pauseProducing()
        return self._done

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
        # Without a mark, whatever ended the connection looks like the end of the body.
        if not marked and not (reason.check(PotentialDataLoss) and self._size is not None):
            self._end(_explain(reason.value))
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
        self._watch = Watch(self._clock, _STALL, self._stall)

    def _forget_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def _stall(self) -> None:
        self._end(Unreachable(f"the body stalled for {_STALL:g} seconds"))

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
    """

    def __init__(self, source: Readable, start: int, stop: int) -> None:
        self.length = stop - start
        self.moved: Callable[[], None] = lambda: None
        self._feed = Feed(source, start, stop)

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        """Begin to send."""
        sending: Deferred[None] = Deferred()

        def end(outcome: Failure | None) -> None:
            # One who was told to stop says nothing more.
            if not (isinstance(outcome, Failure) and outcome.check(ConsumerGone)):
                sending.callback(outcome)

        self._feed.send(_Wire(consumer, self._has_moved)).addBoth(end)
        return sending

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
    proxy = receiver.transport
    connection = getattr(proxy, "_producer", None)
    if connection is not None:
        connection.abortConnection()


def _explain(error: BaseException | None, expired: bool = False) -> Exception:
    """Return why there is no answer, as one of the classes here."""
    causes = list(_causes(error))
    if expired:
        return Unreachable("no answer in time")
    if any(isinstance(cause, CancelledError) for cause in causes):
        return CancelledError()
    for cause in causes:
        if isinstance(cause, VerificationError):
            return Untrusted("the certificate is for another name")
        if isinstance(cause, TlsError) and "certificate verify failed" in str(cause):
            return Untrusted("the certificate is not trusted")
    last = causes[-1]
    return Unreachable(f"{type(last).__name__}: {last}" if str(last) else type(last).__name__)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error of Twisted's client and what it wraps."""
    if error is not None:
        yield error
    for reason in getattr(error, "reasons", ()):
        yield from _causes(reason.value)
