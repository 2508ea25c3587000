"""The work of threads for one waveform: reads samples, reduces them, and writes the document."""

from __future__ import annotations

import os
from threading import Event
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import OutputTooLarge, RenderFailed
from audioproxy.media.lengths.pcm import sample_bytes
from audioproxy.media.waveform import SAMPLE, Reduction, Waveform, serialize
from audioproxy.media.waveform_spec import PcmSamples, UnusualSamples, WaveformSpec

# Bytes that are reduced at a time: whole frames, and few enough for a CPU's cache.
_CHUNK = 1024 * 1024
# Values of 16 bits from which ffmpeg's results depend on the machine.
_OVERFLOW = 2.0**31


class SampleStream(Protocol):
    """Native samples of 16 bits, from a decoder or a file; ``readinto`` returns 0 at the end."""

    def readinto(self, room: memoryview) -> int: ...


def reduce_samples(
    spec: WaveformSpec, spool: IO[bytes], frames_in_block: int, stream: SampleStream
) -> Reduction:
    """Return the reduction of all samples of a stream, or raise OSError as its spool does."""
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


def write_document(waveform: Waveform, spec: WaveformSpec, output: int, limit: int) -> None:
    """Write the document of a waveform.

    :param limit: bytes; no byte past it is written (D52).
    """
    size = 0
    with open(output, "wb", closefd=False) as document:
        for piece in serialize(waveform, spec):
            size += len(piece)
            if size > limit:
                raise OutputTooLarge
            document.write(piece)


class PcmReader:
    """Reads the samples of an open file, in the place of a decoder's pipe."""

    def __init__(
        self, samples: PcmSamples, descriptor: int, deadline: Deadline, stop: Event
    ) -> None:
        self._codec, self._width = samples.codec, sample_bytes(samples.codec)
        self._descriptor = descriptor
        self._offset = samples.offset
        self._left = samples.frames * samples.channels
        self._deadline = deadline
        self._stop = stop

    def readinto(self, room: memoryview) -> int:
        """Read samples of 16 bits; raise `UnusualSamples` for those that ffmpeg must convert."""
        if self._stop.is_set():
            return 0
        self._deadline.left()
        wanted = min(self._left, len(room) // SAMPLE.itemsize)
        if not wanted:
            return 0
        if self._codec == "pcm_s16le":
            count = self._read(room[: wanted * self._width])
        else:
            raw = bytearray(wanted * self._width)
            count = self._read(memoryview(raw))
            np.frombuffer(room, SAMPLE, count)[:] = _convert(self._codec, raw, count)
        self._left -= count
        return count * SAMPLE.itemsize

    def _read(self, room: memoryview) -> int:
        # Fewer samples only at the end of the file.
        filled = 0
        try:
            while count := os.preadv(self._descriptor, [room[filled:]], self._offset):
                filled += count
                self._offset += count
        except OSError as error:
            raise RenderFailed("The source could not be read.") from error
        return filled // self._width


def _convert(codec: str, raw: bytearray, count: int) -> NDArray[np.int16]:
    """Return samples with 16 bits, as libswresample converts them (libswresample/audioconvert.c).

    Integers of more bits lose the lower ones; floats are rounded to even, and cut off.
    """
    kind, bits = codec[4], int(codec[5:].rstrip("bel"))
    order = ">" if codec.endswith("be") else "<"
    if kind == "u":
        return (np.frombuffer(raw, np.uint8, count).astype(np.int16) - 128) << 8
    if kind == "f":
        samples: NDArray[np.floating] = np.frombuffer(raw, f"{order}f{bits // 8}", count)
        scaled = samples * samples.dtype.type(1 << 15)
        # NaN is not smaller than anything.
        if not np.all(np.abs(scaled) < _OVERFLOW):
            raise UnusualSamples
        return np.rint(scaled).clip(-(1 << 15), (1 << 15) - 1).astype(np.int16)
    if bits == 8:
        return np.frombuffer(raw, np.int8, count).astype(np.int16) << 8
    # The two most significant bytes of each sample.
    width = bits // 8
    offset = width - 2 if order == "<" else 0
    return np.ndarray(count, f"{order}i2", raw, offset, (width,))
