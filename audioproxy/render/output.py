"""Everything that one render has produced so far, on disk, for any number of readers."""

from __future__ import annotations

import os
from collections.abc import Callable

from audioproxy.errors import Refusal
from audioproxy.scratch_files import ScratchFile


class RenderOutput:
    """A growing file and those who follow it.

    The encoder appends; each reader keeps an offset of its own and reads at its own pace, so
    the memory that a reader costs does not depend on how far it lags (D38). The file is closed
    when its render and its last reader have let go of it.

    :ivar size: bytes so far that readers are given.
    :ivar limit: bytes that readers are given at most, however large the file is (D52).
    :ivar ended: nothing will be added.
    :ivar failure: why the bytes are not the whole variant and never will be, or None.
    """

    def __init__(self, scratch: ScratchFile, limit: int) -> None:
        self.size = 0
        self.limit = limit
        self.ended = False
        self.failure: Refusal | None = None
        self._scratch = scratch
        self._holders = 1
        self._followers: dict[object, Callable[[], None]] = {}

    @property
    def descriptor(self) -> int:
        """What the encoder inherits as its stdout."""
        return self._scratch.descriptor

    @property
    def scratch(self) -> ScratchFile:
        """The file, for the store to take over."""
        return self._scratch

    def grow(self) -> int:
        """Look at the file, notify the followers of new bytes and return its size."""
        size = os.fstat(self._scratch.descriptor).st_size
        readable = min(size, self.limit)
        if readable > self.size:
            self.size = readable
            self._scratch.grown(readable)
            self._tell()
        return size

    def end(self, failure: Refusal | None = None) -> None:
        """Say that nothing will be added; only the first word on it counts."""
        if not self.ended:
            self.ended = True
            self.failure = failure
            self._tell()

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes from ``offset``; none where there are none yet."""
        return os.pread(self._scratch.descriptor, max(0, min(limit, self.size - offset)), offset)

    def follow(self, follower: Callable[[], None]) -> Callable[[], None]:
        """Call ``follower`` on every change from now on; returns what ends that.

        The caller holds the file until then.
        """
        token = object()
        self._followers[token] = follower
        self._holders += 1

        def leave() -> None:
            if self._followers.pop(token, None) is not None:
                self.release()

        return leave

    def release(self) -> None:
        """Let go of the file, which is closed when nobody holds it."""
        self._holders -= 1
        if not self._holders:
            self._scratch.close()

    def _tell(self) -> None:
        # Telling one may make others come or go.
        for token, follower in list(self._followers.items()):
            if token in self._followers:
                follower()
