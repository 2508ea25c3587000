"""The output of one render, on disk, which any number of clients read while it grows."""

from __future__ import annotations

import os
from collections.abc import Callable

from audioproxy.errors import Refusal
from audioproxy.scratch_files import ScratchFile


class RenderOutput:
    """A growing file and its followers.

    The encoder appends to the file. Each reader keeps its own offset and reads at its own pace, so
    a reader that lags costs no more memory than any other (D38). The file is closed when the render
    and the last reader have released it.

    :ivar size: bytes that readers can read so far.
    :ivar limit: bytes that readers get at most, however large the file is (D52).
    :ivar ended: no bytes will be added.
    :ivar failure: why the output will never be the whole variant, or None.
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
        """The descriptor that the encoder inherits as its stdout."""
        return self._scratch.descriptor

    @property
    def scratch(self) -> ScratchFile:
        """The scratch file, which the store takes over."""
        return self._scratch

    def update_size(self) -> int:
        """Check the file's size, notify the followers of new bytes, and return the size."""
        size = os.fstat(self._scratch.descriptor).st_size
        readable = min(size, self.limit)
        if readable > self.size:
            self.size = readable
            self._scratch.grown(readable)
            self._notify()
        return size

    def end(self, failure: Refusal | None = None) -> None:
        """Record that no bytes will be added; only the first call has an effect."""
        if not self.ended:
            self.ended = True
            self.failure = failure
            self._notify()

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes from ``offset``; ``b""`` where there are none yet."""
        return os.pread(self._scratch.descriptor, max(0, min(limit, self.size - offset)), offset)

    def follow(self, follower: Callable[[], None]) -> Callable[[], None]:
        """Call ``follower`` on every change from now on; return a function that ends the calls.

        The follower keeps the file open until then.
        """
        token = object()
        self._followers[token] = follower
        self._holders += 1

        def leave() -> None:
            if self._followers.pop(token, None) is not None:
                self.release()

        return leave

    def release(self) -> None:
        """Release one hold on the file; the last release closes it."""
        self._holders -= 1
        if not self._holders:
            self._scratch.close()

    def _notify(self) -> None:
        # A notified follower may add or remove others.
        for token, follower in list(self._followers.items()):
            if token in self._followers:
                follower()
