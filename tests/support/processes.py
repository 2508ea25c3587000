"""Child processes that a test controls step by step, and a list of open descriptors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from unittest import mock

from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.interfaces import IProcessTransport
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer


def open_descriptors() -> set[str]:
    """Return the open descriptors of this process, each with its target."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # The descriptor of the listing itself is closed already.
        with suppress(FileNotFoundError):
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


def opened_since(before: set[str]) -> set[str]:
    """Return the descriptors that are open now, and were not when `open_descriptors` was called.

    Descriptors of an earlier test may be closed meanwhile, when the garbage collector visits it.
    """
    return open_descriptors() - before


def set_environment(case: SynchronousTestCase, **variables: str) -> None:
    """Set variables of the environment, until the end of a test."""
    change = mock.patch.dict(os.environ, variables)
    change.start()
    case.addCleanup(change.stop)


class FakePipe:
    """Pipe of a child, which a reactor reads unless it is told to stop.

    :ivar is_read: whether the reactor reads it.
    """

    def __init__(self) -> None:
        self.is_read = True

    def startReading(self) -> None:
        self.is_read = True

    def stopReading(self) -> None:
        self.is_read = False

    def doRead(self) -> None:
        """Read nothing: what a child has written was read at once."""


@implementer(IProcessTransport)
class FakeChild:
    """Child process whose output, exit and end of pipes are separate events, as in a real one.

    It holds copies of its inherited descriptors until it exits. Signals are only recorded: the test
    decides when the child dies of one.

    :ivar signals: the received signals in order.
    :ivar refusal: raised for each signal, if it is set.
    :ivar pipes: the pipe of its stderr.
    :ivar stdout_closed: whether the parent has closed its end of the stdout.
    :ivar pipes_closed: whether the parent has closed its ends of the pipes.
    """

    def __init__(
        self,
        protocol: ProcessProtocol,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Mapping[int, int | str],
    ) -> None:
        self.arguments = list(arguments)
        self.environment = dict(environment)
        self.signals: list[str] = []
        self.refusal: Exception | None = None
        self.pipes = {2: FakePipe()}
        self.stdout_closed = False
        self.pipes_closed = False
        self.alive = True
        self.ended = False
        self.piped = {number for number, what in descriptors.items() if what == "r"}
        self.inherited = {
            number: os.dup(what) for number, what in descriptors.items() if isinstance(what, int)
        }
        self._protocol = protocol
        self._reason: Failure | None = None

    def write_stdout(self, data: bytes) -> None:
        """Write to stdout, which is a pipe or a file."""
        assert self.alive, "the child has exited"
        if 1 in self.piped:
            self._protocol.childDataReceived(1, data)
        else:
            os.write(self.inherited[1], data)

    def write_stderr(self, data: bytes) -> None:
        """Write to stderr."""
        assert self.alive, "the child has exited"
        assert self.pipes[2].is_read, "the child waits"
        self._protocol.childDataReceived(2, data)

    def exit(self, code: int = 0, signal: int | None = None) -> None:
        """Exit, or die of a signal; the pipes stay open for now."""
        assert self.alive, "the child has exited already"
        self.alive = False
        for descriptor in self.inherited.values():
            os.close(descriptor)
        well = code == 0 and signal is None
        error = ProcessDone(0) if well else ProcessTerminated(None if signal else code, signal)
        self._reason = Failure(error)
        self._protocol.processExited(self._reason)

    def end(self) -> None:
        """Close all pipes, so that the parent is told that the process has ended."""
        assert self._reason is not None, "the child has not exited"
        assert not self.ended, "the child has ended already"
        self.ended = True
        self._protocol.processEnded(self._reason)

    def exit_and_end(
        self, code: int = 0, signal: int | None = None, *, stdout: bytes = b"", stderr: bytes = b""
    ) -> None:
        """Write the last output, exit and close all pipes."""
        if stdout:
            self.write_stdout(stdout)
        if stderr:
            self.write_stderr(stderr)
        self.exit(code, signal)
        self.end()

    def signalProcess(self, signalID: str) -> None:
        if not self.alive:
            raise ProcessExitedAlready
        if self.refusal is not None:
            raise self.refusal
        self.signals.append(signalID)

    def closeStdout(self) -> None:
        self.stdout_closed = True

    def loseConnection(self) -> None:
        self.pipes_closed = True


class FakeSpawner:
    """Spawner that starts a `FakeChild` for each call.

    :ivar children: all started children in order.
    :ivar refusal: raised instead of starting a child, if set.
    """

    def __init__(self) -> None:
        self.children: list[FakeChild] = []
        self.refusal: OSError | None = None

    @property
    def last(self) -> FakeChild:
        """The most recently started child."""
        return self.children[-1]

    @property
    def alive(self) -> list[FakeChild]:
        """The children that have not exited."""
        return [child for child in self.children if child.alive]

    def spawnProcess(
        self,
        processProtocol: ProcessProtocol,
        executable: str,
        args: Sequence[str],
        env: Mapping[str, str],
        *,
        childFDs: Mapping[int, int | str],
    ) -> FakeChild:
        if self.refusal is not None:
            raise self.refusal
        assert executable == args[0]
        child = FakeChild(processProtocol, args, env, childFDs)
        self.children.append(child)
        processProtocol.makeConnection(child)
        return child

    def kill_all(self) -> None:
        """Kill the children that a test leaves behind, so that no descriptor stays open."""
        for child in self.alive:
            child.exit_and_end(signal=9)
