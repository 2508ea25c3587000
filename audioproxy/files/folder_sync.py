"""Syncs of folders: a name that was made or removed is so on the disk after that (fsync(2))."""

from __future__ import annotations

import errno
import os

# Some network file systems, and some in user space, sync no folder.
_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}


def sync_folder(path: str) -> None:
    """Write the names in a folder to the disk, if its file system can do that for a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)
