"""Lengths of AAC, ALAC and MP3 in MP4, from the sample tables and the edit list (ISO/IEC 14496-12).

Without an edit list, the tag ``iTunSMPB`` may state the encoder's delay and padding.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import NamedTuple

from audioproxy.media.lengths.reading import Malformed, Reader, SourceLength, read_range
from audioproxy.media.probe import Probe

# Boxes in one other box. Files have few; the tables are not split into boxes.
_MOST_BOXES = 64
_LARGEST_TABLE = 64 * 1024
_NORMAL_RATE = 0x10000
# The start of an empty edit, which delays the audio.
_NO_MEDIA = -1
# Hexadecimal numbers, of which the second to the fourth are the delay, the padding and the samples.
_GAPLESS = re.compile(r" *[0-9A-Fa-f]+ +([0-9A-Fa-f]+) +([0-9A-Fa-f]+) +([0-9A-Fa-f]+)(?: .*)?")
# ffmpeg ignores the tag if the delay is not shorter.
_LONGEST_DELAY = 16384


class Box(NamedTuple):
    """A box: its name, and the offsets of its header and of its end."""

    name: bytes
    start: int
    end: int


def read_box(start: int, end: int) -> Reader[Box]:
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


def read_mp4(size: int, probe: Probe) -> Reader[SourceLength]:
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
            starts_late, edit = yield from _read_edit(track)
            samples, packet, even = yield from _read_samples(media, probe)
            length = _apply_edit(samples, edit, movie_rate, probe, starts_late=starts_late)
            # The padding of the last packet, which FFmpeg 5.1 and 7.1 decode, and 9.0 does not.
            return replace(length, block=packet, seekable=even)
    raise Malformed


def _list_boxes(start: int, end: int) -> Reader[list[Box]]:
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


def _read_rate(header: Box) -> Reader[int]:
    """Return the units of a second from a movie or media header."""
    version = (yield from read_range(header.start + 8, 1))[0]
    rate = yield from read_range(header.start + (28 if version else 20), 4)
    if not any(rate):
        raise Malformed
    return int.from_bytes(rate, "big")


def _read_edit(track: list[Box]) -> Reader[tuple[bool, tuple[int, int] | None]]:
    """Return whether an empty edit precedes the audio, and the only edit with audio.

    The edit is its duration in the unit of the movie, and its start in that of the track.
    """
    if not any(box.name == b"edts" for box in track):
        return False, None
    edits = yield from _list_boxes(*inside(_find(track, b"edts")))
    start = _find(edits, b"elst").start + 8
    version = (yield from read_range(start, 1))[0]
    count = int.from_bytes((yield from read_range(start + 4, 4)), "big")
    form = ">QqI" if version else ">IiI"
    size = struct.calcsize(form)
    if not 1 <= count <= 2:
        raise Malformed
    entries = yield from read_range(start + 8, count * size)
    *empty, (duration, begin, rate) = struct.iter_unpack(form, entries)
    if begin < 0 or rate != _NORMAL_RATE or any(each[1] != _NO_MEDIA for each in empty):
        raise Malformed
    return bool(empty), (duration, begin)


def _read_samples(media: list[Box], probe: Probe) -> Reader[tuple[int, int, bool]]:
    """Return the number of samples of all packets, from the time-to-sample table.

    The second value is the number of the first packet; the third one tells whether all packets but
    the last have that number.
    """
    if (yield from _read_rate(_find(media, b"mdhd"))) != probe.sample_rate:
        raise Malformed
    information = yield from _list_boxes(*inside(_find(media, b"minf")))
    tables = yield from _list_boxes(*inside(_find(information, b"stbl")))
    start, end = inside(_find(tables, b"stts"))
    if end - start > _LARGEST_TABLE:
        raise Malformed
    table = yield from read_range(start + 8, end - start - 8)
    entries = list(struct.iter_unpack(">II", table[: len(table) // 8 * 8]))
    # The last packet may be shorter.
    others = entries if entries and entries[-1][0] > 1 else entries[:-1]
    even = len({duration for _, duration in others}) <= 1
    packet = entries[0][1] if entries else 0
    return sum(count * duration for count, duration in entries), packet, even


def _apply_edit(
    samples: int, edit: tuple[int, int] | None, movie_rate: int, probe: Probe, *, starts_late: bool
) -> SourceLength:
    delay, padding, gapless = _read_gapless(probe.gapless) or (None, 0, 0)
    if edit is None:
        # ffmpeg has skipped the delay if it has applied the tag.
        left = samples - round(probe.start * probe.sample_rate)
        if delay is not None and delay + gapless + padding == samples:
            left -= padding
        return SourceLength(left, ends_in_padding=True)
    duration, start = edit
    if delay not in (None, start):
        # ffmpeg skips the delay, but counts time from the edit.
        raise Malformed
    if starts_late:
        # ffmpeg outputs the encoder's delay too.
        return SourceLength(0, exact=False)
    left = samples - start
    # Many programs round the duration of the edit to milliseconds, so one that agrees with the end
    # of the samples does not shorten them.
    duration *= probe.sample_rate
    if duration and abs(left * movie_rate - duration) > probe.sample_rate:
        left = min(left, (2 * duration + movie_rate) // (2 * movie_rate))
    return SourceLength(left, ends_in_padding=True)


def _read_gapless(text: str) -> tuple[int, int, int] | None:
    """Return the tag's samples ahead of the audio, after it, and of the audio itself.

    It is None where ffmpeg does not apply the tag.
    """
    found = _GAPLESS.fullmatch(text)
    if found is None:
        return None
    delay, padding, samples = (int(number, 16) for number in found.groups())
    return (delay, padding, samples) if 0 < delay < _LONGEST_DELAY else None
