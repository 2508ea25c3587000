"""Lengths of AMR files (RFC 4867, 5) that end with silence, which the decoder skips."""

from __future__ import annotations

from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength, read_range

# Bytes of a frame by its mode, as ffmpeg reads them, after the first bytes of a file.
_MODES = {
    b"#!AMR\n": (13, 14, 16, 18, 20, 21, 27, 32, 6, 1, 1, 1, 1, 1, 1, 1),
    b"#!AMR-WB\n": (18, 24, 33, 37, 41, 47, 51, 59, 61, 6, 1, 1, 1, 1, 1, 1),
}
_LONGEST_MAGIC = 9
_FRAMES_PER_SECOND = 50
# The bits of a frame's first byte that are 0.
_RESERVED = 0x83
_LONGEST_SILENCE = 6
# Bytes that are searched at a time.
_CHUNK = 64 * 1024
# The first mode of a frame without speech, by codec; decoders give no audio for it.
_SILENCE = {"amr_nb": 8, "amr_wb": 9}


def read_amr(size: int, probe: Probe) -> Reader[SourceLength]:
    """Count the frames of an AMR file that ends with silence, from the first one with speech on.

    Files whose last bytes cannot be a frame without speech are not read any further.
    """
    magic = yield from read_range(0, min(size, _LONGEST_MAGIC))
    found = next((start for start in _MODES if magic.startswith(start)), None)
    if found is None:
        raise Malformed
    sizes, offset, frames = _MODES[found], len(found), 0
    mode, silent = 0, _SILENCE.get(probe.codec, 0)
    tail = yield from read_range(max(0, size - _LONGEST_SILENCE), min(size, _LONGEST_SILENCE))
    if not any(
        not byte & _RESERVED and byte >> 3 & 15 >= silent and sizes[byte >> 3 & 15] == left
        for byte, left in zip(tail, range(len(tail), 0, -1), strict=True)
    ):
        raise Malformed
    while offset < size:
        chunk = yield from read_range(offset, min(_CHUNK, size - offset))
        at = 0
        while at < len(chunk):
            mode = chunk[at] >> 3 & 15
            frames += bool(frames) or mode < silent
            at += sizes[mode]
        offset += at
    if offset > size or mode < silent:
        raise Malformed
    return SourceLength(frames * probe.sample_rate // _FRAMES_PER_SECOND)
