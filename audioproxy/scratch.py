"""Scratch files: what a render or a download grows into, and files in TMPDIR as one kind of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Protocol, TypeAlias

#: Does work that nobody waits for, now or soon. To remove a file of some hundred megabytes takes
#: tens of milliseconds, and to remove one from a disk that hangs takes for ever.
Later: TypeAlias = Callable[[Callable[[], object]], object]


class Scratch(Protocol):
    """An open file for the output of one render.

    :ivar descriptor: what the encoder inherits as its stdout.
    """

    @property
    def descriptor(self) -> int: ...  # noqa: D102

    def grown(self, size: int) -> None:
        """Hear that there are so many bytes now, which will not change any more."""

    def close(self) -> None:
        """Close the file; unless it was committed, nothing of it is left."""


class ScratchSpace(Protocol):
    """Where renders put their output while it grows."""

    async def create(self, seconds: float) -> Scratch:
        """Return a new empty file.

        :param seconds: that the caller can wait.
        :raises OSError: where there is no room or no right to.
        """
        ...


def run_now(work: Callable[[], object]) -> None:
    """Do work at once, on the calling thread."""
    work()


class AnonymousFile:
    """A file without a name: the system removes it with its last descriptor."""

    def __init__(self, later: Later = run_now) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._later = later

    @property
    def descriptor(self) -> int:
        """The open descriptor."""
        return self._file.fileno()

    def grown(self, size: int) -> None:
        """Hear of more bytes, which is nothing to this one."""

    def close(self) -> None:
        """Close it, and so remove it; again is harmless."""
        self._later(self._file.close)


class AnonymousSpace:
    """Scratch files in TMPDIR, for renders that no store of files will take over (D46)."""

    def __init__(self, later: Later = run_now) -> None:
        self._later = later

    async def create(self, seconds: float = 0) -> AnonymousFile:
        """Return a new empty file."""
        return AnonymousFile(self._later)
