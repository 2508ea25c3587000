"""Lengths of uncompressed audio in wav, rf64, w64, aiff and caf.

The length follows from the size of the samples. Where the file ends before them, it ends the audio
too, as in ffmpeg.
"""

from __future__ import annotations

import re

from audioproxy.media.lengths.reading import Malformed, Reader, SourceLength, read_range
from audioproxy.media.probe import Probe

#: Chunks that are examined before the samples.
MOST_CHUNKS = 64
_UNKNOWN_SIZE = 0xFFFF_FFFF

_ONE_BYTE = ("pcm_alaw", "pcm_mulaw")
# Floats in the range of 16-bit or of 24-bit integers.
_FOUR_BYTES = ("pcm_f16le", "pcm_f24le")
# ffmpeg's names of the other codecs have their bits.
_BITS = re.compile(r"pcm_[suf](\d+)(?:le|be)?$")

_W64_RIFF = bytes.fromhex("726966662e91cf11a5d628db04c10000")
_W64_DATA = bytes.fromhex("64617461f3acd3118cd100c04f8edb8a")


def read_wav(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of a RIFF, RF64 or BW64 file (EBU Tech 3306; ITU-R BS.2088)."""
    header = yield from read_range(0, 12)
    if header[:4] not in (b"RIFF", b"RF64", b"BW64") or header[8:] != b"WAVE":
        raise Malformed
    is_large = header[:4] != b"RIFF"
    offset, large_size = 12, 0
    for _ in range(MOST_CHUNKS):
        chunk = yield from read_range(offset, 8)
        length, offset = int.from_bytes(chunk[4:], "little"), offset + 8
        if chunk[:4] == b"data":
            # To the end of the file if the size is unknown, as in ffmpeg with `-ignore_length`.
            if is_large:
                length = large_size
            unknown = length == 0 or (length == _UNKNOWN_SIZE and not is_large)
            return _count(offset, size if unknown else min(offset + length, size), probe)
        if chunk[:4] == b"ds64":
            sizes = yield from read_range(offset, 16)
            large_size = int.from_bytes(sizes[8:], "little")
        offset += length + length % 2
    raise Malformed


def read_w64(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of a Sony Wave64 file."""
    if (yield from read_range(0, 16)) != _W64_RIFF:
        raise Malformed
    offset = 40
    for _ in range(MOST_CHUNKS):
        chunk = yield from read_range(offset, 24)
        length = int.from_bytes(chunk[16:], "little")
        if chunk[:16] == _W64_DATA:
            return _count(offset + 24, min(offset + length, size), probe)
        if length < 24:
            raise Malformed
        offset += length + -length % 8
    raise Malformed


def read_aiff(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of an AIFF or AIFF-C file."""
    header = yield from read_range(0, 12)
    if header[:4] != b"FORM" or header[8:] not in (b"AIFF", b"AIFC"):
        raise Malformed
    offset = 12
    for _ in range(MOST_CHUNKS):
        chunk = yield from read_range(offset, 8)
        length, offset = int.from_bytes(chunk[4:], "big"), offset + 8
        if chunk[:4] == b"SSND":
            start = offset + 8 + int.from_bytes((yield from read_range(offset, 4)), "big")
            return _count(start, min(offset + length, size), probe)
        offset += length + length % 2
    raise Malformed


def read_caf(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of a Core Audio file."""
    if (yield from read_range(0, 4)) != b"caff":
        raise Malformed
    offset = 8
    for _ in range(MOST_CHUNKS):
        chunk = yield from read_range(offset, 12)
        length, offset = int.from_bytes(chunk[4:], "big", signed=True), offset + 12
        if chunk[:4] == b"data":
            end = size if length < 0 else min(offset + length, size)
            return _count(offset + 4, end, probe)
        if length < 0:
            raise Malformed
        offset += length
    raise Malformed


def _count(start: int, end: int, probe: Probe) -> SourceLength:
    """Return the number of samples in a range of bytes."""
    if end < start:
        raise Malformed
    width = sample_bytes(probe.codec)
    if not width:
        raise Malformed
    samples = (end - start) // (width * probe.channels)
    return SourceLength(samples, data_offset=start)


def sample_bytes(codec: str) -> int:
    """Return the bytes of a sample, which the codec tells ffmpeg's decoder; 0 for other codecs.

    Headers may state more.
    """
    if codec in _ONE_BYTE:
        return 1
    if codec in _FOUR_BYTES:
        return 4
    found = _BITS.match(codec)
    return 0 if found is None else int(found[1]) // 8
