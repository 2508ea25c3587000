"""Bytes of Ogg files, as pages."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence

from audioproxy.media.lengths.ogg_pages import with_checksum
from tests.support.flac import flac as flac_file

OPUS_HEAD = b"OpusHead\1\2" + struct.pack("<H", 312) + bytes(7)
# Blocks of 256 and 2048 samples.
VORBIS_HEAD = b"\1vorbis" + bytes(21) + b"\xb8\1"
STREAM_INFO = flac_file(b"")
# One frame of 20 ms.
PACKET = b"\xfcpacket"


def page(granule: int, *packets: bytes, flags: int = 0, serial: bytes = b"0001") -> bytes:
    """Return a page of whole packets."""
    lacing = b"".join(b"\xff" * (len(p) // 255) + bytes((len(p) % 255,)) for p in packets)
    header = b"OggS\0" + bytes((flags,)) + struct.pack("<q", granule) + serial + bytes(8)
    return header + bytes((len(lacing),)) + lacing + b"".join(packets)


def number(*pages: bytes) -> bytes:
    """Return a file of pages with their numbers."""
    return b"".join(
        each[:18] + struct.pack("<I", index) + each[22:] for index, each in enumerate(pages)
    )


def opus(*pages: bytes, head: bytes = OPUS_HEAD) -> bytes:
    return number(page(0, head, flags=2), page(0, b"OpusTags" + bytes(300)), *pages)


def vorbis(*pages: bytes, setup: bytes = b"\5vorbis") -> bytes:
    return number(page(0, VORBIS_HEAD, flags=2), page(0, b"\3vorbis", setup), *pages)


def setup_header(modes: Sequence[int]) -> bytes:
    """Return a setup header, of which only the end is right: the modes, each short or long."""
    bits, size = 0, 0
    for value, width in ((len(modes) - 1, 6), *((mode, 41) for mode in modes), (1, 1)):
        bits |= value << size
        size += width
    return b"\5vorbis" + b"\xff" * 40 + bits.to_bytes(-(-size // 8), "little")


def flac(*pages: bytes, headers: int = 1) -> bytes:
    """Return an Ogg FLAC file of blocks of 4096 samples."""
    info = b"\x7fFLAC\1\0" + struct.pack(">H", headers) + b"fLaC\0\0\0\x22" + STREAM_INFO[8:42]
    return number(page(0, info, flags=2), page(0, b"\4\0\0\0"), *pages)


def split(file: bytes) -> list[bytes]:
    """Return the pages of a file."""
    return re.split(rb"(?s)(?=OggS\0)", file)[1:]


def seal(file: bytes) -> bytes:
    """Return a file whose pages have their right checksums."""
    return b"".join(map(with_checksum, split(file)))


def damage(file: bytes, index: int) -> bytes:
    """Return a file with another last byte of a page."""
    pages = split(file)
    pages[index] = pages[index][:-1] + bytes((pages[index][-1] ^ 1,))
    return b"".join(pages)


_LAST = 4


def edit(file: bytes, change: Callable[[list[bytearray]], list[bytearray]]) -> bytes:
    """Return an Ogg file with other pages, and with their right checksums."""
    changed = change(list(map(bytearray, split(file))))
    return b"".join(with_checksum(bytes(page)) for page in changed)


def granule(page: bytearray) -> int:
    """Return the position of a page."""
    return int(struct.unpack_from("<q", page, 6)[0])


def set_granule(page: bytearray, value: int) -> None:
    """Change the position of a page."""
    struct.pack_into("<q", page, 6, value)


def ended(file: bytes, position: Callable[[int, int], int], *, mark: bool = True) -> bytes:
    """Return a file with another position of its last page.

    :param position: returns it, by those of the last page and of the page before.
    :param mark: the page is marked as the last one.
    """

    def end(listed: list[bytearray]) -> list[bytearray]:
        before, last = listed[-2:]
        set_granule(last, position(granule(last), granule(before)))
        if not mark:
            last[5] &= ~_LAST
        return listed

    return edit(file, end)


def moved(file: bytes, steps: Callable[[int, int], int]) -> bytes:
    """Return an Ogg file with other positions of its pages.

    :param steps: returns the samples by which a page is moved, by its number and that of all pages.
    """

    def move(pages: list[bytearray]) -> list[bytearray]:
        for index, page in enumerate(pages):
            if granule(page) > 0:
                set_granule(page, granule(page) + steps(index, len(pages)))
        return pages

    return edit(file, move)
