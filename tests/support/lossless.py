"""Bytes of WavPack, TTA, Monkey's Audio and TAK files."""

from __future__ import annotations

import struct

# Stereo with 16 bits at 44.1 kHz, in blocks that are a frame.
FLAGS = 1 | 3 << 11 | 9 << 23
TAG = b"APETAGEX" + struct.pack("<IIII8x", 2000, 32, 0, 0xA000_0000)
TAG += b"APETAGEX" + struct.pack("<IIII8x", 2000, 32, 0, 0x8000_0000)


def block(
    number: int, samples: int = 1000, total: int | None = None, flags: int = FLAGS, size: int = 200
) -> bytes:
    """Return a block; None stands for an unknown number of samples."""
    upper, low = (0, 0xFFFF_FFFF) if total is None else divmod(total + (total >> 32), 1 << 32)
    head = struct.pack(
        "<4sIHBBIIIII",
        *(b"wvpk", 24 + size, 0x410, number >> 32, upper, low, number & 0xFFFF_FFFF),
        *(samples, flags, 0),
    )
    return head + bytes(size)


def wavpack(
    blocks: int = 20, total: int | None = -1, flags: int = FLAGS, start: int = 0, size: int = 200
) -> bytes:
    """Return a file of blocks of 1000 samples; -1 stands for a total that fits."""
    whole = 1000 * blocks if total == -1 else total
    numbers = range(start, start + 1000 * blocks, 1000)
    return b"".join(block(number, total=whole, flags=flags, size=size) for number in numbers)


def tta(samples: int = 100_000, rate: int = 44100) -> bytes:
    """Return a TTA file of three frames, as it is with 100,000 samples at 44.1 kHz."""
    head = b"TTA1" + struct.pack("<HHHIII", 1, 2, 16, rate, samples, 0)
    return head + struct.pack("<4I", 300, 301, 302, 0) + bytes(903)


def ape(frames: int = 3, last: int = 5000, version: int = 3990) -> bytes:
    """Return a Monkey's Audio file whose frames have 73,728 samples."""
    sizes = 24, 4 * frames, 44, 1000 * frames, 0, 7
    head = b"MAC " + struct.pack("<HHIIIIIII", version, 0, 52, *sizes) + bytes(16)
    head += struct.pack("<HHIIIHHI", 2000, 0, 73_728, last, frames, 16, 2, 44100)
    return head + bytes(sum(sizes) - 24)


def tak(samples: int = 100_000, *, last_frame: bool = True) -> bytes:
    """Return a TAK file of 1100 bytes of frames."""

    def block(kind: int, data: bytes) -> bytes:
        return bytes((kind,)) + len(data).to_bytes(3, "little") + data

    stream = (samples << 14 | 0x1234).to_bytes(10, "little") + bytes(3)
    place = (1000).to_bytes(5, "little") + (100).to_bytes(3, "little") + bytes(3)
    blocks = block(1, stream) + block(5, bytes(20)) + (block(7, place) if last_frame else b"")
    return b"tBaK" + blocks + block(0x80, b"") + bytes(1100)
