"""How much room there is in a folder, and how much may be needed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from audioproxy.cli.checks.results import Finding, good, note
from audioproxy.cli.formatting import bytes_in_words

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def room(what: str, path: str, needed: int, by: str, remedy: str) -> Finding:
    """Return whether there is room in a folder.

    :param needed: bytes, at the most.
    :param by: what needs them.
    """
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    text = f"{path} ({filesystem_of(path)}) is writable and has {bytes_in_words(free)} free"
    wanted = f"{by} may take {bytes_in_words(needed)}"
    return note(what, f"{text}; {wanted}; {remedy}") if free < needed else good(what, text)


def filesystem_of(path: str) -> str:
    """Return which kind of filesystem a folder is in, as the system calls it."""
    try:
        table = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return "filesystem unknown"
    found, kind = "", "filesystem unknown"
    target = os.path.realpath(path)
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        mount = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), left.split()[4])
        # Of two that are mounted at one place, the later one is on top.
        if len(mount) >= len(found) and f"{target}/".startswith(f"{mount.rstrip('/')}/"):
            found, kind = mount, right.split()[0]
    return kind
