"""The variants of a folder store, for commands."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled
from audioproxy.concurrency.workers import for_each
from audioproxy.files.folder_sync import sync_folder
from audioproxy.files.scratch_files import read_chunks
from audioproxy.variants.catalog import (
    KEY,
    CatalogBusy,
    Entry,
    Finding,
    NotSynced,
    OnFailure,
    Pace,
    Page,
    Verdict,
    compare_digests,
)
from audioproxy.variants.last_use import last_use
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.stored_file import read_trailer
from audioproxy.variants.usage import EndCount, StoreUsage

_SHARD = re.compile(r"[0-9a-f]{2}")
_LOCK_NAME = ".prune"
# A link is not followed: it may lead out of the store.
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# A command does not count as a use. The owner of a file, and root, may read it so (open(2)).
_WITHOUT_USE = getattr(os, "O_NOATIME", 0)


class FolderCatalog:
    """The variants in the folder of a `FileVariantStore`, as `VariantCatalog`.

    :param most: the threads of `read_records`.
    :param sync: writes the names in a folder to the disk.
    """

    def __init__(
        self,
        root: str,
        run_in_thread: ThreadRunner,
        most: int,
        sleep: Callable[[float], object] = time.sleep,
        sync: Callable[[str], object] = sync_folder,
    ) -> None:
        self._root = os.path.abspath(root)
        self._usage = StoreUsage(self._root)
        self._run_in_thread = run_in_thread
        self._most = most
        self._sleep = sleep
        self._sync = sync
        # The folders that were read since `flush`, which syncs each of them, up to 256: a variant
        # may be missing in one because another command has removed it, and has not synced it.
        self._read_shards: set[str] = set()

    async def pages(self) -> AsyncGenerator[Page]:
        shards = await self._run_in_thread(self._list_shards)
        for number, shard in enumerate(shards, 1):
            yield Page(await self._run_in_thread(partial(self._list, shard)), number / len(shards))

    async def find(self, key: str) -> Entry | None:
        def find() -> Entry | None:
            with self._shard(key[:2]) as folder:
                return None if folder is None else _read_entry(folder, key)

        return await self._run_in_thread(find)

    async def read_records(
        self, entries: Sequence[Entry], on_failure: OnFailure
    ) -> list[tuple[Entry, VariantRecord | None]]:
        found: list[tuple[Entry, VariantRecord | None]] = []

        def read(part: Sequence[Entry]) -> None:
            for entry in part:
                try:
                    with self._file(entry) as descriptor:
                        if descriptor is not None:
                            trailer = read_trailer(descriptor)
                            found.append((entry, None if trailer is None else trailer[1]))
                except OSError as error:
                    on_failure(entry, error)

        async def read_part(start: int) -> None:
            # A new thread for each file would take longer than reading the file.
            await self._run_in_thread(lambda: read(entries[start :: self._most]))

        await for_each(range(min(self._most, len(entries))), read_part, self._most)
        return found

    async def check(self, entry: Entry, pace: Pace) -> Finding:
        return await self._run_in_thread(lambda: self._check(entry, pace))

    async def remove(
        self,
        entries: Sequence[Entry],
        on_removed: Callable[[Entry], object],
        on_failure: OnFailure,
        *,
        unchanged: bool = False,
    ) -> None:
        """Remove variants. A node that is sending one keeps it open."""
        is_cancelled = False

        def remove() -> None:
            for entry in entries:
                if is_cancelled:
                    return
                try:
                    removed = self._remove(entry, unchanged)
                except OSError as error:
                    on_failure(entry, error)
                else:
                    if removed is not None:
                        on_removed(removed)

        def stop() -> None:
            nonlocal is_cancelled
            is_cancelled = True

        # A removal that went on would come after the sync.
        await await_uncancelled(self._run_in_thread(remove), stop)

    async def flush(self) -> None:
        try:
            await self._run_in_thread(self._flush)
        except OSError as error:
            raise NotSynced(error) from error

    def _flush(self) -> None:
        failure = None
        while self._read_shards:
            try:
                self._sync(f"{self._root}/{self._read_shards.pop()}")
            except FileNotFoundError:
                pass
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def _list_shards(self) -> list[str]:
        try:
            return sorted(filter(_SHARD.fullmatch, os.listdir(self._root)))
        except FileNotFoundError:
            return []

    def _list(self, shard: str) -> list[Entry]:
        with self._shard(shard) as folder:
            if folder is None:
                return []
            with os.scandir(folder) as names:
                keys = [
                    each.name
                    for each in names
                    if each.name.startswith(shard) and KEY.fullmatch(each.name)
                ]
            return [entry for key in keys if (entry := _read_entry(folder, key)) is not None]

    def _check(self, entry: Entry, pace: Pace) -> Finding:
        with self._file(entry) as descriptor:
            if descriptor is None or _version(os.fstat(descriptor)) != entry.version:
                return Finding(Verdict.GONE, entry)
            trailer = read_trailer(descriptor)
            if trailer is None:
                return Finding(Verdict.BROKEN, entry, "its trailer is incomplete or damaged")
            size, record = trailer
            if record is None:
                return Finding(Verdict.UNKNOWN, entry)
            sha256 = hashlib.sha256()
            for chunk in read_chunks(descriptor, 0, size):
                sha256.update(chunk)
                self._sleep(pace.spend(len(chunk)))
        return compare_digests(entry, sha256.hexdigest(), record)

    def _remove(self, entry: Entry, unchanged: bool) -> Entry | None:
        with self._usage.removal() as subtract, self._shard(entry.key[:2]) as folder:
            found = None if folder is None else _read_entry(folder, entry.key)
            if found is None or (unchanged and found.version != entry.version):
                return None
            try:
                os.unlink(entry.key, dir_fd=folder)
            except FileNotFoundError:
                return None
            subtract(found.size)
            return found

    @contextmanager
    def _shard(self, shard: str) -> Iterator[int | None]:
        with _opened(f"{self._root}/{shard}", _FOLDER_FLAGS) as folder:
            if folder is not None:
                self._read_shards.add(shard)
            yield folder

    def _file(self, entry: Entry) -> AbstractContextManager[int | None]:
        return _opened(f"{self._root}/{entry.key[:2]}/{entry.key}", _FILE_FLAGS)


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int | None]:
    try:
        try:
            descriptor = os.open(path, flags | _WITHOUT_USE)
        except PermissionError:
            descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        # A link to a folder is no folder.
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_prune(root: str) -> Iterator[EndCount]:
    """Hold the lock of the one command that may prune a folder, or raise `CatalogBusy`.

    :returns: ends a count of the variants that begins now, for the ledger.
    """
    # Who may write to the folder may not make root change a file elsewhere, by a link to it.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(f"{root}/{_LOCK_NAME}", flags, 0o666)
    try:
        if os.geteuid() == 0 and os.fstat(descriptor).st_nlink == 1:
            # The service's user has to open it too.
            owner = os.stat(root)
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CatalogBusy("another process prunes this folder now") from error
        with StoreUsage(root).count() as end_count:
            yield end_count
    finally:
        os.close(descriptor)


def _read_entry(folder: int, key: str) -> Entry | None:
    """Return the variant in a folder; None for anything but a regular file."""
    try:
        status = os.stat(key, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Entry(key, status.st_size, status.st_mtime, last_use(status), _version(status))


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size
