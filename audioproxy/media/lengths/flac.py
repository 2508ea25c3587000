"""Lengths of flac files, from the number of the last frame (RFC 9639)."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from audioproxy.media.lengths.ends import end_before_tags, skip_id3
from audioproxy.media.lengths.inner import doubling_places, find_each
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength, read_range

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
#: The bytes that state the size of a block, by its code.
SIZE_BYTES = {6: 1, 7: 2}
# The rates in Hz and the bits of a sample by their codes; other codes stand for those of the
# stream (RFC 9639, 9.1.2 and 9.1.4).
_RATES = dict(enumerate((88200, 176400, 192000, 8000, 16000, 22050, 24000), 1))
_RATES |= {8: 32000, 9: 44100, 10: 48000, 11: 96000}
_DEPTHS = {1: 8, 2: 12, 4: 16, 5: 20, 6: 24, 7: 32}
#: The bytes of a rate that the header states, and its unit.
RATE_BYTES = {12: (1, 1000), 13: (2, 1), 14: (2, 10)}
_SYNC = re.compile(rb"\xff[\xf8\xf9]")
# The block of seek points: each is a sample, an offset from the first frame, and a number.
_SEEK_TABLE = 3
_LARGEST_TABLE = 64 * 1024
_POINT = struct.Struct(">QQH")


def _crc_table(polynomial: int, bits: int) -> array[int]:
    """Return the checksums of all words that have as many bits as a checksum."""
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    table, value = np.zeros(1 << bits, np.uint16), polynomial
    # That of a sum is the sum of both.
    for bit in range(bits):
        table[1 << bit : 2 << bit] = table[: 1 << bit] ^ value
        value = (value << 1 ^ polynomial if value & top else value << 1) & mask
    return array("H", table.tobytes())


# RFC 9639, 9.1.8 and 9.3.
_CRC_8 = _crc_table(0x07, 8)
_CRC_16 = _crc_table(0x8005, 16)


def read_flac(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of a flac file, which its header and its last frame state.

    If an encoder that writes to a pipe has stated none, the numbers of frames inside must rise.
    """
    offset = yield from skip_id3()
    header = yield from read_range(offset, 42)
    if header[:4] != b"fLaC" or header[4] & 0x7F:
        raise Malformed
    info = header[8:]
    total = int.from_bytes(info[10:18], "big") & (1 << 36) - 1
    start, seek_points = yield from _skip_blocks(offset + 4)
    first = yield from read_range(start, min(FRAME_HEADER, size - start))
    frame = parse_frame_header(first, info)
    if frame is None or frame[0] != 0:
        raise Malformed
    end = yield from end_before_tags(size)
    last_start, last_sample = yield from _read_end(start, end, info)
    if total and total != last_sample:
        raise Malformed
    shortest, longest = info[:2], info[2:4]
    frame_samples = int.from_bytes(shortest, "big") if shortest == longest else 0
    largest_frame = int.from_bytes(info[7:10], "big")
    if largest_frame and frame_samples:
        # After the last seek point and after the start, there is no room for another file. Places
        # for further points have the largest number.
        points = [(sample, place) for sample, place, _ in seek_points if sample < last_sample]
        for sample, place in ((0, 0), max(points, default=(0, 0))):
            if end - start - place > -((sample - last_sample) // frame_samples) * largest_frame:
                raise Malformed
    if not (total and largest_frame):
        yield from _check_inside(start, last_start, info)
    return SourceLength(
        last_sample,
        is_stated_only=not total,
        frame_samples=frame_samples,
        # Without a stated length, the file may be joined of two.
        seekable=bool(total),
    )


def _skip_blocks(start: int) -> Reader[tuple[int, list[tuple[int, ...]]]]:
    """Return the offset after the blocks of metadata, and the seek table (RFC 9639, 8.5)."""
    seek_points: list[tuple[int, ...]] = []
    for _ in range(_MOST_BLOCKS):
        block = yield from read_range(start, 4)
        length = int.from_bytes(block[1:], "big")
        if block[0] & 0x7F == _SEEK_TABLE and length <= _LARGEST_TABLE:
            table = yield from read_range(start + 4, length // _POINT.size * _POINT.size)
            seek_points = list(_POINT.iter_unpack(table))
        start += 4 + length
        if block[0] & 0x80:
            return start, seek_points
    raise Malformed


def _check_inside(start: int, last: int, info: bytes) -> Reader[None]:
    """Check that frames inside a file have higher numbers, the nearer they are to the last one."""

    def find(data: bytes) -> int:
        headers = (found.start() for found in _SYNC.finditer(data))
        frames = (at for at in headers if parse_frame_header(data[at : at + FRAME_HEADER], info))
        return next(frames, -1)

    places = (*doubling_places(start, last), last)
    offsets = yield from find_each(start, places, last + FRAME_HEADER, find)
    numbers = [0]
    for offset in offsets[1:]:
        frame = parse_frame_header((yield from read_range(offset, FRAME_HEADER)), info)
        numbers.append(frame[0] if frame else -1)
    if any(later <= before for before, later in pairwise(numbers)):
        raise Malformed


def _read_end(start: int, end: int, info: bytes) -> Reader[tuple[int, int]]:
    largest = int.from_bytes(info[7:10], "big") or _TAIL
    tail_start = max(start, end - min(largest, _LARGEST_TAIL))
    tail = yield from read_range(tail_start, end - tail_start)
    at, candidates = len(tail), 0
    while candidates < _MOST_CANDIDATES and (at := tail.rfind(b"\xff", 0, at)) >= 0:
        frame = parse_frame_header(tail[at : at + FRAME_HEADER], info)
        if frame is not None:
            candidates += 1
            # Words of two bytes. A zero in front does not change a checksum.
            words = np.frombuffer(bytes((len(tail) - at) % 2) + tail[at:], ">u2").tolist()
            if _crc(_CRC_16, words) == 0:
                return tail_start + at, sum(frame)
    raise Malformed


def parse_frame_header(data: bytes, info: bytes) -> tuple[int, int] | None:
    """Return the first sample and the number of samples of a frame.

    None for other bytes, and for a frame whose rate, channels or depth are not those of the stream.
    """
    if len(data) < 6 or data[0] != 0xFF or data[1] & 0xFE != 0xF8:
        return None
    block_code, rate_code = data[2] >> 4, data[2] & 0x0F
    number, at = _parse_number(data)
    sizes, (rates, unit) = SIZE_BYTES.get(block_code, 0), RATE_BYTES.get(rate_code, (0, 0))
    rate_at = at + sizes
    end = rate_at + rates
    if number < 0 or len(data) <= end or _crc(_CRC_8, data[: end + 1]):
        return None
    samples = BLOCK_SIZES.get(block_code, 0)
    if sizes:
        samples = int.from_bytes(data[at:rate_at], "big") + 1
    rate = int.from_bytes(data[rate_at:end], "big") * unit if unit else _RATES.get(rate_code)
    if not samples or not _fits_stream(data, rate, info):
        return None
    has_variable_blocks = data[1] & 1
    return (number if has_variable_blocks else number * int.from_bytes(info[:2], "big")), samples


def _fits_stream(data: bytes, coded_rate: int | None, info: bytes) -> bool:
    channel_code, depth_code = data[3] >> 4, data[3] >> 1 & 7
    form = int.from_bytes(info[10:14], "big")
    rate, channels, depth = form >> 12, (form >> 9 & 7) + 1, (form >> 4 & 31) + 1
    coded_channels = 2 if channel_code > 7 else channel_code + 1
    fits_rate = coded_rate is None or coded_rate == rate
    return fits_rate and (coded_channels, _DEPTHS.get(depth_code, depth)) == (channels, depth)


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


def _crc(table: array[int], words: Iterable[int]) -> int:
    value = 0
    for word in words:
        value = table[value ^ word]
    return value
