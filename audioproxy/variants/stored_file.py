"""A variant in a file, with a trailer.

    bytes | JSON object | its length | its CRC-32 | magic number

The object has the response headers, the record of the variant (`audioproxy.variants.record`), and
the number of bytes, so that a file that lost its end, to a full disk or a crash, is not served.
Length and checksum have 4 bytes each, big-endian. Other versions of the service write other fields:
unknown names are skipped, and the record may be missing.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from twisted.internet.defer import Deferred

from audioproxy.files.streams import FileProducer
from audioproxy.files.whole_transfers import read_up_to
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.response_headers import VariantHeaders

_MAGIC = b"APVARNT1"
_FOOTER = struct.Struct(">II8s")
# Bytes to read at the end of a file. A trailer has some hundred bytes. It may contain a file name
# of 255 bytes three times, each escaped to at most 1.6 KB, and a source of 1.5 KB.
_TRAILER_READ = 8192
# Bytes of a file that `read_small` returns: one write of a `FileProducer`.
_SMALL_FILE = 64 * 1024
# Without O_NONBLOCK, opening a FIFO would wait for its writer.
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Errors of a lookup that concern one name, not the disk: there is no such file, it is of another
# kind, or this process has no right to read it. The last case is a miss as in a bucket.
_NO_VARIANT = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENXIO,
    errno.ENODEV,
    errno.EACCES,
    errno.EPERM,
}
# Seconds within which a cached file is read. A page cache takes some microseconds, but on a busy
# machine a thread waits for the GIL and for a CPU as well.
_FAST = 0.02
# Seconds after which a read on the reactor thread has mostly waited for the disk.
_BLOCKED = 0.05
# Seconds after a read during which the file is expected to stay in the cache.
_WARM_SECONDS = 60.0
# Each key takes some 200 bytes.
_MOST_KEYS = 16_384

# The fields of a trailer: the bytes of the variant, and its record, if it was stored with one.
_Fields: TypeAlias = tuple[int, VariantRecord | None]


class StoredFile:
    """A variant that is open for reading, even after it was replaced or removed.

    :ivar stored: Unix seconds at which it was stored, by its record; None without one.
    :ivar run_read: runs a read of the file, which may block; None to read on the reactor thread.
    """

    def __init__(self, descriptor: int, size: int, stored: int | None = None) -> None:
        self.size = size
        self.stored = stored
        self.descriptor = descriptor
        self.run_read: Callable[[Callable[[], object]], Deferred[object]] | None = None
        self._data: bytes | None = None

    def load(self) -> bool:
        """Read all bytes, so that no later read accesses the disk; return whether it has them."""
        self._data = read_up_to(self.descriptor, self.size, 0)
        return len(self._data) == self.size

    def read(self, offset: int, limit: int) -> bytes:
        if self._data is not None:
            return self._data[offset : offset + limit]
        return os.pread(self.descriptor, max(0, min(limit, self.size - offset)), offset)

    async def open_range(self, start: int, stop: int) -> FileProducer:
        prefetch = self._prefetch if self.run_read is not None and self._data is None else None
        return FileProducer(self, start, stop, prefetch=prefetch)

    def _prefetch(self, offset: int, count: int) -> Deferred[object]:
        """Read bytes in a thread, so that they are in the page cache afterwards."""
        assert self.run_read is not None
        # After `close`, the read fails, and its result is not used.
        return self.run_read(lambda: len(read_up_to(self.descriptor, count, offset)))

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def make_trailer(size: int, headers: VariantHeaders, record: VariantRecord) -> bytes:
    fields = {"size": size, **headers._asdict(), **record.texts()}
    data = json.dumps(fields).encode("ascii")
    return data + _FOOTER.pack(len(data), zlib.crc32(data), _MAGIC)


def open_variant(path: str) -> StoredFile | None:
    """Return the variant in a file; None for anything but a readable regular file."""
    try:
        descriptor = os.open(path, _READ_FLAGS)
    except OSError as error:
        if error.errno in _NO_VARIANT:
            return None
        raise
    found = None
    try:
        found = read_trailer(descriptor)
    finally:
        if found is None:
            os.close(descriptor)
    return None if found is None else StoredFile(descriptor, found[0], _storing_time(found))


def load_variant(path: str) -> StoredFile | None:
    """Return the variant in a file as `open_variant`, with all bytes of a small one in memory."""
    found = open_variant(path)
    if found is None or found.size > _SMALL_FILE:
        return found
    try:
        return found if found.load() else None
    finally:
        found.close()


def read_small(path: str) -> tuple[int | None, bytes] | None:
    """Return the storing time and the bytes of a small variant, by one read; or None."""
    try:
        descriptor = os.open(path, _READ_FLAGS)
    except OSError:
        return None
    try:
        # One more byte than a small file has shows whether this is the whole file. A short read has
        # no trailer, and is no variant here.
        data = os.pread(descriptor, _SMALL_FILE + 1, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if len(data) > _SMALL_FILE:
        return None
    found = _parse_trailer(data, len(data))
    return None if found is None else (_storing_time(found), data[: found[0]])


def read_trailer(descriptor: int) -> _Fields | None:
    """Return size and record of the variant in a file; None if it is no whole regular file."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return None
    start = max(0, status.st_size - _TRAILER_READ)
    tail = read_up_to(descriptor, status.st_size - start, start)
    return _parse_trailer(tail, status.st_size)


def _storing_time(fields: _Fields) -> int | None:
    record = fields[1]
    return None if record is None else record.stored


def _parse_trailer(tail: bytes, length: int) -> _Fields | None:
    """Return the fields of a variant from the end of its file; None if it is incomplete."""
    if len(tail) < _FOOTER.size:
        return None
    data_length, checksum, magic = _FOOTER.unpack(tail[-_FOOTER.size :])
    data = tail[-_FOOTER.size - data_length : -_FOOTER.size]
    if (magic, len(data), zlib.crc32(data)) != (_MAGIC, data_length, checksum):
        return None
    found = _read_fields(data)
    is_whole = found is not None and found[0] + data_length + _FOOTER.size == length
    return found if is_whole else None


# Parsing the fields takes as long as reading their file.
@lru_cache(4096)
def _read_fields(data: bytes) -> _Fields | None:
    try:
        fields = json.loads(data)
        return int(fields["size"]), VariantRecord.read(fields)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None


class WarmKeys:
    """The cache keys of variants that were read a moment ago, without a delay.

    Reading a cached file takes less time than a switch to another thread. Any other read may block
    for long: on a network file system, or on a disk that was idle. So a variant is first read in a
    thread, and then on the reactor thread if that was fast.

    :param most: the keys that are known at a time.
    """

    def __init__(self, most: int = _MOST_KEYS) -> None:
        self._most = most
        self._until: dict[str, float] = {}

    def has(self, key: str, now: float) -> bool:
        return self._until.get(key, now) > now

    def add(self, key: str, began: float, ended: float) -> None:
        """Record a read in a thread."""
        if ended - began < _FAST:
            if len(self._until) >= self._most:
                del self._until[next(iter(self._until))]
            self._until[key] = ended + _WARM_SECONDS

    def renew(self, key: str, began: float, ended: float) -> None:
        """Record a read on the reactor thread; after one that was blocked, no key is warm."""
        if ended - began < _FAST:
            self._until[key] = ended + _WARM_SECONDS
        elif ended - began < _BLOCKED:
            del self._until[key]
        else:
            self._until.clear()
