"""Encoded audio in the place of samples: DTS, and the bursts of S/PDIF (IEC 61937).

A recording of a digital output, or a copy of a DTS CD, is a file of samples to every reader. Played
as samples, it is noise at full scale. In wav, ffmpeg detects some of it, by the place where it
starts to read. So the service decides by the first samples that are not zero, for all renders.
"""

from __future__ import annotations

import re
import struct

from audioproxy.media.lengths.pcm import sample_bytes
from audioproxy.media.lengths.reading import Reader, read_range

# Seconds of zeros after which a source is not examined any more.
_MOST_ZEROS = 10
# Bytes that decide. The bursts of AC-3, DTS, AAC and MPEG repeat after at most 16 KiB.
_BLOCK = 32 * 1024
# Bytes in which all bursts repeat, those of TrueHD too; read if a first burst was found.
_LONGEST_PERIOD = 160 * 1024

# The words of 16 bits, big-endian, that begin a frame, by its codec (IEC 61937-1, 6.1.7; ETSI TS
# 102 114, 5.3 and annex E). Samples that hold 14 bits have the sign in the other two. A burst of
# IEC 61937 states its codec.
_SYNCS = {
    "": re.compile(rb"\xf8\x72\x4e\x1f.[\x01-\x7f]", re.DOTALL),
    "DTS": re.compile(rb"\x7f\xfe\x80\x01|\x1f\xff\xe8\x00\x07[\xf0-\xff]"),
}
# The lowest 5 bits of the third word of a burst (IEC 61937-2, table 2).
_TYPES = {1: "AC-3", **dict.fromkeys((4, 5, 6, 8, 9, 10), "MPEG audio"), 21: "E-AC-3"}
_TYPES |= {**dict.fromkeys((7, 19, 20), "AAC"), **dict.fromkeys((11, 12, 13, 17), "DTS")}
_TYPES |= {14: "ATRAC", 22: "TrueHD"}

_INTEGERS = re.compile(r"pcm_s(16|24|32)(le|be)$")
_FLOATS = {"pcm_f32": "f", "pcm_f64": "d"}


def find_burst(start: int, end: int, codec: str, per_second: int) -> Reader[str | None]:
    """Return what the samples of a source encode; None for audio.

    :param start: the offset of the first sample.
    :param end: the offset after the last one.
    :param codec: ffprobe's name of the samples' form.
    :param per_second: samples in a second, of all channels.
    """
    width = sample_bytes(codec)
    if not (_INTEGERS.match(codec) or codec[:-2] in _FLOATS):
        return None
    offset, limit = start, min(end, start + _MOST_ZEROS * per_second * width)
    while offset < limit:
        block = yield from read_range(offset, min(_BLOCK, end - offset))
        zeros = len(block) - len(block.lstrip(b"\0"))
        if zeros < len(block):
            break
        offset += len(block)
    else:
        return None
    first = offset + zeros - (offset + zeros - start) % width
    block = yield from read_range(first, min(_BLOCK, end - first))
    words = words_of(block, codec)
    found = _find_sync(words)
    if found is None:
        return None
    name, at = found
    offset = first + at * width // 2
    block = yield from read_range(offset, min(_LONGEST_PERIOD * width // 2, end - offset))
    # A sync word alone may be a coincidence, unless the source begins with it.
    if at and _find_sync(words_of(block, codec), count=2) is None:
        return None
    return name


def codec_of(words: bytes) -> str | None:
    """Return what samples that look like noise encode; None for audio.

    :param words: the samples, as big-endian words of 16 bits.
    """
    found = _find_sync(words)
    return found[0] if found else None


def words_of(block: bytes, codec: str) -> bytes:
    """Return the upper 16 bits of samples, as big-endian words; nothing where they hold no words.

    Floating-point samples hold words if they are multiples of 1/32768.
    """
    integers = _INTEGERS.match(codec)
    if integers is None:
        return _from_floats(block, codec)
    width = int(integers[1]) // 8
    block = block[: len(block) // width * width]
    words = bytearray(len(block) // width * 2)
    high = width - 1 if integers[2] == "le" else 0
    words[0::2] = block[high::width]
    words[1::2] = block[high - 1 if high else 1 :: width]
    return bytes(words)


def _from_floats(block: bytes, codec: str) -> bytes:
    form = struct.Struct((">" if codec.endswith("be") else "<") + _FLOATS[codec[:-2]])
    words = []
    for (value,) in form.iter_unpack(block[: len(block) // form.size * form.size]):
        scaled = value * 32768
        if not -32768 <= scaled <= 32767 or scaled != int(scaled):
            return b""
        words.append(int(scaled))
    return struct.pack(f">{len(words)}h", *words)


def _find_sync(words: bytes, count: int = 1) -> tuple[str, int] | None:
    """Return what the first sync word begins that is found a number of times, and its place."""
    swapped = bytearray(words)
    swapped[0::2], swapped[1::2] = words[1::2], words[0::2]
    for ordered in (words, bytes(swapped)):
        for name, sync in _SYNCS.items():
            places = [found.start() for found in sync.finditer(ordered) if not found.start() % 2]
            if len(places) >= count:
                kind = _TYPES.get(ordered[places[0] + 5] & 0x1F, "encoded audio")
                return name or kind, places[0]
    return None
