"""Folders outside trial's."""

from __future__ import annotations

import shutil
import tempfile
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
