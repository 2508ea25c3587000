"""What must be known of a source before the command of a variant is built.

Every such question is asked here, and answered from the options and the probe alone. The render
looks for what is needed (`audioproxy.render.job`), and asks again with what it has found.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.normalization import BLOCK
from audioproxy.media.command.stages import copies_samples, has_memory, stage_rates
from audioproxy.media.command.trim import (
    CONFIRMED,
    FOUND,
    bounds,
    certain_stop,
    expected_range,
    may_be_shorter,
    requested_samples,
    starts_past_end,
    stated_range,
    to_samples,
)
from audioproxy.media.probe import Probe
from audioproxy.media.seek_point import PREROLL

# Containers and codecs whose end the decoder does not tell. It decodes the last frame whole: all of
# its padding in MP4 and Musepack, and that of Vorbis on a single page. It skips silence at the end
# of AMR. The length of Ogg FLAC tells whether its time stamps have gaps.
_ENDS_BY_LENGTH = {("mov", "aac"), ("mov", "alac"), ("mov", "mp3"), ("ogg", "vorbis")}
_ENDS_BY_LENGTH |= {("mpc8", "musepack8"), ("ogg", "flac")}
_ENDS_BY_LENGTH |= {
    (name, codec) for name in ("amr", "matroska", "mov") for codec in ("amr_nb", "amr_wb")
}

# The largest source that is decoded first for the length alone: bytes, and seconds where it states
# any. Decoding takes 0.3 to 0.7 seconds, and 3 seconds of Opus at 24 kbps (docs/lengths.md).
_MEASURED_BYTES, _MEASURED_SECONDS = 8 * 1024 * 1024, 3600
# Seconds between the end of an output and a stated end that may be wrong.
_END_MARGIN = 1

#: Inputs of fewer samples are padded for resamplers, once their exact length is known.
#: libswresample outputs nothing for fewer than 112 samples, counted at the lower rate (measured on
#: ffmpeg 5.1). libsoxr keeps up to 1800 samples until the input ends. The limit has a margin.
FEW_SAMPLES = 4096

# Codecs whose samples the service converts.
_CONVERTED = frozenset(
    f"pcm_{kind}"
    for kind in "u8 s8 s16le s16be s24le s24be s32le s32be f32le f32be f64le f64be".split()
)

# Containers and codecs whose decoders output the same samples wherever they start.
_SAME_ANYWHERE = {("flac", "flac"), ("wv", "wavpack"), ("tta", "tta"), ("mp3", "mp3")}
#: Seconds of the shortest part of a waveform that is worth the start of its decoder.
SHORTEST_PART = 60


@dataclass(frozen=True, slots=True)
class Needs:
    """What a variant needs of its source, beyond what the probe has.

    Searched for by reading the source:

    :ivar length: the length that its end confirms. The header of the output states it, a stage
        needs it, the decoder outputs more or less than that, or a refusal rests on it.
    :ivar seek: whether it is one stream without gaps, in which ffmpeg seeks exactly. In flac
        without a seek table, ffmpeg's search ends early at the start of a frame: after 9 requests
        to a server, and otherwise after up to 30. So the length of the frames is needed, too.
    :ivar samples: where the uncompressed samples are, which a waveform needs no decoder for.
    :ivar frames: how many frames a waveform has, which nothing states.
    :ivar parts: its exact length, which tells whether the parts of a waveform may be decoded apart.
    :ivar point: the place at which decoding starts, where the service itself finds it.

    Found by decoding it:

    :ivar end: its exact end, on which the outcome depends, and which nothing confirms (D12).
    :ivar measure: the number of its samples: for `end`, or since players would misread a header
        that does not state it. It depends on the bytes of the source alone (D57).
    :ivar least: frames that hold so many samples spare the decoding; None where they do not.
    :ivar recount: the same, once a render has output no audio. The source may end before ``t``
        starts, or have fewer samples than a stage needs (D13).

    Known at once:

    :ivar past_end: ``t`` leaves less than a sample of the stated duration.
    :ivar padding: a measured sound of too few samples for a resampler is padded to this number of
        samples (D13); otherwise 0. A length that was not measured does not count: padding a source
        that gives no samples would make it look decodable.
    """

    length: bool
    seek: bool
    samples: bool
    frames: bool
    parts: bool
    point: bool
    end: bool
    measure: bool
    least: int | None
    recount: bool
    past_end: bool
    padding: int

    @classmethod
    def of(cls, options: VariantOptions, probe: Probe) -> Needs:
        start, _ = bounds(options)
        first, last = requested_samples(options, probe.sample_rate)
        kind, length, encoder = probe.kind, probe.length, ENCODERS[options.f]
        is_exact = length is not None and length.exact
        is_waveform = options.f == "peaks"
        is_far = int(start) > PREROLL
        until = certain_stop(options, probe)
        past_end = starts_past_end(options, probe)
        by_stage = _has_stage_with_length(options, probe)
        # A refusal may rest on a length that the end of the source proves.
        is_proven = length is not None and length.exact and not length.is_stated_only
        end = not probe.measured and (
            _may_have_few_samples(options, probe)
            or (past_end and not is_proven)
            or (by_stage and not _ends_certainly(options, probe))
        )
        is_misread = encoder.is_misread(options) and not probe.measured and until is None
        measure = end or (is_misread and _is_small(probe))
        enough = _least_samples(options, probe)
        is_too_short = probe.measured and until is not None and until - first < enough
        return cls(
            length=(
                encoder.length_header is not None or kind in _ENDS_BY_LENGTH or by_stage or past_end
            ),
            seek=kind in CONFIRMED and is_far,
            samples=is_waveform and probe.codec in _CONVERTED and copies_samples(options, probe),
            frames=is_waveform and not expected_range(options, probe, None),
            parts=is_waveform and _may_be_split(options, probe),
            point=kind in FOUND and is_far,
            end=end,
            measure=measure,
            # The start alone shows that `t` is not past the end.
            least=(first + 1 if last is None else last)
            if measure and options.t and not is_exact
            else None,
            recount=not probe.measured and (options.t is not None or enough > 0),
            past_end=past_end,
            padding=2 * enough if is_too_short else 0,
        )


def _has_stage_with_length(options: VariantOptions, probe: Probe) -> bool:
    """Return whether a stage needs the length of the output: a fade-out, or ``norm`` if brief."""
    fades_out = options.fade is not None and options.fade.fade_out > 0
    return fades_out or (options.norm is not None and may_be_shorter(options, probe, BLOCK))


def _may_have_few_samples(options: VariantOptions, probe: Probe) -> bool:
    start, end = bounds(options)
    return bool(options.norm or options.enhance) and any(
        stop is not None and (stop - start) * probe.sample_rate < FEW_SAMPLES
        for stop in (end, probe.duration)
    )


def _ends_certainly(options: VariantOptions, probe: Probe) -> bool:
    """Return whether the end of the output is known, although a stated length may be wrong."""
    if certain_stop(options, probe) is None or probe.length is None:
        return False
    _, end = bounds(options)
    return not probe.length.is_stated_only or (
        end is not None and to_samples(end + _END_MARGIN, probe.sample_rate) <= probe.length.samples
    )


def _is_small(probe: Probe) -> bool:
    size, seconds = probe.description.size or 0, probe.duration or Decimal(0)
    return 0 < size <= _MEASURED_BYTES and seconds <= _MEASURED_SECONDS


def _least_samples(options: VariantOptions, probe: Probe) -> int:
    """Return the number of samples that the conversions to other sample rates need."""
    rates = stage_rates(options, probe) - {probe.sample_rate}
    return max((FEW_SAMPLES * -(-probe.sample_rate // rate) for rate in rates), default=0)


def _may_be_split(options: VariantOptions, probe: Probe) -> bool:
    start, end = stated_range(options, probe)
    if has_memory(options) or (end is not None and end - start < 2 * SHORTEST_PART):
        return False
    # Compressed floating-point samples are checked by filters that replace their time stamps.
    is_same = probe.kind in _SAME_ANYWHERE and not probe.audio.stores_floats
    return is_same or probe.codec.startswith("pcm_")
