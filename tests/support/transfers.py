"""Reads and writes of files by this process that are short, or fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from twisted.trial.unittest import SynchronousTestCase


class Transfers:
    """Replaces `os.pread` and `os.pwrite` until the end of a test.

    :ivar most: bytes that one call transfers at most; None for all.
    :ivar failures: by the name of a function, the error number of each of its next calls, or None
        for one that succeeds.
    """

    def __init__(self, case: SynchronousTestCase) -> None:
        self.clear()
        for name in self.failures:
            case.patch(os, name, partial(self._transfer, name, getattr(os, name)))

    def clear(self) -> None:
        """Let all transfers succeed."""
        self.most: int | None = None
        self.failures: dict[str, list[int | None]] = {"pread": [], "pwrite": []}

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Let transfers succeed in a block, and then be as before."""
        most, failures = self.most, self.failures
        self.clear()
        yield
        self.most, self.failures = most, failures

    def _transfer(
        self, name: str, transfer: Callable[..., Any], descriptor: int, what: Any, offset: int
    ) -> Any:
        failures = self.failures[name]
        if failures and (code := failures.pop(0)) is not None:
            raise OSError(code, os.strerror(code))
        if self.most is not None:
            what = min(what, self.most) if name == "pread" else what[: self.most]
        return transfer(descriptor, what, offset)
