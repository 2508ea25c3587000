"""Lengths of AAC, ALAC and MP3 in MP4, from the sample tables and the edit list (ISO/IEC 14496-12).

Without an edit list, the tag ``iTunSMPB`` may state the encoder's delay and padding.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import NamedTuple

from audioproxy.media.lengths.lower_bounds import AAC_RATES, AAC_SAMPLES
from audioproxy.media.probe import Probe
from audioproxy.media.reading import (
    LONGEST_GAP,
    Malformed,
    Reader,
    SourceLength,
    read_number,
    read_range,
)

# Boxes in one other box. Files have few; the tables are not split into boxes.
_MOST_BOXES = 64
_LARGEST_TABLE = 64 * 1024
_BOX_HEADER = 8
# The version and the flags, which precede the fields of many boxes.
_VERSION = 4
# Boxes that audio may be in: without the end of one of them, a file was cut.
_CONTENT = (b"moov", b"mdat", b"moof")
# The tables of the sizes of packets, and those of the offsets of chunks, with the bytes of each.
_SIZES, _OFFSETS = (b"stsz", b"stz2"), {b"stco": 4, b"co64": 8}
_NORMAL_RATE = 0x10000
# The start of an empty edit, which delays the audio.
_NO_MEDIA = -1
# AudioSpecificConfig (ISO/IEC 14496-3, 1.6.2.1), behind the description of the decoder. Its first
# bits are the kind of AAC and the index of the sample rate.
_AAC_CONFIGURATION = re.compile(rb"[\x40\x66-\x68].{12}\x05\x80{0,3}.(..)", re.DOTALL)
_AAC_OF_1024, _HE_AAC = (1, 2, 3, 4, 5, 29), (5, 29)
# The flag of frames of 960 samples, in the second byte.
_SHORT_FRAMES = 4
# Samples of an MP3 frame of MPEG-1, and of the versions of lower rates.
_MP3_FRAMES = (1152, 576)
_LOWEST_RATE_OF_MPEG_1 = 32000
# Packets at both ends that ffmpeg may cut besides those that an edit cuts.
_INCOMPLETE_PACKETS = 2
# Hexadecimal numbers, of which the second to the fourth are the delay, the padding and the samples.
_GAPLESS = re.compile(r" *[0-9A-Fa-f]+ +([0-9A-Fa-f]+) +([0-9A-Fa-f]+) +([0-9A-Fa-f]+)(?: .*)?")
# ffmpeg ignores the tag if the delay is not shorter.
_LONGEST_DELAY = 16384


class Box(NamedTuple):
    name: bytes
    start: int
    end: int


class _Edit(NamedTuple):
    """The only edit with audio: its duration in the unit of the movie, its start in the track's.

    :ivar is_late: an empty edit precedes it.
    """

    duration: int
    start: int
    is_late: bool


class _Packets(NamedTuple):
    """The packets of a track, in samples at the rate that the probe reports.

    :ivar unit: the samples of one unit of time of the track.
    :ivar frame: those of each packet but the last.
    :ivar samples: those of all packets, each of them whole.
    :ivar stated: those that the time stamps state, with the silence of gaps.
    :ivar has_gaps: there are gaps, but most of the packets follow each other.
    :ivar is_even: each packet begins where the one ahead of it ends.
    :ivar is_spaced_right: the end of the time stamps cuts less than a packet.
    """

    unit: int
    frame: int
    samples: int
    stated: int
    has_gaps: bool
    is_even: bool
    is_spaced_right: bool


def read_box(start: int, end: int) -> Reader[Box]:
    header = yield from read_range(start, _BOX_HEADER)
    length = int.from_bytes(header[:4], "big")
    if length == 1:
        length = yield from read_number(start + _BOX_HEADER, 8)
    # A box of size 0 reaches to the end of the file, wherever that is.
    if length < _BOX_HEADER or start + length > end:
        raise Malformed
    return Box(header[4:], start, start + length)


def inside(box: Box) -> tuple[int, int]:
    return box.start + _BOX_HEADER, box.end


def read_mp4(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of the first audio track of a whole file with one edit, or none."""
    boxes = yield from _list_top_boxes(size)
    movie = yield from _list_boxes(_find(boxes, b"moov"))
    movie_rate = yield from _read_rate(_find(movie, b"mvhd"))
    for box in movie:
        if box.name != b"trak":
            continue
        track = yield from _list_boxes(box)
        media = yield from _list_boxes(_find(track, b"mdia"))
        handler = yield from read_range(_find(media, b"hdlr").start + 16, 4)
        if handler == b"soun":
            edit = yield from _read_edit(track)
            packets = yield from _read_packets(media, probe, size)
            length = _apply_edit(packets, edit, movie_rate, probe)
            if not packets.is_spaced_right:
                return _least_length(packets, length.samples)
            # The padding of the last packet, which FFmpeg 5.1 and 7.1 decode, and 9.0 does not.
            return replace(
                length,
                block=packets.frame,
                seekable=packets.is_even and packets.unit == 1,
                has_gaps=packets.has_gaps,
            )
    raise Malformed


