"""A program with a fork server, for the tests of servers and of their children."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from twisted.internet.protocol import ProcessProtocol
from twisted.logger import LogLevel, formatEvent
from twisted.trial.unittest import TestCase

from audioproxy._twisted import ForkedProcess
from audioproxy.process.cell import CellStarter, ConfinedProgram
from audioproxy.process.child import Child, Exit
from audioproxy.process.child_limits import ChildLimits, Limits
from audioproxy.process.find_starter import BINARY
from audioproxy.process.fork_server import ForkServer
from audioproxy.process.spawn import Launcher
from audioproxy.process.starters import Spawn, Starter
from audioproxy.process.warm import WarmProgram
from audioproxy.process.warm_starter import WarmStarter
from tests.support.processes import open_descriptors, opened_since
from tests.support.service import PATIENCE, TEST_PATIENCE, all_children, is_running, reactor, until
from tests.support.stand_ins import compile_program

#: The environment of all children.
ENVIRONMENT = {"LC_ALL": "C"}
# The number of threads of this machine changes.
_LIMITS = ChildLimits(1 << 30, lambda: 100)


class RecordingStarter(Starter):
    """Starter of children without a server.

    :ivar commands: what it has started.
    """

    def __init__(self, starter: Starter) -> None:
        self.commands: list[Sequence[str]] = []
        self._starter = starter

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
        self._starter.start(spawn, protocol, command, descriptors, limits)

    def command_line(
        self, command: Sequence[str], descriptors: Container[int], limits: Limits
    ) -> list[str]:
        return self._starter.command_line(command, descriptors, limits)


def connect(
    program: str, binary: Path = BINARY, **options: Any
) -> tuple[WarmStarter, RecordingStarter]:
    """Return a starter that is not open, with one program, and what starts it without a server.

    :param options: fields of its `WarmProgram`. By default, it waits for servers that are slow.
    """
    cells = CellStarter(str(binary), {program: ConfinedProgram.of(program)})
    options = {
        "reactor": reactor,
        "start_timeout": PATIENCE,
        "new_server": partial(ForkServer, answer_timeout=PATIENCE),
        **options,
    }
    limits = _LIMITS.of_child(PATIENCE, None)
    warm = WarmProgram(program, cells, environment=ENVIRONMENT, limits=limits, **options)
    cold = RecordingStarter(cells)
    return WarmStarter(cold, {program: warm}, is_wanted=True), cold


def launcher_of(starter: Starter) -> Launcher:
    """Return a launcher that uses a starter."""
    return Launcher(reactor, reactor, ENVIRONMENT, starter, _LIMITS)


@cache
def plain_program() -> str:
    """Return a stand-in, compiled once for all tests in trial's working folder."""
    return str(compile_program(Path("stand-in").resolve()))


class WarmCase(TestCase):
    """A stand-in with a server.

    No test waits for a server that is slow, except for those that never answer.

    :ivar servers: all that were started.
    :ivar processes: all children of them, with their trials.
    :ivar cold: what was started without a server.
    """

    timeout = TEST_PATIENCE

    async def setUp(self) -> None:  # type: ignore[override]
        # The first child opens descriptors that stay open.
        await Launcher(reactor, reactor, ENVIRONMENT).launch(["/bin/true"], {}, PATIENCE).wait()
        self.folder = Path(self.mktemp()).resolve()
        self.servers: list[ForkServer] = []
        self.processes: list[ForkedProcess] = []

    def new_server(self, *arguments: Any) -> ForkServer:
        """Return a server that is not started."""
        self.servers.append(ForkServer(*arguments, answer_timeout=PATIENCE))
        return self.servers[-1]

    def new_process(self, *arguments: Any) -> None:
        """Fork a child."""
        self.processes.append(ForkedProcess(*arguments))

    def connect(self, program: str, binary: Path = BINARY, **options: Any) -> WarmProgram:
        """Use a program, which is not started, and return it.

        At the end of the test, no process and no descriptor may be left.
        """
        before = open_descriptors()
        self.program = program
        self.starter, cold = connect(
            program, binary, new_server=self.new_server, new_process=self.new_process, **options
        )
        self.cold = cold.commands
        self.launcher, self.cold_launcher = launcher_of(self.starter), launcher_of(cold)

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
        command = [self.program, *words]
        return await self.cold_launcher.launch(command, {}, PATIENCE, stdout_limit=1 << 20).wait()

    async def waiting(self, child: Child) -> int:
        """Wait until a child waits; return its process ID. It is killed at the end of the test."""

        async def kill() -> None:
            child.kill()
            await child.wait()

        self.addCleanup(kill)
        await until(lambda: child.protocol.stdout == b"waiting\n", "the child to wait")
        assert child.protocol.pid is not None
        return child.protocol.pid

    async def until_replaced(self, warm: WarmProgram, server: int) -> None:
        """Wait until a server has ended, and another one is in use."""
        await until(lambda: not is_running(server), "the end of the server")
        await until(lambda: warm.server_pid not in (None, server), "the next server")


def running_server(warm: WarmProgram) -> int:
    """Return the process ID of the server in use, which there has to be."""
    pid = warm.server_pid
    assert pid is not None, warm.obstacle
    return pid


def warnings(events: Sequence[Any]) -> list[str]:
    """Return the text of all warnings and errors."""
    serious = (LogLevel.warn, LogLevel.error, LogLevel.critical)
    return [str(formatEvent(event)) for event in events if event["log_level"] in serious]
