"""Start of child processes, with the settings that all of them share.

The spawn prefix is a list of words ahead of a child's command line. It names programs such as
``setpriv``, which change a setting and then replace themselves with the child's program.
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

# Seconds within which setpriv has to show that it supports the option.
_SETPRIV_TIMEOUT = 5

# Start errors that the program itself causes, and that persist until somebody repairs it.
_PERSISTENT_ERRORS = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC)

_log = Logger()


class SpawnFailed(Exception):
    """The program could not be started."""


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
    """The settings that all children share.

    :ivar environment: the children's whole environment; it has none of the service's own settings
        (D45).
    :ivar parent_death_prefix: makes the kernel kill a child when this process ends (D40).
    :ivar session_prefix: gives a child a session of its own; it goes ahead of the other prefix.
    :ivar on_spawn_failure: called where a program could not be started.
    """

    spawner: Spawner
    clock: IReactorTime
    environment: Mapping[str, str]
    parent_death_prefix: tuple[str, ...] = ()
    session_prefix: tuple[str, ...] = ()
    on_spawn_failure: Callable[[], object] = lambda: None

    def launch(  # noqa: PLR0913 - most callers name one or two of the options
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
        """Start a program with an empty stdin and a captured stderr.

        :param descriptors: the child's descriptor numbers, each with the descriptor of this process
            that it inherits. The caller closes its own descriptors.
        :param stdout_limit: bytes of stdout to capture; 0 where ``descriptors`` sets stdout.
        :param keep_pattern: matching lines of stderr are kept, up to 2 KiB, however much output
            follows them.
        :param niceness: added to the niceness of this process.
        :param output_limit: bytes to which the child's writes may grow a file.
        :param parent_death_signal: kill the child when this process ends. A child that writes into
            a pipe of this process ends anyway, and is started faster without the additional
            program.
        :raises SpawnFailed: where the program cannot be started.
        """
        child = Child(self.clock, stdout_limit, keep_pattern, self.on_spawn_failure)
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
            if error.errno in _PERSISTENT_ERRORS:
                self.on_spawn_failure()
            raise SpawnFailed(f"{command[0]}: {error.strerror}") from error
        if output_limit is not None:
            child.limit_output(output_limit)
        if niceness:
            child.renice(niceness)
        return child


def find_parent_death_prefix() -> tuple[str, ...]:
    """Return the prefix that makes the kernel kill a child when this process dies (D40).

    The kernel does so for every cause of death. A broken pipe would not end an encoder, since it
    writes into a file. Without util-linux, a child of a killed service therefore runs to its own
    end, and writes into a file without a name.
    """
    prefix: tuple[str, ...] = (shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL", "--")
    try:
        # Other programs named setpriv do not support the option.
        subprocess.run([*prefix, "true"], check=True, capture_output=True, timeout=_SETPRIV_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        _log.warn("setpriv not found: encoders may outlive a killed service; install util-linux")
        return ()
    return prefix


def find_session_prefix() -> tuple[str, ...]:
    """Return the prefix that keeps a terminal's Ctrl-C from a child.

    Without it, Ctrl-C would end the encoders too, and a drain could not wait for their renders.
    """
    setsid = shutil.which("setsid") if os.isatty(0) else None
    return () if setsid is None else (setsid,)
