"""Child processes, and which of them are fork servers or wait for a request."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from audioproxy.process.fork_server import WORDS
from tests.support.servers import RUNNING


def child_processes(pid: int) -> list[int]:
    """Return the children of a process, including zombies, but not those of the whole suite."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end in the meantime.
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text().split())
    return [child for child in found if child not in RUNNING and _group_of(child) not in RUNNING]


def _group_of(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


def command_line(pid: int) -> bytes:
    """Return the words of a process, each with a zero behind it; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def is_linked(pid: int) -> bool:
    """Return whether a process is a fork server, or was forked ahead of a request."""
    return command_line(pid).endswith(f"{WORDS[-1]}\0".encode())


def fork_servers(pid: int | None = None) -> list[int]:
    """Return a process's fork servers, each of which leads a group with a child forked ahead.

    The default is this process.
    """
    groups = []
    for child in filter(is_linked, child_processes(pid or os.getpid())):
        with suppress(ProcessLookupError):
            groups.append(os.getpgid(child))
    return [group for group, members in Counter(groups).items() if members > 1]
