"""Sparse files whose blocks arrive one by one, with a map that children read too.

A child of this service reads such a file through a preloaded library (``cell.c``). What the map
has, it reads at once; for all else it asks. So a block is marked when all of it is written, its
mark is removed before it is punched out of the file, and each time it comes back it has another
one. A reader that finds the same mark before and after its read has read no hole.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack

from audioproxy.files.whole_transfers import write_whole

#: Bytes of a block, as in cell.c.
BLOCK = 64 * 1024
# The marks of blocks that are there are 1 to 255.
_MISSING, _MARKS = 0, 255
_PRESENT = re.compile(rb"[^\0]")
# fallocate(2), which the standard library lacks. FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE.
_PUNCH = 1 | 2
_libc = ctypes.CDLL(None, use_errno=True)


class NoHoles(OSError):
    """The file system has no holes, so blocks cannot be given back."""


class BlockFile:
    """A sparse file without a name, and the map of its blocks, in memory that children share.

    Writes and punches must not overlap. No method but `write` and `punch` takes long.

    :ivar readable: a read-only descriptor of the file, as `readable_map` is of the map.
    :ivar used: bytes of the blocks that are there.
    """

    def __init__(self, folder: str, size: int) -> None:
        """Create a file without blocks, of a size or, where that is not known, the most of it."""
        self.size = size
        self.used = 0
        # In the order in which they came.
        self._order: deque[int] = deque()
        # The marks that blocks had, where they were given back.
        self._former: dict[int, int] = {}
        with ExitStack() as opened:
            self._file = opened.enter_context(tempfile.TemporaryFile(buffering=0, dir=folder))
            os.truncate(self._file.fileno(), size)
            self.readable = _open_readable(self._file.fileno())
            opened.callback(os.close, self.readable)
            self._map, self.readable_map = _create_map(max(1, self._count))
            opened.callback(self._map.close)
            opened.callback(os.close, self.readable_map)
            self._opened = opened.pop_all()

    def __contains__(self, block: int) -> bool:
        return self._map[block] != _MISSING

    @property
    def _count(self) -> int:
        return -(-self.size // BLOCK)

    @property
    def is_complete(self) -> bool:
        return len(self._order) == self._count

    def next_present(self, block: int) -> int:
        """Return the first block from ``block`` on that is there, or the number of all blocks."""
        found = _PRESENT.search(self._map, block)
        return found.start() if found else self._count

    def marks(self, offset: int, count: int) -> bytes:
        return self._map[offset // BLOCK : -(-(offset + count) // BLOCK)]

    def write(self, offset: int, data: bytes | bytearray) -> int:
        """Write bytes of blocks that are not marked, or the same bytes as before.

        :returns: the bytes that are free on the disk.
        """
        write_whole(self._file.fileno(), data, offset)
        disk = os.fstatvfs(self._file.fileno())
        return disk.f_bavail * disk.f_frsize

    def mark(self, start: int, stop: int) -> None:
        """Mark the blocks that begin in a range, all of whose bytes are written."""
        for block in range(-(-start // BLOCK), -(-stop // BLOCK)):
            if self._map[block] == _MISSING:
                self._map[block] = self._former.get(block, 0) % _MARKS + 1
                self._order.append(block)
                self.used += BLOCK

    def truncate(self, size: int) -> None:
        os.truncate(self._file.fileno(), size)
        self.size = size

    def unmark_oldest(self, count: int) -> Iterator[int]:
        for _ in range(min(count, len(self._order))):
            block = self._order.popleft()
            self._former[block] = self._map[block]
            self._map[block] = _MISSING
            self.used -= BLOCK
            yield block

    def punch(self, block: int) -> None:
        """Give a block back to the file system, which nobody finds marked any more."""
        offset, length = ctypes.c_int64(block * BLOCK), ctypes.c_int64(BLOCK)
        if _libc.fallocate(self._file.fileno(), _PUNCH, offset, length):
            code = ctypes.get_errno()
            kind = NoHoles if code in (errno.EOPNOTSUPP, errno.ENOSYS) else OSError
            raise kind(code, os.strerror(code))

    def close(self) -> None:
        """Remove the file. Children that have opened it read on."""
        self._opened.close()


def _open_readable(descriptor: int) -> int:
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def _create_map(size: int) -> tuple[mmap.mmap, int]:
    descriptor = os.memfd_create("blocks", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, size)
        return mmap.mmap(descriptor, size), _open_readable(descriptor)
    finally:
        os.close(descriptor)
