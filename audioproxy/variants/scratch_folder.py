"""Scratch files inside a folder store: renamed into place, and removed after a crash."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from audioproxy.files.scratch_files import DetachedRunner, run_inline

_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_LOCK_SUFFIX = ".lock"


class NamedFile:
    """A new file, which can be renamed to its final name."""

    def __init__(
        self,
        path: str,
        run_detached: DetachedRunner = run_inline,
        on_unremoved: Callable[[str], object] = lambda path: None,
    ) -> None:
        self.path: str | None = path
        self._run_detached = run_detached
        self._on_unremoved = on_unremoved
        self.descriptor = os.open(path, _CREATE_FLAGS, 0o666)

    def moved(self) -> None:
        self.path = None

    def close(self) -> None:
        """Close the file, and remove it unless it was moved; repeated calls are harmless."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            self._run_detached(lambda: self._remove(descriptor))

    def close_now(self) -> None:
        self._run_detached = run_inline
        self.close()

    def _remove(self, descriptor: int) -> None:
        os.close(descriptor)
        if self.path is not None:
            try:
                os.unlink(self.path)
            except OSError:
                self._on_unremoved(self.path)


class ScratchFolder:
    """One process's own folder below a parent that many processes may share.

    The process holds a lock for as long as it lives. The next process that opens its own folder
    removes those whose lock can be taken, for example after a ``kill -9`` (D40).
    """

    def __init__(self, parent: str, run_detached: DetachedRunner = run_inline) -> None:
        self._parent = parent
        self._run_detached = run_detached
        self._folder: str | None = None
        self._lock: int | None = None
        self._is_open = False
        self._creating = Lock()
        self._unremoved: list[str] = []

    def open(self) -> None:
        """Remove abandoned folders and create this process's own."""
        # The parent's own parent is not created: if it is missing, the disk of the store is not
        # mounted.
        with suppress(FileExistsError):
            os.mkdir(self._parent)
        self._remove_abandoned()
        self._folder, self._lock = self._claim()
        os.mkdir(self._folder)
        self._is_open = True

    def create(self) -> NamedFile:
        """Return a new empty file in the folder, which is created again if it is gone.

        It may have been removed with the whole store, or unmounted for a while. Any thread may call
        this.
        """
        with self._creating:
            if not self._is_open:
                raise FileNotFoundError("the scratch folder is not open")
            if self._folder is not None:
                with suppress(FileNotFoundError):
                    return self._new_file(self._folder)
            self._release()
            self.open()
            assert self._folder is not None
            return self._new_file(self._folder)

    def _new_file(self, folder: str) -> NamedFile:
        made = NamedFile(
            os.path.join(folder, uuid.uuid4().hex), self._run_detached, self._unremoved.append
        )
        # The store is mounted now, but may not have been when these files were closed. A file that
        # still cannot be removed is left to the next boot.
        while self._unremoved:
            with suppress(OSError):
                os.unlink(self._unremoved.pop())
        return made

    def close(self) -> None:
        """Remove the folder and release the lock; repeated calls are harmless."""
        with self._creating:
            self._is_open = False
            self._release()

    def _release(self) -> None:
        folder, self._folder = self._folder, None
        lock, self._lock = self._lock, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            with suppress(OSError):
                os.unlink(f"{folder}{_LOCK_SUFFIX}")
            os.close(lock)

    def _claim(self) -> tuple[str, int]:
        """Return the name of a new folder and its lock, which this process holds."""
        while True:
            folder = os.path.join(self._parent, uuid.uuid4().hex)
            lock = os.open(folder + _LOCK_SUFFIX, _CREATE_FLAGS, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                os.close(lock)
                os.unlink(folder + _LOCK_SUFFIX)
                raise
            # Another process may have removed the file just before it was locked.
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)

    def _remove_abandoned(self) -> None:
        for name in os.listdir(self._parent):
            path = os.path.join(self._parent, name)
            if not name.endswith(_LOCK_SUFFIX):
                # A lock file is created before its folder and removed after it. So a folder without
                # one is abandoned.
                if not os.path.exists(path + _LOCK_SUFFIX):
                    shutil.rmtree(path, ignore_errors=True)
                continue
            lock = _lock_abandoned(path)
            if lock is not None:
                shutil.rmtree(path.removesuffix(_LOCK_SUFFIX), ignore_errors=True)
                with suppress(FileNotFoundError):
                    os.unlink(path)
                os.close(lock)


def _lock_abandoned(path: str) -> int | None:
    """Acquire the lock of an abandoned folder; return None where it is held or gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
