"""The fork servers of one program: when one is started, proved, used, replaced and given up."""

from __future__ import annotations

import math
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready
from twisted.internet.interfaces import IDelayedCall, IProcessTransport
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from audioproxy._twisted import ForkedProcess
from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.media.inputs import MAP_DESCRIPTOR, QUESTIONS_DESCRIPTOR, SOURCE_DESCRIPTOR
from audioproxy.observe.log_context import Logger
from audioproxy.process import executables
from audioproxy.process.cell import CellStarter
from audioproxy.process.child_limits import Limits
from audioproxy.process.find_starter import library_command
from audioproxy.process.fork_server import VARIABLES, ForkServer, NotForked
from audioproxy.process.starters import spawn_by

#: Forks after which a server is replaced. All its children have one layout of memory.
MOST_FORKS = 500
# Signals of a child that has crashed. The next ones get another layout of memory, so that nobody
# learns it from crash to crash.
_CRASHES = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}
# Seconds within which a program is linked, and has shown that it works.
_START_TIMEOUT = 20.0
# Seconds until a server that has failed is started again: at once, then doubled each time.
_FIRST_DELAY, _MOST_DELAY = 1.0, 60.0
# Seconds after which a server that fails has not failed at its start.
_PROVEN = 60.0
# What the loader reads besides libraries: where they are, and which others are preloaded.
_LOADER_FILES = ("/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/alternatives")
# The end of what a first child prints.
_OUTPUT_LIMIT = 1000
# Let ffmpeg and ffprobe detect the format of a source, for which all versions read it.
_FAR_WORDS = ["-i", f"file:/dev/fd/{SOURCE_DESCRIPTOR}"]

_log = Logger()


