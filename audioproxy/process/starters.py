"""What starts a child with its settings: programs that change them, and then execute the next one.

`audioproxy.process.cell` has the starter that confines a child too.
"""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from twisted.internet.interfaces import IProcessTransport
from twisted.internet.protocol import ProcessProtocol

from audioproxy._twisted import own_process_group
from audioproxy.process.child_limits import Limits

#: Seconds within which a program has to show that it works.
TRIAL_TIMEOUT = 10.0

#: Executes a command line. Descriptors are by their numbers in the child; "r" is a pipe from it.
Spawn: TypeAlias = Callable[[ProcessProtocol, Sequence[str], Mapping[int, int | str]], object]

# A child uses a whole CPU for as long as it runs, while the response with a stored variant takes
# microseconds. So requests have priority over children.
NICENESS = 10


class Spawner(Protocol):
    """The part of ``IReactorProcess`` that is used."""

    def spawnProcess(
        self,
        processProtocol: ProcessProtocol,
        executable: str,
        args: Sequence[str],
        env: Mapping[str, str],
        *,
        childFDs: Mapping[int, int | str],
    ) -> IProcessTransport: ...


def spawn_by(spawner: Spawner, environment: Mapping[str, str]) -> Spawn:
    """Return what executes command lines, each as the leader of a process group."""

    def spawn(
        protocol: ProcessProtocol, command: Sequence[str], descriptors: Mapping[int, int | str]
    ) -> None:
        with own_process_group():
            spawner.spawnProcess(protocol, command[0], command, environment, childFDs=descriptors)

    return spawn


class Starter(ABC):
    """Starts a child with its limits, and so that the kernel kills it with this process (D40)."""

    def start(
        self,
        spawn: Spawn,
        protocol: ProcessProtocol,
        command: Sequence[str],
        descriptors: Mapping[int, int | str],
        limits: Limits,
    ) -> None:
        """Start a child, or raise OSError; ``spawn`` starts a program that applies the settings."""
        spawn(protocol, self.command_line(command, descriptors, limits), descriptors)

    @abstractmethod
    def command_line(
        self, command: Sequence[str], descriptors: Container[int], limits: Limits
    ) -> list[str]:
        """Return a command line that starts a child with its settings and descriptors."""


@dataclass(frozen=True, slots=True)
class UtilLinuxStarter(Starter):
    """Starter that uses ``prlimit`` and ``setpriv``, where they exist. It confines nothing.

    Without setpriv, a child of a killed service runs to its own end: an encoder writes into a file
    without a name, and no broken pipe ends it.
    """

    prlimit: str | None = None
    setpriv: str | None = None
    nice: str | None = None

    @classmethod
    def find(cls, limits: Limits, timeout: float = TRIAL_TIMEOUT) -> UtilLinuxStarter:
        """Return the programs that work: others may have the name of a needed one."""
        prlimit, setpriv = shutil.which("prlimit"), shutil.which("setpriv")
        return cls(
            prlimit if _works(cls(prlimit=prlimit), limits, timeout) else None,
            setpriv if _works(cls(setpriv=setpriv), limits, timeout) else None,
            shutil.which("nice"),
        )

    @property
    def shortcomings(self) -> list[str]:
        """What this machine lacks, as sentences with a remedy each."""
        needed = (
            (self.prlimit, "prlimit is missing, so a source can make ffmpeg take all memory"),
            (self.setpriv, "setpriv is missing, so encoders may outlive a service that is killed"),
        )
        return [f"{fault}: apt-get install util-linux" for path, fault in needed if path is None]

    def command_line(
        self, command: Sequence[str], descriptors: Container[int], limits: Limits
    ) -> list[str]:
        words = [] if self.nice is None else [self.nice, "-n", str(NICENESS)]
        if self.prlimit is not None and limits:
            ranges = [f"--{name}={soft}:{hard}" for name, (soft, hard) in limits.items()]
            words += [self.prlimit, *ranges, "--"]
        if self.setpriv is not None:
            words += [self.setpriv, "--pdeathsig", "KILL", "--"]
        return [*words, *command]


def _works(starter: Starter, limits: Limits, timeout: float) -> bool:
    ended = run_briefly(starter.command_line(["true"], (), limits), timeout)
    return ended is not None and ended.returncode == 0


def run_briefly(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes] | None:
    """Return how a program ended: None after the timeout, status 127 where it cannot be started."""
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        return None
    except OSError:
        return subprocess.CompletedProcess(command, 127, b"", b"")
