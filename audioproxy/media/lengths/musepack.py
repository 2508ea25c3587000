"""Lengths of Musepack files of stream version 8, from their first packet."""

from __future__ import annotations

from zlib import crc32

from audioproxy.media.lengths.ends import end_before_tags, skip_id3
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength, read_range

# The packet of the stream header begins with a checksum and the version.
_NAME, _CHECKSUM, _HEADER_FIELDS = 4, 4, 5
_VERSION = b"\x08"
# Bytes that hold all fields up to the number of samples, and the silence ahead of them.
_LONGEST_HEADER = 36
_END = b"SE\x03"
_FRAME_SAMPLES = 1152
# Samples of silence that each decoder outputs first (libmpcdec, MPC_DECODER_SYNTH_DELAY). ffmpeg
# does not skip them.
_DELAY = 481


def read_musepack(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length, which ffprobe rounds down to whole packets, of up to 1.7 seconds."""
    start = yield from skip_id3()
    head = yield from read_range(start, min(_LONGEST_HEADER, size - start))
    length, at = _read_number(head, 6)
    checksum, fields = head[at : at + _CHECKSUM], head[at + _CHECKSUM : _NAME + length]
    end = yield from end_before_tags(size)
    last = yield from read_range(max(0, end - len(_END)), len(_END))
    version = head[at + _HEADER_FIELDS - 1 : at + _HEADER_FIELDS]
    if head[:6] != b"MPCKSH" or version != _VERSION or last != _END:
        raise Malformed
    if int.from_bytes(checksum, "big") != crc32(fields):
        raise Malformed
    samples, at = _read_number(head, at + _HEADER_FIELDS)
    silence, _ = _read_number(head, at)
    delay = _DELAY + silence
    return SourceLength(
        samples - silence,
        ends_in_padding=True,
        is_stated_only=True,
        block=delay + _FRAME_SAMPLES,
        delay=delay,
    )


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in groups of 7 bits, and the offset after it."""
    number = 0
    for offset in range(at, len(data) - 1):
        number = number << 7 | data[offset] & 0x7F
        if not data[offset] & 0x80:
            return number, offset + 1
    raise Malformed
