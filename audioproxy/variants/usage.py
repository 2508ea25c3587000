"""The ledger of a folder store: the number of bytes that its variants have.

The ledger is the file ``.usage`` in the folder, so that all nodes and commands on the folder share
it. Each reads and changes it under its lock (flock), and adds, replaces or removes variants under
the same lock. It has two whole numbers:

    bytes of all variants, with their trailers | bytes of all variants that were ever added

The first one is ``unknown`` until the first count has ended. Nodes with a bound create the ledger.
Everything else keeps one that exists if it can, and creates none.

The ledger may state too many bytes, but never too few, whatever is killed at whatever step: bytes
are added before the variant has its name, and subtracted after it is gone. For the same reason, the
second number never decreases. The result of a count is the sum of all files that it has seen, and
of all bytes that were added since it began. Removals since then are not subtracted, since their
files may not have been seen. The next count corrects that.

The ledger is not synced. After a power cut, it may state what it did some seconds before, which may
be too few bytes, until a node with a bound has counted, as each does when it starts.

A node without a bound does not need the ledger. If the disk fails there, it removes the ledger and
stores the variant, and the nodes with a bound count again. A variant that has meanwhile got its
name under the removed ledger may be missing in such a count: its node removes the ledger once more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os.path import sameopenfile
from typing import TypeAlias

from audioproxy.files.whole_transfers import read_up_to, write_whole
from audioproxy.variants.interfaces import NoRoom

_NAME = ".usage"
_ENTRY = re.compile(rb" *(unknown|\d+) +(\d+)\n")
# Characters of a number, and bytes of the whole entry. Both are fixed, so that one write replaces
# the entry.
_WIDTH = 20
_LENGTH = 2 * _WIDTH + 2
_SHARD = re.compile(r"[0-9a-f]{2}")
# Faults of a process, which do not say that the ledger fails for others too.
_OWN_FAULTS = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}

#: Records the end of a count; called with the bytes of all files that were seen since its begin.
EndCount: TypeAlias = Callable[[int], None]


class LedgerFault(OSError):
    """The ledger cannot be read or changed."""


@dataclass(slots=True)
class _Ledger:
    """The locked ledger; its size is None while it is unknown."""

    path: str
    descriptor: int
    size: int | None
    added: int

    def set(self, size: int | None, added: int) -> None:
        text = "unknown" if size is None else str(max(0, size))
        entry = f"{text:>{_WIDTH}} {added:>{_WIDTH}}\n".encode("ascii")
        with _ledger_faults(self.path):
            write_whole(self.descriptor, entry, 0)
        self.size, self.added = size, added

    def subtract(self, size: int) -> None:
        if size and self.size is not None:
            # The variant is gone. If this fails, the ledger states too many bytes.
            with suppress(OSError):
                self.set(self.size - size, self.added)


class StoreUsage:
    """The usage of one folder store. Any thread may call each method, which may block.

    :ivar max_bytes: the bound of this node; None without one.
    :ivar size: bytes of all variants, when the ledger was last read; None while unknown.
    """

    def __init__(self, root: str, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.size: int | None = None
        self._root = root
        self._path = f"{root}/{_NAME}"

    def ensure(self) -> None:
        """Read the ledger, and create it if there is none; an empty store needs no count."""
        with self._locked(os.O_CREAT) as ledger:
            if ledger is not None and ledger.size is None:
                empty = not any(map(_SHARD.fullmatch, os.listdir(self._root)))
                ledger.set(0 if empty else None, ledger.added)

    def read(self) -> int | None:
        """Return the bytes of all variants; None while unknown, and without a ledger."""
        with self._locked() as ledger:
            return None if ledger is None else ledger.size

    def add(self, scratch: str, path: str) -> LedgerFault | None:
        """Rename a finished file to the name of a variant, which it may replace.

        :returns: why the ledger was removed, if it was.
        :raises NoRoom: where the bound leaves no room for it, or the usage is not known yet.
        """
        try:
            self._add(scratch, path)
        except LedgerFault as fault:
            if self.max_bytes is not None or fault.errno in _OWN_FAULTS:
                raise
            # A ledger of before the rename may state too few bytes, and so may a count meanwhile.
            self._remove()
            os.rename(scratch, path)
            self._remove()
            return fault
        return None

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _add(self, scratch: str, path: str) -> None:
        with self._locked() as ledger:
            size = None if ledger is None else ledger.size
            new, replaced = os.stat(scratch).st_size, _read_size(path)
            if self.max_bytes is not None and (
                size is None or size + new - replaced > self.max_bytes
            ):
                raise NoRoom(new, size, self.max_bytes)
            if ledger is None:
                os.rename(scratch, path)
                return
            added = ledger.added
            ledger.set(None if size is None else size + new, added + new)
            try:
                os.rename(scratch, path)
            except OSError:
                ledger.set(size, added)
                raise
            ledger.subtract(replaced)
            if not os.fstat(ledger.descriptor).st_nlink:
                self._remove()

    @contextmanager
    def removal(self) -> Iterator[Callable[[int], None]]:
        """Lock the ledger while a variant is removed. If that fails, it states too many bytes.

        :returns: is to be called with the bytes of the variant, once it is gone.
        """
        with ExitStack() as stack:
            ledger = None
            with suppress(LedgerFault):
                ledger = stack.enter_context(self._locked())
            yield (lambda size: None) if ledger is None else ledger.subtract

    @contextmanager
    def count(self) -> Iterator[EndCount]:
        """Begin a count, and return the function that ends it."""
        begun, held = 0, None
        with self._locked() as ledger:
            if ledger is not None:
                # A malformed ledger becomes well-formed, and records additions from now on.
                ledger.set(ledger.size, ledger.added)
                begun, held = ledger.added, os.dup(ledger.descriptor)
                # The lock is that of both descriptors.
                fcntl.flock(held, fcntl.LOCK_UN)

        def end(total: int) -> None:
            with self._locked() as ledger:
                # The ledger may have been removed meanwhile, and created again.
                if ledger is None or held is None or not sameopenfile(held, ledger.descriptor):
                    return
                if ledger.added >= begun:
                    ledger.set(total + ledger.added - begun, ledger.added)

        try:
            yield end
        finally:
            if held is not None:
                os.close(held)

    @contextmanager
    def _locked(self, flags: int = 0) -> Iterator[_Ledger | None]:
        """Lock and read the ledger; None without one.

        Each call has an open file of its own: the lock belongs to it, and so excludes the other
        threads of this process too.
        """
        with ExitStack() as stack:
            with _ledger_faults(self._path):
                descriptor = self._lock(flags, stack)
                text = b"" if descriptor is None else read_up_to(descriptor, _LENGTH, 0)
            if descriptor is None:
                self.size = None
                yield None
                return
            entry = _ENTRY.fullmatch(text)
            size = int(entry[1]) if entry and entry[1].isdigit() else None
            ledger = _Ledger(self._path, descriptor, size, int(entry[2]) if entry else 0)
            try:
                yield ledger
            finally:
                self.size = ledger.size

    def _lock(self, flags: int, stack: ExitStack) -> int | None:
        # A link may lead out of the store, to a file that root would overwrite.
        flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(FileNotFoundError):
            while True:
                descriptor = os.open(self._path, flags, 0o666)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Another process may have removed the ledger before it was locked.
                if os.fstat(descriptor).st_nlink:
                    return descriptor
        return None


@contextmanager
def _ledger_faults(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerFault(error.errno, error.strerror, path) from error


def _read_size(path: str) -> int:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
