"""Elements of EBML, of which Matroska and WebM consist (RFC 8794)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from audioproxy.media.reading import Malformed, Reader, read_range

EBML, SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
# Bytes of the longest name of an element in Matroska, and of the longest size.
_NAME, _SIZE = 4, 8
# Bytes of the longest integer, and the most elements that follow each other: Cues of many hours.
_INTEGER, _MOST_ELEMENTS = 8, 1 << 15


@dataclass(frozen=True, slots=True)
class Element:
    name: bytes
    offset: int
    start: int
    end: int

    def moved(self, count: int) -> Element:
        return Element(self.name, self.offset + count, self.start + count, self.end + count)

    def content(self, data: bytes) -> bytes:
        return data[self.start : self.end]

    def number(self, data: bytes) -> int:
        """Return the content as an unsigned integer of at most 8 bytes (RFC 8794, 7.2)."""
        if self.end - self.start > _INTEGER:
            raise Malformed
        return int.from_bytes(self.content(data), "big")


def parse_elements(data: bytes, offset: int = 0, end: int | None = None) -> Iterator[Element]:
    """Yield the elements that follow each other and whose headers are in the data.

    :raises Malformed: at a name or a size that Matroska has not, an unknown size, or the limit of
        elements.
    """
    end, left = len(data) if end is None else min(end, len(data)), _MOST_ELEMENTS
    while offset < end:
        left -= 1
        if not left:
            raise Malformed
        width = 9 - data[offset].bit_length()
        name = data[offset : offset + width]
        start = offset + width
        size_width = 9 - data[start].bit_length() if start < end else 1
        if width > _NAME or size_width > _SIZE:
            raise Malformed
        if start + size_width > end:
            return
        unknown = (1 << 7 * size_width) - 1
        size = int.from_bytes(data[start : start + size_width], "big") & unknown
        if size == unknown:
            raise Malformed
        start += size_width
        yield Element(name, offset, start, start + size)
        offset = start + size


def read_segment(size: int) -> Reader[Element]:
    """Read the header of a file, and return its segment, which must be whole."""
    head = yield from read_element(0, EBML)
    segment = yield from read_element(head.end, SEGMENT)
    if segment.end > size:
        raise Malformed
    return segment


def read_element(offset: int, name: bytes) -> Reader[Element]:
    header = yield from read_range(offset, _NAME + _SIZE)
    element = next(parse_elements(header), None)
    if element is None or element.name != name:
        raise Malformed
    return element.moved(offset)
