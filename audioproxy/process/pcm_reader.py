"""Reads uncompressed samples of a file, as ffmpeg would output them with 16 bits."""

from __future__ import annotations

import os
from threading import Event

import numpy as np
from numpy.typing import NDArray

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import RenderFailed
from audioproxy.media.lengths.pcm import sample_bytes
from audioproxy.media.waveform import SAMPLE
from audioproxy.media.waveform_spec import PcmSamples, UnusualSamples

# Values of 16 bits from which ffmpeg's results depend on the machine.
_OVERFLOW = 2.0**31


class PcmReader:
    """Reads the samples of an open file, in the place of a decoder's pipe."""

    def __init__(
        self, samples: PcmSamples, descriptor: int, deadline: Deadline, stop: Event
    ) -> None:
        self._codec = samples.codec
        self._width = sample_bytes(samples.codec)
        self._descriptor = descriptor
        self._offset = samples.offset
        self._left = samples.frames * samples.channels
        self._deadline = deadline
        self._stop = stop

    def readinto(self, room: memoryview) -> int:
        """Read samples of 16 bits into ``room``, and return the number of bytes; 0 at the end.

        :raises UnusualSamples: for samples that ffmpeg must convert.
        """
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
        return _from_floats(np.frombuffer(raw, f"{order}f{bits // 8}", count))
    if bits == 8:
        return np.frombuffer(raw, np.int8, count).astype(np.int16) << 8
    # The two most significant bytes of each sample.
    width = bits // 8
    offset = width - 2 if order == "<" else 0
    return np.ndarray(count, f"{order}i2", raw, offset, (width,))


def _from_floats(samples: NDArray[np.floating]) -> NDArray[np.int16]:
    scaled = samples * samples.dtype.type(1 << 15)
    # NaN is not smaller than anything.
    if not np.all(np.abs(scaled) < _OVERFLOW):
        raise UnusualSamples
    return np.rint(scaled).clip(-(1 << 15), (1 << 15) - 1).astype(np.int16)
