"""Variant store in a folder: one file for each cache key, with its headers in a trailer.

A variant is one file named by its cache key, in a folder named by the key's first two digits.
A trailer follows the bytes. It consists of a record with the response headers, and of the values
that locate and check the record:

    bytes | JSON record | its length | its CRC-32 | magic number

Length and checksum have 4 bytes each, big-endian. The magic number has 8 bytes.

One file and one rename make a variant appear whole or not at all. The record states the number of
bytes, so a file that lost its end, to a full disk or a crash, is not served. A file whose record is
damaged is not served either.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import zlib
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from typing import NoReturn

from audioproxy.blocking_calls import BlockingCalls
from audioproxy.errors import UpstreamUnavailable
from audioproxy.log_context import Logger
from audioproxy.scratch_files import ScratchFile
from audioproxy.streams import FileProducer
from audioproxy.variants.headers import VariantHeaders
from audioproxy.variants.interfaces import Unwritable
from audioproxy.variants.scratch_folder import NamedFile, ScratchFolder

_MAGIC = b"APVARNT1"
_FOOTER = struct.Struct(">II8s")
# Bytes to read at the end of a file. A record has some hundred bytes. It may contain a file name of
# 255 bytes twice, each escaped to at most 1.6 KB.
_TRAILER_READ = 8192
_SCRATCH_FOLDER = ".scratch"
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
# Bytes of a file that `read_small` returns: one write of a `FileProducer`.
_SMALL_FILE = 64 * 1024
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

# Seconds for a disk to create or remove a file, and for a slow disk to flush some gigabytes.
_CREATE_TIMEOUT = 10.0
_COMMIT_TIMEOUT = 120.0

# Free bytes that a disk needs for a new variant. On a small disk, a twentieth of its size is
# enough.
_RESERVE = 64 * 1024 * 1024
_RESERVE_FRACTION = 20

_log = Logger()


class StoredFile:
    """A variant that is open for reading, even after it was replaced or removed."""

    def __init__(self, descriptor: int, size: int, headers: VariantHeaders) -> None:
        self.size = size
        self.headers = headers
        self.descriptor = descriptor

    def read(self, offset: int, limit: int) -> bytes:
        """Return bytes of the variant, without its trailer."""
        return os.pread(self.descriptor, max(0, min(limit, self.size - offset)), offset)

    async def open_range(self, start: int, stop: int) -> FileProducer:
        """Return the bytes from ``start`` up to ``stop``."""
        return FileProducer(self, start, stop, descriptor=self.descriptor)

    def presign(self, seconds: int) -> NoReturn:
        """Raise NotImplementedError: no client can read this disk."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file; repeated calls are harmless."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class FileVariantStore:
    """A variant store in a folder, which several nodes may share.

    :param blocking_calls: runs what writes to the disk.
    """

    def __init__(self, root: str, blocking_calls: BlockingCalls) -> None:
        self._root = os.path.abspath(root)
        self._blocking_calls = blocking_calls
        self._scratch = ScratchFolder(
            os.path.join(self._root, _SCRATCH_FOLDER), blocking_calls.run_detached
        )

    async def open(self) -> None:
        """Prove the store writable, by writing and removing a file, and claim a scratch folder.

        :raises Unwritable: where it is not.
        """
        try:
            self._scratch.open()
            proof = self._scratch.create()
            try:
                os.write(proof.descriptor, _MAGIC)
            finally:
                proof.close_now()
        except OSError as error:
            raise Unwritable(
                f"not writable ({error}); a directory that this process may write into is required"
            ) from error

    async def check_writable(self) -> None:
        """Prove that a store that is not open is writable and has space for a variant.

        :raises Unwritable: where it is not.
        """
        parent = os.path.join(self._root, _SCRATCH_FOLDER)
        # If root runs this, the service's user could not write to a folder that is left behind.
        fresh = not os.path.exists(parent)
        try:
            await self.open()
            (await self.create()).close_now()
        except OSError as error:
            raise Unwritable(
                f"no new file can be created ({error}); disk space for variants is required"
            ) from error
        finally:
            self.close_now()
            if fresh:
                with suppress(OSError):
                    os.rmdir(parent)

    def close_now(self) -> None:
        """Remove the scratch folder, and wait for that."""
        self._scratch.close()

    async def close(self, seconds: float) -> None:
        """Remove the scratch folder; where the disk hangs, the next boot removes it."""
        with suppress(OSError):
            await self._blocking_calls.run(self._scratch.close, seconds)

    async def create(self, seconds: float = _CREATE_TIMEOUT) -> NamedFile:
        """Return a new scratch file on the store's own filesystem.

        :param seconds: to wait for the disk; 10 at the most.
        :raises OSError: where there is no space, permission is denied, or the disk takes too long.
        """
        seconds = min(seconds, _CREATE_TIMEOUT)
        return await self._blocking_calls.run(self._create, seconds, NamedFile.close)

    async def lookup(self, key: str) -> StoredFile | None:
        """Return the variant stored under ``key``; None for anything but a readable regular file.

        This makes two or three short system calls on the reactor thread: a change of threads would
        cost more.

        :raises UpstreamUnavailable: where the disk fails.
        """
        try:
            descriptor = os.open(self._path(key), _READ_FLAGS)
        except OSError as error:
            if error.errno in _NO_VARIANT:
                return None
            raise _unreadable(error) from error
        try:
            found = _read_trailer(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise _unreadable(error) from error
        if found is None:
            os.close(descriptor)
            return None
        return StoredFile(descriptor, *found)

    def read_small(self, key: str) -> tuple[VariantHeaders, bytes] | None:
        """Return a small variant whole, in one read; None for anything else."""
        try:
            descriptor = os.open(self._path(key), _READ_FLAGS)
        except OSError:
            return None
        try:
            # One more byte than a small file has shows whether this is the whole file.
            data = os.pread(descriptor, _SMALL_FILE + 1, 0)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if len(data) > _SMALL_FILE:
            return None
        found = _parse_trailer(data, len(data))
        return None if found is None else (found[1], data[: found[0]])

    async def commit(
        self, key: str, scratch: ScratchFile, size: int, headers: VariantHeaders
    ) -> None:
        """Append the trailer to a finished scratch file and rename it to its final name.

        The bytes are flushed before the rename, so that after a crash of the machine no name lacks
        its bytes. After its timeout, a commit may still store the variant; otherwise it stores
        nothing.

        :raises OSError: where the store fails, or does not respond within 2 minutes.
        """
        if not isinstance(scratch, NamedFile):
            raise TypeError("only a file that this store created can be committed to it")
        if scratch.path is None:
            raise FileNotFoundError("the scratch file is gone")
        path = scratch.path
        await self._blocking_calls.run(
            lambda: self._commit(key, path, size, headers), _COMMIT_TIMEOUT
        )
        scratch.moved()

    def _create(self) -> NamedFile:
        # A full disk can still create an empty file, but then the render would fail.
        disk = os.statvfs(self._root)
        reserve = min(_RESERVE, disk.f_blocks * disk.f_frsize // _RESERVE_FRACTION)
        if disk.f_bavail * disk.f_frsize < reserve:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._scratch.create()

    def _commit(self, key: str, path: str, size: int, headers: VariantHeaders) -> None:
        record = json.dumps({"size": size, **asdict(headers)}).encode("ascii")
        trailer = record + _FOOTER.pack(len(record), zlib.crc32(record), _MAGIC)
        # The file is opened again, since a caller that has timed out may close the render's
        # descriptor.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.pwrite(descriptor, trailer, size) < len(trailer):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        final = self._path(key)
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(final))
        _check_replaceable(final)
        os.rename(path, final)

    def _path(self, key: str) -> str:
        return variant_path(self._root, key)


def variant_path(root: str, key: str) -> str:
    """Return the path of a key's variant in a store."""
    # Not os.path.join, which takes as long as reading the file.
    return f"{root}/{key[:2]}/{key}"


def _check_replaceable(path: str) -> None:
    """Raise OSError if a name has something else than a file or a symbolic link.

    The rename would replace a FIFO, a socket or a device, which this service has not created.
    """
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            raise FileExistsError(
                errno.EEXIST, f"{_KINDS[stat.S_IFMT(mode)]} is in the place of the file", path
            )


def _unreadable(error: OSError) -> UpstreamUnavailable:
    _log.warn("the store cannot be read: {error}", error=error)
    return UpstreamUnavailable()


def _read_trailer(descriptor: int) -> tuple[int, VariantHeaders] | None:
    """Return size and headers of a variant; None for a file that is not a complete variant."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return None
    length = status.st_size
    return _parse_trailer(
        os.pread(descriptor, _TRAILER_READ, max(0, length - _TRAILER_READ)), length
    )


def _parse_trailer(tail: bytes, length: int) -> tuple[int, VariantHeaders] | None:
    """Parse the end of a file of ``length`` bytes."""
    if len(tail) < _FOOTER.size:
        return None
    record_length, checksum, magic = _FOOTER.unpack(tail[-_FOOTER.size :])
    record = tail[-_FOOTER.size - record_length : -_FOOTER.size]
    if (magic, len(record), zlib.crc32(record)) != (_MAGIC, record_length, checksum):
        return None
    found = _read_record(record)
    return found if found and found[0] + record_length + _FOOTER.size == length else None


# Parsing a record takes as long as reading its file.
@lru_cache(4096)
def _read_record(record: bytes) -> tuple[int, VariantHeaders] | None:
    try:
        fields = json.loads(record)
        size = int(fields.pop("size"))
        headers = VariantHeaders(**fields)
        values = (headers.content_type, headers.cache_control, headers.content_disposition or "")
        # A header value is printable ASCII.
        if not all(value.isascii() and value.isprintable() for value in values):
            return None
        return size, headers
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None
