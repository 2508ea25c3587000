"""What ffmpeg and ffprobe may do: the cell that each of these children runs in.

Decoders read hostile input. Code that takes one over finds one open source, one open output and CPU
time: the table below is all that it can use. The program ``audioproxy-cell`` (``cell.c``) has the
kernel enforce that, with Landlock and a seccomp filter, and then replaces itself with the child's
program. It also sets the limits and the parent-death signal of each child.

``setpriv`` of util-linux 2.40 can use Landlock too. But Debian 12 has an older one, and what
Landlock does not confine, such as sockets, needs a filter. ``bwrap`` needs user namespaces, which
many containers and distributions forbid, and starts a further process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from audioproxy.media.inputs import MAP_DESCRIPTOR, SOURCE_DESCRIPTOR
from audioproxy.process.child_limits import Limits, resource_number
from audioproxy.process.executables import find_interpreters
from audioproxy.process.starters import NICENESS, CommandLineStarter


@dataclass(frozen=True, slots=True)
class Rights:
    """What one kind of child may do, besides computing, and reading and writing what it inherits.

    It can start threads, but no other program, no process and no socket. It can signal only itself.
    It may open the file of its source again, for reading.

    :ivar readable: files, and folders with all files in them.
    :ivar writable: files that it may also write.
    """

    readable: tuple[str, ...]
    writable: tuple[str, ...] = ("/dev/null",)


# What each dynamically linked program reads.
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_LOADERS = (
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
)
#: A program that is started.
STARTED = Rights(readable=(*_LIBRARIES, "/etc/ld.so.cache", "/dev/urandom"))
#: A program that is linked already. Some muxers read random numbers.
LINKED = Rights(readable=("/dev/urandom",))

# A server cannot have limits of time, output and threads: its children have their own.
_COMMON_LIMITS = ("core", "memlock", "data", "as", "nofile", "stack")


@dataclass(frozen=True, slots=True)
class ConfinedProgram:
    """A program that runs in a cell.

    :ivar executable: the paths of the program, its interpreters and the dynamic loaders.
    """

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
class CellStarter(CommandLineStarter):
    """Starter that confines ffmpeg and ffprobe, each in a cell, and no other program.

    :ivar binary: the path of ``audioproxy-cell``.
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
            words += _grant(STARTED, descriptors, confined.libraries())
            if confined.is_script:
                words.append("-s")
            for executable in confined.executable:
                words += ["-x", executable]
        return [*words, "--", path, *command[1:]]

    @property
    def library(self) -> str:
        # It makes a fork server of a program.
        return f"{self.binary}.so"

    def server_command(self, program: str, limits: Limits) -> list[str]:
        """Return the command line that starts a program to be linked, without its arguments."""
        common = {name: limits[name] for name in _COMMON_LIMITS if name in limits}
        return [self.binary, "-k", "-g", *_limit(common), "--", program]

    def request(
        self, command: Sequence[str], descriptors: Container[int], limits: Limits
    ) -> list[str]:
        """Return the words that start a child of a linked program: see ``cell.c``."""
        words = [*_settings(limits), *_grant(LINKED, descriptors)]
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


def _grant(rights: Rights, descriptors: Container[int], more: Iterable[str] = ()) -> list[str]:
    """Return the options of a cell, which may read some more files and folders."""
    words = ["-c"]
    for path in (*rights.readable, *more):
        words += ["-r", path]
    for path in rights.writable:
        words += ["-w", path]
    if SOURCE_DESCRIPTOR in descriptors:
        words += ["-d", str(SOURCE_DESCRIPTOR)]
    return words
