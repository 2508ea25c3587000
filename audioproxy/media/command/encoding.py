"""ffmpeg command lines: every setting explicit, nothing random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.decoding import decoder_arguments, open_source, source_filters
from audioproxy.media.command.downmix import OUTPUT_LAYOUTS
from audioproxy.media.command.encoders import ENCODERS, bitrate_bounds, expected_bitrate
from audioproxy.media.command.filters import (
    copies_floats,
    filter_chain,
    output_channels,
    output_rate,
    output_samples,
)
from audioproxy.media.command.trim import needs_length, trim_filters, trim_range
from audioproxy.media.conversion import SOXR, output_depth
from audioproxy.media.inputs import Input
from audioproxy.media.lengths.headers import LengthHeader, OutputForm
from audioproxy.media.loudness import loudness_filters
from audioproxy.media.probe import Probe

# No dates, encoder tags or random serials (D44). The tags that outputs carry are those of the probe
# (D61): the decoder of an irregular source outputs none.
_BIT_EXACT = ["-map_metadata", "-1", "-map_chapters", "-1"]
_BIT_EXACT += ["-fflags", "+bitexact", "-flags:a", "+bitexact"]

# Containers and codecs whose end the decoder does not tell. It decodes the last frame whole: all of
# its padding in MP4 and Musepack, and that of Vorbis on a single page. It skips silence at the end
# of AMR. The length of Ogg FLAC tells whether its time stamps have gaps.
_ENDS_BY_LENGTH = {("mov", "aac"), ("mov", "alac"), ("mov", "mp3"), ("ogg", "vorbis")}
_ENDS_BY_LENGTH |= {("mpc8", "musepack8"), ("ogg", "flac")}
_ENDS_BY_LENGTH |= {
    (name, codec) for name in ("amr", "matroska", "mov") for codec in ("amr_nb", "amr_wb")
}

#: Builds a command line from the path of ffmpeg, the input, the options, the probe and a resampler.
CommandBuilder = Callable[[str, Input, VariantOptions, Probe, str], list[str]]


def check_bitrate(options: VariantOptions, probe: Probe) -> None:
    """Refuse a ``br`` that the encoder does not accept at the output's rate and channels (D13).

    :raises InvalidOptions: with a message that names the segment and the bounds.
    """
    if options.br is None:
        return
    rate, channels = output_rate(options, probe), output_channels(options, probe)
    bounds = bitrate_bounds(options.f, rate, channels)
    output_form = f"f:{options.f} at {rate} Hz with {channels} channel{'s' * (channels > 1)}"
    if bounds is None:
        why = "has no bitrate to set"
    elif not bounds[0] <= options.br <= bounds[1]:
        why = f"takes {bounds[0]} to {bounds[1]} kbps"
    else:
        return
    raise InvalidOptions.of(f"br:{options.br}", f"{output_form} {why}")


@dataclass(frozen=True, slots=True)
class StatedLength:
    """The length of an output, and the container header that states it."""

    form: OutputForm
    header: LengthHeader

    @property
    def muxer(self) -> list[str]:
        """Arguments for a header that can state the length."""
        return self.header.muxer(self.form)


def uses_length(options: VariantOptions, probe: Probe) -> bool:
    """Return whether the output depends on the length of the source, where that is known.

    Its header states it, a stage needs it, or the decoder outputs more or less than that.
    """
    states_length = ENCODERS[options.f].length_header is not None
    ends_by_length = (probe.container, probe.codec) in _ENDS_BY_LENGTH
    return states_length or ends_by_length or needs_length(options, probe)


def stated_length(options: VariantOptions, probe: Probe) -> StatedLength | None:
    """Return the length that the header of the output states.

    It is None where the format states none, and where nothing confirms the length of the source.

    :raises InvalidOptions: for options that do not fit this source.
    """
    samples, header = output_samples(options, probe), ENCODERS[options.f].length_header
    if header is None or samples is None:
        return None
    rate, channels = output_rate(options, probe), output_channels(options, probe)
    form = OutputForm(
        samples,
        rate,
        channels,
        sample_bytes=int(output_depth(options, probe).rstrip("f") or 0) // 8,
        kbps=expected_bitrate(options, rate, channels),
        varies=options.q is not None,
    )
    return StatedLength(form, header)


def encoder_arguments(
    ffmpeg: str, source: Input, options: VariantOptions, probe: Probe, resampler: str = SOXR
) -> list[str]:
    """Return the command line of a render, which writes to stdout and never seeks there.

    :raises InvalidOptions: for options that do not fit this source.
    """
    check_bitrate(options, probe)
    seek, samples = trim_range(options, probe).seek, not copies_floats(options, probe)
    encoder = ENCODERS[options.f]
    codec, sample_format = encoder.encoders[output_depth(options, probe)]
    stated, rate = stated_length(options, probe), output_rate(options, probe)
    filters = [
        *source_filters(source, probe, seek, samples=samples),
        *filter_chain(options, probe, resampler),
        # Gaps in the time stamps of a source would be gaps in the output. A stated length has none.
        *(["asetpts=N"] if stated is None else []),
    ]
    return [
        *open_source(ffmpeg, source, probe, seek),
        *_BIT_EXACT,
        *encoder.tags(probe.carried_tags),
        *(["-af", ",".join(filters)] if filters else []),
        *("-c:a", codec, *encoder.quality(options), *encoder.settings(rate)),
        *("-sample_fmt", sample_format, "-ar", str(rate)),
        *("-ac", str(output_channels(options, probe))),
        *("-abort_on", "empty_output"),
        *([] if stated is None else stated.muxer),
        *encoder.muxer,
        "pipe:1",
    ]


def decoder_command(ffmpeg: str, source: Input, options: VariantOptions, probe: Probe) -> list[str]:
    """Return the command line of the decoder of an irregular source."""
    return decoder_arguments(ffmpeg, source, probe, finite=not copies_floats(options, probe))


def loudness_arguments(
    ffmpeg: str, source: Input, options: VariantOptions, probe: Probe, resampler: str = SOXR
) -> list[str]:
    """Return the command line that measures the loudness of what a render would encode.

    :raises InvalidOptions: for options that do not fit this source.
    """
    layout = OUTPUT_LAYOUTS[output_channels(options, probe)]
    report = loudness_filters(output_rate(options, probe), layout, resampler)
    filters = filter_chain(options, probe, resampler) + report
    seek = trim_range(options, probe).seek
    return _loudness_arguments(ffmpeg, source, probe, seek, filters)


def source_loudness_arguments(
    ffmpeg: str, source: Input, options: VariantOptions, probe: Probe, resampler: str = SOXR
) -> list[str]:
    """Return the command line that measures the loudness of a source, with all its channels.

    :param options: without effect.
    """
    # What follows the samples is not measured.
    whole = trim_filters(trim_range(VariantOptions(), probe), probe.sample_rate)
    filters = [*whole, *loudness_filters(probe.sample_rate, None, resampler)]
    return _loudness_arguments(ffmpeg, source, probe, 0, filters)


def _loudness_arguments(
    ffmpeg: str, source: Input, probe: Probe, seek: int, filters: list[str]
) -> list[str]:
    checks = source_filters(source, probe, seek, samples=True)
    return [
        *open_source(ffmpeg, source, probe, seek),
        *("-af", ",".join([*checks, *filters])),
        *("-f", "null", "-"),
    ]
