"""Children that do what a test tells them, one step at a time, and a few real ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.interfaces import IProcessTransport
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure
from zope.interface import implementer


def open_descriptors() -> set[str]:
    """Return what this process has open, each descriptor with what it is."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # The listing's own is gone by now.
        with suppress(FileNotFoundError):
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


@implementer(IProcessTransport)
class FakeChild:
    """A child: what it says, its exit and the end of its pipes come separately, as they do.

    It holds copies of the descriptors that it inherits, until it exits. No signal has an effect
    of its own: the test says when the child dies of it.

    :ivar signals: what it was sent, in order.
    :ivar hung_up: the parent has closed its ends of the pipes.
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
        self.hung_up = False
        self.alive = True
        self.ended = False
        self.piped = {number for number, what in descriptors.items() if what == "r"}
        self.inherited = {
            number: os.dup(what) for number, what in descriptors.items() if isinstance(what, int)
        }
        self._protocol = protocol
        self._reason: Failure | None = None

    def say(self, data: bytes) -> None:
        """Write to stdout, be it a pipe or a file."""
        assert self.alive, "the dead do not speak"
        if 1 in self.piped:
            self._protocol.childDataReceived(1, data)
        else:
            os.write(self.inherited[1], data)

    def complain(self, data: bytes) -> None:
        """Write to stderr."""
        assert self.alive, "the dead do not speak"
        self._protocol.childDataReceived(2, data)

    def exit(self, code: int = 0, signal: int | None = None) -> None:
        """Exit, or be killed; the pipes stay open for now."""
        assert self.alive, "one dies once"
        self.alive = False
        for descriptor in self.inherited.values():
            os.close(descriptor)
        well = code == 0 and signal is None
        error = ProcessDone(0) if well else ProcessTerminated(None if signal else code, signal)
        self._reason = Failure(error)
        self._protocol.processExited(self._reason)

    def end(self) -> None:
        """Have all pipes closed; the child is reaped now."""
        assert self._reason is not None, "it has not exited"
        assert not self.ended, "it ends once"
        self.ended = True
        self._protocol.processEnded(self._reason)

    def die(self, code: int = 0, signal: int | None = None) -> None:
        """Exit and have all pipes closed."""
        self.exit(code, signal)
        self.end()

    def signalProcess(self, signalID: str) -> None:
        if not self.alive:
            raise ProcessExitedAlready
        self.signals.append(signalID)

    def loseConnection(self) -> None:
        self.hung_up = True


class FakeSpawner:
    """Starts `FakeChild` after `FakeChild`.

    :ivar children: all that were started, in order.
    :ivar refusal: raised in place of a start.
    """

    def __init__(self) -> None:
        self.children: list[FakeChild] = []
        self.refusal: OSError | None = None

    @property
    def last(self) -> FakeChild:
        """The child that was started last."""
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

    def put_down(self) -> None:
        """Kill what a test leaves behind, so that no descriptor stays open."""
        for child in self.alive:
            child.die(signal=9)
