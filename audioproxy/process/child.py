"""One child process, from its spawn until it is reaped."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IDelayedCall, IProcessTransport, IReactorTime
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.errors import MemoryExceeded, Refusal
from audioproxy.media.command.progress import STATUS
from audioproxy.media.diagnostics import one_line
from audioproxy.observe.log_context import Logger
from audioproxy.sources.interfaces import SourceFile

# Only the end of a child's stderr is kept: its last lines name the cause of a failure.
_STDERR_LIMIT = 8 * 1024
# Bytes of earlier lines that are kept because they match a pattern.
_KEPT_LIMIT = 2 * 1024
# Reads of 8 KiB, by Twisted, that empty a pipe of 64 KiB.
_PIPE_READS = 8
# Bytes of stderr that are read as they come. From then on, reading pauses after each piece, so that
# a child that prints without end waits, and does not keep this process busy. An hour of damaged
# audio prints up to 10 MiB.
_STDERR_BURST = 1 << 20
_STDERR_PIECE = 64 * 1024
_STDERR_PAUSE = 0.125
# Seconds between TERM and KILL.
_TERM_GRACE = 2.0
# Seconds after KILL within which a child should be gone. A child that hangs in a system call does
# not receive the signal; that is logged, and the wait for the child continues.
_KILL_GRACE = 5.0
# Seconds for which a process that a dead child left behind may keep the child's pipes open.
_PIPE_GRACE = 1.0

# Exit statuses of shells, env and setpriv for a program that cannot be run or found.
_NEVER_RAN = (126, 127)

_log = Logger()


@dataclass(eq=False)
class ChildTimeout(Exception):
    """The child exceeded its timeout and is dead; ``status`` is the last report of an encoder."""

    cpu_seconds: float
    status: bytes


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended.

    :ivar code: its exit status, or None where a signal ended it.
    :ivar stdout: the captured output, up to the limit.
    :ivar stderr: the last 8 KiB, after the earlier lines that were kept.
    :ivar overflowed: it was stopped because it wrote more to stdout than the limit.
    :ivar status: the last report of an encoder, which is no part of its stderr.
    """

    code: int | None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    overflowed: bool = False
    status: bytes = b""

    @property
    def never_ran(self) -> bool:
        """Whether its starter or a wrapper could not run the program."""
        return self.code in _NEVER_RAN

    @property
    def signal_name(self) -> str | None:
        if self.signal is None:
            return None
        # Most real-time signals have no name.
        names = {each.value: each.name for each in signal.Signals}
        return names.get(self.signal, f"signal {self.signal}")

    @property
    def ok(self) -> bool:
        """Whether the child exited with 0 and its stdout is complete."""
        return self.code == 0 and not self.overflowed


def read_cpu_seconds(pid: int | None) -> float:
    """Return the CPU time of a process, from proc_pid_stat(5); 0 where that is unknown."""
    try:
        # The program's name, in brackets, may contain anything. The state follows it.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(eq=False)
