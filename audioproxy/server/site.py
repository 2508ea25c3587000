"""The service's own HTTP server: a site with bounded connections and a fast path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.web.server import Site

from audioproxy.server.channel import ProxyChannel
from audioproxy.server.connections import Connections
from audioproxy.server.fast_path import FastPath
from audioproxy.server.request import ProxyRequest
from audioproxy.web.resource import BaseResource


class ProxySite(Site):
    """Site that limits the number of its connections, and the time that each may take.

    :ivar connections: the open connections.
    :ivar fast_path: responds to common requests at once; None to have the resource handle all.
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
        """Serve a resource.

        :param most_connections: see `Connections`.
        :param on_eviction: see `Connections`.
        """
        Site.__init__(self, resource, timeout=None, parsePOSTFormSubmission=False, reactor=clock)
        self.connections = Connections(clock, most_connections, on_eviction)
        self.fast_path = fast_path
        self.stopping = False
        self._clock = clock

    def seconds(self) -> float:
        """Return seconds of the site's clock."""
        return self._clock.seconds()

    def call_later(self, seconds: float, call: Callable[[], object]) -> IDelayedCall:
        """Schedule a call: with 0 seconds, for the next turn of the reactor."""
        return self._clock.callLater(seconds, call)

    def buildProtocol(self, addr: Any) -> Any:
        """Accept a connection. At the limit, evict another one."""
        self.connections.make_room()
        return Site.buildProtocol(self, addr)

    def finish(self) -> None:
        """Close the idle connections, and each other connection after its response."""
        self.stopping = True
        self.connections.close_idle()

    def log(self, request: Any) -> None:
        """Do nothing: the resource logs its requests."""
