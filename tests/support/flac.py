"""Bytes of flac files."""

from __future__ import annotations

import struct

BLOCK = 4096


def crc(data: bytes, polynomial: int, bits: int) -> bytes:
    """Return a checksum, computed bit by bit (RFC 9639, 9.1.8 and 9.3)."""
    value = 0
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = (value << 1) ^ (polynomial if value >> (bits - 1) else 0)
            value &= (1 << bits) - 1
    return value.to_bytes(bits // 8, "big")


def frame(
    number: bytes,
    code: int = 12,
    more: bytes = b"",
    *,
    rate: int = 9,
    sync: int = 0xF8,
    form: int = 0x08,
) -> bytes:
    """Return a frame.

    :param number: the coded number of the frame or of its first sample.
    :param code: of the block size; 12 stands for 4096 samples.
    :param form: the byte of the channels and the depth.
    """
    header = bytes((0xFF, sync, code << 4 | rate, form)) + number + more
    header += crc(header, 7, 8)
    body = header + b"\xff\xf8 not a frame"
    return body + crc(body, 0x8005, 16)


def flac(*frames: bytes, total: int = 0, blocks: bytes = b"", largest: int = 0) -> bytes:
    """Return a flac file whose header states a number of samples."""
    info = struct.pack(">HH", BLOCK, BLOCK) + bytes(3) + largest.to_bytes(3, "big")
    info += (44100 << 44 | 15 << 36 | total).to_bytes(8, "big") + bytes(16)
    kind = b"\0" if blocks else b"\x80"
    return b"fLaC" + kind + b"\0\0\x22" + info + blocks + b"".join(frames)
