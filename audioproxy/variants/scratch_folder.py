"""Scratch files inside a folder store: moved into place by one rename, removed after a crash."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from audioproxy.scratch import Later, run_now

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_LOCK_SUFFIX = ".lock"


class NamedFile:
    """A file that can be moved into its final place by one rename."""

    def __init__(
        self, path: str, later: Later = run_now, left: Callable[[str], object] = lambda path: None
    ) -> None:
        """Make it.

        :param left: told its path where it cannot be removed when it is closed.
        """
        self.path: str | None = path
        self._later = later
        self._left = left
        self._descriptor = os.open(path, _NEW, 0o666)

    @property
    def descriptor(self) -> int:
        """The open descriptor."""
        return self._descriptor

    def grown(self, size: int) -> None:
        """Hear of more bytes, which is nothing to this one."""

    def moved(self) -> None:
        """Take note that the file has its final name and is not scratch any more."""
        self.path = None

    def close(self) -> None:
        """Close it, and remove it unless it was moved; again is harmless."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._later(lambda: self._remove(descriptor))

    def close_now(self) -> None:
        """Close it as `close` does, and come back when that is done."""
        self._later = run_now
        self.close()

    def _remove(self, descriptor: int) -> None:
        os.close(descriptor)
        if self.path is not None:
            try:
                os.unlink(self.path)
            except OSError:
                self._left(self.path)


class ScratchFolder:
    """One process's own folder below a parent that many processes may share.

    The process holds a lock for as long as it lives. A folder whose lock can be taken belongs
    to nobody any more, after a ``kill -9`` say, and the next process to open removes it (D40).
    """

    def __init__(self, parent: str, later: Later = run_now) -> None:
        self._parent = parent
        self._later = later
        self._folder: str | None = None
        self._lock: int | None = None
        self._is_open = False
        self._creating = Lock()
        self._left: list[str] = []

    def open(self) -> None:
        """Remove what dead processes left behind and make this process's own folder.

        :raises OSError: where the parent cannot be written.
        """
        # Only the last folder is made: a store whose disk is not mounted is no store.
        with suppress(FileExistsError):
            os.mkdir(self._parent)
        self._sweep()
        self._folder, self._lock = self._claim()
        os.mkdir(self._folder)
        self._is_open = True

    def create(self) -> NamedFile:
        """Return a new empty file in the folder.

        A folder that somebody removed, clearing a whole store at run time say, is made again,
        and so is one whose store was away for a while. Any thread may call this.

        :raises OSError: where there is no room or no right to, or the parent is gone.
        """
        with self._creating:
            if not self._is_open:
                raise FileNotFoundError("the scratch folder is not open")
            if self._folder is not None:
                with suppress(FileNotFoundError):
                    return self._new_file(self._folder)
            self._let_go()
            self.open()
            assert self._folder is not None
            return self._new_file(self._folder)

    def _new_file(self, folder: str) -> NamedFile:
        made = NamedFile(os.path.join(folder, uuid.uuid4().hex), self._later, self._left.append)
        # The store is there. It was away, perhaps, when these were closed. What still cannot be
        # removed is left to the sweep of the next boot.
        while self._left:
            with suppress(OSError):
                os.unlink(self._left.pop())
        return made

    def close(self) -> None:
        """Remove the folder and let go of the lock; again is harmless."""
        with self._creating:
            self._is_open = False
            self._let_go()

    def _let_go(self) -> None:
        folder, self._folder = self._folder, None
        lock, self._lock = self._lock, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            with suppress(OSError):
                os.unlink(f"{folder}{_LOCK_SUFFIX}")
            os.close(lock)

    def _claim(self) -> tuple[str, int]:
        """Return the name of a folder that is ours to make, and its lock, which we hold."""
        while True:
            folder = os.path.join(self._parent, uuid.uuid4().hex)
            lock = os.open(folder + _LOCK_SUFFIX, _NEW, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:
                os.close(lock)
                os.unlink(folder + _LOCK_SUFFIX)
                raise
            # The sweep of another process may have removed the file just before it was locked.
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)

    def _sweep(self) -> None:
        for name in os.listdir(self._parent):
            path = os.path.join(self._parent, name)
            if not name.endswith(_LOCK_SUFFIX):
                # A lock is there before its folder and after it. What has none belongs to nobody.
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
    """Take a lock that its owner no longer holds; None where it is held or gone."""
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