def read_whole_mp4(size: int, probe: Probe) -> Reader[SourceLength]:
    """Return the stated length of audio whose decoder skips silence, as the least one."""
    yield from _list_top_boxes(size)
    if probe.duration is None or not probe.exact:
        raise Malformed
    samples = round(probe.duration * probe.sample_rate)
    return SourceLength(samples, exact=False, has_gaps=True)


def _least_length(packets: _Packets, left: int) -> SourceLength:
    """Return a lower bound of the length of packets that are not spaced by their samples."""
    # ffmpeg cuts the rest by its time stamps, but whole packets of it.
    samples = left * packets.samples // max(1, packets.stated)
    samples -= _INCOMPLETE_PACKETS * packets.frame
    if samples <= 0:
        raise Malformed
    return SourceLength(samples, exact=False, has_gaps=packets.has_gaps)


def _list_top_boxes(size: int) -> Reader[list[Box]]:
    """Return the boxes of a file that is neither cut nor fragmented; other bytes may follow."""
    boxes: list[Box] = []
    start = 0
    while size - start >= _BOX_HEADER:
        name = (yield from read_range(start, _BOX_HEADER))[4:]
        try:
            box = yield from read_box(start, size)
        except Malformed:
            found = {box.name for box in boxes}
            if name in _CONTENT or not found.issuperset((b"moov", b"mdat")):
                raise
            break
        if name == b"moof" or len(boxes) == _MOST_BOXES:
            raise Malformed
        boxes.append(box)
        start = box.end
    return boxes


def _list_boxes(parent: Box) -> Reader[list[Box]]:
    boxes: list[Box] = []
    start, end = inside(parent)
    while end - start >= _BOX_HEADER and len(boxes) < _MOST_BOXES:
        box = yield from read_box(start, end)
        boxes.append(box)
        start = box.end
    if not boxes:
        raise Malformed
    return boxes


def _find(boxes: list[Box], name: bytes) -> Box:
    for box in boxes:
        if box.name == name:
            return box
    raise Malformed


def _read_rate(header: Box) -> Reader[int]:
    start, _ = inside(header)
    version = yield from read_number(start, 1)
    rate = yield from read_number(start + (20 if version else 12), 4)
    if not rate:
        raise Malformed
    return rate


def _read_edit(track: list[Box]) -> Reader[_Edit | None]:
    if not any(box.name == b"edts" for box in track):
        return None
    edits = yield from _list_boxes(_find(track, b"edts"))
    start, _ = inside(_find(edits, b"elst"))
    form = ">QqI" if (yield from read_number(start, 1)) else ">IiI"
    count = yield from read_number(start + _VERSION, 4)
    if not 1 <= count <= 2:
        raise Malformed
    entries = yield from read_range(start + 8, count * struct.calcsize(form))
    *empty, (duration, begin, rate) = struct.iter_unpack(form, entries)
    if begin < 0 or rate != _NORMAL_RATE or any(each[1] != _NO_MEDIA for each in empty):
        raise Malformed
    return _Edit(duration, begin, bool(empty))


def _read_packets(media: list[Box], probe: Probe, size: int) -> Reader[_Packets]:
    """Read the packets of a track from the time-to-sample table, which the others must confirm."""
    rate = yield from _read_rate(_find(media, b"mdhd"))
    # The rate of HE-AAC may be that of its core.
    if probe.sample_rate not in (rate, 2 * rate):
        raise Malformed
    information = yield from _list_boxes(_find(media, b"minf"))
    tables = yield from _list_boxes(_find(information, b"stbl"))
    times = _find(tables, b"stts")
    if times.end - times.start - _BOX_HEADER > _LARGEST_TABLE:
        raise Malformed
    entries = yield from _read_table(times, ">II")
    unit = probe.sample_rate // rate
    yield from _check_tables(tables, sum(n for n, _ in entries), size)
    *spacings, (count, last) = [(n, duration * unit) for n, duration in entries if n] or [(0, 0)]
    spacings.append((count - 1, last))
    frame = (yield from _read_frame(tables, probe)) or spacings[0][1]
    return _count_packets(spacings, last, frame, unit, probe)


