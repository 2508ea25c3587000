"""Lengths of AAC and ALAC in MP4, from the sample tables and the edit list (ISO/IEC 14496-12)."""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import NamedTuple

from audioproxy.media.probe import Probe
from audioproxy.media.source_length.boxes import Box, inside, read_box
from audioproxy.media.source_length.reading import Malformed, Reader, SourceLength, read_range

# Boxes in one other box. Files have few; the tables are not split into boxes.
_MOST_BOXES = 64
_LARGEST_TABLE = 64 * 1024
_NORMAL_RATE = 0x10000


class _Edit(NamedTuple):
    """The only edit: ``duration`` in the unit of the movie, ``start`` in that of the track."""

    duration: int
    start: int


def read_mp4(size: int, probe: Probe) -> Reader:
    """Read the length of the first audio track.

    :raises Malformed: where the file ends before its last box, or is fragmented, or has more edits
        than one.
    """
    boxes = yield from _list_boxes(0, size)
    if boxes[-1].end != size:
        raise Malformed
    movie = yield from _list_boxes(*inside(_find(boxes, b"moov")))
    movie_rate = yield from _read_rate(_find(movie, b"mvhd"))
    for box in movie:
        if box.name != b"trak":
            continue
        track = yield from _list_boxes(*inside(box))
        media = yield from _list_boxes(*inside(_find(track, b"mdia")))
        handler = yield from read_range(_find(media, b"hdlr").start + 16, 4)
        if handler == b"soun":
            edit = yield from _read_edit(track)
            samples = yield from _read_samples(media, probe)
            return _apply_edit(samples, edit, movie_rate, probe)
    raise Malformed


def _list_boxes(start: int, end: int) -> Generator[tuple[int, int], bytes, list[Box]]:
    boxes: list[Box] = []
    while end - start >= 8 and len(boxes) < _MOST_BOXES:
        box = yield from read_box(start, end)
        if box.name == b"moof":
            raise Malformed
        boxes.append(box)
        start = box.end
    if not boxes:
        raise Malformed
    return boxes


def _find(boxes: list[Box], name: bytes) -> Box:
    found = next((box for box in boxes if box.name == name), None)
    if found is None:
        raise Malformed
    return found


def _read_rate(header: Box) -> Generator[tuple[int, int], bytes, int]:
    """Return the units of a second from a movie or media header."""
    version = (yield from read_range(header.start + 8, 1))[0]
    rate = yield from read_range(header.start + (28 if version else 20), 4)
    if not any(rate):
        raise Malformed
    return int.from_bytes(rate, "big")


def _read_edit(track: list[Box]) -> Generator[tuple[int, int], bytes, _Edit | None]:
    if not any(box.name == b"edts" for box in track):
        return None
    edits = yield from _list_boxes(*inside(_find(track, b"edts")))
    start = _find(edits, b"elst").start + 8
    version = (yield from read_range(start, 1))[0]
    width = 8 if version else 4
    fields = yield from read_range(start + 4, 8 + 2 * width)
    count, duration = int.from_bytes(fields[:4], "big"), fields[4 : 4 + width]
    begin = int.from_bytes(fields[4 + width : 4 + 2 * width], "big", signed=True)
    rate = int.from_bytes(fields[4 + 2 * width :], "big")
    if count != 1 or begin < 0 or rate != _NORMAL_RATE:
        raise Malformed
    return _Edit(int.from_bytes(duration, "big"), begin)


def _read_samples(media: list[Box], probe: Probe) -> Generator[tuple[int, int], bytes, int]:
    """Return the number of samples of all packets, from the time-to-sample table."""
    if (yield from _read_rate(_find(media, b"mdhd"))) != probe.sample_rate:
        raise Malformed
    information = yield from _list_boxes(*inside(_find(media, b"minf")))
    tables = yield from _list_boxes(*inside(_find(information, b"stbl")))
    start, end = inside(_find(tables, b"stts"))
    if end - start > _LARGEST_TABLE:
        raise Malformed
    table = yield from read_range(start + 8, end - start - 8)
    entries = struct.iter_unpack(">II", table[: len(table) // 8 * 8])
    return sum(count * duration for count, duration in entries)


def _apply_edit(samples: int, edit: _Edit | None, movie_rate: int, probe: Probe) -> SourceLength:
    if edit is None:
        return SourceLength(samples, ends_in_padding=True)
    left = samples - edit.start
    # Many programs round the duration of the edit to milliseconds, so one that agrees with the end
    # of the samples does not shorten them.
    duration = edit.duration * probe.sample_rate
    if duration and abs(left * movie_rate - duration) > probe.sample_rate:
        left = min(left, (2 * duration + movie_rate) // (2 * movie_rate))
    return SourceLength(left, ends_in_padding=True)
