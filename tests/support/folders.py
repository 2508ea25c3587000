"""Folders outside trial's, and limits of this process."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase


def short_folder(case: SynchronousTestCase) -> Path:
    """Return a new folder, which is removed after the test.

    Its path is short wherever the suite runs: the path of a Unix socket has 107 bytes at most, and
    trial's folders add about that to the checkout's. Other users may enter its parents.
    """
    folder = Path(tempfile.mkdtemp(prefix="audioproxy-", dir="/tmp")).resolve()
    case.addCleanup(shutil.rmtree, folder)
    return folder


@contextmanager
def _limit(kind: int, most: int) -> Iterator[None]:
    limits = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, limits)


def file_size_limit(size: int) -> AbstractContextManager[None]:
    """Let this process write no byte beyond this offset of a file, as on a full disk."""
    return _limit(resource.RLIMIT_FSIZE, size)


def free_descriptors(number: int) -> AbstractContextManager[None]:
    """Let this process open so many more descriptors at most, for the length of a block."""
    free = os.dup(0)
    os.close(free)
    return _limit(resource.RLIMIT_NOFILE, free + number)
