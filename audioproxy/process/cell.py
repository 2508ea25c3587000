"""What ffmpeg and ffprobe may do: the cell that each of these children runs in.

Decoders read hostile input. Code that takes one over finds one open source, one open output and CPU
time: the table below is all that it can use. The program ``audioproxy-cell`` (``cell.c``) has the
kernel enforce that, with Landlock and a seccomp filter, and then executes the child's program. It
also sets the limits and the parent-death signal of each child.

``setpriv`` has Landlock since util-linux 2.40, which Debian 12 lacks, and no filter for sockets.
``bwrap`` needs user namespaces, which many containers forbid, and starts a further process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from audioproxy.media.inputs import MAP_DESCRIPTOR, SOURCE_DESCRIPTOR
from audioproxy.process.child_limits import Limits, resource_number
from audioproxy.process.executables import find_interpreters
from audioproxy.process.starters import NICENESS, Starter

# What each dynamically linked program reads.
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_LOADERS = (
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
)
# What a child may do, besides computing, and reading and writing what it inherits. It can start
# threads, but no other program, no process and no socket. It can signal only itself. It may open
# the file of its source again, for reading, and it may read these files, and files in these
# folders. Programs that are linked already read random numbers, for some muxers.
_READABLE_WHEN_STARTED = (*_LIBRARIES, "/etc/ld.so.cache", "/dev/urandom")
_READABLE_WHEN_LINKED = ("/dev/urandom",)
_WRITABLE = "/dev/null"

# A server cannot have limits of time, output and threads: its children have their own.
_COMMON_LIMITS = ("core", "memlock", "data", "as", "nofile", "stack")


@dataclass(frozen=True, slots=True)
class ConfinedProgram:
    """A program in a cell: the paths of itself, its interpreters and the dynamic loaders."""

    executable: tuple[str, ...]
    is_script: bool

    @classmethod
    def of(cls, program: str) -> ConfinedProgram:
        interpreters = find_interpreters(program)
        return cls((program, *interpreters, *_LOADERS), bool(interpreters))

    def libraries(self) -> list[str]:
        """Return the folders of its own libraries at present: a link may lead to others later."""
        own = [path for path in self.executable if path not in _LOADERS]
        folders = {os.path.dirname(os.path.realpath(path)) for path in own}
        libraries = {f"{folder[:-4]}/lib" for folder in folders if folder.endswith("/bin")}
        return sorted(libraries.difference(_LIBRARIES))


@dataclass(frozen=True, slots=True)
class CellStarter(Starter):
    """Starter that confines ffmpeg and ffprobe, each in a cell, and no other program.

    :ivar programs: by the path that starts them.
    """

    binary: str
    programs: Mapping[str, ConfinedProgram]
    unconfined: tuple[str, ...] = ()

    def command_line(
        self, command: Sequence[str], descriptors: Container[int], limits: Limits
    ) -> list[str]:
        program = command[0]
        path = _find(program)
        words = [self.binary, *_settings(limits)]
        if (confined := self.programs.get(program)) is not None:
            if path != program:
                # It was missing at the start of the service, and has been installed since then.
                confined = ConfinedProgram.of(path)
            readable = (*_READABLE_WHEN_STARTED, *confined.libraries())
            words += _grant(readable, descriptors)
            if confined.is_script:
                words.append("-s")
            for executable in confined.executable:
                words += ["-x", executable]
        return [*words, "--", path, *command[1:]]

    @property
    def library(self) -> str:
        """The path of what makes a fork server of a program."""
        return f"{self.binary}.so"

    def server_command(self, program: str, limits: Limits) -> list[str]:
        """Return the command line that starts a program to be linked, without its arguments."""
        common = {name: limits[name] for name in _COMMON_LIMITS if name in limits}
        return [self.binary, "-k", "-g", *_limit(common), "--", program]

    def request(
        self, command: Sequence[str], descriptors: Container[int], limits: Limits
    ) -> list[str]:
        """Return the words that start a child of a linked program: see ``cell.c``."""
        words = [*_settings(limits), *_grant(_READABLE_WHEN_LINKED, descriptors)]
        if MAP_DESCRIPTOR in descriptors:
            words.append("-m")
        return [*words, "--", _find(command[0]), *command[1:]]


def _find(program: str) -> str:
    """Return the path of a program: execve(2) does not search the PATH."""
    return program if os.sep in program else shutil.which(program) or program


def _settings(limits: Limits) -> list[str]:
    return ["-k", "-n", str(NICENESS), *_limit(limits)]


def _limit(limits: Limits) -> list[str]:
    words = []
    for name, (soft, hard) in limits.items():
        words += ["-l", f"{resource_number(name)}={soft}:{hard}"]
    return words


def _grant(readable: Iterable[str], descriptors: Container[int]) -> list[str]:
    """Return the options of a cell."""
    words = ["-c"]
    for path in readable:
        words += ["-r", path]
    words += ["-w", _WRITABLE]
    if SOURCE_DESCRIPTOR in descriptors:
        words += ["-d", str(SOURCE_DESCRIPTOR)]
    return words
