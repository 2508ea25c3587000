"""Programs that are linked once, without a reactor: linking takes nine tenths of a short run."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.error import ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from audioproxy.process.find_starter import BINARY
from audioproxy.process.fork_server import VARIABLES, ForkServer, NotForked
from tests.support.servers import PATIENCE, RUNNING

reactor: Any = _reactor

#: What makes a fork server of a program.
LIBRARY = f"{BINARY}.so"
# Servers of services, by their command lines.
_shared: dict[object, LinkedServer] = {}
# What one message holds, without the channel of its answer.
_MOST_DESCRIPTORS = 15


class LinkedServer:
    """A fork server of a program.

    :ivar is_ready: whether the program could be linked.
    :ivar pid: its process ID.
    """

    def __init__(
        self, command: Sequence[str], library: str = LIBRARY, environment: Mapping[str, str] = {}
    ) -> None:
        """Start the server by a command that ends with the program, and wait until it is linked."""
        self._environment = {**environment, **VARIABLES}
        self._server = ForkServer(lambda _: None, lambda *_: None, PATIENCE)
        self._server.start(self._spawn, library, command)

    def _spawn(
        self, protocol: ProcessProtocol, command: Sequence[str], descriptors: Mapping[int, Any]
    ) -> None:
        output, theirs = os.pipe()
        # None of them may have a number that another one gets.
        actions: list[tuple[int, int, int]] = []
        copies = []
        for number, descriptor in (descriptors | {1: theirs, 2: 2}).items():
            copies.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64))
            actions.append((os.POSIX_SPAWN_DUP2, copies[-1], number))
        self.pid = os.posix_spawn(command[0], command, self._environment, file_actions=actions)
        for descriptor in (theirs, *copies):
            os.close(descriptor)
        self._server.pid = self.pid
        with open(output, "rb") as linked:
            # One thread, and the CPU time.
            self.is_ready = re.fullmatch(rb"1 \d+\n", linked.readline()) is not None

    def fork(self, words: Sequence[str], descriptors: Mapping[int, int]) -> int:
        """Start a child, and return its process ID; see `ForkServer.fork`."""
        return self._server.fork(words, descriptors)

    def close(self) -> None:
        """End the server."""
        self._server.kill("closed")
        os.waitpid(self.pid, 0)
        reason = Failure(ProcessTerminated(signal=signal.SIGKILL))
        self._server.processExited(reason)
        self._server.processEnded(reason)


def start_linked(
    words: Sequence[str], descriptors: Mapping[int, int], environment: Mapping[str, str]
) -> int | None:
    """Start ffmpeg or ffprobe, and return the process ID; None if it has to be linked first.

    :param descriptors: of this process, by their numbers in the child.
    """
    path = shutil.which(words[0], path=environment["PATH"])
    if path is None or len(descriptors) > _MOST_DESCRIPTORS:
        return None
    server = _server_of(path, tuple(environment.items()))
    if server is None:
        return None
    try:
        return server.fork(["--", *words], descriptors)
    except NotForked:
        # This machine is busy, or the words are too long.
        return None


@cache
def _server_of(path: str, environment: tuple[tuple[str, str], ...]) -> LinkedServer | None:
    """Return a server for the rest of this process; None for a program that cannot have one."""
    if os.path.basename(path) not in ("ffmpeg", "ffprobe") or not os.path.exists(LIBRARY):
        return None
    with open(path, "rb") as program:
        is_script = program.read(2) == b"#!"
    if is_script:
        return None
    return _keep([path], LIBRARY, dict(environment))


def _keep(
    command: Sequence[str], library: str, environment: Mapping[str, str]
) -> LinkedServer | None:
    """Start a server for the rest of this process; return None if its program cannot be linked."""
    server = LinkedServer(command, library, environment)
    if not server.is_ready:
        server.close()
        return None
    RUNNING.add(server.pid)
    return server


class SharedServer(ForkServer):
    """A server of a service, whose program is linked once for all services of this process."""

    def __init__(self, environment: Mapping[str, str], *called: Callable[..., object]) -> None:
        super().__init__(*called)
        self._environment = environment
        self._key: object = None
        self._is_left = False

    def start(self, spawn: object, library: str, command: Sequence[str]) -> None:
        """Use the server of a command, or raise OSError."""
        self._key = (*command, library, *self._environment.items())
        server = _shared.get(self._key) or _keep(command, library, self._environment)
        if server is None:
            raise OSError(errno.ENOEXEC, "it cannot be linked")
        self._linked = _shared[self._key] = server
        self.pid = server.pid
        self._ready(self)

    def fork(self, words: Sequence[str], descriptors: Mapping[int, int]) -> int:
        """Start a child; see `ForkServer.fork`."""
        return self._linked.fork(words, descriptors)

    def kill(self, reason: str) -> None:
        """Leave the server to other services, unless it has failed."""
        if reason != "closed":
            _shared.pop(self._key, None)
        if not self._is_left:
            self._is_left = True
            reactor.callLater(0, self._ended, self, reason)
