"""Free space of a directory, compared with the space that renders may need."""

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
    """Compare the free space of a directory with the space that renders may need.

    :param needed: the maximum, in bytes.
    :param consumers: what needs the space; "may take 2 GB" follows it in the message.
    """
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    text = f"{path} ({filesystem_of(path)}) is writable and has {format_bytes(free)} free"
    if free < needed:
        return note(check, f"{text}; {consumers} may take {format_bytes(needed)}; {advice}")
    return good(check, text)


def filesystem_of(path: str) -> str:
    """Return the type of the filesystem that contains a path, by its kernel name."""
    try:
        table = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return "filesystem unknown"
    found, kind = "", "filesystem unknown"
    target = os.path.realpath(path)
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        mount = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), left.split()[4])
        # If two filesystems have the same mount point, the later mount hides the earlier one.
        if len(mount) >= len(found) and f"{target}/".startswith(f"{mount.rstrip('/')}/"):
            found, kind = mount, right.split()[0]
    return kind
