"""Waveforms: minimum and maximum of the samples in each pixel, and their two serializations.

Samples are reduced to *blocks* as they arrive. Where the number of frames is expected, a block is a
whole pixel. Otherwise blocks are short at first, and whenever there are too many, every two
neighbors are merged into one. At the end, a pixel is a whole number of blocks. If it is not, since
the expectation was wrong or since pixels divide the frames evenly, the pass is repeated with the
number that it has counted. The number of blocks is limited, so their memory does not grow with the
length of the source (D26).

"Extremes" are an array of ``int16`` of the shape ``(n, channels, 2)``: the minimum and the maximum
of each channel in each of ``n`` blocks or pixels.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from audioproxy.errors import InvalidOptions, NothingDecoded
from audioproxy.media.waveform_pixels import CoarseBlocks, block_capacity, frames_per_pixel
from audioproxy.media.waveform_spec import WaveformSpec

Extremes = NDArray[np.int16]

#: The input of `Reduction.add`: little-endian samples of 16 bits, channels interleaved.
SAMPLE = np.dtype("<i2")

# By the last index of extremes.
_FUNCTIONS = np.minimum, np.maximum

# Blocks that are processed at a time.
_BLOCKS_PER_BATCH = 64 * 1024
# Values from which numpy reduces a run faster than it folds it.
_FAST_RUN = 64
# Values that are compared with those of the same place in all other lines of a long row, and lines
# from which this takes less time than folding.
_LINE = 4096
_LEAST_LINES = 3
# Values of a row that are compared one after the other, for all rows at a time.
_SHORT_ROW = 16
# Values of all rows that are reduced at once: each operation of numpy takes a microsecond.
_FEW_VALUES = 256

# The version of the format, in both serializations. Version 1 supports only one channel.
_VERSION = 2
_HEADER = struct.Struct("<6I")
_EIGHT_BITS = 1
# Programs that read the format treat the numbers in its header as signed.
_LONGEST_PIXEL = 2**31 - 1
# Values that are written at a time.
_VALUES_PER_WRITE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Waveform:
    """The extremes of each pixel, one row each; zeros past the end of the source.

    :ivar frames_per_pixel: the format's ``samples_per_pixel``.
    """

    frames_per_pixel: int
    extremes: Extremes


class Reduction:
    """Reduces decoded samples to the blocks of a waveform, in one pass."""

    def __init__(self, spec: WaveformSpec, spool: IO[bytes], frames_in_block: int = 1) -> None:
        """Begin without samples.

        :param spool: an empty seekable file, which the caller closes. It holds the blocks: up to
            200 for each pixel, or 256 Ki where that is more.
        :param frames_in_block: that of a pixel, where it is known; merging makes blocks longer.
        """
        self._decoded_channels = spec.decoded_channels
        self._channels = spec.channels
        self._pixels = spec.pixels
        self._spool = spool
        self._capacity = block_capacity(spec.pixels)
        self._frames_in_block = frames_in_block
        self._blocks = 0
        # The extremes of the last block, which is not complete yet.
        self._partial_block = self._new_extremes(1)
        self._partial_frames = 0

    @property
    def frame_bytes(self) -> int:
        return self._decoded_channels * SAMPLE.itemsize

    @property
    def frames(self) -> int:
        return self._blocks * self._frames_in_block + self._partial_frames

    def add(self, samples: NDArray[np.int16]) -> None:
        """Add the next samples, which must be whole frames."""
        frames: NDArray[np.signedinteger] = samples.reshape(-1, self._decoded_channels)
        if self._channels < self._decoded_channels:
            frames = _sum(frames)
        while len(frames):
            room = (self._capacity - self._blocks) * self._frames_in_block - self._partial_frames
            self._reduce_frames(frames[:room])
            frames = frames[room:]
            if self._blocks == self._capacity:
                self._merge_neighbors()

    def finish(self) -> Waveform:
        """Return the waveform of all samples; raise `CoarseBlocks` where it takes another pass."""
        if not self.frames:
            raise NothingDecoded
        pixel = frames_per_pixel(self.frames, self._pixels)
        return Waveform(pixel, self.pixels(pixel))

    def pixels(self, pixel: int) -> Extremes:
        """Return the extremes of all pixels, after the last samples; zeros past their end.

        The pixels, of so many frames, must hold all frames that were added.
        """
        # A pixel that is the only one holds all blocks.
        if pixel % self._frames_in_block and self._pixels > 1:
            raise CoarseBlocks(self.frames)
        blocks_in_pixel = -(-pixel // self._frames_in_block)
        blocks = self._blocks
        if self._partial_frames:
            self._write(blocks, self._partial_block)
            blocks += 1
        extremes = np.zeros((self._pixels, self._channels, 2), np.int16)
        batch_size = blocks_in_pixel * max(1, _BLOCKS_PER_BATCH // blocks_in_pixel)
        for at in range(0, blocks, batch_size):
            batch = self._read(at, min(batch_size, blocks - at))
            pixels = extremes[at // blocks_in_pixel :]
            whole, rest = divmod(len(batch), blocks_in_pixel)
            _reduce_blocks(batch[: len(batch) - rest], blocks_in_pixel, pixels[:whole])
            if rest:
                _reduce_blocks(batch[-rest:], rest, pixels[whole : whole + 1])
        return extremes

    def _reduce_frames(self, frames: NDArray[np.signedinteger]) -> None:
        size = self._frames_in_block
        if self._partial_frames:
            missing = size - self._partial_frames
            self._extend_partial_block(frames[:missing])
            frames = frames[missing:]
        whole = len(frames) // size
        if whole:
            self._append(self._reduce(frames[: whole * size].reshape(whole, size, -1)))
        if whole * size < len(frames):
            self._extend_partial_block(frames[whole * size :])

    def _extend_partial_block(self, frames: NDArray[np.signedinteger]) -> None:
        added = self._reduce(frames[np.newaxis])
        if self._partial_frames:
            both = np.concatenate((self._partial_block, added))
            _reduce_blocks(both, 2, self._partial_block)
        else:
            self._partial_block = added
        self._partial_frames += len(frames)
        if self._partial_frames == self._frames_in_block:
            self._append(self._partial_block)
            self._partial_frames = 0

    def _reduce(self, rows: NDArray[np.signedinteger]) -> Extremes:
        """Return the extremes of each row of frames: of the samples, or of the means of sums."""
        extremes = self._new_extremes(len(rows))
        for index, function in enumerate(_FUNCTIONS):
            found = _fold(function, rows)
            # Both extremes of the means are those of the sums: a larger sum has no smaller mean.
            if self._channels < self._decoded_channels:
                # Truncated toward zero, as audiowaveform mixes two channels. Shifting rounds down,
                # so one is added to negative sums.
                found = (found - (found >> 31)) >> 1
            extremes[..., index] = found
        return extremes

    def _merge_neighbors(self) -> None:
        """Merge every two neighboring blocks, at the capacity, when all blocks are complete."""
        for at in range(0, self._blocks, _BLOCKS_PER_BATCH):
            batch = self._read(at, min(_BLOCKS_PER_BATCH, self._blocks - at))
            merged = self._new_extremes(len(batch) // 2)
            _reduce_blocks(batch, 2, merged)
            self._write(at // 2, merged)
        self._blocks //= 2
        self._frames_in_block *= 2

    def _new_extremes(self, blocks: int) -> Extremes:
        return np.empty((blocks, self._channels, 2), np.int16)

    def _append(self, blocks: Extremes) -> None:
        self._write(self._blocks, blocks)
        self._blocks += len(blocks)

    def _write(self, at: int, blocks: Extremes) -> None:
        self._spool.seek(at * self._partial_block.nbytes)
        self._spool.write(blocks.data)

    def _read(self, at: int, blocks: int) -> Extremes:
        self._spool.seek(at * self._partial_block.nbytes)
        data = self._spool.read(blocks * self._partial_block.nbytes)
        return np.frombuffer(data, np.int16).reshape(-1, self._channels, 2)


def _sum(frames: NDArray[np.int16]) -> NDArray[np.int32]:
    # Both channels as one 32-bit word: separating them with strides takes twice as long.
    sums = frames.view("<i4") >> 16
    sums += frames[:, :1]
    return sums


def _reduce_blocks(blocks: Extremes, size: int, result: Extremes) -> None:
    """Fill ``result`` with the extremes of every ``size`` neighboring blocks."""
    for index, function in enumerate(_FUNCTIONS):
        rows = blocks[..., index].reshape(-1, size, blocks.shape[1])
        result[..., index] = _fold(function, rows)


def _fold(function: np.ufunc, rows: NDArray[np.signedinteger]) -> NDArray[np.signedinteger]:
    """Return the minimum or the maximum over the second of three axes.

    numpy reduces long runs of neighboring values fast, and all others slowly. So long rows of
    several channels are reduced line by line. Shorter ones are folded in half again and again. Both
    compare long runs with each other.
    """
    channels = rows.shape[2]
    is_run = channels == 1 and rows.shape[1] >= _FAST_RUN
    if not is_run and rows.shape[1] >= _LEAST_LINES * (_LINE // channels):
        rows = _reduce_lines(function, rows)
    while not is_run and rows.shape[1] * channels > _SHORT_ROW and rows.size > _FEW_VALUES:
        length = rows.shape[1]
        half = (length + 1) // 2
        rows = function(rows[:, :half], rows[:, length - half :])
    if is_run or rows.size <= _FEW_VALUES:
        reduced: NDArray[np.signedinteger] = function.reduce(rows, axis=1)
        return reduced
    result = rows[:, 0].copy()
    for channel in range(channels):
        column = result[:, channel]
        for at in range(1, rows.shape[1]):
            function(column, rows[:, at, channel], out=column)
    return result


def _reduce_lines(function: np.ufunc, rows: NDArray[np.signedinteger]) -> NDArray[np.signedinteger]:
    """Return rows of one line, with the minimum or the maximum of all lines of the longer rows.

    The line is so short that it stays in the CPU's cache.
    """
    number, length, channels = rows.shape
    line = _LINE // channels
    lines = length // line
    whole, rest = rows[:, : lines * line], rows[:, lines * line :]
    reduced = function.reduce(whole.reshape(number, lines, -1), axis=1)
    result: NDArray[np.signedinteger] = reduced.reshape(number, line, channels)
    first = result[:, : rest.shape[1]]
    function(first, rest, out=first)
    return result


def serialize(waveform: Waveform, spec: WaveformSpec) -> Iterator[bytes]:
    """Yield the document of a waveform in pieces, as version 2 of audiowaveform's format (D25)."""
    values = waveform.extremes.reshape(-1)
    pieces = (
        values[at : at + _VALUES_PER_WRITE] for at in range(0, len(values), _VALUES_PER_WRITE)
    )
    if spec.bits == 8:
        # Truncated toward zero, which `//` does not do.
        pieces = (np.fix(piece / 256).astype(np.int8) for piece in pieces)
    return _SERIALIZERS[spec.serialization](waveform.frames_per_pixel, spec, pieces)


