"""The limits of memory, CPU time and more that the kernel enforces on each child."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from glob import glob
from typing import TypeAlias

#: The soft and the hard limit of resources, by the names that ``prlimit`` has for them.
Limits: TypeAlias = Mapping[str, tuple[int, int]]

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
# The usual size of a thread's stack, which counts as data.
_STACK = 8 << 20
# Threads that a child may start, at least, above all those of the user, which the limit counts: a
# child that starts all of its own does not stop a later one.
_LEAST_THREADS = 1024
# ffmpeg starts up to so many, and one for each CPU.
_THREADS_OF_FFMPEG = 20
_LOADAVG = "/proc/loadavg"
# CPU seconds between SIGXCPU, at which ffmpeg ends in order, and SIGKILL.
_CPU_GRACE = 5


def count_threads(loadavg: str = _LOADAVG) -> int | None:
    """Return the number of threads of all users, from proc_loadavg(5); None where unknown.

    Where systemd hides that file (ProcSubset=pid), those of this user are visible. The kernel
    compares RLIMIT_NPROC with the threads of the user. Those of root have no limit.
    """
    try:
        with open(loadavg, "rb") as file:
            return int(file.read().split()[3].split(b"/")[1])
    except (OSError, ValueError, IndexError):
        return len(glob("/proc/[0-9]*/task/*")) or None


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """The limits of each child; setrlimit(2) describes them.

    A few bytes of audio can make a decoder or a filter allocate gigabytes. The limits are set ahead
    of the child's program, so it cannot escape them, however busy this process is.

    :ivar memory: bytes of heap, stacks and other private memory (RLIMIT_DATA).
    :ivar count_threads: returns the number of threads that the kernel counts as the user's.
    """

    memory: int
    count_threads: Callable[[], int | None] = count_threads

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
            "stack": (_STACK, _STACK),
        }
        if output_limit is not None:
            values["fsize"] = (output_limit, output_limit)
        if (threads := self.count_threads()) is not None:
            # By default there is a render for each CPU, and all may start at the same moment.
            more = max(_LEAST_THREADS, 2 * cpus * (cpus + _THREADS_OF_FFMPEG))
            values["nproc"] = (threads + more, threads + more)
        for name, (soft, hard) in values.items():
            most, _ = resource.getrlimit(resource_number(name))
            if most != resource.RLIM_INFINITY:
                values[name] = (min(soft, most), min(hard, most))
        return values


def resource_number(name: str) -> int:
    """Return the number of a resource for setrlimit(2), from its name in `Limits`."""
    return int(getattr(resource, f"RLIMIT_{name.upper()}"))
