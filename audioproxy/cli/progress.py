"""Progress bars."""

from __future__ import annotations

import sys
from threading import RLock
from typing import Any

from tqdm import tqdm

# tqdm's default lock is shared between processes. On Python 3.14, it starts a process.
tqdm.set_lock(RLock())


def progress_bar(unit: str, quiet: bool, total: int | None = None) -> Any:
    """Return a progress bar on standard error, which is shown on terminals only."""
    return tqdm(
        total=total,
        unit=f" {unit}",
        file=sys.stderr,
        disable=quiet or not sys.stderr.isatty(),
        leave=False,
    )
