"""The faults that each call can have, by the manual pages."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tests.faults.calls import BYTE, SHORT, Step, fault_name

#: What no caller may take for an error: the call is to be repeated, or goes on with the rest.
HARMLESS = (errno.EINTR, errno.EAGAIN, SHORT, BYTE)

_DISK = (errno.EIO, errno.ENOMEM)
_FULL = (errno.EIO, errno.ENOSPC)
_PART = (errno.EINTR, SHORT, BYTE)

#: By the kind of the call, and by the object where that matters.
_FAULTS: dict[str, tuple[int, ...]] = {
    "open": (*_DISK, errno.EMFILE, errno.EINTR),
    "create": (*_FULL, errno.EMFILE, errno.EINTR),
    "read": _PART,
    "read file": (errno.EIO, *_PART),
    "pread": (errno.EIO, *_PART),
    "write": _PART,
    "write file": (*_FULL, *_PART),
    "pwrite": (*_FULL, *_PART),
    "fsync": (*_FULL, errno.EINTR),
    "rename": _FULL,
    "link": _FULL,
    "unlink": (errno.EIO,),
    "mkdir": _FULL,
    "rmdir": (errno.EIO,),
    "truncate": (errno.EIO, errno.EINTR),
    "stat": _DISK,
    "stat file": (errno.EIO,),
    "stat pipe": (),
    "stat socket": (),
    "stat other": (),
    "statfs": (errno.EIO,),
    "flock": (errno.ENOLCK, errno.EINTR),
    "opendir": (errno.EIO, errno.EMFILE),
    "mmap": (errno.ENOMEM,),
    "socket": (errno.EMFILE, errno.ENOMEM),
    "connect": (errno.ECONNREFUSED, errno.ENETUNREACH),
    "bind": (errno.EADDRINUSE,),
    "accept": (errno.EMFILE, errno.ECONNABORTED, errno.EINTR),
    "send": (errno.ECONNRESET, errno.ENOBUFS, *_PART),
    "recv": (errno.ECONNRESET, *_PART),
    "sendfile": (errno.EIO, *_PART),
    "dup": (errno.EMFILE,),
    "spawn": (errno.EAGAIN, errno.ENOMEM),
}


# Kinds of calls that may fail for long: a disk is full or broken, or descriptors or memory run out.
_LASTING = {
    *("open", "create", "write", "pwrite", "fsync", "rename", "mkdir", "statfs", "mmap"),
    *("socket", "dup", "spawn"),
}
_FOR_LONG = 1 << 31


@dataclass(frozen=True, order=True, slots=True)
class Fault:
    """One fault of one step, or of all calls of its kind from there on.

    :ivar times: of how many calls.
    """

    step: Step
    number: int
    times: int = 1

    @property
    def name(self) -> str:
        return fault_name(self.number) + (" from now on" if self.times > 1 else "")

    def __str__(self) -> str:
        return f"{self.name} at {self.step}"

    @property
    def is_harmless(self) -> bool:
        # A child that cannot be forked for now is an error for its request.
        return self.number in HARMLESS and self.step.kind != "spawn"


def faults_of(steps: Iterable[Step]) -> Iterator[Fault]:
    """Yield each fault of each step."""
    for step in steps:
        names = (f"{step.kind} {step.object}", step.kind)
        for number in next(_FAULTS[name] for name in names if name in _FAULTS):
            yield Fault(step, number)


def lasting(faults: Iterable[Fault]) -> list[Fault]:
    """Return the faults that may last, from each step on."""
    may_last = [each for each in faults if each.step.kind in _LASTING and not each.is_harmless]
    return [replace(each, times=_FOR_LONG) for each in may_last]


def some(faults: Iterable[Fault]) -> list[Fault]:
    """Return each fault of each kind of call once: at the last call of the kind."""
    last = {(each.step.kind, each.step.object, each.number): each for each in faults}
    return list(last.values())
