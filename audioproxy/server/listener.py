"""Listening ports, and the number of clients that the process can serve."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os.path import samestat
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from audioproxy._twisted import keep_path, limit_accepts
from audioproxy.concurrency.deadlines import Deadline
from audioproxy.server.channel import ProxySite

# The service's user and group may connect.
_SOCKET_MODE = 0o660
# Clients that may wait to be accepted. The system allows as many as ``net.core.somaxconn``, 4096 by
# default.
_BACKLOG = 4096
# Descriptors of the process itself, the metrics listener, and connections that are just being
# closed; of a render or probe (source, output, pipes, and copies of them during a spawn); and of a
# client (its connection, and the file that is sent to it).
_RESERVED = 256
_PER_CHILD = 8
_PER_CLIENT = 2
_FEWEST_CLIENTS = 16
# The assumed limit where the system sets none.
_UNLIMITED = 16_384

_log = Logger()


class Listener:
    def __init__(self, reactor: Any, site: ProxySite) -> None:
        self._reactor = reactor
        self._site = site
        self._listening: Any = None
        self._path = ""
        self._created: os.stat_result | None = None

    def open(self, port: int, bind: str = "") -> int:
        """Listen on an address, or on every interface without one, and return the port."""
        return self.listen_on(open_socket(bind, port))

    def listen_on(self, opened: socket.socket) -> int:
        with opened:
            opened.setblocking(False)
            port = self._reactor.adoptStreamPort(opened.fileno(), opened.family, self._site)
        self._accept_from(port)
        return int(port.getHost().port)

    def open_unix(self, path: str) -> None:
        """Listen on a Unix socket; one that nobody listens on any more is replaced."""
        with _locked(os.path.dirname(path)):
            if is_live(path):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            with suppress(FileNotFoundError):
                os.unlink(path)
            try:
                port = self._reactor.listenUNIX(path, self._site, _BACKLOG, _SOCKET_MODE)
            except CannotListenError as error:
                raise error.socketError from error
            self._path, self._created = path, os.lstat(path)
        self._accept_from(port)

    async def close(self) -> None:
        """Accept no more clients, and close each connection after its current response."""
        stopping = self.close_now()
        if stopping is not None:
            await stopping
        self._site.finish()

    async def wait_until_closed(self, deadline: Deadline) -> None:
        await self._site.connections.wait_until_closed(deadline)

    def count_unsent(self) -> int:
        return self._site.connections.count_unsent()

    def close_now(self) -> Deferred[None] | None:
        """Close the port at once; repeated calls are harmless."""
        listening, self._listening = self._listening, None
        if listening is None:
            return None
        self._site.connections.forget_notification()
        if self._created is not None:
            keep_path(listening)
            self._remove_path(self._created)
        stopping: Deferred[None] | None = listening.stopListening()
        return stopping

    def _remove_path(self, created: os.stat_result) -> None:
        try:
            if samestat(created, os.lstat(self._path)):
                os.unlink(self._path)
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warn("{path} stays: {reason}", path=self._path, reason=error.strerror)

    def _accept_from(self, port: Any) -> None:
        self._listening = port
        limit_accepts(port, self._count_room)

    def _count_room(self) -> int:
        """Return how many clients to accept; without room, pause the port until there may be some.

        Clients that are not accepted wait in the system's queue, with what they have sent.
        """
        room = self._site.connections.count_room()
        listening = self._listening
        if not room and listening is not None:
            listening.pauseProducing()
            self._site.connections.notify_of_room(listening.resumeProducing)
        return room


def max_clients(children: int, limit: int) -> int:
    """Return how many connections leave enough descriptors for renders and probes.

    A service without free descriptors can open no source and start no child.

    :param limit: of open descriptors, as of getrlimit(2).
    """
    if limit == resource.RLIM_INFINITY:
        limit = _UNLIMITED
    return max(_FEWEST_CLIENTS, (limit - _RESERVED - _PER_CHILD * children) // _PER_CLIENT)


def open_socket(bind: str, port: int) -> socket.socket:
    """Return a socket that listens on an address, or on every interface without one."""
    both = bind in ("", "::") and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in bind else socket.AF_INET
    host, _, zone = bind.partition("%")
    address: tuple[str, int] | tuple[str, int, int, int] = (host, port)
    if zone:
        try:
            address = (host, port, 0, socket.if_nametoindex(zone))
        except OSError as error:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from error
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except ValueError as error:
        # create_server makes no socket of both families if one could not be created just before.
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT)) from error


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the lock of a folder, so that no other service removes the socket that is created."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def is_live(path: str) -> bool:
    """Return whether a process listens on a Unix socket; a file that is no socket is an OSError."""
    with (
        suppress(FileNotFoundError, ConnectionRefusedError),
        socket.socket(socket.AF_UNIX) as probe,
    ):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "a file that is not a socket is there")
        probe.setblocking(False)
        # With a full queue, this fails with BlockingIOError.
        with suppress(BlockingIOError):
            probe.connect(path)
        return True
    return False
