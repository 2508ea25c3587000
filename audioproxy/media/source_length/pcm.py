"""Lengths of uncompressed audio in wav, rf64, w64, aiff and caf.

The length follows from the size of the samples. Where the file ends before them, it ends the audio
too, as in ffmpeg.
"""

from __future__ import annotations

from collections.abc import Generator

from audioproxy.media.probe import Probe
from audioproxy.media.source_length.reading import Malformed, Reader, SourceLength, read_range

# Chunks that are examined before the samples.
_MOST_CHUNKS = 64
_UNKNOWN_SIZE = 0xFFFF_FFFF

_W64_RIFF = bytes.fromhex("726966662e91cf11a5d628db04c10000")
_W64_FORMAT = bytes.fromhex("666d7420f3acd3118cd100c04f8edb8a")
_W64_DATA = bytes.fromhex("64617461f3acd3118cd100c04f8edb8a")


def read_wav(size: int, probe: Probe) -> Reader:
    """Read the length of a RIFF, RF64 or BW64 file (EBU Tech 3306; ITU-R BS.2088)."""
    header = yield from read_range(0, 12)
    if header[:4] not in (b"RIFF", b"RF64", b"BW64") or header[8:] != b"WAVE":
        raise Malformed
    is_large = header[:4] != b"RIFF"
    offset, frame, large_size = 12, 0, None
    for _ in range(_MOST_CHUNKS):
        chunk = yield from read_range(offset, 8)
        length, offset = int.from_bytes(chunk[4:], "little"), offset + 8
        if chunk[:4] == b"data":
            if is_large and large_size is not None and length == _UNKNOWN_SIZE:
                length = large_size
            # ffmpeg reads to the end of the file if the size is 0 or unknown.
            end = size if length in (0, _UNKNOWN_SIZE) and not is_large else offset + length
            return _count(offset, min(end, size), frame, probe)
        if chunk[:4] == b"ds64":
            sizes = yield from read_range(offset, 16)
            large_size = int.from_bytes(sizes[8:], "little")
        elif chunk[:4] == b"fmt ":
            frame = yield from _riff_frame(offset)
        offset += length + length % 2
    raise Malformed


def read_w64(size: int, probe: Probe) -> Reader:
    """Read the length of a Sony Wave64 file."""
    if (yield from read_range(0, 16)) != _W64_RIFF:
        raise Malformed
    offset, frame = 40, 0
    for _ in range(_MOST_CHUNKS):
        chunk = yield from read_range(offset, 24)
        length = int.from_bytes(chunk[16:], "little")
        if chunk[:16] == _W64_DATA:
            return _count(offset + 24, min(offset + length, size), frame, probe)
        if chunk[:16] == _W64_FORMAT:
            frame = yield from _riff_frame(offset + 24)
        if length < 24:
            raise Malformed
        offset += length + -length % 8
    raise Malformed


def read_aiff(size: int, probe: Probe) -> Reader:
    """Read the length of an AIFF or AIFF-C file."""
    header = yield from read_range(0, 12)
    if header[:4] != b"FORM" or header[8:] not in (b"AIFF", b"AIFC"):
        raise Malformed
    offset, frame = 12, 0
    for _ in range(_MOST_CHUNKS):
        chunk = yield from read_range(offset, 8)
        length, offset = int.from_bytes(chunk[4:], "big"), offset + 8
        if chunk[:4] == b"COMM":
            common = yield from read_range(offset, 8)
            channels, bits = int.from_bytes(common[:2], "big"), int.from_bytes(common[6:], "big")
            frame = channels * -(-bits // 8)
        elif chunk[:4] == b"SSND":
            start = offset + 8 + int.from_bytes((yield from read_range(offset, 4)), "big")
            return _count(start, min(offset + length, size), frame, probe)
        offset += length + length % 2
    raise Malformed


def read_caf(size: int, probe: Probe) -> Reader:
    """Read the length of a Core Audio file."""
    if (yield from read_range(0, 4)) != b"caff":
        raise Malformed
    offset, frame = 8, 0
    for _ in range(_MOST_CHUNKS):
        chunk = yield from read_range(offset, 12)
        length, offset = int.from_bytes(chunk[4:], "big", signed=True), offset + 12
        if chunk[:4] == b"desc":
            description = yield from read_range(offset, 32)
            frame = int.from_bytes(description[16:20], "big")
        elif chunk[:4] == b"data":
            end = size if length < 0 else min(offset + length, size)
            return _count(offset + 4, end, frame, probe)
        if length < 0:
            raise Malformed
        offset += length
    raise Malformed


def _riff_frame(offset: int) -> Generator[tuple[int, int], bytes, int]:
    """Return the bytes of one sample of all channels, from a format chunk.

    :raises Malformed: where samples take more bytes than their bits need: ffmpeg decodes them
        otherwise.
    """
    fields = yield from read_range(offset, 16)
    channels = int.from_bytes(fields[2:4], "little")
    frame = int.from_bytes(fields[12:14], "little")
    bits = int.from_bytes(fields[14:16], "little")
    if frame != channels * -(-bits // 8):
        raise Malformed
    return frame


def _count(start: int, end: int, frame: int, probe: Probe) -> SourceLength:
    if not frame or frame % probe.channels or end < start:
        raise Malformed
    return SourceLength((end - start) // frame)
