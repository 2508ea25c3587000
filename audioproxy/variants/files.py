"""Variant store in a folder: one file for each cache key.

A variant is one file named by its cache key, in a folder named by the key's first two digits
(`audioproxy.variants.stored_file`). One file and one rename make a variant appear whole or not at
all.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from twisted.internet.defer import Deferred

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.errors import UpstreamUnavailable, reason_of
from audioproxy.files.disk_space import DiskSpace
from audioproxy.files.folder_sync import sync_folder
from audioproxy.files.scratch_files import ScratchFile, read_chunks
from audioproxy.files.whole_transfers import write_whole
from audioproxy.observe.log_context import Logger
from audioproxy.variants.interfaces import NoRoom, Unwritable
from audioproxy.variants.last_use import record_use
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.response_headers import VariantHeaders
from audioproxy.variants.scratch_folder import NamedFile, ScratchFolder
from audioproxy.variants.stored_file import (
    StoredFile,
    WarmKeys,
    load_variant,
    make_trailer,
    open_variant,
    read_small,
)
from audioproxy.variants.usage import StoreUsage

_SCRATCH_FOLDER = ".scratch"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

# Seconds for a disk to open or read a file, to create or remove a file, and for a slow disk to
# flush some gigabytes.
_READ_TIMEOUT = 10.0
_CREATE_TIMEOUT = 10.0
_COMMIT_TIMEOUT = 120.0

# Free bytes that a disk needs for a new variant. On a small disk, a twentieth of its size is
# enough.
_RESERVE = 64 * 1024 * 1024
_RESERVE_FRACTION = 20

# Variants whose use is noted until `FileVariantStore.record_uses`. Each key takes some 200 bytes.
_MOST_USES = 16_384

_log = Logger()


class FileVariantStore:
    """A variant store in a folder, which several nodes may share.

    :param blocking_calls: runs what writes to the disk.
    :param reads: runs lookups, apart from what writes: a write may take minutes.
    :param seconds: a clock, which threads call too.
    :param max_bytes: the bound of the store; None without one.
    :param sync: writes the names in a folder to the disk, in a thread.
    :param measure: returns the space of the disk that has a folder, in a thread.
    :ivar on_commit: called after each commit, with the refusal if the bound left no room.
    """

    def __init__(
        self,
        root: str,
        blocking_calls: BlockingCalls,
        reads: BlockingCalls,
        seconds: Callable[[], float] = time.monotonic,
        max_bytes: int | None = None,
        sync: Callable[[str], object] = sync_folder,
        measure: Callable[[str], DiskSpace] = DiskSpace.of,
    ) -> None:
        self.root = os.path.abspath(root)
        self.usage = StoreUsage(self.root, max_bytes)
        self.on_commit: Callable[[NoRoom | None], object] = lambda refusal: None
        # Keys of variants that were read since `record_uses`; None without a bound.
        self._used: set[str] | None = None if max_bytes is None else set()
        self._blocking_calls = blocking_calls
        self._reads = reads
        self._seconds = seconds
        self._sync = sync
        self._measure = measure
        # Folders of variants whose names are on the disk. Another node may have created one that is
        # not, yet.
        self._synced_shards: set[str] = set()
        self._warm = WarmKeys()
        self._scratch = ScratchFolder(
            os.path.join(self.root, _SCRATCH_FOLDER), blocking_calls.run_detached
        )

    async def open(self) -> None:
        """Prove the store writable, by writing and removing a file, and claim a scratch folder.

        With a bound, the ledger of its usage is created. Without one, commits still change a ledger
        that exists.
        """
        self._prove_writable()
        try:
            if self.usage.max_bytes is None:
                self.usage.read()
            else:
                self.usage.ensure()
        except OSError as error:
            fault = f"the ledger of its usage cannot be changed ({error})"
            raise Unwritable(fault, "write permission for the file is required") from error

    def _prove_writable(self) -> None:
        try:
            self._scratch.open()
            proof = self._scratch.create()
            try:
                write_whole(proof.descriptor, b"proof", 0)
            finally:
                proof.close_now()
        except OSError as error:
            raise Unwritable(
                f"not writable ({reason_of(error)})",
                "a directory that this process may write into is required",
            ) from error

    async def check_writable(self) -> None:
        """Prove that a store that is not open is writable and has space for a variant."""
        parent = os.path.join(self.root, _SCRATCH_FOLDER)
        # If root runs this, the service's user could not write to a folder or a ledger that is left
        # behind.
        fresh = not os.path.exists(parent)
        try:
            self._prove_writable()
            (await self.create()).close_now()
        except OSError as error:
            raise Unwritable(
                f"no new file can be created ({reason_of(error)})",
                "disk space for variants is required",
            ) from error
        finally:
            self.close_now()
            if fresh:
                with suppress(OSError):
                    os.rmdir(parent)

    def close_now(self) -> None:
        self._scratch.close()

    async def close(self, seconds: float) -> None:
        """Remove the scratch folder; where the disk hangs, the next boot removes it."""
        with suppress(OSError):
            await self._blocking_calls.run(self._scratch.close, seconds)

    async def create(self, seconds: float = _CREATE_TIMEOUT) -> NamedFile:
        """Return a new scratch file on the store's own filesystem, in 10 seconds at the most."""
        seconds = min(seconds, _CREATE_TIMEOUT)
        return await self._blocking_calls.run(self._create, seconds, NamedFile.close)

    async def lookup(self, key: str) -> StoredFile | None:
        """Return the variant stored under ``key``; None for anything but a readable regular file.

        A thread reads the file, unless it was read a moment ago.

        :raises UpstreamUnavailable: where the disk fails, or does not respond within 10 seconds.
        """
        path, began = variant_path(self.root, key), self._seconds()
        try:
            if self._warm.has(key, began):
                found = open_variant(path)
                self._warm.renew(key, began, self._seconds())
                self._note_use(key)
                return found
            found, began, ended = await self._reads.run(
                lambda: self._load(path), _READ_TIMEOUT, _close_loaded
            )
        except OSError as error:
            _log.warn("the store cannot be read: {error}", error=error)
            raise UpstreamUnavailable from error
        if found is not None:
            found.run_read = self._run_read
            self._warm.add(key, began, ended)
            self._note_use(key)
        return found

    def read_small(self, key: str) -> tuple[int | None, bytes] | None:
        """Return a small variant whole as `audioproxy.variants.stored_file.read_small`.

        The result is None, too, for a variant that was not read a moment ago.
        """
        began = self._seconds()
        if not self._warm.has(key, began):
            return None
        found = read_small(variant_path(self.root, key))
        self._warm.renew(key, began, self._seconds())
        self._note_use(key)
        return found

    def _note_use(self, key: str) -> None:
        used = self._used
        if used is not None and len(used) < _MOST_USES:
            used.add(key)

    def record_uses(self, now: float) -> None:
        """Set the time of use of the variants that were read since the last call, in a thread."""
        used, self._used = self._used, set()
        # No iteration: the reactor thread may be adding a key.
        while used:
            record_use(variant_path(self.root, used.pop()), now)

    async def commit(
        self,
        key: str,
        scratch: ScratchFile,
        size: int,
        headers: VariantHeaders,
        record: VariantRecord,
    ) -> None:
        """Append the trailer to a finished scratch file and rename it to its final name.

        The bytes are synced before the rename, so that after a power cut no name lacks its bytes,
        and the folder after it, so that the name is there (D80). After its timeout, a commit may
        still store the variant; otherwise it stores nothing.
        """
        if not isinstance(scratch, NamedFile):
            raise TypeError("only a file that this store created can be committed to it")
        if scratch.path is None:
            raise FileNotFoundError("the scratch file is gone")
        path = scratch.path
        try:
            faults = await self._blocking_calls.run(
                lambda: self._commit(key, path, size, headers, record), _COMMIT_TIMEOUT
            )
        except NoRoom as refusal:
            self.on_commit(refusal)
            raise
        for text, error in faults:
            _log.warn(text, error=error)
        scratch.moved()
        self.on_commit(None)

    def _run_read(self, read: Callable[[], object]) -> Deferred[object]:
        return Deferred.fromCoroutine(self._reads.run(read, _READ_TIMEOUT))

    def _load(self, path: str) -> tuple[StoredFile | None, float, float]:
        """Return a variant, and the times at which reading it began and ended."""
        began = self._seconds()
        return load_variant(path), began, self._seconds()

    def _create(self) -> NamedFile:
        # A full disk can still create an empty file, but then the render would fail.
        disk = self._measure(self.root)
        if disk.free < min(_RESERVE, disk.size // _RESERVE_FRACTION):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._scratch.create()

    def _commit(
        self, key: str, path: str, size: int, headers: VariantHeaders, record: VariantRecord
    ) -> list[tuple[str, OSError]]:
        """Store a variant, and return warnings, each with its cause."""
        self._finish(path, size, headers, record)
        final = variant_path(self.root, key)
        shard = os.path.dirname(final)
        with suppress(FileExistsError):
            os.mkdir(shard)
            self._synced_shards.discard(shard)
        _check_replaceable(final)
        faults: list[tuple[str, OSError]] = []
        if (fault := self.usage.add(path, final)) is not None:
            faults.append(("the store's ledger failed, and was removed: {error}", fault))
        try:
            self._sync_names(shard)
        except OSError as error:
            # The variant is whole, and may be read already.
            faults.append(("a power cut may undo a write-back: {error}", error))
        return faults

    def _finish(self, path: str, size: int, headers: VariantHeaders, record: VariantRecord) -> None:
        """Append the trailer to a scratch file, and sync the file."""
        # The file is opened again, since a caller that has timed out may close the render's
        # descriptor.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            sha256 = hashlib.sha256()
            for chunk in read_chunks(descriptor, 0, size):
                sha256.update(chunk)
            trailer = make_trailer(size, headers, replace(record, sha256=sha256.hexdigest()))
            write_whole(descriptor, trailer, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sync_names(self, shard: str) -> None:
        """Write the names in the folder of a variant to the disk, and once that of the folder."""
        self._sync(shard)
        if shard not in self._synced_shards:
            self._sync(self.root)
            self._synced_shards.add(shard)


def variant_path(root: str, key: str) -> str:
    # Not os.path.join, which takes as long as reading the file.
    return f"{root}/{key[:2]}/{key}"


def _close_loaded(loaded: tuple[StoredFile | None, float, float]) -> None:
    if loaded[0] is not None:
        loaded[0].close()


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
