"""Scratch files whose digest is computed while they grow, for a store that wants it beforehand."""

from __future__ import annotations

import hashlib
import os
from queue import SimpleQueue

from twisted.internet.defer import Deferred

from audioproxy.scratch import Scratch
from audioproxy.threads import InThread, await_uncancelled

# Bytes of one read. A hash lets other threads run while it takes so many.
_CHUNK = 256 * 1024


class HashingScratch:
    """A scratch file, and a thread that hashes its bytes as they come.

    :param part: bytes; each stretch of so many has a digest of its own.
    """

    def __init__(self, scratch: Scratch, in_thread: InThread, part: int) -> None:
        """Start the thread.

        :raises OSError: where there is none to start.
        """
        self._scratch = scratch
        self._part = part
        self._sizes: SimpleQueue[int | None] = SimpleQueue()
        # The thread has a descriptor of its own, so that this one can be closed at any time.
        descriptor = os.dup(scratch.descriptor)
        try:
            self._hashing: Deferred[list[str]] = in_thread(lambda: self._hash(descriptor))
        except OSError:
            os.close(descriptor)
            raise

    @property
    def descriptor(self) -> int:
        """The open descriptor."""
        return self._scratch.descriptor

    def grown(self, size: int) -> None:
        """Hear of more bytes, which are hashed from now on."""
        self._sizes.put(size)

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes from ``offset``."""
        return os.pread(self._scratch.descriptor, limit, offset)

    async def digests(self, size: int) -> list[str]:
        """Return the SHA-256 of each part of the first ``size`` bytes, in lower-case hex.

        :raises OSError: where the file cannot be read.
        """
        self._sizes.put(size)
        self._sizes.put(None)
        return await await_uncancelled(self._hashing)

    def close(self) -> None:
        """Close the file, and so remove it; again is harmless."""
        self._sizes.put(None)
        # Where nobody has asked for the digests, nobody asks what went wrong with them.
        self._hashing.addErrback(lambda failure: None)
        self._scratch.close()

    def _hash(self, descriptor: int) -> list[str]:
        digests: list[str] = []
        running = hashlib.sha256()
        offset = 0
        buffer = memoryview(bytearray(_CHUNK))
        try:
            while (size := self._sizes.get()) is not None:
                while offset < size:
                    wanted = min(_CHUNK, size - offset, self._part - offset % self._part)
                    got = os.preadv(descriptor, [buffer[:wanted]], offset)
                    if not got:
                        raise OSError("the scratch file is shorter than it was")
                    running.update(buffer[:got])
                    offset += got
                    if offset % self._part == 0:
                        digests.append(running.hexdigest())
                        running = hashlib.sha256()
        finally:
            os.close(descriptor)
        return digests if offset and offset % self._part == 0 else [*digests, running.hexdigest()]
