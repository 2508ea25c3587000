"""Lengths of flac files, from the number of the last frame (RFC 9639)."""

from __future__ import annotations

from audioproxy.media.lengths.reading import (
    Malformed,
    Reader,
    SourceLength,
    end_before_tags,
    read_range,
    skip_id3,
)
from audioproxy.media.probe import Probe

_MOST_BLOCKS = 128
# Bytes of the end that are searched for the last frame: if the largest size of a frame is not
# stated, and at most.
_TAIL = 64 * 1024
_LARGEST_TAIL = 128 * 1024
# Frames in the tail whose checksum is computed: a broken file may seem to have thousands.
_MOST_CANDIDATES = 4
#: The longest frame header: 4 bytes, a number of 7, a block size of 2, a rate of 2, and a CRC.
FRAME_HEADER = 16
#: Samples of a block by its code, where no further bytes state them (RFC 9639, 9.1.1).
BLOCK_SIZES = {1: 192} | {code: 144 << code for code in range(2, 6)}
BLOCK_SIZES |= {code: 1 << code for code in range(8, 16)}


def _crc_table(polynomial: int, bits: int) -> tuple[int, ...]:
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    table = []
    for byte in range(256):
        value = byte << (bits - 8)
        for _ in range(8):
            value = (value << 1 ^ polynomial if value & top else value << 1) & mask
        table.append(value)
    return tuple(table)


# RFC 9639, 9.1.8 and 9.3.
_CRC_8 = _crc_table(0x07, 8)
_CRC_16 = _crc_table(0x8005, 16)


def read_flac(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of a flac file.

    A file that does not state its length, as an encoder writes it to a pipe, has the length that
    its last frame states. If it consists of two files, that is the length of the second one.
    """
    offset = yield from skip_id3()
    header = yield from read_range(offset, 42)
    if header[:4] != b"fLaC" or header[4] & 0x7F:
        raise Malformed
    info = header[8:]
    total = int.from_bytes(info[10:18], "big") & (1 << 36) - 1
    start = offset + 4
    for _ in range(_MOST_BLOCKS):
        block = yield from read_range(start, 4)
        start += 4 + int.from_bytes(block[1:], "big")
        if block[0] & 0x80:
            break
    else:
        raise Malformed
    first = yield from read_range(start, min(FRAME_HEADER, size - start))
    frame = parse_frame_header(first, info)
    if frame is None or frame[0] != 0:
        raise Malformed
    end = yield from end_before_tags(size)
    last_sample = yield from _read_end(start, end, info)
    if total and total != last_sample:
        raise Malformed
    shortest, longest = info[:2], info[2:4]
    frame_samples = int.from_bytes(shortest, "big") if shortest == longest else 0
    largest_frame = int.from_bytes(info[7:10], "big")
    if largest_frame and frame_samples:
        frames = -(-last_sample // frame_samples)
        if end - start > frames * largest_frame:
            # Another file of the same length follows.
            raise Malformed
    return SourceLength(
        last_sample,
        is_stated_only=not total,
        frame_samples=frame_samples,
        # Without a stated length, the file may be joined of two.
        seekable=bool(total),
    )


def _read_end(start: int, end: int, info: bytes) -> Reader[int]:
    """Return the number of samples up to the end of the last frame.

    :raises Malformed: where the file does not end with a whole frame.
    """
    largest = int.from_bytes(info[7:10], "big") or _TAIL
    tail_start = max(start, end - min(largest, _LARGEST_TAIL))
    tail = yield from read_range(tail_start, end - tail_start)
    at, candidates = len(tail), 0
    while candidates < _MOST_CANDIDATES and (at := tail.rfind(b"\xff", 0, at)) >= 0:
        frame = parse_frame_header(tail[at : at + FRAME_HEADER], info)
        if frame is not None:
            candidates += 1
            if _crc(tail[at:], _CRC_16, 16) == 0:
                return sum(frame)
    raise Malformed


def parse_frame_header(data: bytes, info: bytes) -> tuple[int, int] | None:
    """Return the first sample and the number of samples of a frame; None for other bytes."""
    if len(data) < 6 or data[0] != 0xFF or data[1] & 0xFE != 0xF8:
        return None
    block_code, rate_code = data[2] >> 4, data[2] & 0x0F
    number, at = _parse_number(data)
    sizes = {6: 1, 7: 2}.get(block_code, 0)
    header_size = at + sizes + {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    if number < 0 or len(data) <= header_size or _crc(data[: header_size + 1], _CRC_8, 8):
        return None
    samples = BLOCK_SIZES.get(block_code, 0)
    if sizes:
        samples = int.from_bytes(data[at : at + sizes], "big") + 1
    if not samples:
        return None
    has_variable_blocks = data[1] & 1
    return (number if has_variable_blocks else number * int.from_bytes(info[:2], "big")), samples


def _parse_number(data: bytes) -> tuple[int, int]:
    """Return the coded number of a frame, or -1, and the offset after it (RFC 9639, 9.1.5)."""
    first = data[4]
    if first < 0x80:
        return first, 5
    length = 8 - (first ^ 0xFF).bit_length()
    rest = data[5 : 4 + length]
    if not 2 <= length <= 7 or len(rest) < length - 1 or any(b >> 6 != 2 for b in rest):
        return -1, 5
    number = first & (0x7F >> length)
    for byte in rest:
        number = number << 6 | byte & 0x3F
    return number, 4 + length


def _crc(data: bytes, table: tuple[int, ...], bits: int) -> int:
    shift, mask, value = bits - 8, (1 << bits) - 1, 0
    for byte in data:
        value = (value << 8 ^ table[value >> shift ^ byte]) & mask
    return value
