"""Streams of frames that stand alone: mp3, ADTS and AC-3.

Each frame has a header with its length, so the place of a frame follows from its number. Where all
frames have one bit rate, that is arithmetic; otherwise the headers up to there are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from audioproxy.media.lengths.ends import (
    INCOMPLETE_FRAMES,
    end_before_tags,
    end_of_frames,
    skip_id3,
)
from audioproxy.media.lengths.lower_bounds import AAC_SAMPLES, adts_form
from audioproxy.media.lengths.mp3 import Stated, is_header_frame, read_encoder_header
from audioproxy.media.lengths.mpeg_frame import FrameHeader
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, read_range
from audioproxy.media.seek_point import PREROLL, SeekPoint

#: Bytes of the longest header.
HEADER = 8
# Frames at the start that tell whether all have one bit rate, and those that follow each other at a
# place of one.
_FIRST_FRAMES, _FOLLOWING = 16, 3
# Bytes by which a frame may be off the place that the mean length gives: frames of 44.1 kHz have no
# whole number of bytes, so some are longer by one byte.
_ROUNDING = 2
# Frames ahead of a place at which decoding may start instead; bytes of a frame that tell whether it
# may; and the bits of mp3 headers that ffmpeg compares (libavformat/mp3dec.c).
_MOST_STEPS, _FRAME_START, _MP3_MASK = 16, 192, b"\xff\xfe\x0c\xcf"

_AC3_KBPS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640)
_AC3_RATES = (48000, 44100, 32000)
#: Samples of a block of AC-3, and the blocks of an E-AC-3 frame by their code.
AC3_BLOCK, EAC3_BLOCKS = 256, (1, 2, 3, 6)

_Columns: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class FrameForm:
    """The form of the frames of a stream.

    :ivar samples: of a frame, at the rate that the probe reports.
    :ivar mask: the bits of a header that are the same in all frames, which are ``value``.
    :ivar lengths: returns the bytes of frames, or 0, given an array of their headers of the shape
        ``(8, n)``.
    :ivar mean: bytes of a frame, on average, if all have the bit rate of the first one; None where
        they never have, or where no file states their number.
    :ivar start_mask: the bits in which a frame's header and the next one must agree, since ffmpeg
        would leave out the first one.
    """

    demuxer: str
    samples: int
    mask: bytes
    value: bytes
    lengths: Callable[[_Columns], _Columns]
    mean: Fraction | None = None
    start_mask: bytes = b""

    def length(self, header: bytes) -> int:
        if len(header) < HEADER or any(
            byte & mask != value
            for byte, mask, value in zip(header, self.mask, self.value, strict=False)
        ):
            return 0
        columns = np.frombuffer(header[:HEADER], np.uint8).astype(np.int64)
        return int(self.lengths(columns[:, np.newaxis])[0])

    def follow(self, data: bytes) -> tuple[list[int], int]:
        """Return the offsets of the frames from the start on, and the offset after the last.

        That is one whose end is no frame, or whose successor has not all of its header in the data.
        Only what may be a frame is examined piece by piece, so this is about as fast as reading.
        """
        octets = np.frombuffer(data, np.uint8)
        candidates = np.flatnonzero(octets[: max(0, len(octets) - HEADER + 1)] == self.value[0])
        for at in range(1, HEADER):
            if self.mask[at]:
                same = octets[candidates + at] & self.mask[at] == self.value[at]
                candidates = candidates[same]
        columns = octets[candidates + np.arange(HEADER)[:, np.newaxis]].astype(np.int64)
        lengths = self.lengths(columns)
        candidates, lengths = candidates[lengths > 0], lengths[lengths > 0]
        if not len(candidates) or candidates[0] != 0:
            return [], 0
        ends = candidates + lengths
        following = np.searchsorted(candidates, ends)
        links = np.where(np.append(candidates, -1)[following] == ends, following, -1).tolist()
        chain, number = [], 0
        while number >= 0:
            chain.append(number)
            number = links[number]
        return candidates[chain].tolist(), int(ends[chain[-1]])


@dataclass(frozen=True, slots=True, eq=False)
class FrameStream:
    """A stream of frames.

    :ivar first: the offset of the first frame that is decoded.
    :ivar end: the offset after the last byte that may be a frame.
    :ivar delay: number of samples at the start that the decoder leaves out.
    :ivar samples: number of samples up to the padding that it leaves out, too; None for no padding.
    :ivar mean: bytes of a frame, on average, if the ends of the stream prove that the place of each
        frame follows from it; otherwise None.
    :ivar frames: the number that the file states, or 0. It is right where the mean is known.
    """

    form: FrameForm
    first: int
    end: int
    delay: int
    samples: int | None
    mean: Fraction | None
    frames: int

    def number_before(self, sample: int, rate: int) -> int:
        """Return the number of the frame at which decoding starts for a sample; 0 or more."""
        number = (sample + self.delay) // self.form.samples
        return max(0, number - -(-PREROLL * rate // self.form.samples))

    def number_behind(self, sample: int) -> int:
        """Return the number of the frame up to which a stream must reach to have all samples."""
        return -(-(sample + self.delay) // self.form.samples) + INCOMPLETE_FRAMES

    def may_start(self, offset: int) -> Reader[bool]:
        """Return whether ffmpeg decodes the frame at an offset, if it is the first one of a file.

        It takes an encoder's header frame for that of the file, and a frame whose successor has
        another mode for something else.
        """
        mask = self.form.start_mask
        if not mask:
            return True
        data = yield from read_range(offset, min(_FRAME_START, self.end - offset))
        place = offset + self.form.length(data[:HEADER])
        following = yield from read_range(place, len(mask))
        are_alike = all(
            (a ^ b) & bits == 0 for a, b, bits in zip(data, following, mask, strict=False)
        )
        return are_alike and not is_header_frame(data)

    def point(self, number: int, offset: int) -> SeekPoint:
        sample = number * self.form.samples - self.delay
        return SeekPoint(sample, offset, self.form.demuxer, stop=self.samples)


def read_stream(size: int, probe: Probe) -> Reader[FrameStream]:
    if probe.container == "mp3":
        stated = yield from read_encoder_header(size)
    else:
        stated = Stated((yield from skip_id3()))
    header = yield from read_range(stated.first, HEADER)
    form = _FORMS[probe.container, probe.codec](header, probe)
    end = yield from end_before_tags(size)
    frames = stated.frames or 0
    is_proven = yield from _is_constant(form, stated.first, end, frames)
    mean = form.mean if is_proven else None
    return FrameStream(form, stated.first, end, stated.delay, stated.samples, mean, frames)


def find_start(
    stream: FrameStream, find: Callable[[int], Reader[int]], number: int
) -> Reader[SeekPoint]:
    """Return the last place up to a frame at which a decoder may start."""
    for candidate in range(number, max(0, number - _MOST_STEPS), -1):
        offset = yield from find(candidate)
        if (yield from stream.may_start(offset)):
            return stream.point(candidate, offset)
    raise Malformed


def find_offset(stream: FrameStream, mean: Fraction, number: int) -> Reader[int]:
    """Return the offset of a frame of a stream with one bit rate, which gives its place."""
    form, place = stream.form, stream.first + int(number * mean)
    begin = place - _ROUNDING
    count = min(2 * _ROUNDING + (_FOLLOWING + 1) * int(mean + _ROUNDING), stream.end - begin)
    data = yield from read_range(begin, count)
    for at in range(2 * _ROUNDING + 1):
        offsets, end = form.follow(data[at:])
        lengths = [later - before for before, later in pairwise((*offsets, end))][:_FOLLOWING]
        # Of frames of several bit rates, one may be there by chance.
        if len(lengths) == _FOLLOWING and all(abs(each - mean) <= _ROUNDING for each in lengths):
            return begin + at
    raise Malformed


def _is_constant(form: FrameForm, start: int, end: int, frames: int) -> Reader[bool]:
    """Return whether all frames of a stream have the bit rate of the first one.

    A frame at a place does not prove its number, nor does the last one, as tags may be between. The
    number that the file states does, if it leads to the end.
    """
    mean, at = form.mean, start
    if mean is None or not frames:
        return False
    for _ in range(_FIRST_FRAMES):
        if at + HEADER > end:
            return False
        length = form.length((yield from read_range(at, HEADER)))
        if not length or abs(length - mean) > _ROUNDING:
            return False
        at += length
    last = yield from end_of_frames(start, end, form.length)
    return abs(start + frames * mean - last) <= _ROUNDING


def _form_of_mp3(header: bytes, probe: Probe) -> FrameForm:
    first = FrameHeader.parse(header)
    if first is None or first.rate != probe.sample_rate:
        raise Malformed
    table = np.array([0, *map(first.length_at, first.bitrates[1:]), 0])
    is_mono = first.channels == 1

    def lengths(columns: _Columns) -> _Columns:
        found = table[columns[2] >> 4]
        fits = (found > 0) & ((columns[3] >> 6 == 3) == is_mono)
        return np.where(fits, found + (columns[2] >> 1 & 1), 0)

    mean = Fraction(first.samples * first.kbps * 1000, 8 * first.rate)
    form = _form("mp3", first.samples, header, b"\xff\xfe\x0c", lengths)
    return replace(form, mean=mean, start_mask=_MP3_MASK)


def _form_of_adts(header: bytes, probe: Probe) -> FrameForm:
    """Return the form of ADTS with one block in a frame (ISO/IEC 13818-7, 6.2).

    With spectral band replication, a decoder outputs twice as many samples.
    """
    rate, channels = adts_form(header)
    if header[6] & 3 or not channels or probe.sample_rate not in (rate, 2 * rate):
        raise Malformed

    def lengths(columns: _Columns) -> _Columns:
        found = (columns[3] & 3) << 11 | columns[4] << 3 | columns[5] >> 5
        return np.where(found >= HEADER, found, 0)

    samples = AAC_SAMPLES * probe.sample_rate // rate
    return _form("aac", samples, header, b"\xff\xff\xfd\xc0\0\0\3", lengths)


def _form_of_ac3(header: bytes, probe: Probe) -> FrameForm:
    """Return the form of AC-3 (ETSI TS 102 366, 4.4.1)."""
    code, size_code = header[4] >> 6, header[4] & 0x3F
    # Streams of half the rate have a larger number here.
    is_usual = header[:2] == b"\x0b\x77" and header[5] >> 3 <= 8 and code < len(_AC3_RATES)
    if not is_usual or _AC3_RATES[code] != probe.sample_rate or size_code >= 2 * len(_AC3_KBPS):
        raise Malformed
    rate, samples = _AC3_RATES[code], 6 * AC3_BLOCK
    words = [samples * kbps * 1000 // (16 * rate) for kbps in _AC3_KBPS for _ in range(2)]
    odd = int(rate == 44100)
    table = np.zeros(64, np.int64)
    table[: len(words)] = [2 * (count + (at & odd)) for at, count in enumerate(words)]

    def lengths(columns: _Columns) -> _Columns:
        found: _Columns = table[columns[4] & 0x3F]
        return found

    return _form("ac3", samples, header, b"\xff\xff\0\0\xc0\xf8\xe0", lengths)


def _form_of_eac3(header: bytes, probe: Probe) -> FrameForm:
    """Return the form of E-AC-3 of one substream (ETSI TS 102 366, E.1.3.1)."""
    code = header[4] >> 6
    is_usual = header[:2] == b"\x0b\x77" and not header[2] >> 3 and 10 < header[5] >> 3 <= 16
    if not is_usual or code == 3 or _AC3_RATES[code] != probe.sample_rate:
        raise Malformed

    def lengths(columns: _Columns) -> _Columns:
        words: _Columns = (columns[2] & 7) << 8 | columns[3]
        return 2 * (words + 1)

    samples = AC3_BLOCK * EAC3_BLOCKS[header[4] >> 4 & 3]
    return _form("eac3", samples, header, b"\xff\xff\xf8\0\xff\xf8", lengths)


def _form(
    demuxer: str,
    samples: int,
    header: bytes,
    mask: bytes,
    lengths: Callable[[_Columns], _Columns],
) -> FrameForm:
    mask = mask.ljust(HEADER, b"\0")
    value = bytes(byte & bits for byte, bits in zip(header, mask, strict=True))
    return FrameForm(demuxer, samples, mask, value, lengths)


#: The forms of frames, by ffprobe's names of the container and the codec.
_FORMS: dict[tuple[str, str], Callable[[bytes, Probe], FrameForm]] = {
    ("mp3", "mp3"): _form_of_mp3,
    ("aac", "aac"): _form_of_adts,
    ("ac3", "ac3"): _form_of_ac3,
    ("eac3", "eac3"): _form_of_eac3,
}
#: The kinds of sources that consist of frames.
KINDS = frozenset(_FORMS)
