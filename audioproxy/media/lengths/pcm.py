"""Chunks, and the lengths of uncompressed audio in w64, aiff, caf, 8SVX, DSDIFF and DSF.

The length follows from the size of the samples. Where the file ends before them, it ends the audio
too, as in ffmpeg.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from audioproxy.media.probe import Probe
from audioproxy.media.reading import (
    Malformed,
    Order,
    Reader,
    SourceLength,
    read_fields,
    read_number,
    read_range,
)

# Chunks that are examined before the one that is searched.
_MOST_CHUNKS = 64

# Bytes of a sample. The floats are in the range of 16-bit or of 24-bit integers.
_WIDTHS = {"pcm_alaw": 1, "pcm_mulaw": 1, "pcm_f16le": 4, "pcm_f24le": 4}
# ffmpeg decodes eight samples of one bit to one.
_WIDTHS |= {f"dsd_{order}sbf{planes}": 1 for order in "lm" for planes in ("", "_planar")}
# ffmpeg's names of the other codecs have their bits.
_BITS = re.compile(r"pcm_[suf](\d+)(?:le|be)?(?:_planar)?$")

# DSF: name, bytes of the chunk, of the file, offset of tags; name, bytes, version, format, kind of
# channels, channels, rate, bits, samples, bytes of a block, reserved; name, bytes.
_DSF_DATA = 12
_DSF = struct.Struct("<4sQQQ4sQIIIIIIQII4sQ")

# For each container: the offset of the first chunk, the bytes of a chunk's size and their order,
# the bytes of its name and its size that the size includes, and the alignment of chunks.
_CHUNKS: dict[str, tuple[int, int, Order, int, int]] = {
    "wav": (12, 4, "little", 0, 2),
    "rifx": (12, 4, "big", 0, 2),
    "w64": (40, 8, "little", 24, 8),
    "aiff": (12, 4, "big", 0, 2),
    "caf": (8, 8, "big", 0, 1),
    "iff": (12, 4, "big", 0, 2),
    "dsdiff": (16, 8, "big", 0, 2),
}

# What the first bytes of a file match; its chunk of samples, and the bytes ahead of them in it.
_LONGEST_START = 16
_W64_RIFF = bytes.fromhex("726966662e91cf11a5d628db04c10000")
_W64_DATA = bytes.fromhex("64617461f3acd3118cd100c04f8edb8a")
_SAMPLES = {
    "w64": (re.compile(re.escape(_W64_RIFF)), _W64_DATA, 0),
    "aiff": (re.compile(rb"FORM.{4}AIF[FC]", re.DOTALL), b"SSND", 8),
    "caf": (re.compile(b"caff"), b"data", 4),
}


@dataclass(frozen=True, slots=True)
class SampleForm:
    """The form of uncompressed samples, with their bits as stored; a layout is such as ``5.1``."""

    codec: str
    sample_rate: int
    channels: int
    bits: int
    layout: str | None


def find_chunk(container: str, name: bytes) -> Reader[tuple[int, int]]:
    """Return the offset and the stated bytes of the content of the first chunk of a name."""
    offset, size_bytes, order, counted, alignment = _CHUNKS[container]
    for _ in range(_MOST_CHUNKS):
        head = yield from read_range(offset, len(name) + size_bytes)
        length = int.from_bytes(head[len(name) :], order) - counted
        offset += len(head)
        if head.startswith(name):
            return offset, length
        if length < 0:
            break
        offset += length + -length % alignment
    raise Malformed


def read_chunked(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of a Sony Wave64, AIFF, AIFF-C or Core Audio file."""
    form, name, skipped = _SAMPLES[probe.container]
    if not form.match((yield from read_range(0, _LONGEST_START))):
        raise Malformed
    # An unknown size in Core Audio is -1, here a number that is past every end.
    start, length = yield from find_chunk(probe.container, name)
    if probe.container == "aiff":
        skipped += yield from read_number(start, 4)
    return count_samples(start + skipped, start + length, size, probe)


def read_iff(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of an 8SVX, a 16SV or a DSDIFF file."""
    form = yield from read_range(0, 4)
    kind, name = ("iff", b"BODY") if form == b"FORM" else ("dsdiff", b"DSD ")
    start, length = yield from find_chunk(kind, name)
    return count_samples(start, start + length, size, probe)


def read_dsf(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length, which the file states beside the blocks of its samples."""
    head = yield from read_fields(0, _DSF)
    name, form, data, samples, block = head[0], head[4], head[15], head[12], head[13]
    if (name, form, data) != (b"DSD ", b"fmt ", b"data"):
        raise Malformed
    blocks, row = -(-samples // (8 * block or 1)), block * probe.channels
    # ffmpeg plays all blocks but the last one whole.
    if _DSF.size + blocks * row > size or head[16] - _DSF_DATA >= (blocks + 1) * row:
        raise Malformed
    return SourceLength(samples // 8)


def count_samples(start: int, end: int, size: int, probe: Probe) -> SourceLength:
    """Return the number of samples in a range of bytes, of which the file may lack the end."""
    width, end = sample_bytes(probe.codec), min(end, size)
    if end < start or not width:
        raise Malformed
    return SourceLength((end - start) // (width * probe.channels), data_offset=start)


def sample_bytes(codec: str) -> int:
    """Return the bytes of a sample by its codec, whatever headers state; 0 for other codecs."""
    found = _BITS.match(codec)
    return _WIDTHS.get(codec, int(found[1]) // 8 if found else 0)
