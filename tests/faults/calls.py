"""The preloaded library that counts, fails and records system calls: `calls.c`.

A process gets it by `Page.variables` or `recorded`. The page arms the counting, and names the calls
that fail. `read_changes` yields what processes have changed in a folder.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).with_name("calls.c")

#: Kinds of calls, and what they concern, in the order of `calls.c`.
KINDS = (
    *("open", "read", "pread", "write", "pwrite", "fsync", "rename", "link", "unlink", "mkdir"),
    *("rmdir", "truncate", "stat", "statfs", "flock", "opendir", "mmap", "socket", "connect"),
    *("bind", "accept", "send", "recv", "sendfile", "dup", "spawn", "create"),
)
OBJECTS = ("path", "file", "folder", "socket", "pipe", "other")

#: The faults of a call that handles half of its bytes, or one; the others are numbers of errors.
SHORT, BYTE = -1, -2

_ROWS, _NAME = 8192, 104
# Armed, the calls to fail, the fault, failed calls, all calls; calls by kind and object; the calls.
_CONTROL = struct.Struct("<5Ii2I")
_COUNTS = struct.Struct(f"<{len(KINDS) * len(OBJECTS)}I")
_ROW = struct.Struct(f"<BBHiqII{_NAME}s")
_SIZE = _CONTROL.size + _COUNTS.size + _ROWS * _ROW.size


@cache
def library() -> Path:
    """Return the path of the library, which is built once for all tests in trial's folder."""
    made = Path("faults/calls.so").resolve()
    made.parent.mkdir(exist_ok=True)
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(_SOURCE)]
    subprocess.run(command, check=True, timeout=120)
    return made


# Counting and failing


@dataclass(frozen=True, order=True, slots=True)
class Step:
    """The n-th call of one kind that concerns one kind of object; the first one is 1."""

    kind: str
    object: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} of {self.object} number {self.number}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a process has made while its page was armed.

    :ivar name: the end of the path, or what the descriptor is.
    :ivar result: -1 for an error.
    :ivar failed: whether the library has failed it.
    """

    step: Step
    name: str
    result: int
    error: int
    failed: bool

    def __str__(self) -> str:
        mark = " <- fault" if self.failed else ""
        why = f" {errno.errorcode.get(self.error, self.error)}" if self.error else ""
        return f"{self.step}: {self.name!r} = {self.result}{why}{mark}"


def fault_name(fault: int) -> str:
    return {SHORT: "half", BYTE: "one byte"}.get(fault) or errno.errorcode[fault]


class Page:
    """The control page of one process, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path = path.resolve()
        path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a process that gets the library and this page."""
        return {"LD_PRELOAD": str(library()), "FAULTS_PAGE": str(self.path)}

    def arm(self, step: Step | None = None, fault: int = 0, times: int = 1) -> None:
        """Count the calls from now on, and fail one, or as many as follow it."""
        self.prepare(step, fault, times)
        self._map[0] = 1

    def prepare(self, step: Step | None = None, fault: int = 0, times: int = 1) -> None:
        """Reset the page, which the process arms itself, by `faults_arm`."""
        self.disarm()
        self._map[:] = bytes(_SIZE)
        if step is not None:
            what = KINDS.index(step.kind), OBJECTS.index(step.object)
            _CONTROL.pack_into(self._map, 0, 0, *what, step.number, times, fault, 0, 0)

    def disarm(self) -> None:
        self._map[0] = 0

    def close(self) -> None:
        self._map.close()

    @property
    def failed(self) -> int:
        """The number of calls that were failed."""
        return int(_CONTROL.unpack_from(self._map)[6])

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """The calls by kind and object."""
        numbers = _COUNTS.unpack_from(self._map, _CONTROL.size)
        what = [(kind, object) for kind in KINDS for object in OBJECTS]
        return +Counter(dict(zip(what, numbers, strict=True)))

    @property
    def calls(self) -> list[Call]:
        """The calls in order; the last ones, if they are many."""
        total = _CONTROL.unpack_from(self._map)[7]
        return [self._call(number % _ROWS) for number in range(max(0, total - _ROWS), total)]

    def _call(self, row: int) -> Call:
        place = _CONTROL.size + _COUNTS.size + row * _ROW.size
        kind, object, failed, error, result, number, _, name = _ROW.unpack_from(self._map, place)
        step = Step(KINDS[kind], OBJECTS[object], number)
        return Call(step, os.fsdecode(name.partition(b"\0")[0]), result, error, bool(failed))


# Recording


def recorded(root: Path, record: Path) -> dict[str, str]:
    """Return the variables of a process whose changes below a folder are recorded in a file.

    They are added to those that the file has. Python programs that the process starts are recorded,
    too.
    """
    variables = {"FAULTS_ROOT": str(root), "FAULTS_RECORD": str(record)}
    return {"LD_PRELOAD": str(library()), **variables}


class Change(Enum):
    """What a process has changed, by its number in `calls.c`."""

    CREATED = 0
    WRITTEN = 1
    TRUNCATED = 2
    SYNCED = 3
    RENAMED = 4
    LINKED = 5
    UNLINKED = 6
    MADE = 7
    REMOVED = 8
    CONTENT = 9


@dataclass(frozen=True, slots=True)
class Changed:
    """One change of a file or folder.

    :ivar process: the number of the process.
    :ivar inode: of the file, or of the folder that was made, removed or synced. The inode of a file
        that is gone may be used again: `Change.CREATED` begins a new file.
    :ivar path: below the root, which is the empty path itself. A file that was renamed since it was
        opened has its new path, and one that was removed ends with `` (deleted)``.
    :ivar target: the other path of a file that was renamed or linked.
    :ivar offset: of a write, and the size of a truncated file.
    :ivar data: what was written. `Change.CONTENT` precedes a sync: the whole file, to which
        another program may have written since.
    """

    change: Change
    process: int
    inode: int
    path: str
    target: str = ""
    offset: int = 0
    data: bytes = b""


_HEADER = struct.Struct("<IHHiIIQq")


def read_changes(record: Path) -> Iterator[Changed]:
    """Yield the changes of a record."""
    data, position = record.read_bytes(), 0
    while position < len(data):
        size, change, _, process, first, second, inode, offset = _HEADER.unpack_from(data, position)
        start, stop = position + _HEADER.size, position + 4 + size
        assert stop <= len(data), "the record is torn"
        path, target = data[start : start + first], data[start + first : start + first + second]
        yield Changed(
            Change(change),
            process,
            inode,
            os.fsdecode(path),
            os.fsdecode(target),
            offset,
            data[start + first + second : stop],
        )
        position = stop