def _json(pixel: int, spec: WaveformSpec, pieces: Iterator[NDArray[np.integer]]) -> Iterator[bytes]:
    facts = {
        "version": _VERSION,
        "channels": spec.channels,
        "sample_rate": spec.sample_rate,
        "samples_per_pixel": pixel,
        "bits": spec.bits,
        "length": spec.pixels,
    }
    before = json.dumps(facts, separators=(",", ":"))[:-1] + ',"data":['
    for piece in pieces:
        yield (before + ",".join(map(str, piece.tolist()))).encode("ascii")
        before = ","
    yield b"]}"


def _dat(pixel: int, spec: WaveformSpec, pieces: Iterator[NDArray[np.integer]]) -> Iterator[bytes]:
    if pixel > _LONGEST_PIXEL:
        why = f"pk_fmt:dat holds pixels of at most {_LONGEST_PIXEL} frames"
        raise InvalidOptions.of(f"pts:{spec.pixels}", f"{why}, and these would have {pixel}")
    flags = _EIGHT_BITS if spec.bits == 8 else 0
    yield _HEADER.pack(_VERSION, flags, spec.sample_rate, pixel, spec.pixels, spec.channels)
    for piece in pieces:
        yield piece.astype(piece.dtype.newbyteorder("<")).tobytes()


_SERIALIZERS = {"json": _json, "dat": _dat}
