"""Durations of tests, which trial itself does not report for several processes."""

from __future__ import annotations

import time
from typing import Any

from twisted.trial.unittest import SynchronousTestCase


def record_durations(path: str) -> None:
    """Append the duration of each test in seconds, and its name, to a file from now on."""
    run = SynchronousTestCase.run

    def timed_run(case: SynchronousTestCase, result: Any) -> Any:
        began = time.monotonic()
        try:
            return run(case, result)
        finally:
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{time.monotonic() - began:5.1f} s  {case.id()}\n")

    SynchronousTestCase.run = timed_run  # type: ignore[method-assign]
