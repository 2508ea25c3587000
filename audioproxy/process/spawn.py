"""Starts child processes, with what all of them have in common.

The spawn prefix is a list of words ahead of a child's command line: programs such as ``setpriv``
that set something up and then become the child.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from twisted.internet.interfaces import IProcessTransport, IReactorTime
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger

from audioproxy.process.child import Child

# Seconds for setpriv to show that it knows the option.
_SECONDS = 5

# Errors of a start that are the program's own, and do not pass by themselves.
_UNUSABLE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC)

_log = Logger()


class SpawnFailed(Exception):
    """The program could not be started at all."""


class Spawner(Protocol):
    """The part of ``IReactorProcess`` that is used."""

    def spawnProcess(  # noqa: D102
        self,
        processProtocol: ProcessProtocol,
        executable: str,
        args: Sequence[str],
        env: Mapping[str, str],
        *,
        childFDs: Mapping[int, int | str],
    ) -> IProcessTransport: ...


@dataclass(frozen=True, slots=True)
class Launcher:
    """Everything that all children have in common.

    :ivar environment: their whole environment; nothing of the service's own leaks in (D45).
    :ivar parent_death_prefix: has a child killed when this process ends (D40).
    :ivar session_prefix: gives a child a session of its own; it goes ahead of the other prefix.
    :ivar not_started: called where a program could not be started.
    """

    spawner: Spawner
    clock: IReactorTime
    environment: Mapping[str, str]
    parent_death_prefix: tuple[str, ...] = ()
    session_prefix: tuple[str, ...] = ()
    not_started: Callable[[], object] = lambda: None

    def launch(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        *,
        stdout_limit: int = 0,
        keep_pattern: re.Pattern[bytes] | None = None,
        niceness: int = 0,
        output_limit: int | None = None,
        parent_death_signal: bool = True,
    ) -> Child:
        """Start a program; its stdin is empty and its stderr is kept.

        :param descriptors: the child's descriptor numbers, each with the one of ours it gets.
            They stay ours to close.
        :param stdout_limit: capture at most so many bytes of stdout; 0 where ``descriptors``
            says what stdout is.
        :param keep_pattern: lines of stderr to keep, however much comes after them.
        :param niceness: added to the niceness of this process.
        :param output_limit: bytes that a file may grow to by its writes.
        :param parent_death_signal: kill the child when this process ends. A child that writes into
            a pipe of ours ends by itself, and is spared the start of one more program.
        :raises SpawnFailed: where the program cannot be started.
        """
        child = Child(self.clock, stdout_limit, keep_pattern, self.not_started)
        prefix = self.parent_death_prefix if parent_death_signal else ()
        command = [*self.session_prefix, *prefix, *arguments]
        try:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            try:
                wanted: dict[int, int | str] = {0: stdin, 2: "r", **descriptors}
                if stdout_limit:
                    wanted[1] = "r"
                self.spawner.spawnProcess(
                    child.protocol, command[0], command, self.environment, childFDs=wanted
                )
            finally:
                os.close(stdin)
        except OSError as error:
            if error.errno in _UNUSABLE:
                self.not_started()
            raise SpawnFailed(f"{command[0]}: {error.strerror}") from error
        if output_limit is not None:
            child.limit_output(output_limit)
        if niceness:
            child.renice(niceness)
        return child


def find_parent_death_prefix() -> tuple[str, ...]:
    """Return the words that end a child when this process dies, however that happens (D40).

    The encoder writes into a file, so no broken pipe would tell it. Where util-linux is
    missing, a child of a killed service runs to its own end, into a file without a name.
    """
    prefix: tuple[str, ...] = (shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL", "--")
    try:
        # Other programs of that name do not know the option.
        subprocess.run([*prefix, "true"], check=True, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        _log.warn("util-linux's setpriv is not there: encoders may outlive a killed service")
        return ()
    return prefix


def find_session_prefix() -> tuple[str, ...]:
    """Return the words that keep a terminal's Ctrl-C from a child.

    Encoders would get it too, which would leave the drain nothing to wait for.
    """
    setsid = shutil.which("setsid") if os.isatty(0) else None
    return () if setsid is None else (setsid,)
