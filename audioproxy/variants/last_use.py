"""The time of a variant's last use, which is the access time of its file.

The service sets it itself: whether reads do depends on the mount (``noatime``, ``relatime``), and
they do so on the path of a response.
"""

from __future__ import annotations

import os
from contextlib import suppress

# Seconds between two changes of the time. Each makes the system write the inode to the disk.
_INTERVAL = 3600


def last_use(status: os.stat_result) -> float:
    # On some file systems, a new file has no access time of its own.
    return max(status.st_atime, status.st_mtime)


def is_due(last: float, now: float) -> bool:
    return now - last >= _INTERVAL


def record_use(path: str, now: float) -> None:
    """Set the time of the last use of a variant, at most once an hour.

    A file that is gone, or that belongs to another user, is left as it is.
    """
    with suppress(OSError):
        status = os.lstat(path)
        if is_due(last_use(status), now):
            times = int(now * 1e9), status.st_mtime_ns
            os.utime(path, ns=times, follow_symlinks=False)
