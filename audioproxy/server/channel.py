"""The service's own HTTP server: a site whose connections have limits, phases and back-pressure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import (
    IDelayedCall,
    IHalfCloseableProtocol,
    IReactorTime,
    ITCPTransport,
)
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel
from twisted.web.server import Site
from zope.interface import implementer

from audioproxy._twisted import HookedChannel, count_unsent, is_plain_tcp, send_now, set_send_buffer
from audioproxy.errors import BadRequest, Refusal
from audioproxy.server.connections import Connections, Phase
from audioproxy.server.fast_path import FastPath
from audioproxy.server.request import (
    ProxyRequest,
    connection_options,
    has_valid_encoding,
    has_valid_host,
)
from audioproxy.server.socket_state import has_unread, seconds_stalled
from audioproxy.web.resource import BaseResource

# Bytes of further requests that a client may send before it has its responses. At its own limit
# Twisted would stop reading, and then not notice that the client has disconnected.
_MOST_PIPELINED = 64 * 1024
# Pipelined requests that are answered in a row, before other connections get their turn.
_MOST_IN_A_ROW = 4
# Empty lines that are skipped before a request. Some clients send one after a body (RFC 9112, 2.2).
_MOST_EMPTY_LINES = 2
# Unsent bytes of a response at which its producer is paused: less than one chunk, so that a client
# that stalls has one in memory and not two. Twisted also reads at most this many bytes at a time.
_SEND_BUFFER = 32 * 1024
#: Seconds in which a response must begin after its client has closed the sending side. A client
#: that is gone looks the same until bytes are sent to it.
HALF_CLOSE_TIMEOUT = 1.0
#: The phases in which all input is ignored.
IGNORING_INPUT = (Phase.REFUSED, Phase.CLOSING, Phase.ABORTED)


@implementer(IHalfCloseableProtocol)
class ProxyChannel(HookedChannel):
    """A connection that is registered in its site's `audioproxy.server.connections`."""

    phase: Phase
    phase_since: float
    is_new = True
    stalled_since: float | None = None
    site: ProxySite
    transport: Any
    _pipelined_bytes = 0
    _in_a_row = 0
    _empty_lines = 0
    _reading_headers = False
    _next_turn: IDelayedCall | None = None
    _half_closed: IDelayedCall | None = None

    def connectionMade(self) -> None:
        # More than the channel ever buffers, so that reading never stops.
        self.set_read_ahead(2 * _MOST_PIPELINED)
        self._enter(Phase.IDLE)
        HTTPChannel.connectionMade(self)
        transport = self.transport
        if ITCPTransport.providedBy(transport):
            # The system notices within hours that a peer has vanished.
            transport.setTcpKeepAlive(True)
        set_send_buffer(transport, _SEND_BUFFER)
        self.is_plain_tcp = is_plain_tcp(transport)
        self.site.connections.opened(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._enter(Phase.ABORTED)
        self.site.connections.closed(self)
        for call in (self._next_turn, self._half_closed):
            if call is not None and call.active():
                call.cancel()
        HTTPChannel.connectionLost(self, reason)

    def readConnectionLost(self) -> None:
        """Respond to the whole requests of a client that sends no more, and close then."""
        if self._half_closed is None:
            self._half_closed = self.site.clock.callLater(HALF_CLOSE_TIMEOUT, self._give_up)
            self._close_if_done()

    def writeConnectionLost(self) -> None:
        """Do nothing: the sending side is closed after a refusal."""

    def _give_up(self) -> None:
        waiting = self.phase is Phase.RESPONDING and not self.requests[0].startedWriting
        if waiting or (self.phase is Phase.REFUSED and self.all_sent):
            self.abortConnection()

    def _close_if_done(self) -> None:
        ended = self._half_closed is not None and not self.paused
        if ended and self.phase in (Phase.IDLE, Phase.READING):
            self.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        self.is_new = False
        if self.phase is Phase.IDLE:
            if self._respond_on_fast_path(data):
                return
            self._enter(Phase.READING)
        elif self.phase in IGNORING_INPUT:
            return
        waiting = len(self.unparsed) if self.paused else 0
        if waiting and waiting + len(data) > _MOST_PIPELINED:
            self.abortConnection()
            return
        HTTPChannel.dataReceived(self, data)

    def _respond_on_fast_path(self, data: bytes) -> bool:
        site = self.site
        if site.fast_path is None or site.stopping or self.unparsed or not self.all_sent:
            return False
        response = site.fast_path.respond(data)
        if response is None:
            return False
        self._empty_lines = 0
        self.phase_since = site.clock.seconds()
        site.connections.served_by_fast_path(self)
        if self.is_plain_tcp:
            response = send_now(self.transport, response)
        if response:
            self.transport.write(response)
        return True

    def rawDataReceived(self, data: bytes) -> None:
        if self.phase in IGNORING_INPUT:
            return
        if self.phase is Phase.RESPONDING:
            self._pipelined_bytes += len(data)
            if self._pipelined_bytes > _MOST_PIPELINED:
                self.abortConnection()
                return
        HTTPChannel.rawDataReceived(self, data)

    def allContentReceived(self) -> None:
        if self.phase not in IGNORING_INPUT:
            self._enter(Phase.RESPONDING)
            HTTPChannel.allContentReceived(self)

    def checkPersistence(self, request: Any, version: bytes) -> bool:
        """Return whether the connection stays open after a response.

        Twisted itself reads only the first line of Connection, and splits it at spaces.
        """
        lines = request.requestHeaders.getRawHeaders(b"connection", ())
        if self.site.stopping or b"close" in connection_options(lines):
            request.responseHeaders.setRawHeaders(b"connection", [b"close"])
            return False
        return version == b"HTTP/1.1"

    def requestDone(self, request: Any) -> None:
        """Wait for the next request, or start with the next pipelined one.

        A pipelined request waits for a later turn of the reactor where the client does not receive
        its responses, or several requests were answered in a row.
        """
        self._pipelined_bytes = 0
        self._in_a_row += 1
        self.paused = self.stalled_since is not None or self._in_a_row >= _MOST_IN_A_ROW
        if self.phase is Phase.RESPONDING:
            self._enter(Phase.IDLE)
        if self.site.stopping:
            self.persistent = False
        HTTPChannel.requestDone(self, request)
        if not self.unparsed:
            self._in_a_row = 0
        if self.persistent:
            self._resume_later()
            self._close_if_done()

    def loseConnection(self) -> None:
        """Close when everything is sent.

        A refused client may still be sending, so only the sending side is closed at first. A reset
        would lose the response.
        """
        if self.phase is Phase.REFUSED and ITCPTransport.providedBy(self.transport):
            self.transport.loseWriteConnection()
        else:
            self._enter(Phase.CLOSING)
            HTTPChannel.loseConnection(self)

    def pauseProducing(self) -> None:
        """Pause: the client's receive window is full."""
        if self.stalled_since is None:
            self.stalled_since = self.site.clock.seconds()
            self.site.connections.stalled(self)
        HTTPChannel.pauseProducing(self)

    def resumeProducing(self) -> None:
        """Resume: the client has received what was buffered for it."""
        self.stalled_since = None
        self.phase_since = self.site.clock.seconds()
        self.site.connections.changed(self)
        HTTPChannel.resumeProducing(self)
        if self.phase is Phase.REFUSED:
            # Twisted 26.10 forgets an earlier call of loseConnection if it resumes a producer.
            self.loseConnection()
        self._resume_later()

    def lineReceived(self, line: bytes) -> None:
        if self._reading_headers:
            # A folded header (RFC 9112, 5.2): servers in front may read it as a header of its own.
            valid = not line.startswith((b" ", b"\t"))
        elif line:
            self._reading_headers = valid = True
            self._empty_lines = 0
        else:
            self._empty_lines += 1
            if self._empty_lines <= _MOST_EMPTY_LINES:
                return
            valid = False
        if valid:
            HTTPChannel.lineReceived(self, line)
        else:
            self.reject()

    def allHeadersReceived(self) -> None:
        self._reading_headers = False
        version, headers = self.http_version, self.requests[-1].requestHeaders
        if has_valid_host(version, headers) and has_valid_encoding(version, headers):
            HTTPChannel.allHeadersReceived(self)
        else:
            self.reject()

    def headerReceived(self, line: bytes) -> bool:
        try:
            return bool(HTTPChannel.headerReceived(self, line))
        except ValueError:
            # A Content-Length of more than 4300 digits, which Python does not convert.
            self.reject()
            return False

    def lineLengthExceeded(self, line: bytes) -> None:
        self.reject()

    def abortConnection(self) -> None:
        """Close at once, and discard received bytes that are not processed yet."""
        self._enter(Phase.ABORTED)
        self.transport.abortConnection()

    @property
    def all_sent(self) -> bool:
        return not count_unsent(self.transport)

    @property
    def has_unread(self) -> bool:
        pipelined = self.phase is Phase.IDLE and bool(self.unparsed)
        return pipelined or has_unread(self.transport)

    @property
    def seconds_stalled(self) -> float | None:
        return seconds_stalled(self.transport)

    def reject(self, refusal: Refusal | None = None) -> None:
        if self.phase is Phase.REFUSED:
            return
        self._enter(Phase.REFUSED)
        self.persistent = False
        self.setRawMode()  # type: ignore[no-untyped-call]
        if not self.requests:
            self.requests.append(self.requestFactory(self, False))
        self.requests[-1].reject(refusal or BadRequest())

    def _resume_later(self) -> None:
        if self._next_turn is None and self.paused and self.stalled_since is None:
            self._next_turn = self.site.clock.callLater(0, self._resume)

    def _resume(self) -> None:
        self._next_turn = None
        self.paused = self.stalled_since is not None
        if not self.paused and self.phase not in IGNORING_INPUT:
            self._in_a_row = 0
            HTTPChannel.dataReceived(self, b"")
            self._close_if_done()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.phase_since = self.site.clock.seconds()
        self.site.connections.changed(self)


class ProxySite(Site):
    """Site that limits the number of its connections, and the time that each may take.

    :ivar stopping: each connection closes after its current response.
    """

    noisy = False
    protocol: Any = ProxyChannel
    requestFactory = ProxyRequest

    def __init__(
        self,
        resource: BaseResource,
        clock: IReactorTime,
        most_connections: int | None = None,
        fast_path: FastPath | None = None,
        on_eviction: Callable[[], object] = lambda: None,
    ) -> None:
        Site.__init__(self, resource, timeout=None, parsePOSTFormSubmission=False, reactor=clock)
        self.connections = Connections(clock, most_connections, on_eviction)
        self.fast_path = fast_path
        self.clock = clock
        self.stopping = False

    def buildProtocol(self, addr: Any) -> Any:
        """Accept a connection. At the limit, evict another one."""
        self.connections.make_room()
        return Site.buildProtocol(self, addr)

    def finish(self) -> None:
        """Close the idle connections, and each other connection after its response."""
        self.stopping = True
        self.connections.close_idle()

    def log(self, request: Any) -> None:
        """Do nothing: the resource logs its requests.

        Twisted 26.10 has no setting for that: by default, a site logs to the application's log.
        """