@dataclass(eq=False)
class WarmProgram:
    """Keeps a fork server of one program, where that is possible.

    :ivar limits: of the first children, which have to show that the program works.
    :ivar new_server: creates a server that is not started.
    :ivar new_process: forks a child.
    :ivar obstacle: why there is none; None while there is one.
    """

    program: str
    cells: CellStarter
    reactor: Any
    environment: Mapping[str, str]
    limits: Limits
    most_forks: int = MOST_FORKS
    start_timeout: float = _START_TIMEOUT
    new_server: Callable[..., ForkServer] = ForkServer
    new_process: Callable[..., object] = ForkedProcess

    def __post_init__(self) -> None:
        self.obstacle: str | None = "not started yet"
        self._spawn = spawn_by(self.reactor, {**self.environment, **VARIABLES})
        self._is_open = False
        # The server that forks, the one that will replace it, the first child of that, and all of
        # these that have not ended.
        self._current: ForkServer | None = None
        self._next: ForkServer | None = None
        self._trial: _Trial | None = None
        self._running: set[ForkServer | _Trial] = set()
        self._forks = 0
        self._asks = False
        # When a server became ready, unless one has failed since then.
        self._ready_since = math.inf
        # What is found at paths that decide what is linked, as of the start of the server.
        self._linked: dict[str, object] = {}
        self._delay = 0.0
        # The limit of a server's start, or the next start.
        self._call: IDelayedCall | None = None
        self._warned: str | None = None
        self._settled: SharedResult[None] = SharedResult()
        self._stopped: SharedResult[None] = SharedResult()

    @property
    def _path(self) -> str:
        return shutil.which(self.program) or self.program

    @property
    def server_pid(self) -> int | None:
        return None if self._current is None else self._current.pid

    @property
    def cpu_seconds(self) -> float:
        """What linking has taken; 0 without a server."""
        return 0.0 if self._current is None else self._current.cpu_seconds

    @property
    def far_obstacle(self) -> str | None:
        """Why its children cannot read a source whose blocks arrive on demand; None if they can."""
        if self._current is None:
            return self.obstacle or "not linked yet"
        return None if self._asks else "it does not read its source by functions of a library"

    @property
    def is_settled(self) -> bool:
        """Whether there is a server, or none is being started."""
        return not self._is_open or self._settled.fired

    def open(self) -> None:
        if not self._is_open:
            self._is_open, self._settled, self._delay = True, SharedResult(), 0.0
            self._start()

    async def settle(self) -> None:
        """Wait until there is a server, or the start of one has failed."""
        if self._is_open:
            await self._settled.wait()

    async def close(self) -> None:
        """End the servers. Their children run on."""
        self.close_now()
        if self._running:
            await self._stopped.wait()

    def close_now(self) -> None:
        self._is_open = False
        self._current = self._next = None
        self._cancel_call()
        self._settled.fire(None)
        for process in self._running:
            process.kill("closed")

    def start(
        self,
        protocol: ProcessProtocol,
        command: Sequence[str],
        descriptors: Mapping[int, int | str],
        limits: Limits,
    ) -> bool:
        """Start a child; return whether that was possible."""
        server = self._current
        if server is None or (MAP_DESCRIPTOR in descriptors and not self._asks):
            return False
        words = self.cells.request(command, descriptors, limits)
        if self.replace_outdated():
            return False
        try:
            self._fork(server, protocol, words, descriptors)
        except NotForked as error:
            if error.is_lost:
                self._lose(server, str(error))
            else:
                self._warn(f"started anew for a child: {error}")
            return False
        self._forks += 1
        if self._forks == self.most_forks:
            # The present server forks until the next one is ready.
            self._start()
        return True

    def _fork(
        self,
        server: ForkServer,
        protocol: ProcessProtocol,
        words: Sequence[str],
        descriptors: Mapping[int, int | str],
    ) -> None:
        def exited(status: int) -> None:
            has_crashed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in _CRASHES
            if has_crashed and server is self._current:
                self._lose(server, "a child has crashed")

        fork = partial(server.fork, words)
        self.new_process(self.reactor, protocol, descriptors, fork, exited)

    def _lose(self, server: ForkServer, reason: str) -> None:
        self._current = None
        server.kill(reason)
        self._fail(reason)

    def replace_outdated(self) -> bool:
        """Replace a server whose program or libraries have changed; return whether they have."""
        server = self._current
        if server is None or self._linked == _identify(self._linked):
            return False
        self._current = None
        server.kill("replaced")
        self._start()
        return True

    def _start(self) -> None:
        if not self._is_open:
            return
        if self._current is None and self._settled.fired:
            self._settled = SharedResult()
        if self._next is not None:
            return
        self._cancel_call()
        path = self._path
        if (obstacle := executables.find_obstacle(path)) is not None:
            self._fail(obstacle, is_fault=False)
            return
        self._next = server = self.new_server(
            lambda ready: Deferred.fromCoroutine(self._prove(ready)), self._end
        )
        self._running.add(server)
        self._call = self.reactor.callLater(self.start_timeout, server.kill, "it takes too long")
        try:
            command = self.cells.server_command(path, self.limits)
            server.start(self._spawn, self.cells.library, command)
        except FileNotFoundError as error:
            remedy = library_command(self.cells.library)
            self._end(server, f"{error.filename} is missing; build it: `{remedy}`")
        except OSError as error:
            self._end(server, str(error))

    async def _prove(self, server: ForkServer) -> None:
        """Use a server if its first child prints a version, and try whether one reads a source."""
        try:
            folders = executables.read_folders(server.pid)
            program = self._path
            linked = _identify((program, *folders, *_LOADER_FILES))
            if linked[program] != executables.identify(f"/proc/{server.pid}/exe"):
                raise ValueError("it was replaced while it was linked")
            trial = await self._run_trial(server, [program, "-version"], {})
            self._discard(trial)
            if trial.fault is not None:
                raise ValueError(trial.fault)
            if server is not self._next:
                return
            asks = await self._asks_for_blocks(server, program)
        except (OSError, ValueError, NotForked) as error:
            server.kill(str(error))
            return
        if server is self._next:
            self._adopt(server, linked, asks=asks)

    async def _asks_for_blocks(self, server: ForkServer, program: str) -> bool:
        """Return whether a child whose source lacks its only block asks for that.

        A program may open and read files in a way that the library of the server does not notice.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The file of a single byte is the source, and also its map: the block is missing.
        with ours, theirs, open(os.memfd_create("source"), "r+b") as file:
            file.truncate(1)
            # The answer is the end of the socket.
            ours.shutdown(socket.SHUT_WR)
            descriptors = {
                SOURCE_DESCRIPTOR: file.fileno(),
                QUESTIONS_DESCRIPTOR: theirs.fileno(),
                MAP_DESCRIPTOR: file.fileno(),
            }
            trial = await self._run_trial(server, [program, *_FAR_WORDS], descriptors)
            asks = False
            with suppress(OSError):
                asks = not trial.has_crashed and bool(ours.recv(1, socket.MSG_DONTWAIT))
        # The end of a closed program may be reported here, when nothing is open any more.
        self._discard(trial)
        return asks

    async def _run_trial(
        self, server: ForkServer, command: Sequence[str], descriptors: Mapping[int, int]
    ) -> _Trial:
        trial = _Trial()
        words = self.cells.request(command, descriptors, self.limits)
        with open(os.devnull, "rb") as null:
            wanted: dict[int, int | str] = {0: null.fileno(), 1: "r", 2: "r", **descriptors}
            self._fork(server, trial, words, wanted)
        self._trial = trial
        self._running.add(trial)
        await trial.ended
        return trial

    def _adopt(self, server: ForkServer, linked: dict[str, object], *, asks: bool) -> None:
        self._cancel_call()
        former, self._current, self._next = self._current, server, None
        if former is not None:
            former.kill("replaced")
        self._linked, self._forks, self._asks = linked, 0, asks
        self._ready_since = self.reactor.seconds()
        if self.obstacle is not None:
            _log.info("{program} is linked once, and forked", program=self.program)
        self.obstacle = self._warned = None
        self._settled.fire(None)

    def _end(self, server: ForkServer, reason: str) -> None:
        self._discard(server)
        if server is self._next:
            self._next = None
            self._cancel_call()
            if self._trial in self._running:
                self._trial.kill(reason)
        elif server is self._current:
            self._current = None
        else:
            return
        self._fail(reason)

    def _discard(self, process: ForkServer | _Trial) -> None:
        self._running.discard(process)
        if not self._running:
            stopped, self._stopped = self._stopped, SharedResult()
            stopped.fire(None)

    def _fail(self, reason: str, *, is_fault: bool = True) -> None:
        """Start the program without a server for a while."""
        if not self._is_open:
            return
        if self._current is None:
            self.obstacle = reason
        if is_fault:
            self._warn(f"started anew for each child until it is linked again: {reason}")
        if self.reactor.seconds() - self._ready_since > _PROVEN:
            self._delay = 0.0
        self._ready_since = math.inf
        is_starting = self._next is not None
        if self._call is None:
            is_starting = not self._delay
            self._call = self.reactor.callLater(self._delay, self._start)
        self._delay = min(max(_FIRST_DELAY, 2 * self._delay), _MOST_DELAY)
        settled = self._settled
        if is_starting and self._current is None:
            self._settled = SharedResult()
        settled.fire(None)

    def _warn(self, reason: str) -> None:
        if reason != self._warned:
            self._warned = reason
            _log.warn("{program} is {reason}", program=self.program, reason=reason)

    def _cancel_call(self) -> None:
        call, self._call = self._call, None
        if call is not None and call.active():
            call.cancel()


def _identify(paths: Iterable[str]) -> dict[str, object]:
    return {path: executables.identify(path) for path in paths}


class _Trial(ProcessProtocol):
    """One of the first children of a server; ``fault`` is None if it ends well, with output."""

    transport: IProcessTransport
    fault: str | None = None
    has_crashed = False

    def __init__(self) -> None:
        self.ended: Deferred[None] = Deferred()
        self._output = b""

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        self._output = (self._output + data)[-_OUTPUT_LIMIT:]

    def processEnded(self, reason: Failure) -> None:
        self.has_crashed = getattr(reason.value, "signal", None) is not None
        if not (reason.check(ProcessDone) and self._output):
            text = self._output.decode("utf-8", "replace").strip()
            self.fault = f"a child fails ({reason.getErrorMessage()}) {text}".strip()
        self.ended.callback(None)

    def kill(self, reason: str) -> None:
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")
