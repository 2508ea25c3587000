"""Local sources: confined to a root, and held open from the check to the render."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Mapping

from audioproxy.errors import NotFound, UpstreamUnavailable
from audioproxy.grammar.sources import LocalSource, climbs_out, log_name
from audioproxy.log_context import Logger
from audioproxy.media.inputs import SOURCE_DESCRIPTOR, Input, local_input
from audioproxy.recent import Recent

# Directories on the way are opened only to be walked through, for which Linux asks no right to
# list them.
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a FIFO would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

# Failures that leave open whether the file is there. A 404, which may be kept for a while, would
# be a false one.
_OURS = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE}

# Seconds after which a change must show in a file's times: the coarsest file systems count two.
_SETTLED = 3.0


# Seconds between two log lines about one source that may not be read, and how many such sources are
# remembered (D56).
_REPORT_EVERY = 60.0
_REPORTED = 10_000

_log = Logger()


class LocalFile:
    """A regular file below the root, open for reading."""

    def __init__(
        self,
        descriptor: int,
        status: os.stat_result,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._descriptor = descriptor
        self._status = status
        self._now = now

    @property
    def size(self) -> int:
        """Bytes."""
        return self._status.st_size

    @property
    def validator(self) -> bytes:
        """Size and modification time."""
        return _material(self._status)

    @property
    def descriptors(self) -> Mapping[int, int]:
        """The one descriptor that a child inherits."""
        return {SOURCE_DESCRIPTOR: self._descriptor}

    async def input(self, seconds: float, *, whole: bool) -> Input:
        """Return the inherited descriptor, opened as a file."""
        return local_input()

    def fingerprint(self) -> bytes:
        """Return all that the system changes with a file, once that lies back for a while.

        Of one that is closed nothing is certain: those who share a probe may outlast who began it.
        """
        if self._descriptor < 0:
            return b""
        status = os.fstat(self._descriptor)
        if max(status.st_mtime, status.st_ctime) > self._now() - _SETTLED:
            return b""
        return b"%d-%d-%d-%d-%d" % (
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )

    async def unchanged(self) -> bool:
        """Tell whether nobody has written into the file since it was opened."""
        return _material(os.fstat(self._descriptor)) == self.validator

    def close(self) -> None:
        """Close the descriptor; again is harmless."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class LocalSources:
    """The files below one root."""

    def __init__(self, root: str, now: Callable[[], float] = time.monotonic) -> None:
        """Serve what lies below a root.

        :param now: seconds of a clock.
        """
        self._root = os.path.abspath(os.fsencode(root))
        self._now = now
        self._reported: Recent[bytes, float] = Recent(_REPORTED)

    async def open(self, source: LocalSource) -> LocalFile:
        """Open a source after following every symbolic link of its path inside the root.

        The path is resolved first and then walked link by link without following any, so a
        component that is swapped for a link in between is refused and not followed.

        :raises NotFound: for everything but a readable regular file inside the root.
        :raises UpstreamUnavailable: where the trouble is ours and says nothing of the file.
        """
        try:
            # The root is resolved anew each time: it may be a link that a deployment moves.
            root = os.path.realpath(self._root)
            descriptor = _open_resolved(root, _resolve(root, source.path))
        except OSError as error:
            if error.errno in _OURS:
                raise UpstreamUnavailable from error
            if error.errno in (errno.EACCES, errno.EPERM):
                self._report_denied(source, error)
            raise NotFound(str(error)) from None
        except ValueError as error:
            raise NotFound(str(error)) from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise NotFound("not a regular file")
        return LocalFile(descriptor, status)

    def _report_denied(self, source: LocalSource, error: OSError) -> None:
        """Log a permission that the service lacks, which the client is not told of (D56)."""
        now, last = self._now(), self._reported.get(source.path)
        if last is None or now - last >= _REPORT_EVERY:
            self._reported.keep(source.path, now)
            _log.warn(
                "the source {source} cannot be read: {reason}; give this process the right to read"
                " it and to search the folders that lead to it",
                source=log_name(source.canonical),
                reason=os.strerror(error.errno or 0),
            )


def _material(status: os.stat_result) -> bytes:
    return b"%d-%d" % (status.st_size, status.st_mtime_ns)


def _resolve(root: bytes, path: bytes) -> list[bytes]:
    """Return the components below the root that ``path`` resolves to."""
    if path.startswith(b"/"):
        raise ValueError("the path is absolute")
    if climbs_out(path):
        raise ValueError("the path climbs out of the root")
    resolved = os.path.realpath(os.path.join(root, path), strict=True)
    prefix = root.rstrip(b"/") + b"/"
    if not resolved.startswith(prefix):
        raise ValueError("the path resolves to a place outside the root")
    # A device or a FIFO may act on being opened: it is refused before that. What is open
    # in the end is looked at again. The path is taken as it was spelled, since realpath() lets
    # `file/` and `file/../other` pass.
    if not stat.S_ISREG(os.stat(os.path.join(root, path)).st_mode):
        raise ValueError("not a regular file")
    return resolved.removeprefix(prefix).split(b"/")


def _open_resolved(root: bytes, components: list[bytes]) -> int:
    *directories, name = components
    here = os.open(root, _DIRECTORY)
    try:
        for directory in directories:
            inner = os.open(directory, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = inner
        return os.open(name, _FILE, dir_fd=here)
    finally:
        os.close(here)
