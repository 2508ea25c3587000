"""Encoded audio in the place of samples: DTS, and the bursts of S/PDIF (IEC 61937).

A recording of a digital output, or a copy of a DTS CD, is a file of samples to every reader. Played
as samples, it is noise at full scale. In wav, ffmpeg detects some of it, by the place where it
starts to read. So the service decides by the first samples that are not zero, for all renders.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from audioproxy.media.lengths.pcm import sample_bytes
from audioproxy.media.reading import Reader, read_range

#: Samples of two channels in which all bursts repeat. Those of TrueHD do so after 61,440 bytes.
LONGEST_PERIOD = 20 * 1024
# Zeros after which a source is not examined any more: seconds, and bytes, which a few reads cover.
_MOST_ZEROS = 10
_MOST_ZERO_BYTES = 6 * 1024 * 1024
# Bytes of words that decide. The bursts of all codecs but TrueHD repeat after at most 24 KiB.
_BLOCK = 25 * 1024
# Bytes of words, read where a burst may begin.
_LONGEST = 4 * LONGEST_PERIOD
# What may begin a burst, but is followed by nothing that fits, is a coincidence.
_MOST_COINCIDENCES = 64

# The words of 16 bits, big-endian, that begin a burst of IEC 61937, which states its codec, or a
# frame of DTS that is not the last one (IEC 61937-1, 6.1.7; ETSI TS 102 114, 5.3 and annex E).
# Samples that hold 14 bits have the sign in the other two.
_PREAMBLE = b"\xf8\x72\x4e\x1f"
_DTS_14 = b"\x1f\xff\xe8\x00"
_SYNC = re.compile(
    _PREAMBLE + rb".[\x01-\x7f]|\x7f\xfe\x80\x01[\xfc-\xff]|" + _DTS_14 + rb"\x07[\xf0-\xff]",
    re.DOTALL,
)
# Bytes of words, of 16 bits or of 14, that hold the start of a frame up to its sample rate.
_HEADER = 10
# The lowest 5 bits of the third word of a burst (IEC 61937-2, table 2). A pause may be the first.
_TYPES = {1: "AC-3", **dict.fromkeys((4, 5, 6, 8, 9, 10), "MPEG audio"), 21: "E-AC-3"}
_TYPES |= {**dict.fromkeys((7, 19, 20), "AAC"), **dict.fromkeys((11, 12, 13, 17), "DTS")}
_TYPES |= {3: "encoded audio", **dict.fromkeys((14, 15, 16), "ATRAC"), 22: "TrueHD"}
# What the frames of DTS may state (ETSI TS 102 114, 5.3.1): channels, sample rates and sizes.
_DTS_ARRANGEMENTS = 16
_DTS_RATES = (1, 2, 3, 6, 7, 8, 11, 12, 13)
_LEAST_DTS_BYTES = 96

_INTEGERS = re.compile(r"pcm_s(16|24|32)(le|be)$")
_FLOATS = {"pcm_f32": "f", "pcm_f64": "d"}


class _Start(NamedTuple):
    """What may be the start of a burst; the next one follows after one of the periods, if any."""

    name: str
    place: int
    sync: bytes
    periods: tuple[int, ...] = ()

    def is_followed(self, words: bytes) -> bool:
        if self.periods:
            return any(words.startswith(self.sync, self.place + size) for size in self.periods)
        found = words.find(self.sync, self.place + len(self.sync))
        return found >= 0 and (found - self.place) % 4 == 0


def find_burst(start: int, end: int, codec: str, per_second: int) -> Reader[str | None]:
    """Return what the samples in a range of bytes encode; None for audio.

    :param per_second: samples in a second, of all channels.
    """
    width = sample_bytes(codec)
    if not (_INTEGERS.match(codec) or codec[:-2] in _FLOATS):
        return None
    offset, size = start, _BLOCK * width // 2
    limit = min(end, start + min(_MOST_ZEROS * per_second * width, _MOST_ZERO_BYTES))
    while offset < limit:
        block = yield from read_range(offset, min(size, end - offset))
        zeros = len(block) - len(block.lstrip(b"\0"))
        if zeros < len(block):
            break
        offset += len(block)
    else:
        return None
    first = offset + zeros - (offset + zeros - start) % width
    block = yield from read_range(first, min(size, end - first))
    found = min((each.place for _, each in _starts(words_of(block, codec))), default=None)
    if found is None:
        return None
    offset = first + found * width // 2
    block = yield from read_range(offset, min(_LONGEST * width // 2, end - offset))
    return encoded_in(block, codec)


def encoded_in(block: bytes, codec: str) -> str | None:
    starts = _starts(words_of(block, codec))
    return next((start.name for words, start in starts if start.is_followed(words)), None)


def words_of(block: bytes, codec: str) -> bytes:
    """Return the upper 16 bits of samples, as big-endian words; nothing where they hold no words.

    Integers do if their lower bits are zero, as in S/PDIF; floats if they are multiples of 1/32768.
    """
    integers = _INTEGERS.match(codec)
    if integers is None:
        return _from_floats(block, codec)
    width = int(integers[1]) // 8
    block = block[: len(block) // width * width]
    if integers[2] == "be":
        high, low, lowest = 0, 1, range(2, width)
    else:
        high, low, lowest = width - 1, width - 2, range(width - 2)
    if any(block[place::width].strip(b"\0") for place in lowest):
        return b""
    return _interleave(block[high::width], block[low::width])


def _interleave(high: bytes, low: bytes) -> bytes:
    words = bytearray(2 * len(high))
    words[0::2], words[1::2] = high, low
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


def _starts(words: bytes) -> Iterator[tuple[bytes, _Start]]:
    """Yield what may be the start of a burst, with the words in the byte order that it has."""
    for ordered in (words, _interleave(words[1::2], words[0::2])):
        found = (_start(ordered, match.start()) for match in _SYNC.finditer(ordered))
        for start in islice(filter(None, found), _MOST_COINCIDENCES):
            yield ordered, start


def _start(words: bytes, place: int) -> _Start | None:
    sync, head = words[place : place + 4], words[place : place + _HEADER]
    if place % 2 or len(head) < _HEADER:
        return None
    if sync == _PREAMBLE:
        name, has_content = _TYPES.get(head[5] & 0x1F), any(head[6:8])
        return _Start(name, place, sync) if name and has_content else None
    bits = 14 if sync == _DTS_14 else 16
    fields = 0
    for (word,) in struct.iter_unpack(">H", head):
        fields = fields << bits | word & (1 << bits) - 1
    # The sync, the type of the frame, missing samples, a checksum, the number of blocks of 32
    # samples, of bytes, the arrangement of channels, and the sample rate.
    fields >>= len(head) // 2 * bits - 70
    rate, arrangement = fields & 0xF, fields >> 4 & 0x3F
    size, blocks = (fields >> 10 & 0x3FFF) + 1, (fields >> 24 & 0x7F) + 1
    if rate not in _DTS_RATES or arrangement >= _DTS_ARRANGEMENTS:
        return None
    if size < _LEAST_DTS_BYTES or blocks % 8:
        return None
    # A frame may be padded to the time that it lasts.
    return _Start("DTS", place, sync, (-(-8 * size // bits) * 2, blocks * 32 * 4))
