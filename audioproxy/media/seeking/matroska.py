"""Places in Matroska and WebM, found by the Cues and the time stamps of blocks.

Time stamps are rounded, mostly to a millisecond. Where all blocks have the same number of samples,
their time stamps are multiples of the time of a block, so each tells the number of its block. Lost
blocks are silence (D70), so the number counts them, too. All time stamps that are read must agree
with this: those at the start, at the place and at the end, and those of many Cues in between.

The decoder gets the headers, without the delay of the encoder, and the clusters from the place on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import floor

from audioproxy.media.lengths.ebml import read_segment
from audioproxy.media.lengths.flac import parse_frame_header
from audioproxy.media.lengths.lower_bounds import AAC_RATES, AAC_SAMPLES
from audioproxy.media.lengths.ogg import count_opus
from audioproxy.media.lengths.pcm import sample_bytes
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength
from audioproxy.media.seek_point import MOST_COPIED, PREROLL, SeekPoint
from audioproxy.media.seeking.frames import AC3_BLOCK, EAC3_BLOCKS
from audioproxy.media.seeking.matroska_blocks import Block, Frame, find_block, read_blocks
from audioproxy.media.seeking.matroska_headers import NANOSECONDS, Cues, Track, read_headers
from audioproxy.media.seeking.ogg import preroll_of_opus

# Nanoseconds to which containers round time stamps, and those by which a second rounding, as in
# MPEG-TS and in mkvmerge, may move them.
_MILLISECOND, _ROUNDING = 10**6, 25_000
# Cues up to the place of which all time stamps are examined; of more, fewer are.
_EXAMINED = 64
# Nanoseconds of the shortest block, which must be long beside the rounding; and those between two
# examined Cues, about and at most: a gap of ten minutes is none (D70).
_SHORTEST, _STEP, _LONGEST_STEP = 10 * 10**6, 120 * NANOSECONDS, 300 * NANOSECONDS
# Seconds of silence after which a source gets no more (`audioproxy.media.command.gaps`).
_LATEST = 6 * 3600

# Bytes of the private data of FLAC ahead of its stream information.
_FLAC_MARKER = 8


@dataclass(frozen=True, slots=True)
class _Grid:
    """The time stamps of blocks, as multiples of the time of a block: its period.

    :ivar samples: number of samples of a block.
    :ivar unit: nanoseconds of a time stamp.
    :ivar rounding: nanoseconds to which time stamps are rounded.
    """

    samples: int
    period: Fraction
    first: int
    unit: int
    rounding: int

    def number(self, stamp: int) -> int:
        return round((stamp - self.first) / self.period)

    def stamp(self, number: int) -> Fraction:
        return self.first + number * self.period


@dataclass(frozen=True, slots=True)
class _Codec:
    """A codec whose blocks may have the same number of samples.

    :ivar count: the number of samples of a frame, with which time stamps must agree; 0 for unknown.
        It is given the private data of the track, too.
    :ivar preroll: the number of samples that are decoded ahead of a place, by the first frame.
    :ivar is_even: a frame inside is never shorter, even where files were joined, or its number
        tells. So it does not matter if time stamps jump a little there.
    :ivar position: the number of samples ahead of a frame, where it states that.
    """

    count: Callable[[Frame, bytes, Probe], int]
    preroll: Callable[[Frame, int], int] = lambda frame, rate: 0
    is_even: bool = False
    position: Callable[[Frame, bytes], int] | None = None


def find_in_matroska(
    size: int, probe: Probe, length: SourceLength, first: int, last: int | None
) -> Reader[SeekPoint]:
    """Return the place from which decoding gives a sample.

    :param length: without effect: the duration of a file does not tell whether it has gaps.
    :param last: the sample after the last needed one; None for all.
    """
    segment = yield from read_segment(size)
    track, cues, start = yield from read_headers(segment, probe)
    blocks = yield from read_blocks(start, size, track.number)
    grid = _build_grid(blocks[0], track, probe)
    samples, rate = grid.samples, probe.sample_rate
    preroll = CODECS[probe.codec].preroll(blocks[0].frames[0], rate)
    number = (first + track.delay) // samples - -(-preroll // samples)
    # A rounded time stamp may be later than the place.
    latest = floor(grid.stamp(number) + grid.period / 2)
    index = cues.find(latest)
    _, place = cues.last_before(index)
    if place <= start:
        raise Malformed
    placed = yield from read_blocks(place, size, track.number)
    if not 0 < grid.number(placed[0].stamp) <= number or number * samples > _LATEST * rate:
        raise Malformed
    stamp, offset, cluster = yield from find_block(place, size, track.number, latest)
    begin = grid.number(stamp)
    _, end_place = cues.last_before(len(cues))
    ending = yield from read_blocks(end_place, size, track.number)
    for following in (blocks, placed):
        _check_counts(following, grid, track, probe)
    _check_positions([*blocks, *placed], grid, track, probe)
    stamps = [stamp, *(block.stamp for block in (*blocks, *placed, *ending))]
    _check_stamps(blocks[0].stamp, stamps, grid, cues, index)
    end = None
    if last is not None:
        end = _find_end(cues, grid.stamp(-(-(last + track.delay) // samples)))
    head = track.head + cluster
    if (size if end is None else end) - offset > MOST_COPIED:
        raise Malformed
    return SeekPoint(begin * samples - track.delay, offset, "matroska", head, end=end)


def _build_grid(first: Block, track: Track, probe: Probe) -> _Grid:
    codec, unit = CODECS[probe.codec], track.unit
    samples = codec.count(first.frames[0], track.private, probe)
    period = Fraction(samples * NANOSECONDS, probe.sample_rate * unit)
    if period * unit < _SHORTEST:
        raise Malformed
    # A file with finer time stamps may be made from one in milliseconds.
    rounding = max(unit, _MILLISECOND) if codec.is_even else unit
    return _Grid(samples, period, first.stamp, unit, rounding)


def _check_counts(blocks: Sequence[Block], grid: _Grid, track: Track, probe: Probe) -> None:
    """Check that frames have as many samples as all, but for the last one, and do not overlap."""
    count = CODECS[probe.codec].count
    counts = [count(frame, track.private, probe) for block in blocks for frame in block.frames]
    is_even = all(samples == grid.samples for samples in counts[:-1])
    if not is_even or counts[-1] > grid.samples:
        raise Malformed
    for before, later in pairwise(blocks):
        if grid.number(later.stamp) < grid.number(before.stamp) + len(before.frames):
            raise Malformed


def _check_positions(blocks: Sequence[Block], grid: _Grid, track: Track, probe: Probe) -> None:
    """Check that frames state the numbers of their time stamps. Joined files count from 0 anew."""
    position = CODECS[probe.codec].position
    if position is None:
        return
    places = ((block.frames[0], grid.number(block.stamp) * grid.samples) for block in blocks)
    if len({position(frame, track.private) - ahead for frame, ahead in places}) > 1:
        raise Malformed


def _check_stamps(first: int, stamps: Sequence[int], grid: _Grid, cues: Cues, index: int) -> None:
    """Check that time stamps of blocks and of Cues are multiples, but for their rounding.

    :param index: of the Cue behind the place.
    """
    # The number is odd, since the points of two tracks may alternate.
    elapsed = max(1, cues.stamp(index - 1) - first) * grid.unit
    step = min(index * _STEP // elapsed, 2 * (index // _EXAMINED)) | 1
    points = [stamp for stamp, _ in cues.of_track(range(0, index, step))]
    steps = [later - before for before, later in pairwise([first, *points])]
    if not steps or min(steps) < 0 or max(steps) * grid.unit > _LONGEST_STEP:
        raise Malformed
    late = [stamp - grid.stamp(grid.number(stamp)) for stamp in (*points, *stamps)]
    if (max(late) - min(late)) * grid.unit > grid.rounding + _ROUNDING:
        raise Malformed


def _find_end(cues: Cues, stamp: Fraction) -> int | None:
    """Return the offset of a cluster that has no block up to a time stamp; None if there is none.

    A point need not be that of the first block of its cluster.
    """
    points = cues.of_track(range(cues.find(stamp), len(cues)))
    first = next(points, None)
    if first is None:
        return None
    return next((cluster for _, cluster in points if cluster > first[1]), None)


def _count_aac(frame: Frame, private: bytes, probe: Probe) -> int:
    """Return the samples of a frame, of which spectral band replication doubles the rate.

    The private data is an AudioSpecificConfig (ISO/IEC 14496-3, 1.6.2.1).
    """
    rate = AAC_RATES[int.from_bytes(private[:2].ljust(2, b"\xff"), "big") >> 7 & 15]
    return AAC_SAMPLES * probe.sample_rate // rate if rate else 0


def _count_eac3(frame: Frame, private: bytes, probe: Probe) -> int:
    """Return the samples of a frame of E-AC-3 (ETSI TS 102 366, E.1.3.1)."""
    code = frame.data[4] if len(frame.data) > 4 else 0
    return AC3_BLOCK * (6 if code >> 6 == 3 else EAC3_BLOCKS[code >> 4 & 3])


def _second(frame: Frame, rate: int) -> int:
    return PREROLL * rate


def _parse_flac(frame: Frame, private: bytes) -> tuple[int, int]:
    return parse_frame_header(frame.data, private[_FLAC_MARKER:]) or (0, 0)


def _count_pcm(frame: Frame, private: bytes, probe: Probe) -> int:
    return frame.size // (sample_bytes(probe.codec) * probe.channels)


#: The codecs, by ffprobe's names. In joined files of MP3, ALAC and TTA, the last frame of each part
#: may be shorter than its time.
CODECS = {
    "aac": _Codec(_count_aac, _second, is_even=True),
    "ac3": _Codec(lambda frame, private, probe: 6 * AC3_BLOCK, _second, is_even=True),
    "eac3": _Codec(_count_eac3, _second, is_even=True),
    "opus": _Codec(
        lambda frame, private, probe: count_opus([frame.data])[0],
        lambda frame, rate: preroll_of_opus(frame.data),
    ),
    "flac": _Codec(
        lambda frame, private, probe: _parse_flac(frame, private)[1],
        is_even=True,
        position=lambda frame, private: _parse_flac(frame, private)[0],
    ),
    **{
        f"pcm_{form}": _Codec(_count_pcm)
        for form in "u8 s16le s16be s24le s24be s32le s32be f32le f64le".split()
    },
}
