"""Start of child processes, with the settings that all of them share."""

from __future__ import annotations

import errno
import math
import os
import re
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from glob import glob

from twisted.internet.interfaces import IReactorTime

from audioproxy.process.child import Child
from audioproxy.process.starters import (
    Limits,
    Spawner,
    Starter,
    UtilLinuxStarter,
    resource_number,
    spawn_by,
)
from audioproxy.sources.interfaces import SourceFile

# With 0, the kernel would still start the program of its core_pattern for each crash, as root.
_CORE = 1
# Pages that are locked do not count as data. libgcrypt locks its secrets, some 32 KiB.
_LOCKED = 1 << 20
# Descriptors of one child. ffmpeg needs some ten. The kernel's buffers of sockets and pipes do not
# count as memory of the child, so their number limits them.
_MAX_DESCRIPTORS = 64
# Threads reserve far more address space than memory, 64 MiB for each thread's heap alone.
_ADDRESS_SPACE_FACTOR = 4
_MAX_ADDRESS_SPACE = 8 << 30
# The usual size of a thread's stack.
_STACK = 8 << 20
# Threads that a child may start, at least. The limit counts the threads of the whole user, so it is
# above the number at the start: a child that starts all of its own does not stop a later one.
_LEAST_THREADS = 1024
# ffmpeg starts up to so many, and one for each CPU.
_THREADS_OF_FFMPEG = 20
_LOADAVG = "/proc/loadavg"
# CPU seconds between SIGXCPU, at which ffmpeg ends in order, and SIGKILL.
_CPU_GRACE = 5

# Start errors that the program itself causes, and that persist until somebody repairs it.
_PERSISTENT_ERRORS = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC)


class SpawnFailed(Exception):
    """The program could not be started."""


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """The limits of each child, which the kernel enforces; setrlimit(2) describes them.

    A few bytes of audio can make a decoder or a filter allocate gigabytes. The limits are set ahead
    of the child's program, so it cannot escape them, however busy this process is.

    :ivar memory: bytes of heap, stacks and other private memory (RLIMIT_DATA).
    """

    memory: int

    def of_child(self, timeout: float, output_limit: int | None) -> Limits:
        """Return the limits of one child. A lower limit of this process stays in force.

        :param timeout: seconds for which the child may keep all CPUs busy.
        :param output_limit: bytes to which it may grow a file.
        """
        address_space = min(_ADDRESS_SPACE_FACTOR * self.memory, _MAX_ADDRESS_SPACE)
        cpus = os.cpu_count() or 1
        cpu = math.ceil(timeout) * cpus
        values = {
            "core": (_CORE, _CORE),
            "memlock": (_LOCKED, _LOCKED),
            "data": (self.memory, self.memory),
            "as": (max(self.memory, address_space),) * 2,
            "cpu": (cpu, cpu + _CPU_GRACE),
            "nofile": (_MAX_DESCRIPTORS, _MAX_DESCRIPTORS),
            # The stack of each thread counts as data.
            "stack": (_STACK, _STACK),
        }
        if output_limit is not None:
            values["fsize"] = (output_limit, output_limit)
        if (threads := _count_threads()) is not None:
            # By default there is a render for each CPU, and all may start at the same moment.
            more = max(_LEAST_THREADS, 2 * cpus * (cpus + _THREADS_OF_FFMPEG))
            values["nproc"] = (threads + more, threads + more)
        for name, limits in values.items():
            most, _ = resource.getrlimit(resource_number(name))
            if most != resource.RLIM_INFINITY:
                values[name] = (min(limits[0], most), min(limits[1], most))
        return values


def _count_threads() -> int | None:
    """Return the number of threads of all users, from proc_loadavg(5); None where unknown.

    Where systemd hides that file (ProcSubset=pid), those of this user are visible. The kernel
    compares RLIMIT_NPROC with the threads of the user. Those of root have no limit.
    """
    try:
        with open(_LOADAVG, "rb") as file:
            return int(file.read().split()[3].split(b"/")[1])
    except (OSError, ValueError, IndexError):
        return len(glob("/proc/[0-9]*/task/*")) or None


@dataclass(frozen=True, slots=True)
class Launcher:
    """The settings that all children share.

    :ivar environment: the children's whole environment; it has none of the service's own settings
        (D45).
    :ivar starter: starts the children, confines them, sets their limits, and makes the kernel kill
        them when this process ends (D40).
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

        :param descriptors: the child's descriptor numbers, each with the descriptor of this process
            that it inherits. The caller closes its own descriptors.
        :param timeout: seconds for which `Child.wait` waits at most. The kernel ends a child that
            has used that much time of every CPU.
        :param source: the source that it reads.
        :param stdout_limit: bytes of stdout to capture; 0 where ``descriptors`` sets stdout.
        :param keep_pattern: matching lines of stderr are kept, up to 2 KiB, however much output
            follows them.
        :param output_limit: bytes to which the child's writes may grow a file.
        :raises SpawnFailed: where the program cannot be started.
        """
        child = Child(
            self.clock, timeout, stdout_limit, keep_pattern, self.on_spawn_failure, source
        )
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
                self.on_spawn_failure()
            raise SpawnFailed(f"{program}: {error.strerror}") from error
        return child
