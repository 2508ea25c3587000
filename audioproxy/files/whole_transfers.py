"""Reads and writes of whole ranges of files.

The system may transfer fewer bytes than it is asked for: where a disk has just filled up, on
network file systems, and at limits of its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from audioproxy.concurrency.threads import ThreadRunner


def read_up_to(descriptor: int, count: int, offset: int) -> bytes:
    """Return ``count`` bytes of a file from ``offset`` on; fewer only at its end."""
    found = data = os.pread(descriptor, count, offset)
    while data and len(found) < count:
        data = os.pread(descriptor, count - len(found), offset + len(found))
        found += data
    return found


def read_whole(descriptor: int, count: int, offset: int) -> bytes:
    """Return ``count`` bytes of a file from ``offset`` on, or raise OSError."""
    data = read_up_to(descriptor, count, offset)
    if len(data) < count:
        found, needed = offset + len(data), offset + count
        raise OSError(errno.EIO, f"the file has {found} of {needed} bytes")
    return data


def write_whole(descriptor: int, data: bytes | bytearray, offset: int) -> None:
    """Write all bytes into a file from ``offset`` on, or raise OSError."""
    _write_all(data, lambda left, done: os.pwrite(descriptor, left, offset + done))


def write_next(descriptor: int, data: bytes) -> None:
    """Write all bytes at the position of a file, or raise OSError."""
    _write_all(data, lambda left, done: os.write(descriptor, left))


def _write_all(data: bytes | bytearray, write: Callable[[memoryview, int], int]) -> None:
    done = 0
    while left := memoryview(data)[done:]:
        count = write(left, done)
        if not count:
            raise OSError(errno.EIO, f"the system wrote none of {len(left)} bytes")
        done += count


async def read_in_thread(
    run_in_thread: ThreadRunner, descriptor: int, offset: int, count: int
) -> bytes:
    """Return ``count`` bytes of a file, fewer only at its end, or raise OSError."""
    # If the caller is cancelled, the thread reads on.
    own = os.dup(descriptor)

    def read() -> bytes:
        try:
            return read_up_to(own, count, offset)
        finally:
            os.close(own)

    try:
        reading = run_in_thread(read)
    except OSError:
        os.close(own)
        raise
    return await reading
