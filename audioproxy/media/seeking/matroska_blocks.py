"""The blocks of Matroska and WebM (RFC 9559, 10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from audioproxy.media.lengths.ebml import Element, parse_elements
from audioproxy.media.reading import Malformed, Reader, read_range

CLUSTER, _TIMESTAMP, _SIMPLE_BLOCK = b"\x1f\x43\xb6\x75", b"\xe7", b"\xa3"
_BLOCK_GROUP, _BLOCK = b"\xa0", b"\xa1"
# The lacing of a block, in its flags: how the sizes of its frames are stated.
_LACING, _XIPH, _FIXED, _XIPH_MORE = 0x06, 0x02, 0x04, 255
#: The size of an element that has an unknown one.
UNKNOWN_SIZE = b"\x01" + b"\xff" * 7
# Blocks that are examined at the start of a cluster.
_MOST_BLOCKS = 16
# Bytes of a cluster that are read for its first blocks, and in which a later one is searched.
_WINDOW, _MOST_SEARCHED = 32 * 1024, 1 << 20
# Bytes of a block ahead of its frames: a track number, a time stamp and flags; and those of a frame
# that tell its number of samples.
_BLOCK_HEADER, _FRAME_HEADER = 4, 16


@dataclass(frozen=True, slots=True)
class Frame:
    """The first bytes of a frame of a codec, and the number of all."""

    data: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Block:
    """The time stamp of a block, and those of its frames that were read, at least the first one."""

    stamp: int
    frames: Sequence[Frame]


def read_blocks(offset: int, size: int, track: int) -> Reader[list[Block]]:
    data = yield from read_range(offset, min(_WINDOW, size - offset))
    inner, timestamp = _parse_cluster(data)
    begin = timestamp.number(data)
    blocks = []
    for block, stamp in islice(_blocks_of(inner, data, track), _MOST_BLOCKS):
        frames = _frames_of(data, block)
        if not frames:
            break
        blocks.append(Block(begin + stamp, frames))
    if not blocks:
        raise Malformed
    return blocks


def find_block(offset: int, size: int, track: int, latest: int) -> Reader[tuple[int, int, bytes]]:
    """Return the last block of a track in a cluster up to the latest time stamp.

    It is its time stamp, its offset, and the start of a cluster that begins with it.
    """
    data = yield from read_range(offset, min(_MOST_SEARCHED, size - offset))
    inner, timestamp = _parse_cluster(data)
    begin = timestamp.number(data)
    stamps = (
        (begin + stamp, element.offset)
        for element in inner
        for _, stamp in _blocks_of([element], data, track)
    )
    ahead = list(takewhile(lambda block: block[0] <= latest, stamps))
    if not ahead or ahead != sorted(ahead):
        raise Malformed
    found, place = ahead[-1]
    head = CLUSTER + UNKNOWN_SIZE + data[timestamp.offset : timestamp.end]
    return found, offset + place, head


def _parse_cluster(data: bytes) -> tuple[Sequence[Element], Element]:
    """Return the elements of the cluster that the data begins with, and its only Timestamp."""
    cluster = next(parse_elements(data), None)
    if cluster is None or cluster.name != CLUSTER:
        raise Malformed
    inner = list(parse_elements(data, cluster.start, cluster.end))
    listed = [field for field in inner if field.name in (_TIMESTAMP, _SIMPLE_BLOCK, _BLOCK_GROUP)]
    if [field.name for field in listed].count(_TIMESTAMP) != 1 or listed[0].name != _TIMESTAMP:
        raise Malformed
    return inner, listed[0]


def _frames_of(data: bytes, block: Element) -> list[Frame]:
    """Return the frames of a block whose first bytes are in the data."""
    try:
        start, sizes = _read_lacing(data, block.start + _BLOCK_HEADER, block.end)
    except IndexError:
        return []
    frames = []
    for size in sizes:
        last = start + min(size, _FRAME_HEADER)
        if last <= start or last > len(data):
            break
        frames.append(Frame(data[start:last], size))
        start += size
    return frames


def _read_lacing(data: bytes, start: int, end: int) -> tuple[int, list[int]]:
    """Return the offset of the first frame of a block, and the sizes of all (RFC 9559, 10.3).

    :param start: the offset after the header of the block.
    :raises IndexError: where the data ends ahead of the first frame.
    """
    lacing = data[start - 1] & _LACING
    if not lacing:
        return start, [end - start]
    count, sizes = data[start], list[int]()
    start += 1
    if lacing == _FIXED:
        sizes = [(end - start) // (count + 1)] * count
    while len(sizes) < count:
        size = 0
        if lacing == _XIPH:
            while data[start] == _XIPH_MORE:
                size += _XIPH_MORE
                start += 1
            size += data[start]
            start += 1
        else:
            width = 9 - data[start].bit_length()
            size = int.from_bytes(data[start : start + width], "big") & (1 << 7 * width) - 1
            if sizes:
                # The difference to the size ahead.
                size += sizes[-1] - (1 << 7 * width - 1) + 1
            start += width
        sizes.append(size)
    return start, [*sizes, end - start - sum(sizes)]


def _blocks_of(inner: Iterable[Element], data: bytes, track: int) -> Iterator[tuple[Element, int]]:
    """Yield the blocks of a track whose headers are in the data, and their time stamps.

    These count from that of the cluster.
    """
    for element in inner:
        fields: Iterable[Element] = ()
        if element.name == _SIMPLE_BLOCK:
            fields = [element]
        elif element.name == _BLOCK_GROUP:
            children = parse_elements(data, element.start, element.end)
            fields = (field for field in children if field.name == _BLOCK)
        for block in fields:
            if block.end - block.start < _BLOCK_HEADER:
                raise Malformed
            header = data[block.start : block.start + _BLOCK_HEADER]
            if len(header) == _BLOCK_HEADER and header[0] == track | 0x80:
                yield block, int.from_bytes(header[1:3], "big", signed=True)
