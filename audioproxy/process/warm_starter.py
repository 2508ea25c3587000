"""Starts ffmpeg and ffprobe by fork servers, or by their command lines where that is impossible."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any

from twisted.internet.protocol import ProcessProtocol

from audioproxy.media.inputs import MAP_DESCRIPTOR
from audioproxy.observe.log_context import Logger
from audioproxy.process.cell import CellStarter
from audioproxy.process.child_limits import Limits
from audioproxy.process.starters import Spawn, Starter
from audioproxy.process.warm import WarmProgram

_log = Logger()


class WarmStarter:
    """Starter that uses fork servers wherever that is possible, unless they are not wanted.

    :param cold: the starter of everything else.
    :param programs: by the path that starts them.
    :param obstacle: why another program has no server; None if all have one.
    """

    def __init__(
        self,
        cold: Starter,
        programs: Mapping[str, WarmProgram],
        *,
        is_wanted: bool,
        obstacle: str | None = None,
    ) -> None:
        self._cold = cold
        self.programs = programs
        self.is_wanted = is_wanted
        self._obstacle = obstacle
        self._is_closed = False
        self._has_warned = False

    @property
    def far_obstacles(self) -> list[str]:
        """Why some children cannot read sources whose blocks arrive on demand."""
        obstacles = [] if self._obstacle is None else [self._obstacle]
        for name, program in self.programs.items():
            if (obstacle := program.far_obstacle) is not None:
                obstacles.append(f"{name}: {obstacle}")
        return obstacles

    def open(self) -> None:
        self._is_closed = False
        for program in self.programs.values():
            program.open()

    async def prepare(self) -> None:
        self.open()
        await self.settle()

    async def settle(self) -> None:
        """Wait until each program has a server, or is known to have none."""
        for program in self.programs.values():
            await program.settle()

    async def can_preload(self) -> bool:
        """Return whether children of all programs can read sources whose blocks arrive on demand.

        This starts the servers, unless they are open already, and waits for those that are being
        started. Where it is impossible, one warning says that remote sources are copied.
        """
        if not self._is_closed:
            self.open()
        for program in self.programs.values():
            program.replace_outdated()
            while not program.is_settled:
                await program.settle()
        if self._is_closed:
            return False
        reasons = self.far_obstacles
        if reasons and not self._has_warned:
            _log.warn(
                "remote sources are copied before they are read: {reasons}; AP_WARM_PROGRAMS=1,"
                " audioproxy-cell with its library, and ffmpeg and ffprobe that are linked"
                " dynamically are required",
                reasons=", ".join(reasons),
            )
        self._has_warned = bool(reasons)
        return not reasons

    async def close(self) -> None:
        self.close_now()
        for program in self.programs.values():
            await program.close()

    def close_now(self) -> None:
        self._is_closed = True
        for program in self.programs.values():
            program.close_now()

    def start(
        self,
        spawn: Spawn,
        protocol: ProcessProtocol,
        command: Sequence[str],
        descriptors: Mapping[int, int | str],
        limits: Limits,
    ) -> None:
        program = self.programs.get(command[0])
        if program is not None and program.start(protocol, command, descriptors, limits):
            return
        # Without a server, nothing would ask for missing blocks.
        if MAP_DESCRIPTOR in descriptors:
            raise OSError(errno.EAGAIN, "the program is not linked now")
        self._cold.start(spawn, protocol, command, descriptors, limits)


def warm_starter(
    cold: Starter,
    reactor: Any,
    environment: Mapping[str, str],
    limits: Limits,
    *,
    is_wanted: bool = True,
) -> WarmStarter:
    """Return a starter with a server for each program that runs in a cell.

    :param cold: the starter where there is no server.
    :param limits: of the first children of each server.
    """
    programs: dict[str, WarmProgram] = {}
    obstacle = None
    if not is_wanted:
        obstacle = "AP_WARM_PROGRAMS is 0"
    elif not isinstance(cold, CellStarter):
        obstacle = "audioproxy-cell is missing"
    else:
        if cold.unconfined:
            obstacle = f"without a cell: {', '.join(cold.unconfined)}"
        programs = {
            name: WarmProgram(name, cold, reactor, environment, limits) for name in cold.programs
        }
    return WarmStarter(cold, programs, is_wanted=is_wanted, obstacle=obstacle)
