"""Lengths of mp3 files: exact where an encoder's header frame states it, else a lower bound.

The header frames are those of Xing and LAME ("Mp3 Info Tag rev 1") and of Fraunhofer (VBRI).
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import NamedTuple

from audioproxy.media.lengths.ends import count_frames, end_before_tags, end_of_frames, skip_id3
from audioproxy.media.lengths.mpeg_frame import FrameHeader, tag_checksum
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength, read_range

_HAS_FRAMES, _HAS_BYTES, _HAS_TABLE, _HAS_QUALITY = 1, 2, 4, 8
# The names of header frames of Xing and LAME, and that of Fraunhofer.
_NAMES, _NAME_OF_VBRI = (b"Xing", b"Info"), b"VBRI"
# Programs whose delays ffmpeg skips.
_DELAY_WRITERS = (b"LAME", b"Lavf", b"Lavc")
# The decoder's own delay (LAME, "encoder delays").
_DECODER_DELAY = 529

# ffprobe prints durations with six decimals.
_MICROSECOND = Decimal("0.000001")

# Bytes of a header frame up to its checksum. The checksum follows the name of the program by these.
_LONGEST_TAG = 192
_CHECKSUM, _CHECKED_BY_FFMPEG = 34, 190
# What a header frame of VBRI states from byte 46 on: bytes, frames; then, of its table, the
# entries, their scale, their bytes, and the frames of each of them.
_VBRI = struct.Struct(">IIHHHH")
# Frames at the start that are compared, and the bytes of a frame's header.
_FIRST_FRAMES, _HEADER = 16, 4


class _Header(NamedTuple):
    """What an encoder's header frame states: its samples are those that a decoder outputs.

    :ivar delay: number of samples at the start that it leaves out.
    :ivar is_constant: all frames have one bit rate.
    :ivar is_intact: the checksum, or the table of VBRI, agrees with it.
    """

    frames: int
    size: int
    samples: int
    is_constant: bool
    is_intact: bool = True
    delay: int = 0


class Stated(NamedTuple):
    """What an mp3 file states about its frames; None where it states nothing.

    :ivar first: the offset of the first frame that ffmpeg decodes.
    :ivar delay: number of samples of it that ffmpeg leaves out.
    :ivar samples: number of samples up to the padding, which ffmpeg leaves out.
    """

    first: int
    delay: int = 0
    frames: int | None = None
    samples: int | None = None


def read_mp3(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of an mp3 file.

    An encoder's header is believed if the size that it states agrees with the file, the number of
    frames with that size, its checksum with its bytes, and both ends of the file with each other.
    Without such a header, the file is at least as long as one at the highest bit rate.
    """
    start, data, frame = yield from _read_first_frame(size)
    if frame.rate != probe.sample_rate:
        raise Malformed
    end = yield from end_before_tags(size)
    header = _parse_header(data, frame)
    if header is not None:
        first = start + frame.length
        following = FrameHeader.parse((yield from read_range(first, 4)))
        if following is None or following.rate != frame.rate:
            raise Malformed
        audio_size = end - first
        if (
            header.is_intact
            and header.size in (end - start, audio_size)
            and _size_fits_frames(header, following, audio_size)
            and (yield from _are_alike(first, end, following, header))
        ):
            return SourceLength(header.samples, is_stated_only=True, block=frame.samples)

    def frame_length(data: bytes) -> int:
        found = FrameHeader.parse(data)
        return found.length if found is not None and found.rate == frame.rate else 0

    longest = frame.length_at(frame.bitrates[-1]) + 1
    frames = yield from count_frames(start, end, frame_length, longest)
    return SourceLength(frames * frame.samples, exact=False)


def read_duration(size: int, probe: Probe) -> Reader[Probe]:
    """Read the duration without the encoder's delay and padding, if ffprobe has counted these.

    ffprobe counts them up to FFmpeg 7.1. Delete this when FFmpeg 8.0 is the oldest supported one.
    """
    _, data, frame = yield from _read_first_frame(size)
    header = _parse_header(data, frame)
    if header is None or header.samples <= 0 or probe.duration is None:
        raise Malformed
    if abs(probe.duration - Decimal(header.frames * frame.samples) / frame.rate) > _MICROSECOND:
        raise Malformed
    return probe.described(
        duration=round(Decimal(header.samples) / frame.rate, 6),
        bitrate=8 * size * frame.rate // header.samples,
    )


