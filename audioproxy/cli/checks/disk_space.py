"""Free space of a folder, compared with the space that renders may need."""

from __future__ import annotations

import os
import re
from pathlib import Path

from audioproxy.cli.checks.results import CheckResult, good, note
from audioproxy.cli.formatting import format_bytes

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def check_free_space(
    check: str, path: str, needed: int, consumers: str, advice: str
) -> CheckResult:
    """Compare the free space of a folder with the space that may be needed.

    :param needed: bytes, at most.
    :param consumers: the subject of "may take so many bytes".
    """
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    text = f"{path} ({filesystem_of(path)}) is writable and has {format_bytes(free)} free"
    if free < needed:
        return note(check, f"{text}; {consumers} may take {format_bytes(needed)}; {advice}")
    return good(check, text)


def filesystem_of(path: str) -> str:
    """Return the type of the filesystem that holds a folder, by the kernel's name for it."""
    try:
        table = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return "filesystem unknown"
    found, kind = "", "filesystem unknown"
    target = os.path.realpath(path)
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        mount = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), left.split()[4])
        # Of two filesystems with one mount point, the later one hides the other.
        if len(mount) >= len(found) and f"{target}/".startswith(f"{mount.rstrip('/')}/"):
            found, kind = mount, right.split()[0]
    return kind
