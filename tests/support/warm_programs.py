"""A program with a fork server, for the tests of servers and of their children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from twisted.internet.protocol import ProcessProtocol
from twisted.logger import LogLevel, formatEvent
from twisted.trial.unittest import TestCase

from audioproxy.process import child_limits
from audioproxy.process import fork_server as fork_server_module
from audioproxy.process import warm as warm_module
from audioproxy.process.cell import CellStarter, ConfinedProgram
from audioproxy.process.child import Child, Exit
from audioproxy.process.child_limits import ChildLimits, Limits
from audioproxy.process.find_starter import BINARY
from audioproxy.process.spawn import Launcher
from audioproxy.process.starters import Spawn
from audioproxy.process.warm import WarmProgram
from audioproxy.process.warm_starter import WarmStarter, warm_starter
from tests.support.processes import open_descriptors, opened_since
from tests.support.service import (
    PATIENCE,
    TEST_PATIENCE,
    all_children,
    is_running,
    reactor,
    until,
)
from tests.support.stand_ins import compile_program

#: The environment of all children.
ENVIRONMENT = {"LC_ALL": "C"}
_LIMITS = ChildLimits(1 << 30)


@dataclass(frozen=True, slots=True)
class RecordingStarter(CellStarter):
    """Starter of children without a server.

    :ivar commands: what it has started.
    """

    commands: list[Sequence[str]] = field(default_factory=list)

    def start(
        self,
        spawn: Spawn,
        protocol: ProcessProtocol,
        command: Sequence[str],
        descriptors: Mapping[int, int | str],
        limits: Limits,
    ) -> None:
        """Start a child, and note its command line."""
        self.commands.append(command)
        CellStarter.start(self, spawn, protocol, command, descriptors, limits)


def connect(program: str, binary: Path = BINARY) -> tuple[WarmStarter, Launcher]:
    """Return a starter that is not open, with one program, and a launcher that uses it."""
    return connect_to(RecordingStarter(str(binary), {program: ConfinedProgram.of(program)}))


def connect_to(cold: CellStarter) -> tuple[WarmStarter, Launcher]:
    """Return `connect`'s values for the programs of a starter."""
    warm = warm_starter(cold, reactor, ENVIRONMENT, _LIMITS.of_child(PATIENCE, None))
    return warm, Launcher(reactor, reactor, ENVIRONMENT, warm, _LIMITS)


@cache
def plain_program() -> str:
    """Return a stand-in, compiled once for all tests in trial's working folder."""
    return str(compile_program(Path("stand-in").resolve()))


class WarmCase(TestCase):
    """A stand-in with a server.

    No test waits for a server that is slow, except for those that never answer.
    """

    timeout = TEST_PATIENCE

    async def setUp(self) -> None:  # type: ignore[override]
        # The first child opens descriptors that stay open.
        await Launcher(reactor, reactor, ENVIRONMENT).launch(["/bin/true"], {}, PATIENCE).wait()
        self.patch(fork_server_module, "_ANSWER_TIMEOUT", PATIENCE)
        self.patch(warm_module, "_START_TIMEOUT", PATIENCE)
        # The number of threads of this machine changes.
        self.patch(child_limits, "_count_threads", lambda: 100)
        self.folder = Path(self.mktemp()).resolve()

    def connect(self, program: str, binary: Path = BINARY) -> WarmProgram:
        """Use a program, which is not started, and return it.

        At the end of the test, no process and no descriptor may be left.
        """
        before = open_descriptors()
        self.program = program
        self.cells = RecordingStarter(str(binary), {program: ConfinedProgram.of(program)})
        self.starter, self.launcher = connect_to(self.cells)

        async def close() -> None:
            await self.starter.close()
            self.assertEqual(([], set()), (all_children(), opened_since(before)))

        self.addCleanup(close)
        (warm,) = self.starter.programs.values()
        return warm

    async def open(self, program: str | None = None) -> WarmProgram:
        """Use a program, by default the stand-in, and wait for its server."""
        warm = self.connect(program or plain_program())
        self.starter.open()
        await self.starter.settle()
        return warm

    def launch(self, *words: str, **options: Any) -> Child:
        """Start the program."""
        return self.launcher.launch(
            [self.program, *words], {}, PATIENCE, stdout_limit=1 << 20, **options
        )

    async def run_program(self, *words: str) -> Exit:
        """Run the program to its end."""
        return await self.launch(*words).wait()

    async def run_cold(self, *words: str) -> Exit:
        """Run the program to its end, without its server."""
        return (
            await self.cold_launcher()
            .launch([self.program, *words], {}, PATIENCE, stdout_limit=1 << 20)
            .wait()
        )

    def cold_launcher(self) -> Launcher:
        """Return a launcher that uses no server."""
        return Launcher(reactor, reactor, ENVIRONMENT, self.cells, _LIMITS)

    @property
    def cold(self) -> list[Sequence[str]]:
        """What was started without a server."""
        return self.cells.commands

    async def waiting(self, child: Child) -> int:
        """Wait until a child waits; return its process ID. It is killed at the end of the test."""

        async def kill() -> None:
            child.kill()
            await child.wait()

        self.addCleanup(kill)
        await until(lambda: child.protocol._stdout == b"waiting\n", "the child to wait")
        assert child.protocol.pid is not None
        return child.protocol.pid

    async def until_replaced(self, warm: WarmProgram, server: int) -> None:
        """Wait until a server has ended, and another one is in use."""
        await until(lambda: not is_running(server), "the end of the server")
        await until(lambda: server_of(warm) not in (None, server), "the next server")


def server_of(warm: WarmProgram) -> int | None:
    """Return the process ID of the server in use."""
    return warm.server


def running_server(warm: WarmProgram) -> int:
    """Return the process ID of the server in use, which there has to be."""
    assert warm.server is not None, warm.obstacle
    return warm.server


def warnings(events: Sequence[Any]) -> list[str]:
    """Return the text of all warnings and errors."""
    serious = (LogLevel.warn, LogLevel.error, LogLevel.critical)
    return [str(formatEvent(event)) for event in events if event["log_level"] in serious]
