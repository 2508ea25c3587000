"""The free bytes of a disk, which may hang."""

from __future__ import annotations

import os
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.threads import ThreadRunner

# Seconds for the disk to respond, and simultaneous calls: there are few scrapers.
_TIMEOUT = 1.0
_MAX_CALLS = 4


class DiskSpace(NamedTuple):
    """The bytes of a disk.

    :ivar free: those that a process without privileges may still write.
    :ivar size: all.
    """

    free: int
    size: int

    @classmethod
    def of(cls, folder: str) -> DiskSpace:
        """Return the space of the disk that a folder is on. This may block.

        :raises OSError: where the system refuses.
        """
        disk = os.statvfs(folder)
        return cls(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)


class DiskMonitor:
    """Measures the space of one disk in a thread, since the disk may hang."""

    def __init__(self, folder: str, clock: IReactorTime, run_in_thread: ThreadRunner) -> None:
        self._folder = folder
        self._calls = BlockingCalls(clock, run_in_thread, _MAX_CALLS)
        self._space: DiskSpace | None = None

    def read_last(self) -> DiskSpace | None:
        """Return what was measured last; None where the disk did not respond."""
        return self._space

    async def measure(self) -> None:
        """Measure the space, in one second at most; while the disk hangs, return at once."""
        try:
            self._space = await self._calls.run(lambda: DiskSpace.of(self._folder), _TIMEOUT)
        except OSError:
            self._space = None
