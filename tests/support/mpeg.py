"""Bytes of streams of frames, mp3, ADTS, AC-3 and E-AC-3, and of the tags around them."""

from __future__ import annotations

import struct
from fractions import Fraction

from audioproxy.media.lengths.mpeg_frame import FrameHeader

MPEG_1 = FrameHeader(128, 44100, 2)
MPEG_2 = FrameHeader(64, 22050, 1)


def frames(header: FrameHeader, count: int) -> bytes:
    return bytes(header).ljust(header.length, b"\0") * count


def tagged(
    header: FrameHeader,
    count: int,
    *,
    name: bytes = b"Info",
    stated: int | None = None,
    size: int | None = None,
    flags: int = 15,
    delays: bytes | None = b"LAME3.100",
    checksum: int | None = None,
    more: bytes = b"",
) -> bytes:
    """Return a header frame, with a delay of 576 and a padding of 1000 samples, and frames.

    :param checksum: that of the header; None for the right one.
    :param more: further frames, which count.
    """
    body = frames(header, count) + more
    tag = name + struct.pack(">I", flags)
    tag += struct.pack(">I", count if stated is None else stated) if flags & 1 else b""
    size = len(body) + header.length if size is None else size
    tag += struct.pack(">I", size) if flags & 2 else b""
    tag += bytes((100 if flags & 4 else 0) + (4 if flags & 8 else 0))
    if delays is not None:
        tag += delays + bytes(12) + (576 << 12 | 1000).to_bytes(3, "big") + bytes(10)
    first = bytes(header) + bytes(header.side_information) + tag
    if delays is not None:
        first += (crc(first) if checksum is None else checksum).to_bytes(2, "big")
    return first.ljust(header.length, b"\0") + body


def crc(data: bytes) -> int:
    """Return the checksum of a header frame, bit by bit."""
    value = 0
    for bit in (byte >> shift & 1 for byte in data for shift in range(8)):
        value = value >> 1 ^ (0xA001 if (value ^ bit) & 1 else 0)
    return value


def vbri(count: int, entries: int) -> bytes:
    """Return a header frame whose table has entries for 10 frames each, and frames."""
    body = frames(MPEG_1, count)
    sizes = len(body) + MPEG_1.length, count
    tag = b"VBRI\0\1" + bytes(4) + struct.pack(">IIHHHH", *sizes, entries, 1, 2, 10)
    return (bytes(MPEG_1) + bytes(32) + tag).ljust(MPEG_1.length, b"\0") + body


ID3 = b"ID3\4\0\0\0\0\0\5hello"
ID3_V1 = b"TAG" + bytes(125)


def mp3(header: FrameHeader, count: int, first: int = 0) -> bytes:
    """Return frames of one bit rate, some of which are longer by one byte."""
    mean = Fraction(header.samples * header.kbps * 1000, 8 * header.rate)
    parts = []
    for index in range(first, first + count):
        size = int((index + 1) * mean) - int(index * mean)
        padding = size - header.length_at(header.kbps)
        each = FrameHeader(header.kbps, header.rate, header.channels, padding)
        parts.append(bytes(each).ljust(size, b"\0"))
    return b"".join(parts)


def counted(
    header: FrameHeader, count: int, body: bytes | None = None, stated: int | None = None
) -> bytes:
    """Return frames of one bit rate behind an encoder's header that states their number.

    :param body: other frames.
    :param stated: another number.
    """
    body = mp3(header, count) if body is None else body
    return tagged(header, 0, stated=count if stated is None else stated, more=body)


def adts(
    size: int = 200,
    *,
    rate_index: int = 4,
    channels: int = 2,
    blocks: int = 0,
    content: bytes = b"",
    sync: bytes = b"\xff\xf1",
) -> bytes:
    """Return a frame of ADTS; by default at 44.1 kHz."""
    header = sync + bytes(
        (
            1 << 6 | rate_index << 2 | channels >> 2,
            (channels & 3) << 6 | size >> 11,
            size >> 3 & 0xFF,
            (size & 7) << 5 | 0x1F,
            0xFC | blocks,
        )
    )
    return (header + content).ljust(size, b"\0")[: max(size, 7)]


def ac3(size: int, code: int = 20, *, rate_code: int = 0, bsid: int = 8) -> bytes:
    """Return a frame of AC-3; code 20 stands for 192 kbps, 768 bytes at 48 kHz."""
    header = bytes((0x0B, 0x77, 1, 2, rate_code << 6 | code, bsid << 3, 2 << 5, 0))
    return header.ljust(size, b"\0")


def eac3(
    size: int = 400, *, rate_code: int = 0, blocks: int = 3, bsid: int = 16, kind: int = 0
) -> bytes:
    """Return a frame of E-AC-3.

    :param kind: of the substream, and its number.
    """
    words = size // 2 - 1
    header = (kind << 3 | words >> 8, words & 0xFF, rate_code << 6 | blocks << 4 | 4, bsid << 3)
    return (b"\x0b\x77" + bytes(header)).ljust(size, b"\0")


def odd_ac3(count: int) -> bytes:
    """Return frames of AC-3 with 64 kbps at 44.1 kHz, of which some are longer by two bytes."""
    mean = Fraction(1536 * 64000, 16 * 44100)
    parts = []
    for index in range(count):
        words = int((index + 1) * mean) - int(index * mean)
        parts.append(ac3(2 * words, 8 + (words > int(mean)), rate_code=1))
    return b"".join(parts)
