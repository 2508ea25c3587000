"""Encryption of the audio of MP4 and QuickTime files, which ffmpeg reads as if it was clear (D64).

The sample entries state it (ISO/IEC 14496-12, 8.12): Common Encryption, PIFF and FairPlay of today
put a box of the protection scheme into them, and older schemes have an entry of their own.
"""

from __future__ import annotations

from contextlib import suppress

from audioproxy.errors import UndecodableSource
from audioproxy.media.lengths.containers import run_reader
from audioproxy.media.lengths.mp4 import Box, inside, read_box
from audioproxy.media.reading import Malformed, Reader, ReadRange, read_range

# Of Common Encryption, iTunes and Audible.
_ENCRYPTED_ENTRIES = (b"enca", b"drms", b"aavd")

# Boxes that are examined in one other box, and sample entries of one track.
_MOST_BOXES = 256
_MOST_ENTRIES = 16

# Bytes of a sample entry before its boxes, with its header, by the version of the entry. Only
# QuickTime has later versions than 0, with more fields.
_ENTRY_FIELDS = {0: 36, 1: 52, 2: 72}


async def is_encrypted(read: ReadRange, size: int) -> bool:
    """Return whether the first audio track of an MP4 or QuickTime file is encrypted.

    A file that does not have the form of such a file counts as clear.

    :raises UndecodableSource: for a file behind an ID3v2 tag. Its offsets count from its own start,
        and ffmpeg would read other bytes.
    """
    return bool(await run_reader(read, size, _read_movie(size)))


def _read_movie(size: int) -> Reader[bool]:
    if (yield from read_range(0, 3)) == b"ID3":
        raise UndecodableSource("A tag precedes the container.")
    movie = yield from _find(0, size, b"moov")
    start, end = inside(movie)
    while True:
        track = yield from _find(start, end, b"trak")
        start = track.end
        media = yield from _find(*inside(track), b"mdia")
        handler = yield from _find(*inside(media), b"hdlr")
        if (yield from read_range(handler.start + 16, 4)) == b"soun":
            information = yield from _find(*inside(media), b"minf")
            tables = yield from _find(*inside(information), b"stbl")
            return (yield from _read_entries((yield from _find(*inside(tables), b"stsd"))))


def _find(start: int, end: int, name: bytes) -> Reader[Box]:
    """Return the first box of a name; the boxes behind it may be damaged or incomplete."""
    for _ in range(_MOST_BOXES):
        box = yield from read_box(start, end)
        if box.name == name:
            return box
        start = box.end
    raise Malformed


def _read_entries(table: Box) -> Reader[bool]:
    """Return whether one of the sample entries of a track is encrypted: clear ones may precede."""
    start, end = inside(table)
    start += 8
    for _ in range(_MOST_ENTRIES):
        if start >= end:
            break
        entry = yield from read_box(start, end)
        if entry.name in _ENCRYPTED_ENTRIES:
            return True
        version = int.from_bytes((yield from read_range(entry.start + 16, 2)), "big")
        with suppress(Malformed):
            boxes = entry.start + _ENTRY_FIELDS.get(version, 36)
            yield from _find(boxes, entry.end, b"sinf")
            return True
        start = entry.end
    return False
