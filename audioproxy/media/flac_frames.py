"""Whether a flac file begins with what may be encoded audio, by the form of its frames (RFC 9639).

Encoded audio is noise of nearly full scale, whose residuals need many bits. The numbers of bits
tell, so no sample is decoded here: ffmpeg decodes what looks like noise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from audioproxy.media.lengths.flac import BLOCK_SIZES, RATE_BYTES, SIZE_BYTES
from audioproxy.media.reading import Malformed, Reader

# Bytes of frames that are read at once.
_WINDOW = 48 * 1024
# Bytes that are converted into bits at once.
_PIECE = 8 * 1024
# Seconds of zeros after which a source is not examined any more, and the number of frames.
_MOST_ZEROS = 10
_MOST_FRAMES = 4096
# The Rice parameter from which residuals of 16 bits look like noise. It is 11 or more for the 14
# bits of DTS. It may be 7 where short bursts and zeros share a partition; encoders find no
# prediction for these, but one for nearly all music.
_NOISE = 11
_UNPREDICTED_NOISE = 7
# The bits of the words that encoded audio consists of.
_WORD = 16

# The start of a frame's header: sync, block size, sample rate, channels, bits of a sample; then the
# first byte of the frame's number.
_HEADER = re.compile(r"111111111111100[01]([01]{4})([01]{4})([01]{4})([01]{3})0(1*)0")
# Of the streamable subset (RFC 9639, 7).
_LARGEST_BLOCK = 16384
_DEPTHS = {1: 8, 2: 12, 4: 16, 5: 20, 6: 24}
# Whether each of two channels is a difference, which has one more bit than a sample.
_SIDES = {1: (0, 0), 8: (0, 1), 9: (1, 0), 10: (0, 1)}
_UNARY = re.compile("0*1")


class _Look(IntEnum):
    """What a frame, or a channel of it, looks like; late is other audio that begins with zeros.

    The lower one of two channels counts.
    """

    NOISE = 0
    OTHER = 1
    LATE = 2


class _Frame(NamedTuple):
    """The header of a frame: its samples, their bits, and those of a sample of each channel."""

    block: int
    depth: int
    widths: tuple[int, int]


class _Bits:
    """Bits that are read from a place on. Those that nobody reads are not converted."""

    def __init__(self, data: bytes) -> None:
        self._pieces = (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
        self._text = ""
        self.at = 0

    def _convert_more(self) -> bool:
        piece = next(self._pieces, b"")
        digits = np.unpackbits(np.frombuffer(piece, np.uint8)) + ord("0")
        self._text += digits.tobytes().decode("ascii")
        return bool(piece)

    def _convert_to(self, stop: int) -> None:
        while stop > len(self._text) and self._convert_more():
            pass

    def starts_with(self, text: str) -> bool:
        self._convert_to(self.at + len(text))
        return self._text.startswith(text, self.at)

    def read(self, count: int) -> int:
        start, self.at = self.at, self.at + count
        self._convert_to(self.at)
        if self.at > len(self._text):
            raise Malformed
        return int(self._text[start : self.at] or "0", 2)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        while (found := pattern.match(self._text, self.at)) is None:
            if not self._convert_more():
                raise Malformed
        self.at = found.end()
        return found


def find_noise(offset: int, size: int, rate: int, depth: int) -> Reader[int | None]:
    """Return the number of samples ahead of a frame that looks like noise; None for other audio.

    The first frame that is not silent decides. If it begins with zeros, it may end with a few
    samples of a burst, so the next one counts, too.

    :param depth: bits of a sample, where a frame does not state them.
    """
    samples = frames = heard = 0
    while True:
        bits = _Bits((yield offset, min(_WINDOW, size - offset)))
        # A frame that begins in the first half is mostly complete.
        while bits.at <= 8 * _WINDOW // 2:
            if samples >= _MOST_ZEROS * rate or frames == _MOST_FRAMES:
                return None
            frame = _read_header(bits, depth)
            # Two constant channels of zeros.
            silence = "0" * (16 + sum(frame.widths))
            if bits.starts_with(silence):
                bits.at += len(silence)
            else:
                look = _look_at(bits, frame)
                heard += 1
                if look is not _Look.LATE or heard == 2:
                    return samples if look is _Look.NOISE else None
            # The padding and the checksum follow.
            bits.at += -bits.at % 8 + 16
            samples += frame.block
            frames += 1
        offset += bits.at // 8


def _read_header(bits: _Bits, depth: int) -> _Frame:
    found = bits.match(_HEADER)
    block, rate, channels, code = (int(text, 2) for text in found.groups()[:4])
    bits.at = found.start() + 40 + 8 * max(0, len(found[5]) - 1)
    samples = BLOCK_SIZES.get(block)
    if block in SIZE_BYTES:
        samples = bits.read(8 * SIZE_BYTES[block]) + 1
    bits.at += 8 * RATE_BYTES.get(rate, (0, 0))[0] + 8
    if not samples or samples > _LARGEST_BLOCK or channels not in _SIDES:
        raise Malformed
    depth = _DEPTHS.get(code, depth)
    first, second = _SIDES[channels]
    return _Frame(samples, depth, (depth + first, depth + second))


def _look_at(bits: _Bits, frame: _Frame) -> _Look:
    """Return what a frame looks like; skip it, unless that is decided before."""
    if frame.depth < _WORD:
        return _Look.OTHER
    first, second = frame.widths
    look = _scan(bits, frame.block, first)
    return look if look is _Look.NOISE else min(look, _scan(bits, frame.block, second))


def _scan(bits: _Bits, block: int, width: int) -> _Look:
    kind = bits.read(7)
    wasted = len(bits.match(_UNARY)[0]) if bits.read(1) else 0
    width -= wasted
    if width <= 0:
        raise Malformed
    if kind == 0:
        return _Look.OTHER if bits.read(width) else _Look.LATE
    if kind == 1:
        return _Look.NOISE
    is_predicted = 32 <= kind < 64
    if not is_predicted and not 8 <= kind <= 12:
        raise Malformed
    order = kind - (31 if is_predicted else 8)
    first = bits.read(order * width)
    if is_predicted:
        # The coefficients: their precision, their shift, and themselves.
        precision = bits.read(4) + 1
        bits.at += 5 + order * precision
    noise = (_NOISE if order else _UNPREDICTED_NOISE) + width - _WORD
    if any(parameter >= noise for parameter in _partitions(bits, block, order)):
        return _Look.NOISE
    return _Look.OTHER if first else _Look.LATE


@lru_cache
def _codes(count: int, parameter: int) -> re.Pattern[str]:
    # Each Rice code is a number in unary, and lower bits. Ten times as fast as a loop.
    return re.compile(f"(?:0*+1.{{{parameter}}}){{{count}}}")


def _partitions(bits: _Bits, block: int, order: int) -> Iterator[int]:
    """Yield the Rice parameter of each partition of residuals, and skip them."""
    method, partitions = bits.read(2), bits.read(4)
    size = block >> partitions
    if method > 1 or size << partitions != block or size < order:
        raise Malformed
    for number in range(1 << partitions):
        count = size - (0 if number else order)
        parameter = bits.read(4 + method)
        if parameter == (16 << method) - 1:
            # Residuals without a code.
            width = bits.read(5)
            yield width
            bits.at += width * count
        else:
            yield parameter
            bits.match(_codes(count, parameter))
