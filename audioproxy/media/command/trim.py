"""The samples of a source that an output covers, and where decoding starts.

A seek by ffmpeg need not lead to the requested place (docs/architecture.md). So after one, samples
are counted from the time stamp of the first one, which is right. Where the service has found the
place, the number of that sample is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.values import print_decimal
from audioproxy.media.lengths.pcm import sample_bytes
from audioproxy.media.probe import Probe
from audioproxy.media.reading import SourceLength
from audioproxy.media.seek_point import PREROLL
from audioproxy.media.seeking.frames import KINDS
from audioproxy.media.seeking.matroska import CODECS

# Containers of uncompressed audio, in which a seek is exact, as `make matrix` proves sample by
# sample against a full decode.
_SEEKABLE = ("wav", "w64", "aiff", "caf", "nistsphere")
#: Here, a seek is exact if the file is one stream without gaps, as its end and its tables confirm.
#: AAC with noise in place of samples (ISO/IEC 14496-3, 4.6.13) is an exception: the noise depends
#: on where decoding starts.
CONFIRMED = {("flac", "flac"), ("mov", "alac"), ("mov", "aac"), ("tta", "tta")}
#: Here, the service itself finds the place (`audioproxy.media.seeking`).
FOUND = {*KINDS, ("ogg", "vorbis"), ("ogg", "opus"), ("ogg", "flac"), ("wv", "wavpack")}
FOUND |= {("matroska", codec) for codec in CODECS}

# Seconds by which a duration may exceed that of the audio.
_DURATION_MARGIN = Decimal("0.5")
# Bytes of a source without audio, and those of a sample of one channel.
_HEADER_SIZE = 64 * 1024
_LARGEST_SAMPLE = 8

#: Matches what ffmpeg prints where decoding has started after the first sample of a range. FFmpeg 9
#: puts ``[Eval @ 0x1]`` before the number.
LATE = rb"^(?:\[Eval @ [^\]\n]*\] )?\d+\.\d+$"
_AV_LOG_ERROR = 16


@dataclass(frozen=True, slots=True)
class SampleRange:
    """A range of a source, counted in its samples.

    :ivar seek: the sample at which decoding starts: a whole second, or the start of a frame.
    :ivar start: the first sample, counted from ``seek``.
    :ivar end: the sample after the last one, counted from ``seek``; None for all of the source.
    :ivar length: number of samples, or None where nothing confirms it before decoding.
    :ivar delay: number of samples that are decoded ahead of the first one of the source.
    :ivar is_known: decoding certainly starts at ``seek``. After a seek by ffmpeg, the time stamp of
        the first sample tells where it has started.
    :ivar by_stamps: every sample is counted by its time stamp, so lost ones leave fewer.
    """

    seek: int
    start: int
    end: int | None
    length: int | None
    delay: int = 0
    is_known: bool = False
    by_stamps: bool = False


def trim_range(options: VariantOptions, probe: Probe) -> SampleRange:
    """Return the samples that the output covers.

    :raises InvalidOptions: where ``t`` starts at or past the source's end (D11), or leaves less
        than a sample.
    """
    rate, (start, _) = probe.sample_rate, bounds(options)
    if probe.duration is not None and start >= probe.duration:
        stated = print_decimal(round(probe.duration, 6))
        raise InvalidOptions.of(
            f"t:{options.t}",
            f"it starts at or past the end of the source, which is {stated} seconds",
        )
    first, last = requested_samples(options, rate)
    if last == first:
        raise InvalidOptions.of(f"t:{options.t}", "it is shorter than a sample of the source")
    if starts_past_end(options, probe):
        raise InvalidOptions.of(f"t:{options.t}", "it leaves less than a sample of the source")
    seek, stop, point, length = 0, last, probe.seek_point, probe.length
    if point is not None:
        seek = point.sample
    elif seeks_exactly(probe):
        seek = max(0, int(start) - PREROLL) * rate
        seek -= seek % (probe.stamps.frame_samples or 1)
    until = certain_stop(options, probe)
    if until is not None and length is not None and length.ends_in_padding:
        stop = until
    if point is not None and point.stop is not None:
        stop = point.stop if stop is None else min(stop, point.stop)
    return SampleRange(
        seek,
        first - seek,
        None if stop is None else stop - seek,
        None if until is None else until - first,
        delay=0 if length is None else length.delay,
        is_known=point is not None,
        by_stamps=probe.in_parts,
    )


def certain_stop(options: VariantOptions, probe: Probe) -> int | None:
    """Return the sample after the last one of the output; None where nothing confirms it."""
    (_, last), length = requested_samples(options, probe.sample_rate), probe.length
    if length is None:
        return None
    if last is None or last > length.samples:
        return length.samples if length.exact else None
    return last


def expected_range(
    options: VariantOptions, probe: Probe, length: SourceLength | None
) -> range | None:
    """Return the samples of the source that ``t`` is expected to leave, or None."""
    first, last = requested_samples(options, probe.sample_rate)
    if length is not None and length.exact:
        return range(first, length.samples if last is None else min(length.samples, last))
    _, end = bounds(options)
    is_past_end = end is not None and probe.duration is not None and end > probe.duration
    return None if last is None or is_past_end else range(first, last)


def stated_range(options: VariantOptions, probe: Probe) -> tuple[Decimal, Decimal | None]:
    """Return the seconds between which the output lies, for estimates: the source may be wrong."""
    start, end = bounds(options)
    if end is None or probe.duration is None:
        return start, end or probe.duration
    return start, min(end, probe.duration)


def bounds(options: VariantOptions) -> tuple[Decimal, Decimal | None]:
    """Return the seconds of the source at which ``t`` begins and ends; None for its end."""
    if options.t is None:
        return Decimal(0), None
    start, duration = options.t.start, options.t.duration
    return start, None if duration is None else start + duration


def requested_samples(options: VariantOptions, rate: int) -> tuple[int, int | None]:
    """Return the first sample that ``t`` requests, and the one after the last, or None."""
    start, end = bounds(options)
    return to_samples(start, rate), None if end is None else to_samples(end, rate)


def to_samples(seconds: Decimal, rate: int) -> int:
    return int((seconds * rate).to_integral_value(ROUND_HALF_UP))


def starts_past_end(options: VariantOptions, probe: Probe) -> bool:
    (start, _), duration, rate = bounds(options), probe.duration, probe.sample_rate
    if duration is None:
        return False
    return start >= duration or to_samples(start, rate) >= max(1, to_samples(duration, rate))


def may_be_shorter(options: VariantOptions, probe: Probe, seconds: Decimal) -> bool:
    start, end = bounds(options)
    if end is not None and end - start < seconds:
        return True
    if probe.duration is None:
        largest = seconds * probe.sample_rate * probe.channels * _LARGEST_SAMPLE
        return 0 < (probe.description.size or 0) < _HEADER_SIZE + largest
    return probe.duration - start < seconds + _DURATION_MARGIN


def seeks_exactly(probe: Probe) -> bool:
    """Return whether a seek leads to a known sample, from which the decoder outputs all."""
    if probe.irregular:
        return False
    if probe.kind in CONFIRMED:
        return probe.stamps.seekable
    width = sample_bytes(probe.codec)
    if probe.container not in _SEEKABLE or not width:
        return False
    # ffmpeg finds the position by the bytes per second that the header states.
    return probe.audio.bitrate in (None, 8 * width * probe.channels * probe.sample_rate)


def trim_filters(sample_range: SampleRange, rate: int) -> list[str]:
    """Return the filters that select a range of samples; none for the whole source."""
    start, end = sample_range.start + sample_range.delay, sample_range.end
    end = None if end is None else end + sample_range.delay
    if not start and end is None:
        return []
    unit, counted = "sample", []
    if sample_range.seek and not sample_range.is_known:
        # Samples are counted from the first time stamp: damaged packets leave gaps.
        first = f"if(gt(PTS\\,{start})\\,print(PTS\\,{_AV_LOG_ERROR})\\,PTS)"
        others = "PTS" if sample_range.by_stamps else "ld(0)+N"
        unit, counted = "pts", [f"asetpts=if(eq(N\\,0)\\,st(0\\,{first})\\,{others})"]
    elif sample_range.by_stamps:
        unit, counted = "pts", ["asetpts=PTS-STARTPTS"]
    if counted:
        counted = [f"asettb=1/{rate}", *counted]
    stop = "" if end is None else f":end_{unit}={end}"
    return [*counted, f"atrim=start_{unit}={start}{stop}", "asetpts=PTS-STARTPTS"]
