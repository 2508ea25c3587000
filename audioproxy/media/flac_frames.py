"""The first samples of a flac file that are not zero, where they may be encoded audio (RFC 9639).

Encoded audio is noise of nearly full scale, whose residuals need many bits. So most music is told
by the numbers of bits alone, and only what looks like noise is decoded.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from audioproxy.media.lengths.reading import Malformed, Reader

# Bytes of frames that are read at once.
_WINDOW = 48 * 1024
# Seconds of zeros after which a source is not examined any more.
_MOST_ZEROS = 10
# Samples of each channel that are decoded: a burst of E-AC-3, the longest but TrueHD, and a sync.
_MOST_SAMPLES = 6144 + 2
# The Rice parameter from which residuals look like noise. It is 11 or more for the 14 bits of DTS,
# and where short bursts and zeros share a partition.
_NOISE = 11

# The start of a frame's header: sync, block size, sample rate, channels, bits of a sample; then the
# first byte of the frame's number.
_HEADER = re.compile(r"111111111111100[01]([01]{4})([01]{4})([01]{4})([01]{3})0(1*)0")
_BLOCKS = {1: 192, **{n: 144 << n for n in range(2, 6)}, **{n: 1 << n for n in range(8, 16)}}
# Of the streamable subset (RFC 9639, 7).
_LARGEST_BLOCK = 16384
# Bytes of the block size, and of the sample rate, that follow the number.
_MORE = {6: 1, 7: 2}, {12: 1, 13: 2, 14: 2}
_DEPTHS = {1: 8, 2: 12, 4: 16, 5: 20, 6: 24}
# Whether each of two channels is a difference, which has one more bit than a sample.
_SIDES = {1: (0, 0), 8: (0, 1), 9: (1, 0), 10: (0, 1)}
_UNARY = re.compile("0*1")
# The coefficients of fixed predictors, the nearest sample first.
_FIXED = ((), (1,), (2, -1), (3, -3, 1), (4, -6, 4, -1))


class _Frame(NamedTuple):
    """The header of a frame."""

    block: int
    channels: int
    depth: int

    @property
    def widths(self) -> tuple[int, int]:
        """The bits of a sample of each channel."""
        first, second = _SIDES[self.channels]
        return self.depth + first, self.depth + second


class _Bits:
    """Bits that are read from a place on."""

    def __init__(self, data: bytes) -> None:
        self.text = format(int.from_bytes(b"\1" + data, "big"), "b")[1:]
        self.at = 0

    def read(self, count: int) -> int:
        """Return an unsigned number."""
        start, self.at = self.at, self.at + count
        if self.at > len(self.text):
            raise Malformed
        return int(self.text[start : self.at] or "0", 2)

    def read_signed(self, count: int) -> int:
        """Return a number in two's complement."""
        value = self.read(count)
        return value - (value >> count - 1 << count) if count else 0

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Return the match of a pattern, and skip it."""
        found = pattern.match(self.text, self.at)
        if found is None:
            raise Malformed
        self.at = found.end()
        return found

    def end_frame(self) -> None:
        """Skip the padding and the checksum of a frame."""
        self.at += -self.at % 8 + 16


def read_noise(offset: int, size: int, rate: int, depth: int) -> Reader[bytes]:
    """Return the first samples that are not zero, as big-endian words; nothing for other audio.

    :param offset: of the first frame.
    :param rate: of the samples, in Hz.
    :param depth: bits of a sample, where a frame does not state them.
    :raises Malformed: where the file is damaged, or is no stereo.
    """
    left = _MOST_ZEROS * rate
    while left > 0:
        bits = _Bits((yield offset, min(_WINDOW, size - offset)))
        # A frame that begins in the first half is complete.
        while left > 0 and bits.at <= 8 * _WINDOW // 2:
            start = bits.at
            frame = _read_header(bits, depth)
            # Two constant channels of zeros.
            zeros = "0" * (16 + sum(frame.widths))
            if not bits.text.startswith(zeros, bits.at):
                return _decode(bits, start, depth) if _is_noise(bits, frame) else b""
            bits.at += len(zeros)
            bits.end_frame()
            left -= frame.block
        offset += bits.at // 8
    return b""


def _read_header(bits: _Bits, depth: int) -> _Frame:
    found = bits.match(_HEADER)
    block, rate, channels, code = (int(text, 2) for text in found.groups()[:4])
    bits.at = found.start() + 40 + 8 * max(0, len(found[5]) - 1)
    samples = _BLOCKS.get(block)
    if block in _MORE[0]:
        samples = bits.read(8 * _MORE[0][block]) + 1
    bits.at += 8 * _MORE[1].get(rate, 0) + 8
    if not samples or samples > _LARGEST_BLOCK or channels not in _SIDES:
        raise Malformed
    return _Frame(samples, channels, _DEPTHS.get(code, depth))


def _is_noise(bits: _Bits, frame: _Frame) -> bool:
    """Return whether the residuals of the first channel that is not constant need many bits."""
    for width in frame.widths:
        kind, _, width = _read_kind(bits, width)
        if kind == 0:
            bits.at += width
        elif kind == 1:
            return True
        else:
            order, _, _ = _read_predictor(bits, kind, width)
            return any(rice >= _NOISE for rice, _ in _partitions(bits, frame.block, order))
    return False


def _decode(bits: _Bits, start: int, depth: int) -> bytes:
    """Return the samples of frames as words, from a place on."""
    words: list[int] = []
    bits.at = start
    while len(words) < 2 * _MOST_SAMPLES:
        try:
            frame = _read_header(bits, depth)
            first, second = (_read_subframe(bits, frame.block, width) for width in frame.widths)
        except Malformed:
            # The end of what was read.
            break
        bits.end_frame()
        for one, other in zip(first, second, strict=True):
            left, right = _stereo(frame.channels, one, other)
            words += (left >> frame.depth - 16, right >> frame.depth - 16)
    return struct.pack(f">{len(words)}H", *(word & 0xFFFF for word in words))


def _stereo(channels: int, one: int, other: int) -> tuple[int, int]:
    """Return the left and the right sample."""
    if channels == 8:
        return one, one - other
    if channels == 9:
        return one + other, other
    if channels == 10:
        double = one << 1 | other & 1
        return double + other >> 1, double - other >> 1
    return one, other


def _read_kind(bits: _Bits, width: int) -> tuple[int, int, int]:
    """Return the kind of a subframe, its wasted bits, and the bits of its samples without them."""
    kind = bits.read(7)
    wasted = len(bits.match(_UNARY)[0]) if bits.read(1) else 0
    if kind >= 64 or wasted >= width:
        raise Malformed
    return kind, wasted, width - wasted


def _read_predictor(
    bits: _Bits, kind: int, width: int
) -> tuple[int, list[int], tuple[tuple[int, ...], int]]:
    """Return the order of a predictor, its first samples, and its coefficients with their shift."""
    if 8 <= kind <= 12:
        order = kind - 8
        return order, [bits.read_signed(width) for _ in range(order)], (_FIXED[order], 0)
    if kind < 32:
        raise Malformed
    order = kind - 31
    first = [bits.read_signed(width) for _ in range(order)]
    precision, shift = bits.read(4) + 1, bits.read_signed(5)
    return order, first, (tuple(bits.read_signed(precision) for _ in range(order)), shift)


def _read_subframe(bits: _Bits, block: int, width: int) -> list[int]:
    kind, wasted, width = _read_kind(bits, width)
    if kind == 0:
        samples = [bits.read_signed(width)] * block
    elif kind == 1:
        samples = [bits.read_signed(width) for _ in range(block)]
    else:
        order, samples, (coefficients, shift) = _read_predictor(bits, kind, width)
        for _, residuals in _partitions(bits, block, order):
            for residual in residuals:
                near = samples[: -order - 1 : -1]
                predicted = sum(map(int.__mul__, coefficients, near)) >> max(0, shift)
                samples.append(predicted + residual)
    return [sample << wasted for sample in samples] if wasted else samples


def _partitions(bits: _Bits, block: int, order: int) -> Iterator[tuple[int, Iterator[int]]]:
    """Yield the Rice parameter and the residuals of each partition of a subframe."""
    method, partitions = bits.read(2), bits.read(4)
    if method > 1:
        raise Malformed
    for number in range(1 << partitions):
        count = (block >> partitions) - (0 if number else order)
        parameter = bits.read(4 + method)
        if parameter == (1 << 4 + method) - 1:
            # Residuals without a code, which encoders do not write.
            raise Malformed
        if count < 0:
            raise Malformed
        pattern = _code(parameter)
        codes = [bits.match(pattern) for _ in range(count)]
        yield parameter, _values(codes, parameter)


@cache
def _code(parameter: int) -> re.Pattern[str]:
    """Return the pattern of a Rice code: a number in unary, and the lower bits."""
    return re.compile(f"(0*)1([01]{{{parameter}}})")


def _values(codes: list[re.Match[str]], parameter: int) -> Iterator[int]:
    for code in codes:
        folded = len(code[1]) << parameter | int(code[2] or "0", 2)
        yield folded >> 1 ^ -(folded & 1)
