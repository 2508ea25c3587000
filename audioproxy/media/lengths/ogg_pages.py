"""Pages of Ogg (RFC 3533): those at both ends of a file, and whether one stream lies between them.

Files that were joined have pages of several streams. Programs that give every stream the same
serial number write files that cannot be told apart once they are joined, but for the numbers of
their pages, which begin anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from audioproxy.media.lengths.inner import doubling_places, find_each
from audioproxy.media.reading import Malformed, Reader, read_range

_PAGE_HEADER = 27
_MAGIC = b"OggS\0"
_LARGEST_PAGE = _PAGE_HEADER + 255 + 255 * 255
# Pages of headers: those of a tag with a picture.
_MOST_HEADER_PAGES = 2048
#: Damaged pages in some bytes that are searched.
MOST_DAMAGED = 16
# Pages at the end whose positions are compared.
_LAST_PAGES = 8
CONTINUED, FIRST, LAST = 1, 2, 4
# Pages inside a file of one stream may be larger than those at its ends, by this factor.
_LARGER_INSIDE = 1.5
_PLACES_OF_COPIES = 2
# Serial numbers that are not drawn at random, as those of reproducible files.
_FIXED_SERIALS = 1 << 16
# The place of the checksum of a page.
_CHECKSUM = slice(22, 26)
# All bytes, with their bits in the other order.
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class Page(NamedTuple):
    """A page: for audio, its granule is the number of samples up to its end.

    :ivar number: that of the page in its stream.
    :ivar lacing: the sizes of the parts of its packets.
    :ivar start: the offset of its content.
    """

    offset: int
    flags: int
    granule: int
    serial: bytes
    number: int
    lacing: bytes
    start: int

    @property
    def end(self) -> int:
        return self.start + sum(self.lacing)

    @property
    def packets(self) -> int:
        return sum(size < 255 for size in self.lacing)


def read_page(offset: int) -> Reader[Page]:
    header = yield from read_range(offset, _PAGE_HEADER)
    if header[:5] != _MAGIC:
        raise Malformed
    return _parse_page(offset, header, (yield from read_range(offset + _PAGE_HEADER, header[26])))


def _parse_page(offset: int, header: bytes, lacing: bytes) -> Page:
    granule = int.from_bytes(header[6:14], "little", signed=True)
    number = int.from_bytes(header[18:22], "little")
    start = offset + _PAGE_HEADER + len(lacing)
    return Page(offset, header[5], granule, header[14:18], number, lacing, start)


def find_pages(data: bytes, offset: int, serial: bytes) -> list[Page]:
    """Return the whole and undamaged pages of a stream in the bytes at an offset of a file."""
    pages: list[Page] = []
    at = damaged = 0
    while (at := data.find(_MAGIC, at)) >= 0:
        page = page_at(data, at, serial)
        if page is None:
            damaged += 1
            at += len(_MAGIC)
            if damaged > MOST_DAMAGED:
                raise Malformed
        else:
            at = page.end
            pages.append(page._replace(offset=page.offset + offset, start=page.start + offset))
    return pages


def page_at(data: bytes, at: int, serial: bytes) -> Page | None:
    """Return the page at a place; None for one that is not whole, damaged, or of another stream."""
    header = data[at : at + _PAGE_HEADER]
    if len(header) < _PAGE_HEADER:
        return None
    lacing = data[at + _PAGE_HEADER : at + _PAGE_HEADER + header[26]]
    page = _parse_page(at, header, lacing)
    content = data[at : page.end]
    is_whole = len(lacing) == header[26] and page.end <= len(data)
    is_undamaged = is_whole and page.serial == serial and content == with_checksum(content)
    return page if is_undamaged else None


def drop_packets(data: bytes, page: Page, count: int) -> bytes:
    """Return a page without the first packets that end on it.

    A packet that goes on from the page ahead counts, also if nothing but its end is left. Empty
    ones do not.
    """
    segments, content, length = 0, 0, int(bool(page.flags & CONTINUED))
    for size in page.lacing:
        if not count:
            break
        segments, content, length = segments + 1, content + size, length + size
        if size < 255:
            count, length = count - bool(length), 0
    flags = page.flags & ~CONTINUED
    left = len(page.lacing) - segments
    header = data[:5] + bytes((flags,)) + data[6 : _PAGE_HEADER - 1] + bytes((left,))
    start = page.start - page.offset + content
    return with_checksum(header + page.lacing[segments:] + data[start:])


def with_checksum(page: bytes) -> bytes:
    """Return a page with its checksum (RFC 3533, 6): the polynomial 0x04c11db7, highest bit first.

    zlib computes the same one with the lowest bit first, from another start, and inverts it.
    """
    empty = page[: _CHECKSUM.start] + bytes(4) + page[_CHECKSUM.stop :]
    mirrored = zlib.crc32(empty.translate(_MIRRORED), 0xFFFF_FFFF) ^ 0xFFFF_FFFF
    checksum = mirrored.to_bytes(4, "big").translate(_MIRRORED)
    return page[: _CHECKSUM.start] + checksum + page[_CHECKSUM.stop :]


def first_audio_page(first: Page, headers: int) -> Reader[Page]:
    """Return the page after those of the header packets of the only stream."""
    page, packets = first, first.packets
    if not first.flags & FIRST:
        raise Malformed
    for _ in range(_MOST_HEADER_PAGES):
        page = yield from read_page(page.end)
        if page.serial != first.serial or page.flags & FIRST:
            raise Malformed
        if packets == headers:
            return page
        packets += page.packets
    raise Malformed


def last_pages(first: Page, page: Page, size: int) -> Reader[list[Page]]:
    """Return the last pages of audio of a file of one stream, in order, given the first one."""
    pages: list[Page] = []
    for length in (_LARGEST_PAGE, 2 * _LARGEST_PAGE):
        start = max(0, size - length)
        tail = yield from read_range(start, size - start)
        pages, at = [], len(tail)
        while len(pages) < _LAST_PAGES and (at := tail.rfind(_MAGIC, 0, at)) >= 0:
            found = yield from read_page(start + at)
            if found.end == (pages[0].offset if pages else size):
                pages.insert(0, found)
        if len(pages) != 1:
            break
    if len(pages) < 2 or any(found.serial != first.serial for found in pages):
        raise Malformed
    audio = [found for found in pages if found.offset >= page.offset]
    is_whole = audio[-1].granule >= 0 and not any(found.flags & FIRST for found in audio)
    if not is_whole or not (yield from _is_one(first, page, audio)):
        raise Malformed
    return audio


def read_packets(pages: Sequence[Page]) -> Reader[list[list[bytes]]]:
    """Return the packets that end on each of some pages that follow each other, without empty ones.

    The packet that begins ahead of these pages is left out.
    """
    base = pages[0].offset
    data = yield from read_range(base, pages[-1].end - base)
    listed: list[list[bytes]] = []
    is_open = bool(pages[0].flags & CONTINUED)
    packet = None if is_open else b""
    for page in pages:
        if is_open != bool(page.flags & CONTINUED):
            raise Malformed
        at, ended = page.start - base, []
        for length in page.lacing:
            packet = None if packet is None else packet + data[at : at + length]
            at += length
            is_open = length == 255
            if not is_open:
                ended += [packet] if packet else []
                packet = b""
        listed.append(ended)
    return listed


def _is_one(first: Page, page: Page, pages: Sequence[Page]) -> Reader[bool]:
    """Return whether a file seems to be one stream, by the numbers and positions of its pages.

    Where the serial number leaves that open, or the pages inside the file are larger than those at
    its ends, some of them are compared with the last ones.
    """
    last, begin = pages[-1], page.offset
    largest = max(each.end - each.offset for each in (page, *pages))
    fits = (last.number - page.number + 1) * largest * _LARGER_INSIDE >= last.end - begin
    is_fixed = int.from_bytes(first.serial, "little") < _FIXED_SERIALS
    if fits and not is_fixed:
        return True
    places = doubling_places(begin, last.offset)
    if not is_fixed:
        # Only the same file has the same number again.
        places = doubling_places(begin, last.offset, _PLACES_OF_COPIES)
    compared = [page]
    offsets = yield from find_each(begin, places, last.start, lambda data: data.find(_MAGIC))
    for offset in offsets[1:]:
        compared.append((yield from read_page(offset)))
    compared.append(last)
    return all(
        later.offset == before.offset
        or (
            later.serial == first.serial
            and later.number > before.number
            and (later.granule < 0 or later.granule >= before.granule)
        )
        for before, later in pairwise(compared)
    )
