"""Files of programs: scripts, static and linked programs, and the libraries that these link."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

# Offsets in the header of an ELF file of 64 bits: elf(5).
_CLASS = slice(0, 6)
_MACHINE = slice(18, 20)
_HEADER = struct.Struct("<32xQ14xHH")
_SEGMENT_SIZE = 56
_PT_INTERP = 3
_ELF_64_LITTLE = b"\x7fELF\x02\x01"


def identify(path: str) -> object:
    """Return what changes if a file, or the list of files of a folder, is replaced."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def find_interpreters(program: str) -> list[str]:
    """Return the programs that execute a script, by its first line."""
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


def find_obstacle(program: str) -> str | None:
    """Return why a program is never linked ahead, by its header; None if it may be.

    Scripts, static programs, and those of other machines are started in the usual way.
    """
    try:
        # sys.executable is empty in some applications that embed Python.
        with open("/proc/self/exe", "rb") as file:
            machine = file.read(20)[_MACHINE]
        with open(program, "rb") as file:
            header = file.read(64)
            if len(header) < 64 or header[_CLASS] != _ELF_64_LITTLE or header[_MACHINE] != machine:
                return "it is a script, or a program for another machine"
            start, size, count = _HEADER.unpack(header[: _HEADER.size])
            file.seek(start)
            segments = file.read(size * count)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    kinds = {segments[at : at + 4] for at in range(0, len(segments), _SEGMENT_SIZE)}
    if _PT_INTERP.to_bytes(4, "little") not in kinds:
        return "it is linked statically"
    return None


def read_folders(pid: int | None, proc: str = "/proc") -> set[str]:
    """Return the folders of the libraries that a process has linked, from proc_pid_maps(5).

    :raises ValueError: where its children would have memory that can become code, or memory in
        common, or are those of an old library.
    """
    folders = set()
    program = os.readlink(f"{proc}/{pid}/exe")
    for line in Path(f"{proc}/{pid}/maps").read_text("utf-8", "surrogateescape").splitlines():
        _, rights, _, _, _, *path = line.split(maxsplit=5)
        if "wx" in rights:
            raise ValueError("a library needs memory that is writable and executable")
        if "w" in rights and "s" in rights:
            raise ValueError("a library needs memory that all children would share")
        if path and path[0].startswith("/") and "x" in rights:
            if path[0].endswith(" (deleted)"):
                raise ValueError("a library was replaced while it was linked")
            # The program itself may be in a folder that changes all the time.
            if path[0] != program:
                folders.add(os.path.dirname(path[0]))
    return folders