def _read_table(box: Box, form: str) -> Reader[list[tuple[int, ...]]]:
    """Return the whole entries of a table, whose number precedes them."""
    start = box.start + _BOX_HEADER + _VERSION + 4
    table = yield from read_range(start, box.end - start)
    size = struct.calcsize(form)
    return list(struct.iter_unpack(form, table[: len(table) // size * size]))


def _check_tables(tables: list[Box], count: int, size: int) -> Reader[None]:
    """Check that the tables have as many packets as are timed, and that the file has all chunks."""
    runs: list[tuple[int, ...]] = []
    for box in tables:
        start = box.start + _BOX_HEADER + _VERSION
        if box.name in _SIZES and (yield from read_number(start + 4, 4)) != count:
            raise Malformed
        if box.name == b"stsc" and box.end - start <= _LARGEST_TABLE:
            runs = yield from _read_table(box, ">III")
        if (width := _OFFSETS.get(box.name)) is not None:
            chunks = yield from read_number(start, 4)
            last = yield from read_number(start + 4 + (chunks - 1) * width, width)
            ends = [first for first, _, _ in runs[1:]] + [chunks + 1]
            held = sum(
                (end - first) * each for (first, each, _), end in zip(runs, ends, strict=False)
            )
            if last >= size or (runs and held != count):
                raise Malformed


def _count_packets(
    spacings: list[tuple[int, int]], last: int, frame: int, unit: int, probe: Probe
) -> _Packets:
    """Count the samples of packets, which have ``frame`` samples each, but for the last one.

    :param spacings: the number of packets, and the samples from each of them to the next one.
    """
    longest = LONGEST_GAP * probe.sample_rate
    count = sum(count for count, _ in spacings)
    gaps = [(n, spacing - frame) for n, spacing in spacings if n and 2 * spacing >= 3 * frame]
    if 2 * sum(n for n, _ in gaps) > count:
        # All time stamps are wrong.
        gaps = []
    closed = sum(n * gap for n, gap in gaps if gap > longest)
    # The first packet of AAC is the encoder's delay, which no gap follows.
    is_after_delay = probe.codec == "aac" and gaps[:1] == [(1, spacings[0][1] - frame)]
    if is_after_delay and gaps[0][1] <= longest:
        closed += gaps[0][1]
    silence = sum(n * gap for n, gap in gaps) - closed
    stated = sum(n * spacing for n, spacing in spacings) + min(last, frame) - closed
    samples = (count + 1) * frame
    return _Packets(
        unit=unit,
        frame=frame,
        samples=samples,
        stated=stated,
        has_gaps=silence > 0,
        is_even=all(spacing == frame for n, spacing in spacings if n),
        is_spaced_right=0 <= samples + silence - stated < max(1, frame),
    )


def _read_frame(tables: list[Box], probe: Probe) -> Reader[int]:
    """Return the number of samples of a packet by its codec; 0 where its description lacks it."""
    description = next((box for box in tables if box.name == b"stsd"), None)
    if description is None:
        return 0
    start, end = inside(description)
    data = yield from read_range(start, min(end - start, _LARGEST_TABLE))
    if probe.codec == "mp3":
        return _MP3_FRAMES[probe.sample_rate < _LOWEST_RATE_OF_MPEG_1]
    if probe.codec == "alac":
        # The configuration is a box inside the entry, which has the same name.
        at = data.rfind(b"alac") + 8
        return int.from_bytes(data[at : at + 4], "big")
    found = _AAC_CONFIGURATION.search(data)
    if found is None:
        return 0
    kind, rate = found[1][0] >> 3, AAC_RATES[(found[1][0] & 7) << 1 | found[1][1] >> 7]
    if kind not in _AAC_OF_1024 or not rate:
        return 0
    # HE-AAC doubles the rate of its core.
    frame = AAC_SAMPLES * probe.sample_rate // rate
    return frame if kind in _HE_AAC or not found[1][1] & _SHORT_FRAMES else frame * 15 // 16


def _apply_edit(
    packets: _Packets, edit: _Edit | None, movie_rate: int, probe: Probe
) -> SourceLength:
    samples, unit = packets.stated, packets.unit
    delay, padding, gapless = _read_gapless(probe.file.gapless, unit) or (None, 0, 0)
    if edit is None:
        # ffmpeg has skipped the delay if it has applied the tag.
        skipped = round(probe.audio.start * probe.sample_rate)
        is_consistent = delay is not None and delay + gapless + padding == samples
        if unit > 1 and delay is not None and skipped:
            if not is_consistent:
                # The tag may count other samples.
                raise Malformed
            # FFmpeg 7.1 takes the unit of the track for that of samples, and skips half as much.
            left, first = samples - delay - padding, delay - skipped
            return SourceLength(left, ends_in_padding=True, first_stamp=first)
        left = samples - skipped - (padding if is_consistent else 0)
        return SourceLength(left, ends_in_padding=True)
    start = edit.start * unit
    if delay not in (None, start):
        # ffmpeg skips the delay, but counts time from the edit.
        raise Malformed
    if edit.is_late:
        # ffmpeg outputs the encoder's delay too.
        return SourceLength(0, exact=False)
    left = samples - start
    # Many programs round the duration of the edit to milliseconds, so one that agrees with the end
    # of the samples does not shorten them.
    duration = edit.duration * probe.sample_rate
    if duration and abs(left * movie_rate - duration) > probe.sample_rate:
        left = min(left, (2 * duration + movie_rate) // (2 * movie_rate))
    # So do FFmpeg 7.1 and 9.0 where the edit starts within a packet.
    return SourceLength(left, ends_in_padding=True, first_stamp=0 if unit > 1 else None)


def _read_gapless(text: str, unit: int) -> tuple[int, int, int] | None:
    """Return the samples ahead of the audio, after it, and of it; None for a tag without effect."""
    found = _GAPLESS.fullmatch(text)
    if found is None:
        return None
    delay, padding, samples = (int(number, 16) * unit for number in found.groups())
    return (delay, padding, samples) if 0 < delay < _LONGEST_DELAY * unit else None
