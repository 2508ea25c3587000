"""A waveform while it is drawn, in a thread: from the pipe of a decoder to a document."""

from __future__ import annotations

import select
from io import RawIOBase
from threading import Event
from typing import IO

import numpy as np

from audioproxy.errors import OutputTooLarge
from audioproxy.media.waveform import SAMPLE, Reduction, serialize
from audioproxy.media.waveform_spec import WaveformSpec

# Bytes that are reduced at a time: whole frames, and few enough to stay in a CPU's cache.
_CHUNK = 256 * 1024
# Milliseconds without a sample after which a reader looks whether the child is still there.
_PATIENCE = 500


class WaveformReader:
    """One waveform."""

    def __init__(self, shape: WaveformSpec, spool: IO[bytes]) -> None:
        """Begin with nothing.

        :param spool: see `Reduction`.
        """
        self._shape = shape
        self._reduction = Reduction(shape, spool)

    def read(self, pipe: RawIOBase, ended: Event) -> None:
        """Reduce what comes out of a pipe until its end.

        :param ended: set when the child is dead. A process that it left behind may hold the pipe
            open for ever.
        """
        reduction = self._reduction
        buffer = bytearray(_CHUNK)
        room = memoryview(buffer)
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        filled = 0
        while True:
            over = ended.is_set()
            if not poll.poll(_PATIENCE):
                if over:
                    break
                continue
            count = pipe.readinto(room[filled:])
            if not count:
                break
            filled += count
            if filled == _CHUNK:
                reduction.add(np.frombuffer(buffer, SAMPLE))
                filled = 0
        # Whole frames alone: a child that was killed may have left a part of one.
        filled -= filled % reduction.frame_bytes
        reduction.add(np.frombuffer(room[:filled], SAMPLE))

    def write(self, output: int, limit: int) -> None:
        """Write the document of all that was read.

        :param limit: bytes; not one more is written (D52).
        :raises NothingDecoded: where that is nothing.
        :raises InvalidOptions: where the serialization cannot hold it.
        :raises OutputTooLarge: past ``limit``.
        """
        size = 0
        with open(output, "wb", closefd=False) as document:
            for piece in serialize(self._reduction.finish(), self._shape):
                size += len(piece)
                if size > limit:
                    raise OutputTooLarge
                document.write(piece)
