"""Scratch file that is hashed while it grows, for a store that needs the hash in advance."""

from __future__ import annotations

import hashlib
import os
from queue import SimpleQueue

from twisted.internet.defer import Deferred

from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled
from audioproxy.files.scratch_files import ScratchFile

# Bytes of one read. hashlib releases the GIL for each.
_CHUNK_SIZE = 256 * 1024


class HashingScratchFile:
    """A scratch file, and a thread that hashes its bytes as they are written.

    :param part_size: bytes; each part of this size has a hash of its own.
    """

    def __init__(self, scratch: ScratchFile, run_in_thread: ThreadRunner, part_size: int) -> None:
        """Start the thread.

        :raises OSError: where no thread can be started.
        """
        self._scratch = scratch
        self._part_size = part_size
        self._sizes: SimpleQueue[int | None] = SimpleQueue()
        # The thread has a descriptor of its own, so that the file can be closed at any time.
        descriptor = os.dup(scratch.descriptor)
        try:
            self._hashing: Deferred[list[str]] = run_in_thread(lambda: self._hash(descriptor))
        except OSError:
            os.close(descriptor)
            raise

    @property
    def descriptor(self) -> int:
        """The open descriptor."""
        return self._scratch.descriptor

    def grown(self, size: int) -> None:
        """Queue the file's bytes up to ``size`` for the thread to hash."""
        self._sizes.put(size)

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes from ``offset``."""
        return os.pread(self._scratch.descriptor, limit, offset)

    async def hashes(self, size: int) -> list[str]:
        """Return the SHA-256 of each part of the first ``size`` bytes, in lower-case hex.

        :raises OSError: where the file cannot be read.
        """
        self._sizes.put(size)
        self._sizes.put(None)
        return await await_uncancelled(self._hashing)

    def close(self) -> None:
        """Close the file, which removes it; repeated calls are harmless."""
        self._sizes.put(None)
        # The error of a hash that is not needed any more need not be logged.
        self._hashing.addErrback(lambda failure: None)
        self._scratch.close()

    def _hash(self, descriptor: int) -> list[str]:
        hashes: list[str] = []
        current = hashlib.sha256()
        part_size, offset = self._part_size, 0
        buffer = memoryview(bytearray(_CHUNK_SIZE))
        try:
            while (size := self._sizes.get()) is not None:
                while offset < size:
                    count = min(_CHUNK_SIZE, size - offset, part_size - offset % part_size)
                    received = os.preadv(descriptor, [buffer[:count]], offset)
                    if not received:
                        raise OSError("the scratch file is shorter than it was")
                    current.update(buffer[:received])
                    offset += received
                    if offset % part_size == 0:
                        hashes.append(current.hexdigest())
                        current = hashlib.sha256()
        finally:
            os.close(descriptor)
        return hashes if offset and offset % part_size == 0 else [*hashes, current.hexdigest()]
