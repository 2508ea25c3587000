"""Folders outside trial's, and a limit of files."""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
def file_size_limit(size: int) -> Iterator[None]:
    """Let this process write no byte beyond this offset of a file, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
