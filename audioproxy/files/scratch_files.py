"""Scratch files: interfaces, and unnamed files in TMPDIR."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

#: The directory of temporary files where TMPDIR is unset.
DEFAULT_FOLDER = "/tmp"

# Bytes of one read for a digest. hashlib releases the GIL for each.
_HASH_CHUNK = 256 * 1024

#: Runs a function soon, without waiting for its end. Removing a file of some hundred megabytes
#: takes tens of milliseconds, and never ends on a disk that hangs.
DetachedRunner: TypeAlias = Callable[[Callable[[], object]], object]


class ScratchFile(Protocol):
    """An open file, whose descriptor an encoder inherits as its stdout."""

    @property
    def descriptor(self) -> int: ...
    @property
    def path(self) -> str | None:
        """The path of a file on the disk of a store; None of an unnamed file in TMPDIR."""
        ...

    def close(self) -> None:
        """Close the file, and remove it unless it was committed."""


class ScratchSpace(Protocol):
    async def create(self, seconds: float) -> ScratchFile:
        """Return a new empty file, within so many seconds."""
        ...


def read_chunks(descriptor: int, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of a file from ``start`` up to ``stop``, for a digest of any size."""
    while start < stop:
        data = os.pread(descriptor, min(_HASH_CHUNK, stop - start), start)
        if not data:
            raise OSError("the file is shorter than it was")
        yield data
        start += len(data)


def run_inline(work: Callable[[], object]) -> None:
    work()


def temporary_folder(environ: Mapping[str, str]) -> str:
    return environ.get("TMPDIR") or DEFAULT_FOLDER


def check_folder(folder: str) -> None:
    """Raise OSError where no file can be created; a full disk may have room later."""
    try:
        AnonymousFile(folder=folder).close()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


class AnonymousFile:
    """A file without a name: the system removes it with its last descriptor.

    Its directory is given: Python's choice may change to a small disk, or to a file system in
    memory.
    """

    path: str | None = None

    def __init__(
        self, run_detached: DetachedRunner = run_inline, folder: str = DEFAULT_FOLDER
    ) -> None:
        self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115
        self._run_detached = run_detached

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._run_detached(self._file.close)


@dataclass(frozen=True, slots=True)
class AnonymousSpace:
    """Scratch files in TMPDIR, for renders that no file store takes over (D46)."""

    run_detached: DetachedRunner = run_inline
    folder: str = DEFAULT_FOLDER

    async def create(self, seconds: float = 0) -> AnonymousFile:
        return AnonymousFile(self.run_detached, self.folder)
