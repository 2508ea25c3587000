"""Boxes of MP4 and QuickTime files (ISO/IEC 14496-12, 4.2)."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from audioproxy.media.lengths.reading import Malformed, read_range


class Box(NamedTuple):
    """A box: its name, and the offsets of its header and of its end."""

    name: bytes
    start: int
    end: int


def read_box(start: int, end: int) -> Generator[tuple[int, int], bytes, Box]:
    """Read the header of a box.

    :param end: the end of the box around it, or of the file.
    :raises Malformed: where there is no box that ends within ``end``.
    """
    header = yield from read_range(start, 8)
    length = int.from_bytes(header[:4], "big")
    if length == 1:
        length = int.from_bytes((yield from read_range(start + 8, 8)), "big")
    # A box of size 0 reaches to the end of the file, wherever that is.
    if length < 8 or start + length > end:
        raise Malformed
    return Box(header[4:], start, start + length)


def inside(box: Box) -> tuple[int, int]:
    """Return the start and the end of a box's content."""
    return box.start + 8, box.end
