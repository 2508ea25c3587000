"""Start of child processes, with the settings that all of them share."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from twisted.internet.interfaces import IReactorTime

from audioproxy.process.child import Child
from audioproxy.process.child_limits import ChildLimits
from audioproxy.process.starters import Spawner, Starter, UtilLinuxStarter, spawn_by
from audioproxy.sources.interfaces import SourceFile

# Start errors that the program itself causes, and that persist until somebody repairs it.
_PERSISTENT_ERRORS = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC)


class SpawnFailed(Exception):
    """The program could not be started."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """The settings that all children share.

    :ivar environment: the children's whole environment, without the service's settings (D45).
    :ivar limits: None for children that need none.
    :ivar on_spawn_failure: called where a program could not be started.
    """

    spawner: Spawner
    clock: IReactorTime
    environment: Mapping[str, str]
    starter: Starter = field(default_factory=UtilLinuxStarter)
    limits: ChildLimits | None = None
    on_spawn_failure: Callable[[], object] = lambda: None

    def launch(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        timeout: float,
        *,
        source: SourceFile | None = None,
        stdout_limit: int = 0,
        keep_pattern: re.Pattern[bytes] | None = None,
        output_limit: int | None = None,
    ) -> Child:
        """Start a program with an empty stdin and a captured stderr.

        :param descriptors: of this process, by the child's numbers; the caller closes its own.
        :param timeout: seconds for which `Child.wait` waits at most. The kernel ends a child that
            has used that much time of every CPU.
        :param stdout_limit: bytes of stdout to capture; 0 where ``descriptors`` sets stdout.
        :param keep_pattern: of lines of stderr to keep, however much output follows them.
        :param output_limit: bytes to which the child's writes may grow a file.
        :raises SpawnFailed: where the program cannot be started.
        """
        failed = self.on_spawn_failure
        child = Child(self.clock, timeout, stdout_limit, keep_pattern, failed, source)
        limits = {} if self.limits is None else self.limits.of_child(timeout, output_limit)
        # Tags are UTF-8 in any locale. Python encodes all words as the locale does names of files.
        program, *words = arguments
        words = [os.fsdecode(word.encode("utf-8", "surrogateescape")) for word in words]
        try:
            with ExitStack() as held:
                stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                held.callback(os.close, stdin)
                wanted: dict[int, int | str] = {0: stdin, 2: "r", **descriptors}
                if source is not None:
                    wanted |= held.enter_context(source.inherit())
                if stdout_limit:
                    wanted[1] = "r"
                spawn = spawn_by(self.spawner, self.environment)
                self.starter.start(spawn, child.protocol, [program, *words], wanted, limits)
        except OSError as error:
            if error.errno in _PERSISTENT_ERRORS:
                failed()
            raise SpawnFailed(f"{program}: {error.strerror}") from error
        return child
