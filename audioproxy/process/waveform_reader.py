"""The work of threads for one waveform: from samples to pixels, and from pixels to a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO, Protocol

import numpy as np

from audioproxy.errors import OutputTooLarge
from audioproxy.media.waveform import SAMPLE, Reduction, Waveform, serialize
from audioproxy.media.waveform_spec import WaveformSpec

# Bytes that are reduced at a time: whole frames, and few enough for a CPU's cache.
_CHUNK = 1024 * 1024


class SampleStream(Protocol):
    """A decoder's pipe, or the samples of a file: native samples of 16 bits."""

    def readinto(self, room: memoryview) -> int:
        """Read into ``room``, and return the number of bytes; 0 at the end."""
        ...


def reduce_samples(
    spec: WaveformSpec, spool: IO[bytes], frames_in_block: int, stream: SampleStream
) -> Reduction:
    """Return the reduction of all samples of a stream: see `Reduction`.

    :raises OSError: where the blocks cannot be stored.
    """
    reduction = Reduction(spec, spool, frames_in_block)
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
    return reduction


def join_parts(parts: Sequence[Reduction], pixel: int) -> Waveform:
    """Return the waveform of consecutive parts, each of which begins with a pixel.

    :param pixel: in frames.
    """
    return Waveform(pixel, np.concatenate([part.pixels(pixel) for part in parts]))


def write_document(
    finish: Callable[[], Waveform], spec: WaveformSpec, output: int, limit: int
) -> None:
    """Write the document of a waveform. Nothing is written if ``finish`` raises.

    :param limit: bytes; no byte past it is written (D52).
    """
    waveform, size = finish(), 0
    with open(output, "wb", closefd=False) as document:
        for piece in serialize(waveform, spec):
            size += len(piece)
            if size > limit:
                raise OutputTooLarge
            document.write(piece)
