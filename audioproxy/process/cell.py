"""What ffmpeg and ffprobe may do: the cell that each of these children runs in.

Decoders read hostile input. Code that takes one over finds one open source, one open output and CPU
time: the table below is all that it can use. The program ``audioproxy-cell`` (``cell.c``) has the
kernel enforce that, with Landlock and a seccomp filter, and then replaces itself with the child's
program. It also sets the limits and the parent-death signal of each child.

``setpriv`` of util-linux 2.40 can use Landlock too. But it does not confine connections, Debian 12
has an older one, and what Landlock does not confine needs a filter. ``bwrap`` needs user
namespaces, which many containers and distributions forbid, and starts a further process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import urlsplit

from audioproxy.process.starters import NICENESS, CommandLineStarter, Limits, resource_number


@dataclass(frozen=True, slots=True)
class Rights:
    """What one kind of child may do, besides computing, and reading and writing what it inherits.

    It can start threads, but no other program and no process. It can signal only itself.

    :ivar readable: files, and folders with all files in them.
    :ivar writable: files that it may also write.
    :ivar reopens: it may open the files of its inherited descriptors from 3 on, for reading.
    :ivar ports: TCP ports that it may connect to, besides that of its source. With any, it may send
        and receive UDP: Landlock does not confine that.
    """

    readable: tuple[str, ...]
    writable: tuple[str, ...] = ("/dev/null",)
    reopens: bool = False
    ports: tuple[int, ...] = ()


# What each dynamically linked program reads.
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_LOADERS = (
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
)
_PROGRAM = (*_LIBRARIES, "/etc/ld.so.cache", "/dev/urandom")
# What getaddrinfo(3) reads.
_NAMES = ("/etc/gai.conf", "/etc/host.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf")
# Where GnuTLS and OpenSSL look for certificates, in Debian and elsewhere.
_AUTHORITIES = (
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/gnutls",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/usr/local/share/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/share/crypto-policies",
)

#: A child without a source, such as the check of a version, and one that reads a pipe.
NO_SOURCE = Rights(readable=_PROGRAM)
#: A child that reads a local file, or the copy of a remote source.
LOCAL = Rights(readable=_PROGRAM, reopens=True)
#: A linked program, with any source but a remote one. Some muxers read random numbers.
LINKED = Rights(readable=("/dev/urandom",), reopens=True)
#: A child that reads a remote source. A long answer to a name lookup comes over TCP, from port 53.
REMOTE = Rights(readable=(*_PROGRAM, *_NAMES, *_AUTHORITIES), ports=(53,))


# A server cannot have limits of time, output and threads: its children have their own.
_COMMON_LIMITS = ("core", "memlock", "data", "as", "nofile", "stack")


@dataclass(frozen=True, slots=True)
class ConfinedProgram:
    """A program that runs in a cell.

    :ivar executable: the paths of the program, its interpreters and the dynamic loaders.
    :ivar is_script: whether an interpreter executes it.
    """

    executable: tuple[str, ...]
    is_script: bool

    @classmethod
    def of(cls, program: str) -> ConfinedProgram:
        """Return a program with its interpreters."""
        interpreters = _interpreters(program)
        return cls((program, *interpreters, *_LOADERS), bool(interpreters))

    def libraries(self) -> list[str]:
        """Return the folders of its own libraries, beside those of the programs.

        They are looked for at each start: a link may lead to another version by then.
        """
        own = [path for path in self.executable if path not in _LOADERS]
        folders = {os.path.dirname(os.path.realpath(path)) for path in own}
        libraries = {f"{folder[:-4]}/lib" for folder in folders if folder.endswith("/bin")}
        return sorted(libraries.difference(_LIBRARIES))


def _interpreters(program: str) -> list[str]:
    """Return the paths of the programs that execute a script, by its first line; of others none."""
    try:
        with open(program, "rb") as file:
            first = file.readline(256)
    except OSError:
        return []
    if not first.startswith(b"#!"):
        return []
    words = os.fsdecode(first[2:]).split()
    found = words[:1]
    if found and os.path.basename(found[0]) == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        found += filter(None, map(shutil.which, names[:1]))
    return found


@dataclass(frozen=True, slots=True)
class CellStarter(CommandLineStarter):
    """Starter that confines ffmpeg and ffprobe, each in a cell, and no other program.

    :ivar binary: the path of ``audioproxy-cell``.
    :ivar programs: the confined programs, by the path that starts them.
    """

    binary: str
    programs: Mapping[str, ConfinedProgram]

    def command_line(
        self, command: Sequence[str], descriptors: Iterable[int], limits: Limits
    ) -> list[str]:
        """Return a command line: see `CommandLineStarter`."""
        program = command[0]
        path = _find(program)
        words = [self.binary, *_settings(limits)]
        if (confined := self.programs.get(program)) is not None:
            if path != program:
                # It was missing at the start of the service, and has been installed since then.
                confined = ConfinedProgram.of(path)
            port, authorities = _origin(command)
            sources = [number for number in descriptors if number > 2]
            rights = REMOTE if port else LOCAL if sources else NO_SOURCE
            words += _grant(rights, sources, (*confined.libraries(), *authorities))
            if confined.is_script:
                words.append("-s")
            for executable in confined.executable:
                words += ["-x", executable]
            for number in (port, *rights.ports) if port else ():
                words += ["-p", str(number)]
        return [*words, "--", path, *command[1:]]

    @property
    def library(self) -> str:
        """The path of the library that makes a fork server of a program."""
        return f"{self.binary}.so"

    def server_command(self, program: str, limits: Limits) -> list[str]:
        """Return the command line that starts a program to be linked, without its arguments.

        :param limits: of any child. Those that all have in common apply to the server, too.
        """
        common = {name: limits[name] for name in _COMMON_LIMITS if name in limits}
        return [self.binary, "-k", "-g", *_limit(common), "--", program]

    def request(
        self, command: Sequence[str], descriptors: Iterable[int], limits: Limits
    ) -> list[str] | None:
        """Return the words that start a child of a linked program: see ``cell.c``.

        :returns: None for a child that reads a remote source.
        """
        if _origin(command)[0]:
            return None
        sources = [number for number in descriptors if number > 2]
        words = [*_settings(limits), *_grant(LINKED, sources)]
        return [*words, "--", _find(command[0]), *command[1:]]


def _find(program: str) -> str:
    """Return the path of a program: execve(2) does not search the PATH."""
    return program if os.sep in program else shutil.which(program) or program


def _settings(limits: Limits) -> list[str]:
    """Return the options of every child."""
    return ["-k", "-n", str(NICENESS), *_limit(limits)]


def _limit(limits: Limits) -> list[str]:
    words = []
    for name, (soft, hard) in limits.items():
        words += ["-l", f"{resource_number(name)}={soft}:{hard}"]
    return words


def _grant(rights: Rights, sources: Iterable[int], more: Iterable[str] = ()) -> list[str]:
    """Return the options of a cell.

    :param sources: the descriptors from 3 on.
    :param more: files and folders that it may read besides.
    """
    words = ["-c"]
    for path in (*rights.readable, *more):
        words += ["-r", path]
    for path in rights.writable:
        words += ["-w", path]
    if rights.reopens:
        for number in sources:
            words += ["-d", str(number)]
    return words


def _origin(command: Sequence[str]) -> tuple[int | None, list[str]]:
    """Return the TCP port of the source in a command line, and its file of authorities.

    The port is None for a source that is no URL of a server.
    """
    options = dict(pairwise(command))
    url = urlsplit(options.get("-i", ""))
    if url.scheme not in ("http", "https"):
        return None, []
    port = url.port or (443 if url.scheme == "https" else 80)
    return port, [options["-ca_file"]] if "-ca_file" in options else []
