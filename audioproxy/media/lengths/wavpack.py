"""Lengths of WavPack files, and files that were joined (WavPack 4 and 5 File Format).

Each block states the number of its first sample. So the last block confirms the length that the
first one states, and numbers that fall inside the file show that another file was appended. ffmpeg
plays on through an appended file, but ends at a tag between the files, and at blocks of another
rate, depth or number of channels.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from audioproxy.errors import UndecodableSource
from audioproxy.media.lengths.ends import end_before_tags, skip_id3
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength, read_range

# The block header: name, size, version, upper bits of both numbers, the number of samples of the
# file, the number of the first sample, the samples of the block, flags, and a checksum.
_HEADER = struct.Struct("<4sIHBBIIIII")
_NAME = b"wvpk"
# Number of samples that stands for an unknown one; ffmpeg writes the first one to a pipe.
_UNKNOWN = (0, 0xFFFF_FFFF)
_MOST_SAMPLES = 0xFFFF_FFFF
_VERSIONS = range(0x402, 0x411)
# The largest block that ffmpeg reads, and the parts of the end in which the last one is searched.
_LARGEST_BLOCK = 1 << 20
_TAILS = (128 << 10, 2 * _LARGEST_BLOCK)
# Blocks of a frame hold two of its channels each; this one is the first of them.
_IS_INITIAL = 1 << 11
# Bytes of a sample, one channel, the rate, one-bit samples.
_PARAMETERS = 0b11 | 1 << 2 | 0b1111 << 23 | 1 << 31
# Places inside the file, in quarters of it, at which the numbers of samples are compared; and the
# bytes from there on that are searched for a block: mostly one part is enough.
_PLACES = (1, 2, 3)
_PARTS = (128 << 10, 384 << 10)
# Names of blocks that are examined in the samples, and blocks of joined files that are followed.
_MOST_NAMES = 256
_MOST_BLOCKS = 4096

_NOT_ONE = "The source consists of several WavPack files that cannot be played as one."


class Block(NamedTuple):
    """A block of samples.

    :ivar total: the number of samples that the file states, or None.
    :ivar number: that of its first sample.
    """

    start: int
    end: int
    total: int | None
    number: int
    samples: int
    flags: int

    @property
    def begins_frame(self) -> bool:
        return self.samples > 0 and bool(self.flags & _IS_INITIAL)


def read_wavpack(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length; refuse several files of which ffmpeg plays the first one alone."""
    start = yield from skip_id3()
    first = yield from read_block(start)
    end = yield from end_before_tags(size)
    last = yield from find_last_block(start, end)
    if _differ(first, last):
        raise UndecodableSource(_NOT_ONE)
    length = last.number + last.samples
    fits = not first.number and first.total in (None, length)
    if not (fits and (yield from _is_one(first, last))):
        yield from _refuse_interrupted(first, end)
        raise Malformed
    return SourceLength(
        length,
        is_stated_only=True,
        # ffmpeg reads 32 bits of the numbers. Without a stated length, the file may be joined.
        seekable=first.total is not None and length <= _MOST_SAMPLES,
    )


def _parse(data: bytes, start: int) -> Block | None:
    if len(data) < _HEADER.size:
        return None
    name, size, version, upper, upper_total, total, index, samples, flags, _ = _HEADER.unpack(data)
    if name != _NAME or version not in _VERSIONS or size > _LARGEST_BLOCK:
        return None
    stated = None if total in _UNKNOWN else total + (upper_total << 32) - upper_total
    return Block(start, start + 8 + size, stated, index + (upper << 32), samples, flags)


def read_block(offset: int) -> Reader[Block]:
    block = _parse((yield from read_range(offset, _HEADER.size)), offset)
    if block is None:
        raise Malformed
    return block


def find_last_block(start: int, end: int) -> Reader[Block]:
    """Return the first block of the last frame with samples, from which blocks lead to the end."""
    left = _MOST_NAMES
    for length in _TAILS:
        offset = max(start, end - length)
        tail = yield from read_range(offset, end - offset)
        at = limit = len(tail)
        while left and (at := tail.rfind(_NAME, 0, at)) >= 0:
            block = _parse(tail[at : at + _HEADER.size], offset + at)
            if block is None or block.end != offset + limit:
                left -= 1
                continue
            if block.begins_frame:
                return block
            limit = at
    raise Malformed


def find_block(offset: int, last: Block) -> Reader[Block]:
    """Return the first block of a frame near an offset, not ahead of it; it may be the last one."""
    begin, end, left = offset, last.start + _HEADER.size, _MOST_NAMES
    for part in _PARTS:
        data = yield from read_range(begin, min(part, end - begin))
        at = -1
        while left and (at := data.find(_NAME, at + 1)) >= 0:
            block = _parse(data[at : at + _HEADER.size], begin + at)
            if block is not None and block.begins_frame:
                return block
            left -= 1
        begin += len(data) - _HEADER.size + 1
    raise Malformed


def _is_one(first: Block, last: Block) -> Reader[bool]:
    """Return whether the numbers of samples rise from the first block to the last one."""
    before = first
    for place in _PLACES:
        offset = first.start + (last.start - first.start) * place // 4
        found = yield from find_block(offset, last)
        if not _follows(before, found):
            return False
        before = found
    return _follows(before, last)


def _follows(before: Block, other: Block) -> bool:
    """Return whether a block is another one, or one that has later samples."""
    is_later = not before.begins_frame or other.number > before.number
    return is_later or other.start <= before.start


def _differ(first: Block, other: Block) -> bool:
    have_samples = first.begins_frame and other.begins_frame
    return have_samples and bool((first.flags ^ other.flags) & _PARAMETERS)


def _refuse_interrupted(first: Block, end: int) -> Reader[None]:
    """Refuse joined files if ffmpeg ends at a border between them."""
    block = first
    for _ in range(_MOST_BLOCKS):
        if block.end + _HEADER.size > end:
            break
        following = _parse((yield from read_range(block.end, _HEADER.size)), block.end)
        if following is None or _differ(first, following):
            raise UndecodableSource(_NOT_ONE)
        block = following
