"""The samples of a source that an output covers, and whether the source must be measured first."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.values import print_decimal
from audioproxy.media.probe import Probe

# Containers whose stated length equals the decoded length to the sample. Others count padding that
# the decoder drops (mp3, opus, aac) or keep time in milliseconds (matroska).
_SAMPLE_EXACT = {
    ("wav", None),
    ("w64", None),
    ("flac", "flac"),
    ("aiff", None),
    ("wv", "wavpack"),
    ("tta", "tta"),
    ("ogg", "vorbis"),
    ("mov", "alac"),
}

# Containers in which a seek is exact, as measured sample by sample against a full decode. Ogg
# Vorbis, matroska and raw AAC are not among them. AAC with noise in place of samples (ISO/IEC
# 14496-3, 4.6.13) is an exception: the noise depends on where decoding starts.
_SEEKABLE = {
    ("wav", None),
    ("w64", None),
    ("flac", "flac"),
    ("aiff", None),
    ("caf", None),
    ("wv", "wavpack"),
    ("tta", "tta"),
    ("mov", "alac"),
    ("mov", "aac"),
    ("ogg", "opus"),
    ("mp3", "mp3"),
}

# Seconds after which a codec that carries state from frame to frame has settled.
_PREROLL = 1

# Seconds by which a stated duration may be wrong where it is not exact to the sample.
_STATED_MARGIN = 1

# Seconds. For a shorter input, `norm` needs the exact length. loudnorm shortens inputs of up to 100
# samples, which are 0.1 s at its lowest accepted rate, 1000 Hz.
_SHORT_INPUT = Decimal("0.1")


@dataclass(frozen=True, slots=True)
class SampleRange:
    """A range of a source, counted in its samples.

    :ivar seek: whole seconds at which decoding starts.
    :ivar start: the first sample, counted from ``seek``.
    :ivar end: the sample after the last one, counted from ``seek``; None for the source's end.
    :ivar length: number of samples, or None where only decoding shows it.
    """

    seek: int
    start: int
    end: int | None
    length: int | None


def needs_measuring(options: VariantOptions, probe: Probe) -> bool:
    """Return whether a decode pass must measure the source's length before the render (D12).

    A fade-out or a refusal may depend on the source's end. Some containers state the end only
    roughly, or not at all. ``norm`` needs the length where it may have only a few samples to work
    on.
    """
    if probe.measured:
        return False
    start, end = _bounds(options)
    if options.norm is not None and any(
        stop is not None and stop - start < _SHORT_INPUT for stop in (end, probe.duration)
    ):
        return True
    if probe.duration is None or not probe.exact:
        return _fades_out(options) or (probe.duration is not None and start >= probe.duration)
    near_end = end is None or end + _STATED_MARGIN > probe.duration
    return _fades_out(options) and near_end and not _matches(_SAMPLE_EXACT, probe)


def find_sample_range(options: VariantOptions, probe: Probe) -> SampleRange:
    """Return the samples that the output covers.

    :raises InvalidOptions: where ``t`` starts at or past the source's end (D11), or leaves less
        than a sample.
    """
    rate = probe.sample_rate
    start, end = _bounds(options)
    if probe.duration is not None and start >= probe.duration:
        raise InvalidOptions(
            f'"t:{options.t}" is not accepted: it starts at or past the end of the source, which is'
            f" {print_decimal(probe.duration)} seconds."
        )
    seek = max(0, int(start) - _PREROLL) if _matches(_SEEKABLE, probe) else 0
    first = _samples(start, rate)
    last = None if end is None else _samples(end, rate)
    if last == first:
        raise InvalidOptions(
            f'"t:{options.t}" is not accepted: it is shorter than a sample of the source.'
        )
    known = None if probe.duration is None else max(1, _samples(probe.duration, rate))
    if known is not None and first >= known:
        raise InvalidOptions(
            f'"t:{options.t}" is not accepted: it leaves less than a sample of the source.'
        )
    stop = min((x for x in (last, known) if x is not None), default=None)
    return SampleRange(
        seek=seek,
        start=first - seek * rate,
        end=None if last is None else last - seek * rate,
        length=None if stop is None else stop - first,
    )


def _bounds(options: VariantOptions) -> tuple[Decimal, Decimal | None]:
    if options.t is None:
        return Decimal(0), None
    start, duration = options.t.start, options.t.duration
    return start, None if duration is None else start + duration


def _fades_out(options: VariantOptions) -> bool:
    return options.fade is not None and options.fade.fade_out > 0


def _matches(table: set[tuple[str, str | None]], probe: Probe) -> bool:
    return (probe.container, probe.codec) in table or (probe.container, None) in table


def _samples(seconds: Decimal, rate: int) -> int:
    return int((seconds * rate).to_integral_value(ROUND_HALF_UP))
