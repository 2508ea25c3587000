"""Local sources: confined to a root, and open from the check to the end of the render."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import ClassVar, TypeVar

from cachetools import TTLCache

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.threads import ThreadRunner
from audioproxy.errors import NoSuchSource, NotFound, UpstreamUnavailable, reason_of
from audioproxy.files.whole_transfers import read_in_thread
from audioproxy.grammar.sources import LocalSource, leaves_root, log_name
from audioproxy.grammar.values import other_forms
from audioproxy.media.inputs import SOURCE_DESCRIPTOR, Input, local_input
from audioproxy.observe.log_context import Logger
from audioproxy.sources.interfaces import Look

# The directories of a path are opened only to be traversed. With O_PATH, Linux requires no
# permission to list them.
_DIRECTORY_FLAGS = (
    getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
)
# Without O_NONBLOCK, opening a FIFO would wait for its writer.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Errors that do not tell whether the file exists. A 404, which may be cached for a while, would be
# wrong.
_UNCERTAIN_ERRORS = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE}
# Seconds after which a change must show in a file's times: the coarsest file systems have ticks of
# two seconds.
_TIMESTAMP_MARGIN = 3.0
# Seconds between two log lines about one source that this process has no permission to read, and
# the most sources that are remembered for this (D56).
_REPORT_INTERVAL = 60.0
_MAX_REPORTED = 10_000

T = TypeVar("T")

_log = Logger()


class OpenLocalSource:
    """A regular file below the root, open for reading.

    :ivar validator: the size and the modification time.
    :ivar identity: all metadata that changes with the file, however its path was spelled.
    """

    # The service does not learn of the failed reads of a child.
    failure: ClassVar[None] = None

    def __init__(
        self,
        descriptor: int,
        status: os.stat_result,
        run_in_thread: ThreadRunner,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.size = status.st_size
        self.validator = _validator(status)
        self.identity = _identity(status)
        self._descriptor = descriptor
        self._run_in_thread = run_in_thread
        self._now = now

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def inherit(self) -> AbstractContextManager[Mapping[int, int]]:
        return nullcontext({SOURCE_DESCRIPTOR: self._descriptor})

    async def inspect(self, deadline: Deadline, look: Look[T]) -> T:
        return await look(local_input())

    async def input(self, deadline: Deadline, share: float = 1.0) -> Input:
        return local_input()

    async def complete(self, deadline: Deadline) -> None:
        """Do nothing: all of the file is there."""

    async def read(self, offset: int, count: int) -> bytes:
        try:
            return await read_in_thread(self._run_in_thread, self._descriptor, offset, count)
        except OSError as error:
            _log.warn("a source cannot be read: {reason}", reason=os.strerror(error.errno or 0))
            raise UpstreamUnavailable from error

    def has_certain_identity(self) -> bool:
        """Return whether the file is as it was when it was opened, and had been for 3 seconds.

        Nothing is certain after `close`, since other requests may still share a probe of this
        source, and while the disk fails.
        """
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return False
        is_old = max(status.st_mtime, status.st_ctime) <= self._now() - _TIMESTAMP_MARGIN
        return is_old and _identity(status) == self.identity

    async def unchanged(self) -> bool:
        try:
            return _validator(os.fstat(self._descriptor)) == self.validator
        except OSError as error:
            raise UpstreamUnavailable from error

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class LocalSources:
    def __init__(
        self, root: str, run_in_thread: ThreadRunner, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._run_in_thread = run_in_thread
        self._root = os.path.abspath(os.fsencode(root))
        self._reported: TTLCache[bytes, None] = TTLCache(_MAX_REPORTED, _REPORT_INTERVAL, timer=now)

    async def open(self, source: LocalSource, *, reads: bool = True) -> OpenLocalSource:
        """Open a source after following every symbolic link of its path inside the root.

        The path is resolved first, and then opened component by component without following
        links: a component that is replaced by a link in between is refused.
        """
        try:
            # The root is resolved for each request: it may be a link that a deployment changes.
            root = os.path.realpath(self._root)
            descriptor, status = _open_resolved(root, _resolve(root, source.path))
        except OSError as error:
            if error.errno in _UNCERTAIN_ERRORS:
                raise UpstreamUnavailable from error
            if error.errno in (errno.EACCES, errno.EPERM):
                self._report_denied(source, error)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise NotFound(reason_of(error)) from None
            other = await self._find_other_form(root, source.path)
            raise NoSuchSource(f"{reason_of(error)}{other}") from None
        except ValueError as error:
            raise NotFound(str(error)) from None
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise NotFound("not a regular file")
        return OpenLocalSource(descriptor, status, self._run_in_thread)

    async def _find_other_form(self, root: bytes, path: bytes) -> str:
        found = None
        if other_forms(path):
            with suppress(OSError):
                found = await self._run_in_thread(lambda: _find_other_form(root, path))
        if found is None:
            return ""
        name = log_name(LocalSource(found).canonical)
        return f"; the same name is there in another Unicode form: {name}"

    def _report_denied(self, source: LocalSource, error: OSError) -> None:
        """Log a permission that the service lacks; the client gets a plain 404 (D56)."""
        if source.path not in self._reported:
            self._reported[source.path] = None
            _log.warn(
                "the source {source} cannot be read: {reason}; give this process the right to read"
                " it and to search the folders that lead to it",
                source=log_name(source.canonical),
                reason=os.strerror(error.errno or 0),
            )


def _validator(status: os.stat_result) -> bytes:
    return b"%d-%d" % (status.st_size, status.st_mtime_ns)


def _identity(status: os.stat_result) -> bytes:
    place = b"%d-%d" % (status.st_dev, status.st_ino)
    return b"%s-%s-%d" % (place, _validator(status), status.st_ctime_ns)


def _resolve(root: bytes, path: bytes) -> list[bytes]:
    """Return the components below the root that ``path`` resolves to."""
    if path.startswith(b"/"):
        raise ValueError("the path is absolute")
    if leaves_root(path):
        raise ValueError("the path leaves the root")
    resolved = os.path.realpath(os.path.join(root, path), strict=True)
    prefix = root.rstrip(b"/") + b"/"
    if not resolved.startswith(prefix):
        raise ValueError("the path resolves to a place outside the root")
    # Opening a device or a FIFO may have an effect, so it is refused before that. The open file is
    # checked again. The path is taken as it was spelled, since realpath() accepts `file/` and
    # `file/../other`.
    if not stat.S_ISREG(os.stat(os.path.join(root, path)).st_mode):
        raise ValueError("not a regular file")
    return resolved.removeprefix(prefix).split(b"/")


def _find_other_form(root: bytes, path: bytes) -> bytes | None:
    """Return the path of a file whose components have other Unicode forms."""
    found = b""
    for name in path.split(b"/"):
        spellings = [os.path.join(found, each) for each in (name, *other_forms(name).values())]
        existing = [each for each in spellings if os.path.lexists(os.path.join(root, each))]
        if not existing:
            return None
        found = existing[0]
    try:
        _resolve(root, found)
    except (OSError, ValueError):
        return None
    return found


def _open_resolved(root: bytes, components: list[bytes]) -> tuple[int, os.stat_result]:
    *directories, name = components
    parent = os.open(root, _DIRECTORY_FLAGS)
    try:
        for directory in directories:
            inner = os.open(directory, _DIRECTORY_FLAGS, dir_fd=parent)
            os.close(parent)
            parent = inner
        opened = os.open(name, _FILE_FLAGS, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        return opened, os.fstat(opened)
    except OSError:
        os.close(opened)
        raise
