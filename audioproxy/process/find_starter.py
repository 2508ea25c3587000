"""The starter of this machine's children: whether they can be confined, and what is missing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from audioproxy.process.cell import CellStarter, ConfinedProgram
from audioproxy.process.child_limits import Limits
from audioproxy.process.starters import TRIAL_TIMEOUT, Starter, UtilLinuxStarter, run_briefly

#: The source of ``audioproxy-cell`` and of its library, and the path where the program is expected.
#: The library is beside it. An upgrade may turn a link to another version while this one runs.
SOURCE = Path(__file__).with_name("cell.c")
BINARY = Path(sys.prefix).resolve() / "bin" / "audioproxy-cell"

# The first versions of Landlock that confine files, and TCP.
_WITH_FILES, _WITH_PORTS = 1, 4


def find_starter(
    programs: Iterable[str],
    limits: Limits,
    environment: Mapping[str, str],
    *,
    expected: Path | None = None,
    timeout: float = TRIAL_TIMEOUT,
) -> tuple[Starter, list[str]]:
    """Return the best starter of this machine, and its shortcomings: sentences with a remedy each.

    This blocks while it tries the programs, in an environment without secrets (D45).

    :param expected: the path of ``audioproxy-cell``, by default `BINARY`. If there is none, one in
        the PATH takes its place.
    :param timeout: seconds of each trial.
    """
    expected = expected or BINARY
    binary = str(expected) if os.path.exists(expected) else shutil.which(expected.name)
    versions = _query(binary, timeout) if binary is not None else None
    if binary is None or versions is None:
        starter = UtilLinuxStarter.find(limits, timeout)
        missing = (
            f"{expected.name} is missing or does not run, so code in a decoder can do what this"
            " user can; install gcc and libc6-dev, and build it:"
            f" `cc -O2 -static -o {expected} {SOURCE} && {library_command(f'{expected}.so')}`"
        )
        return starter, [missing, *starter.shortcomings]
    landlock, has_filters = versions
    shortcomings = _kernel_shortcomings(landlock, has_filters=has_filters)
    confined, unconfined = {}, []
    for program in programs:
        found = ConfinedProgram.of(program)
        if _runs_in_cell(binary, program, found, landlock, limits, environment, timeout):
            confined[program] = found
        else:
            unconfined.append(program)
            shortcomings.append(
                f"{program} runs without a cell, so code in a decoder can do what this user can: it"
                " is a script, or fails in a cell; ffmpeg itself is required in the PATH"
            )
    return CellStarter(binary, confined, tuple(unconfined)), shortcomings


def library_command(library: str) -> str:
    return f"cc -O2 -shared -fPIC -o {library} {SOURCE}"


def _query(binary: str, timeout: float) -> tuple[int, bool] | None:
    """Return the version of Landlock (0 is none), and whether seccomp filters work."""
    ended = run_briefly([binary, "-q"], timeout)
    try:
        landlock, filters = (ended.stdout if ended else b"").split()
        return int(landlock), filters == b"1"
    except ValueError:
        return None


def _kernel_shortcomings(landlock: int, *, has_filters: bool) -> list[str]:
    kernel = f"Linux {os.uname().release}"
    shortcomings = []
    if landlock < _WITH_FILES:
        shortcomings.append(
            f"{kernel} has no Landlock, or a unit or container forbids it, so code in a decoder can"
            " open every file that this user can; Linux 5.13 or newer with landlock in its"
            " parameter lsm= is required"
        )
    if not has_filters:
        sockets = "all" if landlock < _WITH_PORTS else "UDP and Unix"
        shortcomings.append(
            f"{kernel} has no seccomp filters, or a unit or container forbids them, so code in a"
            f" decoder can use {sockets} sockets, start processes, and change modes and times of"
            " files; a kernel with CONFIG_SECCOMP_FILTER is required"
        )
    return shortcomings


def _runs_in_cell(
    binary: str,
    program: str,
    confined: ConfinedProgram,
    landlock: int,
    limits: Limits,
    environment: Mapping[str, str],
    timeout: float,
) -> bool:
    of_system = f"/usr/bin/{os.path.basename(program)}"
    if confined.is_script:
        # Only Landlock confines what a script executes: without it, a trial proves nothing.
        if landlock < _WITH_FILES:
            return False
    elif not os.path.exists(program) or os.path.realpath(program) == of_system:
        # Trials of the system's own ffmpeg would delay each start by a tenth of a second. One that
        # is installed later runs in a cell or not at all.
        return True

    def fails(programs: Mapping[str, ConfinedProgram]) -> bool:
        command = CellStarter(binary, programs).command_line([program, "-version"], (), limits)
        ended = run_briefly(command, timeout, environment)
        return ended is not None and ended.returncode != 0

    # A program that is broken now, or too slow on a busy machine, keeps its cell.
    return not fails({program: confined}) or fails({})