def read_encoder_header(size: int) -> Reader[Stated]:
    start, data, frame = yield from _read_first_frame(size)
    header = _parse_header(data, frame)
    if header is not None:
        return Stated(start + frame.length, header.delay, header.frames, header.samples)
    if is_header_frame(data):
        raise Malformed
    return Stated(start)


def is_header_frame(data: bytes) -> bool:
    """Return whether ffmpeg may take the first frame of some bytes for that of an encoder."""
    return any(name in data[:_LONGEST_TAG] for name in (*_NAMES, _NAME_OF_VBRI))


def _read_first_frame(size: int) -> Reader[tuple[int, bytes, FrameHeader]]:
    start = yield from skip_id3()
    data = yield from read_range(start, min(_LONGEST_TAG, size - start))
    frame = FrameHeader.parse(data)
    if frame is None:
        raise Malformed
    return start, data, frame


def _parse_header(data: bytes, frame: FrameHeader) -> _Header | None:
    """Return what an encoder's header frame states; None for a frame of audio."""
    if data[36:42] == _NAME_OF_VBRI + b"\0\1":
        size, frames, entries, _, _, per_entry = _VBRI.unpack(data[46 : 46 + _VBRI.size])
        # The table has entries for all frames.
        is_intact = abs(entries * per_entry - frames) <= per_entry
        return _Header(frames, size, frames * frame.samples, False, is_intact)
    at = 4 + frame.side_information
    name = data[at : at + 4]
    flags, frames, size = (
        int.from_bytes(data[place : place + 4], "big") for place in (at + 4, at + 8, at + 12)
    )
    needed = _HAS_FRAMES | _HAS_BYTES
    if name not in _NAMES or flags & needed != needed:
        return None
    at += 16 + (100 if flags & _HAS_TABLE else 0) + (4 if flags & _HAS_QUALITY else 0)
    samples, is_intact, left_out = frames * frame.samples, True, 0
    if data[at : at + 4] in _DELAY_WRITERS:
        is_intact = _is_intact(data[: frame.length], at + _CHECKSUM)
        delays = int.from_bytes(data[at + 21 : at + 24], "big")
        delay, padding = delays >> 12, delays & 0xFFF
        left_out = delay + _DECODER_DELAY
        samples -= left_out + max(0, padding - _DECODER_DELAY)
    return _Header(frames, size, samples, name == b"Info", is_intact, left_out)


def _is_intact(data: bytes, at: int) -> bool:
    """Return whether the checksum at an offset of a header frame is right; some programs state 0.

    ffmpeg computes that of 190 bytes, with zeros where the frame is shorter.
    """
    stated = int.from_bytes(data[at : at + 2], "big")
    whole = data[:at] + bytes(2) + data[at + 2 : _CHECKED_BY_FFMPEG]
    padded = whole.ljust(_CHECKED_BY_FFMPEG, b"\0")
    return stated in (0, tag_checksum(data[:at]), tag_checksum(padded))


def _are_alike(first: int, end: int, following: FrameHeader, header: _Header) -> Reader[bool]:
    """Return whether the first frames of audio, and those at the end, are of one stream."""

    def frame_length(data: bytes) -> int:
        found = FrameHeader.parse(data)
        if found is None or (found.rate, found.channels) != (following.rate, following.channels):
            return 0
        return 0 if header.is_constant and found.kbps != following.kbps else found.length

    offset = first
    for _ in range(_FIRST_FRAMES):
        if offset + _HEADER >= end:
            return True
        length = frame_length((yield from read_range(offset, _HEADER)))
        if not length:
            return False
        offset += length
    return end - (yield from end_of_frames(first, end, frame_length)) < _LONGEST_TAG


def _size_fits_frames(header: _Header, following: FrameHeader, size: int) -> bool:
    if header.is_constant:
        # Each frame may be one byte longer.
        return 0 <= size - header.frames * (following.length - following.padding) <= header.frames
    shortest, longest = (following.length_at(following.bitrates[index]) for index in (1, -1))
    return header.frames * shortest <= size <= header.frames * (longest + 1)
