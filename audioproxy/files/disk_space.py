"""The free bytes of a disk, which may hang."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.threads import ThreadRunner

# Seconds for the disk to respond, and simultaneous calls: there are few scrapers.
_TIMEOUT = 1.0
_MAX_CALLS = 4


class DiskSpace(NamedTuple):
    """The bytes of a disk, and those ``free`` for a process without privileges."""

    free: int
    size: int

    @classmethod
    def of(cls, folder: str) -> DiskSpace:
        disk = os.statvfs(folder)
        return cls(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)


class DiskMonitor:
    """Measures the space of disks in threads, since a disk may hang.

    :param folders: one folder on each disk, by name.
    :ivar spaces: by name, as measured last; None where the disk did not respond.
    """

    def __init__(
        self, folders: Mapping[str, str], clock: IReactorTime, run_in_thread: ThreadRunner
    ) -> None:
        self.spaces: dict[str, DiskSpace | None] = dict.fromkeys(folders)
        self._folders = folders
        self._calls = {name: BlockingCalls(clock, run_in_thread, _MAX_CALLS) for name in folders}

    async def measure(self) -> None:
        """Measure each disk, in one second at most; where it hangs already, without waiting."""
        for name, folder in self._folders.items():
            try:
                space = await self._calls[name].run(partial(DiskSpace.of, folder), _TIMEOUT)
            except OSError:
                space = None
            self.spaces[name] = space
