"""Lengths of TTA, Monkey's Audio and TAK files, whose headers state where their samples end.

ffmpeg plays the samples that the header states. Of joined files it would play the first one alone.
"""

from __future__ import annotations

import struct

from audioproxy.errors import UndecodableSource
from audioproxy.media.lengths.ends import id3_bytes, skip_id3
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength, read_fields, read_range

# TTA: name, format, channels, bits, rate, samples, checksum. The sizes of all frames follow, and
# their checksum.
_TTA = struct.Struct("<4sHHHIII")
# Seconds of a TTA frame.
_TTA_SECONDS = (256, 245)
_LARGEST_TABLE = 4 << 20

# Monkey's Audio from 3.98 on: name, version, padding; then the bytes of this descriptor, of the
# header, of the seek table, of a wav header, of the frames (in two parts), and of the end of the
# wav file. The header has, from byte 4 on: samples of a frame, samples of the last frame, frames.
_APE = struct.Struct("<4sHHIIIIIII")
_APE_HEADER = struct.Struct("<III")
_APE_OLDEST = 3980

# TAK: kinds of the blocks after the name, and the bits of the number of samples in the stream
# information.
_TAK_END, _TAK_STREAM, _TAK_LAST_FRAME = 0, 1, 7
_MOST_BLOCKS = 64
_TAK_SAMPLES = (14, 35)

# Bytes of the header of an APEv2 tag, and tags at the end of a file.
_TAG_HEADER = 32
_MOST_TAGS = 4


def read_tta(size: int, probe: Probe) -> Reader[SourceLength]:
    start = yield from skip_id3()
    name, *_, rate, samples, _ = yield from read_fields(start, _TTA)
    seconds, parts = _TTA_SECONDS
    frame = seconds * rate // parts
    if name != b"TTA1" or not frame:
        raise Malformed
    frames = -(-samples // frame)
    if 4 * frames > _LARGEST_TABLE:
        raise Malformed
    table = yield from read_range(start + _TTA.size, 4 * frames + 4)
    sizes = struct.unpack(f"<{frames}I", table[:-4])
    yield from _end_at(start + _TTA.size + len(table) + sum(sizes), size, name)
    return SourceLength(samples, seekable=True)


def read_ape(size: int, probe: Probe) -> Reader[SourceLength]:
    start = yield from skip_id3()
    name, version, _, descriptor, *sizes, upper, tail = yield from read_fields(start, _APE)
    if name != b"MAC " or version < _APE_OLDEST:
        raise Malformed
    frame, last, frames = yield from read_fields(start + descriptor + 4, _APE_HEADER)
    yield from _end_at(start + descriptor + sum(sizes) + (upper << 32) + tail, size, name)
    return SourceLength((frames - 1) * frame + last, is_stated_only=True)


def read_tak(size: int, probe: Probe) -> Reader[SourceLength]:
    start = yield from skip_id3()
    name, samples, last_frame = (yield from read_range(start, 4)), 0, 0
    start += len(name)
    for _ in range(_MOST_BLOCKS):
        head = yield from read_range(start, 4)
        kind, length = head[0] & 0x7F, int.from_bytes(head[1:], "little")
        start += len(head)
        if kind == _TAK_END:
            break
        fields = yield from read_range(start, min(length, 8))
        if kind == _TAK_STREAM:
            first, bits = _TAK_SAMPLES
            samples = int.from_bytes(fields, "little") >> first & (1 << bits) - 1
        if kind == _TAK_LAST_FRAME:
            last_frame = int.from_bytes(fields[:5], "little") + int.from_bytes(fields[5:], "little")
        start += length
    # ffprobe reports the same number.
    agrees = probe.duration is not None and abs(probe.duration * probe.sample_rate - samples) < 1
    if name != b"tBaK" or not last_frame or not agrees:
        raise Malformed
    yield from _end_at(start + last_frame, size, name)
    return SourceLength(samples, is_stated_only=True)


def _end_at(end: int, size: int, name: bytes) -> Reader[None]:
    """Check that a file that begins with a name ends at an offset, apart from tags.

    :raises UndecodableSource: where another file of the same kind follows, also behind tags.
    """
    for _ in range(_MOST_TAGS):
        if end >= size:
            break
        following = yield from read_range(end, min(_TAG_HEADER, size - end))
        if following.startswith(name):
            raise UndecodableSource("The source consists of several files, one behind the other.")
        if following.startswith(b"TAG"):
            end += 128
        elif following.startswith(b"ID3"):
            end += id3_bytes(following)
        elif following.startswith(b"APETAGEX"):
            end += _TAG_HEADER + int.from_bytes(following[12:16], "little")
        else:
            break
    if end != size:
        raise Malformed
