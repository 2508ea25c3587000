"""Scratch files: interfaces, and unnamed files in TMPDIR."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Protocol, TypeAlias

#: Runs work whose end nobody waits for, now or soon. To remove a file of some hundred megabytes
#: takes tens of milliseconds, and on a disk that hangs it never returns.
DetachedRunner: TypeAlias = Callable[[Callable[[], object]], object]


class ScratchFile(Protocol):
    """An open file for the output of one render, or for one download.

    :ivar descriptor: the open descriptor, which an encoder inherits as its stdout.
    """

    @property
    def descriptor(self) -> int: ...  # noqa: D102

    def grown(self, size: int) -> None:
        """Take note that the file has ``size`` bytes now, which will not change any more."""

    def close(self) -> None:
        """Close the file, and remove it unless it was committed."""


class ScratchSpace(Protocol):
    """A place for scratch files."""

    async def create(self, seconds: float) -> ScratchFile:
        """Return a new empty file.

        :param seconds: that the caller can wait.
        :raises OSError: where there is no room or no right to.
        """
        ...


def run_inline(work: Callable[[], object]) -> None:
    """Run work at once, on the calling thread."""
    work()


class AnonymousFile:
    """A file without a name: the system removes it with its last descriptor."""

    def __init__(self, run_detached: DetachedRunner = run_inline) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._run_detached = run_detached

    @property
    def descriptor(self) -> int:
        """The open descriptor."""
        return self._file.fileno()

    def grown(self, size: int) -> None:
        """Do nothing: the file is not read while it grows."""

    def close(self) -> None:
        """Close and so remove the file; again is harmless."""
        self._run_detached(self._file.close)


class AnonymousSpace:
    """Scratch files in TMPDIR, for renders that no store of files will take over (D46)."""

    def __init__(self, run_detached: DetachedRunner = run_inline) -> None:
        self._run_detached = run_detached

    async def create(self, seconds: float = 0) -> AnonymousFile:
        """Return a new empty file."""
        return AnonymousFile(self._run_detached)
