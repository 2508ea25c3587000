"""Rendering of one waveform in a thread: from samples to a document."""

from __future__ import annotations

from typing import IO, Protocol

import numpy as np

from audioproxy.errors import OutputTooLarge
from audioproxy.media.waveform import SAMPLE, Reduction, serialize
from audioproxy.media.waveform_spec import WaveformSpec

# Bytes that are reduced at a time: whole frames, and few enough for a CPU's cache.
_CHUNK = 1024 * 1024


class SampleStream(Protocol):
    """A decoder's pipe, or the samples of a file: native samples of 16 bits."""

    def readinto(self, room: memoryview) -> int:
        """Read bytes into ``room`` and return their number; 0 at the end."""
        ...


class WaveformReader:
    """Reads the samples of one waveform, and writes its document."""

    def __init__(self, spec: WaveformSpec, spool: IO[bytes], frames: int | None = None) -> None:
        """Begin without samples.

        :param spool: see `Reduction`.
        :param frames: see `Reduction`.
        """
        self._spec = spec
        self._reduction = Reduction(spec, spool, frames)

    def read(self, stream: SampleStream) -> None:
        """Read and reduce samples until their end."""
        reduction = self._reduction
        buffer = bytearray(_CHUNK)
        room = memoryview(buffer)
        filled = 0
        while count := stream.readinto(room[filled:]):
            filled += count
            if filled == _CHUNK:
                reduction.add(np.frombuffer(buffer, SAMPLE))
                filled = 0
        # Only whole frames: a child that was killed may have written a part of one.
        filled -= filled % reduction.frame_bytes
        reduction.add(np.frombuffer(room[:filled], SAMPLE))

    def write(self, output: int, limit: int) -> None:
        """Write the document of all samples that were read.

        :param limit: bytes; no byte past it is written (D52).
        :raises NothingDecoded: where no sample was read.
        :raises InvalidOptions: where the serialization cannot hold the waveform.
        :raises OutputTooLarge: past ``limit``.
        """
        size = 0
        with open(output, "wb", closefd=False) as document:
            for piece in serialize(self._reduction.finish(), self._spec):
                size += len(piece)
                if size > limit:
                    raise OutputTooLarge
                document.write(piece)
