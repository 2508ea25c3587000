"""ffmpeg command lines: every setting explicit, nothing random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.decoding import (
    Pipeline,
    decoded_stream,
    decoder_arguments,
    open_source,
    seek_position,
    single_process,
    source_filters,
)
from audioproxy.media.command.downmix import OUTPUT_LAYOUTS
from audioproxy.media.command.encoders import ENCODERS, bitrate_bounds, expected_bitrate
from audioproxy.media.command.filters import filter_chain, output_samples
from audioproxy.media.command.progress import expected_seconds
from audioproxy.media.command.stages import (
    copies_floats,
    output_channels,
    output_depth,
    output_rate,
)
from audioproxy.media.command.trim import trim_filters, trim_range
from audioproxy.media.conversion import SOXR
from audioproxy.media.inputs import Input
from audioproxy.media.lengths.headers import LengthHeader, OutputForm
from audioproxy.media.loudness import loudness_filters
from audioproxy.media.probe import Probe

# No dates, encoder tags or random serials (D44). The tags that outputs carry are those of the probe
# (D61): the decoder of an irregular source outputs none.
_BIT_EXACT = ["-map_metadata", "-1", "-map_chapters", "-1"]
_BIT_EXACT += ["-fflags", "+bitexact", "-flags:a", "+bitexact"]

#: Builds a command line from the path of ffmpeg, the input, the options, the probe and a resampler.
CommandBuilder = Callable[[str, Input, VariantOptions, Probe, str], list[str]]


def check_bitrate(options: VariantOptions, probe: Probe) -> None:
    """Refuse a ``br`` that the encoder does not accept at the output's rate and channels (D13)."""
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
    form: OutputForm
    header: LengthHeader

    @property
    def muxer(self) -> list[str]:
        return self.header.muxer(self.form)


def stated_length(options: VariantOptions, probe: Probe) -> StatedLength | None:
    """Return the length that the header of the output states.

    It is None where the format states none, and where nothing confirms the length of the source.
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
        *open_source(ffmpeg, source, probe, seek_position(seek, probe)),
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


def build_pipeline(
    build: CommandBuilder,
    ffmpeg: str,
    source: Input,
    options: VariantOptions,
    probe: Probe,
    resampler: str,
) -> Pipeline:
    if probe.irregular:
        encoder = build(ffmpeg, decoded_stream(probe), options, probe, resampler)
        finite = not copies_floats(options, probe)
        pipeline = Pipeline(encoder, decoder_arguments(ffmpeg, source, probe, finite=finite))
    else:
        pipeline = single_process(build(ffmpeg, source, options, probe, resampler), probe)
    return replace(pipeline, seconds=expected_seconds(options, probe))


def loudness_arguments(
    ffmpeg: str, source: Input, options: VariantOptions, probe: Probe, resampler: str = SOXR
) -> list[str]:
    """Return the command line that measures the loudness of what a render would encode."""
    layout = OUTPUT_LAYOUTS[output_channels(options, probe)]
    report = loudness_filters(output_rate(options, probe), layout, resampler)
    filters = filter_chain(options, probe, resampler) + report
    seek = trim_range(options, probe).seek
    return _loudness_arguments(ffmpeg, source, probe, seek, filters)


def source_loudness_arguments(
    ffmpeg: str, source: Input, options: VariantOptions, probe: Probe, resampler: str = SOXR
) -> list[str]:
    """Return the command line that measures a source, with all its channels; no options count."""
    # What follows the samples is not measured.
    whole = trim_filters(trim_range(VariantOptions(), probe), probe.sample_rate)
    filters = [*whole, *loudness_filters(probe.sample_rate, None, resampler)]
    return _loudness_arguments(ffmpeg, source, probe, 0, filters)


def _loudness_arguments(
    ffmpeg: str, source: Input, probe: Probe, seek: int, filters: list[str]
) -> list[str]:
    checks = source_filters(source, probe, seek, samples=True)
    return [
        *open_source(ffmpeg, source, probe, seek_position(seek, probe)),
        *("-af", ",".join([*checks, *filters])),
        *("-f", "null", "-"),
    ]