class Child:
    """A running child process. It is always reaped, whether it is awaited or stopped."""

    clock: IReactorTime
    timeout: float
    stdout_limit: int = 0
    keep_pattern: re.Pattern[bytes] | None = None
    on_spawn_failure: Callable[[], object] = lambda: None
    source: SourceFile | None = None

    def __post_init__(self) -> None:
        self.protocol = _ChildProtocol(self)
        self._reaped: SharedResult[Exit] = SharedResult()
        self._exit: Exit | None = None
        self._escalation: IDelayedCall | None = None
        self._cpu_seconds = 0.0
        # Of the request that started the child: timers and pipes call back outside of it (D54).
        self._context = copy_context()

    async def wait(self) -> Exit:
        """Return how the child ended, once it is dead and its pipes are closed.

        After its timeout, or if the caller is cancelled, the child is stopped. The call still ends
        only when the child is dead.

        :raises Refusal: why the source could not be read, which the child takes for its end.
        :raises ChildTimeout: after the timeout.
        """
        deadline = self.clock.callLater(self.timeout, self.stop)
        try:
            ended = await self._reaped.wait()
        except CancelledError:
            # More cancellations may follow while the child dies.
            while not self._reaped.fired:
                self.stop()
                with suppress(CancelledError):
                    await self._reaped.wait()
            raise
        finally:
            expired = not deadline.active()
            if not expired:
                deadline.cancel()
        if self.source is not None and self.source.failure is not None:
            raise self.source.failure
        if expired:
            raise ChildTimeout(self._cpu_seconds, ended.status)
        return ended

    @property
    def is_running(self) -> bool:
        """Whether the child has not ended, even if its end is not reported yet."""
        pid = self.protocol.pid
        if self.protocol.exited or pid is None:
            return not self.protocol.exited
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    @property
    def is_sound(self) -> bool:
        """Whether the child runs, or is known to have ended well."""
        return self.is_running or (self._exit is not None and self._exit.ok)

    def read_stderr(self) -> bytes | None:
        """Return the end of what it has printed to stderr, after the earlier lines that were kept.

        Returns None while reading pauses, because the child prints too much.
        """
        # The reactor may not have read yet what the child printed before this call.
        self.protocol.read_stderr_pipe()
        return None if self.protocol.is_stderr_paused else self.protocol.stderr

    def stop(self) -> None:
        """Send TERM to the child, and KILL if it does not end in time."""
        if not self._reaped.fired and self._escalation is None:
            # The kernel forgets it when the child is reaped.
            self._cpu_seconds = read_cpu_seconds(self.protocol.pid)
            self._schedule_escalation(_TERM_GRACE, self.kill)
            self._signal("TERM")

    def kill(self) -> None:
        if not self._reaped.fired:
            self._schedule_escalation(_KILL_GRACE, self._log_survival)
            self._signal("KILL")

    def ended(self, how: Exit) -> None:
        self._cancel_escalation()
        if how.never_ran:
            self.on_spawn_failure()
        self._exit = how
        self._reaped.fire(how)

    def _schedule_escalation(self, seconds: float, otherwise: Callable[[], None]) -> None:
        self._cancel_escalation()
        self._escalation = self.clock.callLater(seconds, otherwise)

    def _cancel_escalation(self) -> None:
        if self._escalation is not None and self._escalation.active():
            self._escalation.cancel()

    def _log_survival(self) -> None:
        self._log_error("child {pid} survived SIGKILL; waiting for its end", pid=self.protocol.pid)

    def _log_error(self, words: str, **fields: object) -> None:
        self._context.run(partial(_log.error, words, **fields))

    def _signal(self, name: str) -> None:
        transport, pid = self.protocol.transport, self.protocol.pid
        try:
            if not (pid is not None and _signal_group(pid, name)) and transport is not None:
                transport.signalProcess(name)
        except ProcessExitedAlready:
            pass
        except OSError as error:
            self._log_error("cannot signal a child: {error}", error=error)


@dataclass(slots=True, eq=False)
class _StderrTail:
    """The end of a child's stderr, and the earlier lines that match a pattern.

    :ivar status: the last report of an encoder. Reports are taken out of the lines around them.
    """

    keep_pattern: re.Pattern[bytes] | None
    kept: bytearray = field(default_factory=bytearray)
    data: bytearray = field(default_factory=bytearray)
    received: int = 0
    status: bytes = b""

    def add(self, more: bytes) -> None:
        self.data += more
        self.received += len(more)
        if reports := STATUS.findall(self.data):
            self.status = reports[-1]
            self.data = bytearray(STATUS.sub(b"", self.data))
        excess = len(self.data) - _STDERR_LIMIT
        if excess <= 0:
            return
        # Drop whole lines where there are any.
        excess = self.data.rfind(b"\n", 0, excess) + 1 or excess
        if self.keep_pattern is not None and len(self.kept) < _KEPT_LIMIT:
            lines = self.data[:excess].splitlines(keepends=True)
            self.kept += b"".join(line for line in lines if self.keep_pattern.search(line))
            del self.kept[_KEPT_LIMIT:]
        del self.data[:excess]


