"""Ports: opened one by one, closed with what hangs on them, and no more clients than will fit."""

from __future__ import annotations

import resource
import socket
from typing import Any

from twisted.internet.interfaces import IListeningPort

from audioproxy.server.site import ProxySite

_BACKLOG = 1024

# Descriptors that are kept for other things than clients: the process's own, those of the metrics
# and of connections that are just being closed for others, and for each render or probe a source,
# an output, pipes, and copies of them at the moment of a spawn.
_OWN = 256
_PER_CHILD = 8
# A client's connection and the file that it is sent.
_PER_CLIENT = 2
_FEWEST_CLIENTS = 16
# What counts as the limit where there is none.
_UNLIMITED = 16_384


class Listener:
    """One port with its site."""

    def __init__(self, reactor: Any, site: ProxySite) -> None:
        self._reactor = reactor
        self._site = site
        self._listening: IListeningPort | None = None

    def open(self, port: int, bind: str = "") -> int:
        """Listen, on every interface where no address is given.

        :returns: the port, which the system chooses for port 0.
        :raises OSError: where the system refuses.
        """
        return self.adopt(_open_socket(bind, port))

    def adopt(self, opened: socket.socket) -> int:
        """Listen on a socket that listens already; it is the listener's from here on.

        :returns: its port.
        """
        with opened:
            opened.setblocking(False)
            self._listening = self._reactor.adoptStreamPort(
                opened.fileno(), opened.family, self._site
            )
        address: Any = self._listening.getHost()
        return int(address.port)

    async def close(self) -> None:
        """Take no more clients, and let those that are being answered have their answers."""
        listening, self._listening = self._listening, None
        if listening is not None:
            stopping = listening.stopListening()
            if stopping is not None:
                await stopping
        self._site.finish()

    async def wait_until_closed(self, seconds: float) -> None:
        """Wait until all responses are sent, for ``seconds`` at most."""
        await self._site.connections.wait_until_closed(seconds)

    def give_up(self) -> None:
        """Close the port at once, at a start that comes to nothing."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.stopListening()


def most_clients(children: int) -> int:
    """Return how many connections leave enough descriptors for the work.

    A service that is out of descriptors can open no source and start no child.

    :param children: that may run at a time.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = _UNLIMITED
    return max(_FEWEST_CLIENTS, (limit - _OWN - _PER_CHILD * children) // _PER_CLIENT)


def _open_socket(bind: str, port: int) -> socket.socket:
    both = bind in ("", "::") and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in bind else socket.AF_INET
    return socket.create_server((bind, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
