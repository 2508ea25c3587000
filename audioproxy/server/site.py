"""The service's own HTTP server: what a resource cannot see from inside a site."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import islice
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.web.http import datetimeToString
from twisted.web.server import Request, Site

from audioproxy.errors import BadRequest, NotFound, Refusal
from audioproxy.in_flight import Tally
from audioproxy.server.channel import SPARE, Phase, ProxyChannel
from audioproxy.server.fast_path import FastPath
from audioproxy.server.sendfile import Straight
from audioproxy.web.base_resource import BaseResource

# Bytes of a body that are read past without a word: nothing here has a use for one.
_LONGEST_BODY = 64 * 1024
# Seconds between two looks at what takes too long.
_SWEEP = 5.0
# Connections that are looked at for one to spare: the first will do, nearly always.
_CANDIDATES = 64
# Seconds for which a client may take nothing, where others find no room.
_PRESSED = 30.0
# Seconds between two lines that say so.
_COMPLAINTS = 60.0

_log = Logger()


class ProxyRequest(Request):
    """A request that reaches the resource whatever its target is, and leaves its body behind."""

    _body_length = 0
    _straight: Straight | None = None

    def gotLength(self, length: int | None) -> None:
        """Have no place for a body."""
        self.content = io.BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        """Keep nothing of a body, and refuse one that has no end."""
        # What came in the same packet may be handed over still.
        if not self.finished:
            self._body_length += len(data)
            if self._body_length > _LONGEST_BODY:
                channel: Any = self.channel
                channel.reject(_refusal_of_body(channel))

    def take_file(self, descriptor: int, offset: int, count: int) -> int | None:
        """Send bytes of a file without reading them; see `audioproxy.streams.SendfileConsumer`."""
        channel: Any = self.channel
        if not channel.straight:
            return None
        if self._straight is None:
            if not self.startedWriting:
                Request.write(self, b"")
            self._straight = Straight(channel, bool(self.chunked))
        taken = self._straight.take(descriptor, offset, count)
        self.sentLength += taken or 0
        return taken

    def process(self) -> None:
        """Hand ``*`` to the resource too, which Twisted would answer with 405 itself."""
        if self.path != b"*":
            Request.process(self)
            return
        channel: Any = self.channel
        self.site = channel.site
        Request.setHeader(self, b"date", datetimeToString())
        self.prepath, self.postpath = [], []
        Request.render(self, channel.site.resource)

    def reject(self, refusal: Refusal) -> None:
        """Answer with a refusal, and close the connection."""
        channel: Any = self.channel
        self.clientproto = b"HTTP/1.1"
        Request.setHeader(self, b"connection", b"close")
        Request.setHeader(self, b"date", datetimeToString())
        channel.site.resource.reject(self, refusal)


def _refusal_of_body(channel: Any) -> Refusal:
    """Return what a body that is too long is refused with.

    A method that is not served is a 404, whatever comes with it (contract: Endpoints).
    """
    # Twisted 26.10 gives the request its method when the body is complete.
    return BadRequest() if channel.site.resource.serves(channel._command) else NotFound()


class ProxySite(Site):
    """A site that bounds the number of its connections, and what each may take.

    :ivar stopping: no connection outlasts the answer that it is at.
    :ivar fast_path: the fast path for what it can answer, or None.
    """

    protocol: Any = ProxyChannel
    requestFactory = ProxyRequest
    noisy = False

    def __init__(
        self,
        resource: BaseResource,
        clock: IReactorTime,
        most_connections: int | None = None,
        fast_path: FastPath | None = None,
    ) -> None:
        """Serve a resource.

        :param most_connections: for one more, the one is closed that has waited longest for a
            request and has nothing left to take; else the one that has taken nothing for
            longest, be that half a minute; else the new one. None is no limit.
        :param fast_path: answers what the resource need not see.
        """
        Site.__init__(self, resource, timeout=None, parsePOSTFormSubmission=False, reactor=clock)
        self.stopping = False
        self.fast_path = fast_path
        self._clock = clock
        self._most = most_connections
        self._channels: set[ProxyChannel] = set()
        self._open = Tally()
        # Both in the order in which they came to be so.
        self._spare: dict[ProxyChannel, None] = {}
        self._stalled: dict[ProxyChannel, None] = {}
        self._complained: float | None = None
        self._sweeping: IDelayedCall | None = None

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._channels)

    def now(self) -> float:
        """Return seconds of the site's clock."""
        return self._clock.seconds()

    def next_turn(self, call: Callable[[], object]) -> IDelayedCall:
        """Have something called when others had their turn."""
        return self._clock.callLater(0, call)

    def buildProtocol(self, addr: Any) -> Any:
        """Take a connection, or refuse it."""
        if self._most is not None and len(self._channels) >= self._most:
            channel = self._dispensable()
            if channel is None:
                self._complain()
                return None
            channel.evict()
        return Site.buildProtocol(self, addr)

    def _dispensable(self) -> ProxyChannel | None:
        for channel in islice(self._spare, _CANDIDATES):
            if channel.all_sent and channel.phase is not Phase.CLOSING:
                return channel
        for channels in (self._spare, self._stalled):
            longest = next(iter(channels), None)
            if longest is not None and longest.waited > _PRESSED:
                return longest
        return None

    def _complain(self) -> None:
        if self._complained is None or self.now() - self._complained > _COMPLAINTS:
            self._complained = self.now()
            _log.warn("no room for more connections: {count} are there", count=self.connections)

    def opened(self, channel: ProxyChannel) -> None:
        """Hear of a new connection."""
        self._channels.add(channel)
        self._open.begin()
        if self._sweeping is None:
            self._sweeping = self._clock.callLater(_SWEEP, self._sweep)

    def moved(self, channel: ProxyChannel) -> None:
        """Hear that a connection is at something else now."""
        phase = channel.phase
        if phase in SPARE:
            self._spare.setdefault(channel)
        else:
            self._spare.pop(channel, None)
        if channel.stalled_since is not None and phase is not Phase.ABORTED:
            self._stalled.setdefault(channel)
        else:
            self._stalled.pop(channel, None)

    def answered(self, channel: ProxyChannel) -> None:
        """Hear that a connection begins to wait anew, having been answered in no time."""
        del self._spare[channel]
        self._spare[channel] = None

    def closed(self, channel: ProxyChannel) -> None:
        """Hear of the end of a connection."""
        self._channels.discard(channel)
        self._open.end()
        if not self._channels and self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def finish(self) -> None:
        """Close the connections that wait, and let no other outlast its answer."""
        self.stopping = True
        for channel in list(self._spare):
            channel.loseConnection()

    async def emptied(self, seconds: float) -> None:
        """Come back when every connection is closed, or after so many seconds.

        An answer is finished when its last bytes are handed over, which may be long before they
        are sent.
        """
        await self._open.wait(self._clock, seconds)

    def log(self, request: Any) -> None:
        """Leave the line to the resource."""

    def _sweep(self) -> None:
        self._sweeping = self._clock.callLater(_SWEEP, self._sweep)
        for channel in list(self._channels):
            channel.sweep()
