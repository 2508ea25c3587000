"""One connection to the service's own server, and how long it may take over what it does."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IDelayedCall, ITCPTransport
from twisted.internet.protocol import connectionDone
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel

from audioproxy.errors import BadRequest, Refusal

if TYPE_CHECKING:
    from audioproxy.server.site import ProxySite

# Bytes of further requests that a client may send ahead of its answers. Twisted keeps them, and
# would stop reading at its own limit, after which nobody hears that the client is gone.
_MOST_AHEAD = 64 * 1024
# Requests that are answered in a row where all came at once, before others have their turn.
_MOST_IN_A_ROW = 4
# Bytes that wait to be sent before the feed of an answer is told to pause: less than one chunk of
# it, so that a client that stalls has one chunk in memory and not two. Twisted reads as much at a
# time, too.
_SEND_BUFFER = 32 * 1024


class Phase(Enum):
    """What a connection is at."""

    IDLE = "waits for a request"
    READING = "has a part of a request"
    ANSWERING = "has a whole request"
    REFUSED = "sent what is no request"
    CLOSING = "is closed once all is sent"
    ABORTED = "is closed at once"


#: The phases in which a connection can be spared, once everything is sent.
SPARE = (Phase.IDLE, Phase.READING, Phase.REFUSED, Phase.CLOSING)

#: The phases in which nothing that comes is heard.
IGNORING_INPUT = (Phase.REFUSED, Phase.CLOSING, Phase.ABORTED)

#: Seconds for each phase. An answer takes as long as it takes.
LIMITS = {Phase.IDLE: 60.0, Phase.READING: 60.0, Phase.REFUSED: 5.0, Phase.CLOSING: 600.0}

#: Seconds for which a client may take nothing of what is ready for it. A listener who pauses a
#: player does just that.
STALL = 600.0


class ProxyChannel(HTTPChannel):
    """A connection that is swept when it takes too long.

    Twisted's own timer starts anew with every byte that comes, so whoever sends one a minute
    would be served for ever; and it runs while the end of an answer is still being read.

    :ivar phase: what the connection is at.
    :ivar straight: the transport is a socket, with nothing between.
    :ivar stalled_since: when the client last took something of what waits for it; None where
        nothing much waits.
    """

    site: ProxySite
    transport: Any
    # Larger than what is ever kept, so that reading never stops.
    _optimisticEagerReadSize = 2 * _MOST_AHEAD

    def connectionMade(self) -> None:
        """Begin to wait for a request."""
        self._ahead = 0
        self._in_a_row = 0
        self._turn: IDelayedCall | None = None
        self.stalled_since: float | None = None
        self._enter(Phase.IDLE)
        HTTPChannel.connectionMade(self)
        transport = self.transport
        if ITCPTransport.providedBy(transport):
            # A peer that vanished without a word is noticed by the system, within hours.
            transport.setTcpKeepAlive(True)
        transport.bufferSize = _SEND_BUFFER
        self.straight = isinstance(transport, Connection) and not transport.TLS
        self.site.opened(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End with the connection."""
        self._enter(Phase.ABORTED)
        self.site.closed(self)
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        HTTPChannel.connectionLost(self, reason)

    def dataReceived(self, data: bytes) -> None:
        """Take a part of a request."""
        if self.phase in IGNORING_INPUT:
            return
        if self.phase is Phase.IDLE:
            if self._answer_at_once(data):
                return
            self._enter(Phase.READING)
        if self._buffer and self.paused and len(self._buffer) + len(data) > _MOST_AHEAD:
            self.abortConnection()
            return
        HTTPChannel.dataReceived(self, data)

    def _answer_at_once(self, data: bytes) -> bool:
        """Answer what is a whole request of the common kind, and nothing more."""
        site = self.site
        if site.fast_path is None or site.stopping or self._buffer or not self.all_sent:
            return False
        answer = site.fast_path.answer(data)
        if answer is None:
            return False
        self._since = site.now()
        site.answered(self)
        if self.straight:
            # Twisted would send it in its next turn, after two more calls of the system.
            sent = self.transport.writeSomeData(answer)
            answer = answer[sent:] if isinstance(sent, int) else answer
        if answer:
            self.transport.write(answer)
        return True

    def rawDataReceived(self, data: bytes) -> None:
        """Take a part of a body, or what comes ahead of an answer."""
        if self.phase in IGNORING_INPUT:
            return
        if self.phase is Phase.ANSWERING:
            self._ahead += len(data)
            if self._ahead > _MOST_AHEAD:
                self.abortConnection()
                return
        HTTPChannel.rawDataReceived(self, data)

    def allContentReceived(self) -> None:
        """Begin to answer, unless the body was too long."""
        if self.phase not in IGNORING_INPUT:
            self._enter(Phase.ANSWERING)
            HTTPChannel.allContentReceived(self)

    def checkPersistence(self, request: Any, version: bytes) -> bool:
        """Tell whether the connection outlasts an answer; none does while the service stops."""
        if self.site.stopping:
            request.responseHeaders.setRawHeaders(b"connection", [b"close"])
            return False
        return bool(HTTPChannel.checkPersistence(self, request, version))

    def requestDone(self, request: Any) -> None:
        """Wait for the next request, or begin with the one that is there already.

        Not at once, if answers are piling up that the client does not take, or if there have
        been many.
        """
        self._ahead = 0
        self._in_a_row += 1
        self.paused = self.stalled_since is not None or self._in_a_row >= _MOST_IN_A_ROW
        if self.phase is Phase.ANSWERING:
            self._enter(Phase.IDLE)
        if self.site.stopping:
            self.persistent = False
        HTTPChannel.requestDone(self, request)
        if not self._buffer:
            self._in_a_row = 0
        if self.persistent:
            self._go_on_later()

    def loseConnection(self) -> None:
        """Close when everything is sent.

        Who is refused may still be sending. To close on that would reset the connection, and
        with it what was said, so only our side is closed, and theirs soon after.
        """
        if self.phase is Phase.REFUSED and ITCPTransport.providedBy(self.transport):
            self.transport.loseWriteConnection()
        else:
            self._enter(Phase.CLOSING)
            HTTPChannel.loseConnection(self)

    def pauseProducing(self) -> None:
        """Hear that the client takes nothing for now."""
        if self.stalled_since is None:
            self.stalled_since = self.site.now()
            self.site.moved(self)
        HTTPChannel.pauseProducing(self)

    def resumeProducing(self) -> None:
        """Hear that the client has taken all there was."""
        self.stalled_since = None
        self._since = self.site.now()
        self.site.moved(self)
        HTTPChannel.resumeProducing(self)
        if self.phase is Phase.REFUSED:
            # Twisted 26.10 forgets that it was told to, where there is a producer to resume.
            self.loseConnection()
        self._go_on_later()

    def headerReceived(self, line: bytes) -> bool:
        """Take a header."""
        try:
            return bool(HTTPChannel.headerReceived(self, line))
        except ValueError:
            # A Content-Length of more digits than Python reads (4300) passes for a number.
            self.reject()
            return False

    def lineLengthExceeded(self, line: bytes) -> None:
        """Refuse a line that does not end."""
        self.reject()

    def abortConnection(self) -> None:
        """Close at once, with whatever has come and not been looked at."""
        self._enter(Phase.ABORTED)
        self.transport.abortConnection()

    def sweep(self) -> None:
        """Close the connection where it has taken too long."""
        since, limit = self._since, LIMITS.get(self.phase)
        if self.stalled_since is not None and self.phase is not Phase.CLOSING:
            since, limit = self.stalled_since, STALL
        if limit is not None and self.site.now() - since > limit:
            self._end(in_order=self.stalled_since is None)

    @property
    def waited(self) -> float:
        """Seconds since anything happened."""
        since = self._since if self.stalled_since is None else self.stalled_since
        return self.site.now() - since

    @property
    def all_sent(self) -> bool:
        """Whether the system has all that was ever written."""
        # Twisted 26.10 has no public word for it. The second holds what comes behind the first.
        transport = self.transport
        unsent = getattr(transport, "dataBuffer", b""), getattr(transport, "_tempDataBuffer", ())
        return len(unsent[0]) == getattr(transport, "offset", 0) and not unsent[1]

    def evict(self) -> None:
        """Close the connection for another: in good order where that takes no time."""
        self._end(in_order=self.all_sent)

    def _end(self, in_order: bool) -> None:
        if in_order and self.phase in (Phase.IDLE, Phase.READING):
            self.loseConnection()
        else:
            self.abortConnection()

    def _respondToBadRequestAndDisconnect(self) -> None:
        # Twisted 26.10 has no public hook for this. Its own answer has no headers and leaves no
        # trace in the log.
        self.reject()

    def reject(self, refusal: Refusal | None = None) -> None:
        """Refuse bytes that are no request, or a request that is too large.

        :param refusal: left out, `BadRequest`.
        """
        if self.phase is Phase.REFUSED:
            return
        self._enter(Phase.REFUSED)
        self.persistent = False
        self.setRawMode()  # type: ignore[no-untyped-call]
        if not self.requests:
            self.requests.append(self.requestFactory(self, False))
        self.requests[-1].reject(refusal or BadRequest())

    def _go_on_later(self) -> None:
        if self._turn is None and self.paused and self.stalled_since is None:
            self._turn = self.site.next_turn(self._go_on)

    def _go_on(self) -> None:
        self._turn = None
        self.paused = self.stalled_since is not None
        if not self.paused and self.phase not in IGNORING_INPUT:
            self._in_a_row = 0
            HTTPChannel.dataReceived(self, b"")

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._since = self.site.now()
        self.site.moved(self)