class _ChildProtocol(ProcessProtocol):
    """Collects the output of a child, and reports its end."""

    transport: IProcessTransport | None = None

    def __init__(self, child: Child) -> None:
        self._child = child
        self.stdout = bytearray()
        self._overflowed = False
        self._stderr = _StderrTail(child.keep_pattern)
        self.exited = False
        self.group: int | None = None
        self._close_pipes_call: IDelayedCall | None = None
        self._next_pause = _STDERR_BURST
        self._resume_call: IDelayedCall | None = None

    def connectionMade(self) -> None:
        self.group = self.pid

    @property
    def pid(self) -> int | None:
        return getattr(self.transport, "pid", None)

    @property
    def stderr(self) -> bytes:
        return bytes(self._stderr.kept + self._stderr.data)

    @property
    def is_stderr_paused(self) -> bool:
        return self._resume_call is not None

    @property
    def _stderr_pipe(self) -> Any:
        # Twisted's transports of processes have a reader for each pipe.
        return getattr(self.transport, "pipes", {}).get(2)

    def read_stderr_pipe(self) -> None:
        pipe, received = self._stderr_pipe, -1
        for _ in range(_PIPE_READS):
            if pipe is None or self.is_stderr_paused or self._stderr.received == received:
                break
            received = self._stderr.received
            pipe.doRead()

    def outReceived(self, data: bytes) -> None:
        self.stdout += data
        limit = self._child.stdout_limit
        if len(self.stdout) > limit:
            self._overflowed = True
            del self.stdout[limit:]
        if self._overflowed and self.transport is not None:
            self._child.stop()
            # It may ignore the signal, and print on.
            self.transport.closeStdout()

    def errReceived(self, data: bytes) -> None:
        self._stderr.add(data)
        if self._stderr.received >= self._next_pause and not self.exited:
            self._next_pause = self._stderr.received + _STDERR_PIECE
            self._stderr_pipe.stopReading()
            self._resume_call = self._child.clock.callLater(_STDERR_PAUSE, self._resume_stderr)

    def _resume_stderr(self) -> None:
        self._resume_call = None
        self._stderr_pipe.startReading()

    def processExited(self, reason: Failure) -> None:
        self.exited = True
        if self._resume_call is not None:
            # What the pipe holds ends with the cause of a failure.
            self._resume_call.cancel()
            self._resume_stderr()
        # Twisted reports the end when every pipe is closed. A process that the child left behind
        # may hold a pipe open forever.
        self._close_pipes_call = self._child.clock.callLater(_PIPE_GRACE, self._close_pipes)
        # What a wrapper or the child has started, and left behind. It may be of another user.
        if self.group is not None:
            with suppress(PermissionError):
                _signal_group(self.group, "KILL")

    def processEnded(self, reason: Failure) -> None:
        if self._close_pipes_call is not None and self._close_pipes_call.active():
            self._close_pipes_call.cancel()
        value = reason.value
        self._child.ended(
            Exit(
                code=getattr(value, "exitCode", None),
                signal=getattr(value, "signal", None),
                stdout=bytes(self.stdout),
                stderr=self.stderr,
                overflowed=self._overflowed,
                status=self._stderr.status,
            )
        )

    def _close_pipes(self) -> None:
        if self.transport is not None:
            self.transport.loseConnection()


def _signal_group(pid: int, name: str) -> bool:
    """Signal the process group that a child leads; return whether there is one."""
    try:
        os.killpg(pid, signal.Signals[f"SIG{name}"])
    except ProcessLookupError:
        return False
    return True


def log_failure(what: str, ended: Exit, cause: type[Refusal] | None = None) -> None:
    """Log how a child failed, with the end of its stderr."""
    lacks_memory = cause is MemoryExceeded
    log = _log.error if ended.never_ran and not lacks_memory else _log.warn
    log(
        "the {what} {failed} ({how}): {diagnostic}",
        what=what,
        failed="needs more memory than AP_MAX_CHILD_MEMORY" if lacks_memory else "failed",
        how=describe_exit(ended),
        diagnostic=one_line(ended.stderr),
    )


def describe_exit(ended: Exit) -> str:
    if ended.signal is not None:
        return f"ended by {ended.signal_name}"
    return f"exit status {ended.code}"
