"""Where a wav file has its samples: RIFF, RIFX, RF64 and BW64 (EBU Tech 3306; ITU-R BS.2088).

The size of the samples is often wrong. Recordings of more than 4 GiB state it modulo 2^32, programs
that write to a pipe state 0 or the largest number, and a recorder that lost power states what it
had at its last update. So a size is believed where the end of the file, chunks or zeros follow the
samples, or if the size of the whole form agrees and little follows that. Otherwise the samples
reach to the end of the file, or to the chunks at its end.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from dataclasses import dataclass

from audioproxy.media.lengths.ends import end_before_tags, id3_bytes
from audioproxy.media.lengths.pcm import SampleForm, count_samples, find_chunk
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Order, Reader, SourceLength, read_fields, read_range

_KINDS = {b"RIFF": "wav", b"RF64": "wav", b"BW64": "wav", b"RIFX": "rifx"}
_UNKNOWN_SIZE = 0xFFFF_FFFF
_WRAPPED = 1 << 32

# The 64-bit sizes of the form and of the samples.
_SIZES = struct.Struct("<QQ")

# The format chunk: tag, channels, rate, bytes a second, bytes of a frame and bits of a sample; then
# the size of its extension, the valid bits, the speakers, and the tag again. In RIFX, SoX writes
# that as 16 bits and two zeros, and libsndfile as 32 bits.
_FORMAT = "HHIIHH"
_EXTENSION = "HHIHH"
_EXTENSIBLE = 0xFFFE
# ffmpeg's names of speakers.
_LAYOUTS = {0x33: "quad", 0x3F: "5.1", 0x60F: "5.1(side)", 0x63F: "7.1"}
# The kind of samples for each tag, and their sizes in bits.
_TAGS = {1: ("su", (8, 16, 24, 32)), 3: ("f", (32, 64)), 6: ("alaw", (8,)), 7: ("mulaw", (8,))}

# Chunks, and tags of other kinds, that follow samples.
_KNOWN = re.compile(
    rb"LIST|JUNK|junk|FLLR|PAD |bext|iXML|axml|chna|cart|cue |smpl|inst|fact|PEAK|levl|acid|data"
    rb"|id3 |ID3|TAG|APETAGEX|_PMX|umid|aXML|afsp|minf|elm1|regn|LGWV|SAUR|slnt|plst|DISP|strc|dbmd"
)
_NAME = re.compile(rb"[!-~][ -~]{3}")
_CHUNK_AT_END = re.compile(rb"(?=([A-Za-z_][A-Za-z0-9_ ]{3}....))", re.DOTALL)
_MOST_CHUNKS = 64
# Bytes at the end of a file in which chunks are looked for, and those of known names if the file
# states no size of its samples; and how many of these are examined.
_TAIL = 64 * 1024
_LARGE_TAIL = 2 * 1024 * 1024
_MOST_NAMES = 4096
# Bytes behind the samples that are zeros where a recorder has reserved space.
_ZEROS = 64
#: ffmpeg and ffprobe take zeros for empty chunks, of 8 bytes each. From this many bytes on, that
#: takes them a noticeable time.
MUCH_SPACE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WavFile:
    """Where a wav file has its samples, and the offset after them.

    :ivar stated_end: the offset at which ffmpeg ends.
    :ivar big_endian: the sizes, the format and the samples are big-endian.
    :ivar has_space: much follows the stated end that is no chunk: reserved space, or samples.
    """

    start: int
    end: int
    stated_end: int
    big_endian: bool
    has_space: bool


def find_samples(size: int) -> Reader[WavFile]:
    header = yield from read_range(0, 12)
    kind = _KINDS.get(header[:4])
    if kind is None or header[8:] != b"WAVE":
        raise Malformed
    start, stated = yield from find_chunk(kind, b"data")
    order: Order = "big" if kind == "rifx" else "little"
    first, form_end = start, 8 + int.from_bytes(header[4:8], order)
    if not stated:
        start, stated = yield from _skip_empty(start, size, order)
    # ffmpeg plays the samples of another chunk with its header, or not at all.
    ends_at_once = start != first
    if header[:4] in (b"RF64", b"BW64"):
        sizes, _ = yield from find_chunk(kind, b"ds64")
        whole, long = yield from read_fields(sizes, _SIZES)
        form_end = 8 + whole
        # ffmpeg plays nothing of a file whose 64-bit size is 0.
        stated, ends_at_once = long or stated, ends_at_once or not long
    if stated == _UNKNOWN_SIZE:
        stated = 0
    end = yield from _find_end(start, stated, size, order, form_end)
    stated_end = start if ends_at_once else min(start + (stated or size), size)
    more = size - stated_end > MUCH_SPACE
    has_space = more and (end != stated_end or (yield from _is_zeros(stated_end, size)))
    return WavFile(start, end, stated_end, order == "big", has_space)


def read_wav(size: int, probe: Probe) -> Reader[SourceLength]:
    found = yield from find_samples(size)
    return count_samples(found.start, found.end, size, probe)


def read_form(found: WavFile) -> Reader[SampleForm | None]:
    """Return the form of the samples; None for another one than PCM."""
    kind, order = ("rifx", ">") if found.big_endian else ("wav", "<")
    start, _ = yield from find_chunk(kind, b"fmt ")
    form, extension = struct.Struct(order + _FORMAT), struct.Struct(order + _EXTENSION)
    tag, channels, rate, _, frame, bits = yield from read_fields(start, form)
    valid, layout = bits, {1: "mono", 2: "stereo"}.get(channels)
    if tag == _EXTENSIBLE:
        _, valid, speakers, *tags = yield from read_fields(start + form.size, extension)
        tag = sum(tags)
        layout = layout or (_LAYOUTS.get(speakers) if speakers.bit_count() == channels else None)
    kinds, sizes = _TAGS.get(tag, ("", ()))
    if bits not in sizes or 8 * frame != channels * bits or not channels or not rate:
        return None
    letter = "u" if (kinds, bits) == ("su", 8) else kinds[0]
    codec = f"pcm_{kinds}" if kinds.endswith("law") else f"pcm_{letter}{bits}"
    if bits > 8:
        codec += "be" if found.big_endian else "le"
    return SampleForm(codec, rate, channels, valid if 0 < valid < bits else bits, layout)


def _skip_empty(start: int, size: int, order: Order) -> Reader[tuple[int, int]]:
    """Return the place and the bytes of the samples of a later chunk, if the first one has none."""
    offset = start
    for _ in range(_MOST_CHUNKS):
        if size - offset < 8:
            break
        head = yield from read_range(offset, 8)
        length = int.from_bytes(head[4:], order)
        offset += 8
        if head.startswith(b"data") and length:
            return offset, length
        if not _KNOWN.match(head):
            break
        offset += length + length % 2
    return start, 0


def _find_end(start: int, stated: int, size: int, order: Order, form_end: int) -> Reader[int]:
    """Return the offset after the last sample.

    :param stated: bytes of the samples; 0 where the file does not state them.
    :param form_end: where the file states that the last chunk ends.
    """
    end = start + stated
    wrapped = end + (size - end) // _WRAPPED * _WRAPPED
    if stated and wrapped > end and (yield from _ends_at(wrapped, size, order)):
        return wrapped
    if stated and (
        end >= size
        or (yield from _ends_at(end, size, order, form_end))
        or (yield from _is_zeros(end, size))
    ):
        return min(end, size)
    return (yield from _before_chunks(start, size, order, is_unknown=not stated))


def _ends_at(offset: int, size: int, order: Order, form_end: int = 0) -> Reader[bool]:
    """Return whether chunks, tags, or nothing follow an offset; little may follow ``form_end``."""
    # Many programs leave out the byte that pads an odd size.
    for begin in (offset, offset + 1) if offset % 2 else (offset,):
        if (yield from _are_chunks(begin, size, order, form_end)):
            return True
    return False


def _are_chunks(offset: int, size: int, order: Order, form_end: int) -> Reader[bool]:
    """Return whether chunks fill a file to its end, or one of them has a known name."""
    for _ in range(_MOST_CHUNKS):
        if size - offset < 8:
            return size - offset >= -1
        if offset == form_end and size - offset < _TAIL:
            return True
        head = yield from read_range(offset, 8)
        if _KNOWN.match(head):
            return True
        if not _NAME.match(head):
            return False
        length = int.from_bytes(head[4:], order)
        offset += 8 + length + length % 2
    return False


def _is_zeros(offset: int, size: int) -> Reader[bool]:
    return not any((yield from read_range(offset, min(_ZEROS, size - offset))))


def _before_chunks(start: int, size: int, order: Order, *, is_unknown: bool) -> Reader[int]:
    """Return the offset of the chunks and tags at the end of a file, or its size.

    Each of them ends where the next one or the file ends. Where the size of the samples is unknown,
    they may be large.
    """
    first = max(start, size - (_LARGE_TAIL if is_unknown else _TAIL))
    tail = yield from read_range(first, size - first)
    tags = yield from end_before_tags(size)
    ends = {len(tail), max(0, tags - first) or len(tail)}
    places = [found.start() for found in _CHUNK_AT_END.finditer(tail, max(0, len(tail) - _TAIL))]
    large = deque((found.start() for found in _KNOWN.finditer(tail)), _MOST_NAMES)
    for at in (*reversed(places), *reversed(large)):
        head = tail[at : at + 10]
        end = at + 8 + int.from_bytes(head[4:8], order)
        # The byte that pads an odd size may be missing.
        ended = {end, end + end % 2}
        if head.startswith(b"ID3"):
            ended.add(at + id3_bytes(head))
        if len(head) >= 8 and not ended.isdisjoint(ends):
            ends.add(at)
    return first + min(ends)
