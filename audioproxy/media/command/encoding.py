"""ffmpeg command lines: one row for each output format, every setting explicit, nothing random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.values import print_decimal
from audioproxy.media.command.encoders import bitrate_bounds
from audioproxy.media.command.conversion import SOXR, output_depth, output_sample_format
from audioproxy.media.command.decoding import decoder_arguments, open_source, regularity_checks
from audioproxy.media.command.downmix import OUTPUT_LAYOUTS
from audioproxy.media.command.filters import (
    copies_floats,
    filter_chain,
    output_channels,
    output_rate,
    output_samples,
)
from audioproxy.media.command.inputs import Input
from audioproxy.media.command.trim import fades_out, find_sample_range
from audioproxy.media.lengths.headers import LENGTH_HEADERS, LengthHeader, OutputForm
from audioproxy.media.loudness import loudness_filters
from audioproxy.media.probe import Probe

# No dates, encoder tags or random serials (D44).
_BIT_EXACT = ["-map_metadata", "-1", "-map_chapters", "-1"]
_BIT_EXACT += ["-fflags", "+bitexact", "-flags:a", "+bitexact"]

# FF_QP2LAMBDA of libavutil: one step of quality, in the unit of -global_quality.
_LAMBDA = 118

# The default bit rate of mp3 (D9).
_MP3_KBPS = 192

# Containers and codecs whose last frame is decoded whole: all of its padding in MP4, and that of
# Vorbis on a single page.
_DECODED_PADDING = {("mov", "aac"), ("mov", "alac"), ("ogg", "vorbis")}


#: Builds a command line from the path of ffmpeg, the input, the options, the probe, and the
#: arguments that select the resampler.
CommandBuilder = Callable[[str, Input, VariantOptions, Probe, tuple[str, ...]], list[str]]


@dataclass(frozen=True, slots=True)
class FormatEncoding:
    """Encoder and container settings of one output format.

    :ivar codec: arguments that select the encoder, for an output bit depth.
    :ivar quality: arguments for ``br``, for ``q``, or for neither; the encoder's own default is
        never used (D9).
    :ivar muxer: arguments that select the container.
    :ivar header_bytes: the most bytes of container headers in an output without audio.
    :ivar exits_zero_when_empty: for an output without audio, ffmpeg exits with 0, since this
        encoder ends with a packet without samples. With all other encoders, ffmpeg reports an empty
        output.
    """

    codec: Callable[[str], list[str]]
    quality: Callable[[VariantOptions], list[str]]
    muxer: tuple[str, ...]
    header_bytes: int
    exits_zero_when_empty: bool = False

    def encoded_nothing(self, size: int) -> bool:
        """Return whether an encoder that exited with 0 after ``size`` bytes encoded no audio.

        The size of the headers varies: ``header_bytes`` bytes may also be a short output with small
        headers and some audio. So the size decides only for encoders whose empty output ffmpeg does
        not report.
        """
        return size == 0 or (self.exits_zero_when_empty and size <= self.header_bytes)


def _bitrate(kbps: int) -> list[str]:
    return ["-b:a", f"{kbps}k"]


def _constant_or_variable(default: int) -> Callable[[VariantOptions], list[str]]:
    """Return a function that builds the arguments for a bit rate or for a VBR quality.

    :param default: kbps where the options set neither.
    """

    def words(options: VariantOptions) -> list[str]:
        if options.q is not None:
            return ["-q:a", print_decimal(options.q)]
        return _bitrate(options.br or default)

    return words


def _ogg_quality(options: VariantOptions) -> list[str]:
    if options.br is not None:
        return _bitrate(options.br)
    # Equivalent to -q:a, which treats negative values as not set.
    quality = Decimal(5) if options.q is None else options.q
    return ["-flags:a", "+qscale", "-global_quality:a", str(round(quality * _LAMBDA))]


def _opus_quality(options: VariantOptions) -> list[str]:
    level = "10" if options.q is None else print_decimal(options.q)
    return [*_bitrate(options.br or 128), "-vbr", "on", "-compression_level", level]


def _flac_quality(options: VariantOptions) -> list[str]:
    return ["-compression_level", "5" if options.q is None else print_decimal(options.q)]


# Microseconds of audio in each page. No audio reaches a client before the second page is complete.
# Half a second gives the first audio some 10 ms earlier than the default of one second, and a file
# a quarter of a percent larger. A fifth of a second gains only another 4 ms, and makes the file 1 %
# larger than the default does.
_PAGE_DURATION = ("-page_duration", "500000")

_WAV_DEPTHS = {"16": "pcm_s16le", "24": "pcm_s24le", "32f": "pcm_f32le"}

ENCODERS = {
    "mp3": FormatEncoding(
        lambda depth: ["-c:a", "libmp3lame"],
        _constant_or_variable(_MP3_KBPS),
        ("-write_xing", "0", "-id3v2_version", "0", "-f", "mp3"),
        0,
    ),
    "opus": FormatEncoding(
        lambda depth: ["-c:a", "libopus", "-application", "audio"],
        _opus_quality,
        (*_PAGE_DURATION, "-f", "opus"),
        140,
    ),
    "ogg": FormatEncoding(
        lambda depth: ["-c:a", "libvorbis"],
        _ogg_quality,
        (*_PAGE_DURATION, "-f", "ogg"),
        4600,
    ),
    "aac": FormatEncoding(
        lambda depth: ["-c:a", "aac"], _constant_or_variable(160), ("-f", "adts"), 0
    ),
    "m4a": FormatEncoding(
        lambda depth: ["-c:a", "aac"],
        _constant_or_variable(160),
        ("-movflags", "empty_moov+default_base_moof", "-frag_duration", "1000000", "-f", "mp4"),
        800,
    ),
    "flac": FormatEncoding(
        lambda depth: ["-c:a", "flac"],
        _flac_quality,
        ("-metadata_header_padding", "0", "-f", "flac"),
        64,
        exits_zero_when_empty=True,
    ),
    "wav": FormatEncoding(
        lambda depth: ["-c:a", _WAV_DEPTHS[depth]], lambda options: [], ("-f", "wav"), 80
    ),
    # Raw samples, which `audioproxy.media.waveform` reduces to pixels.
    "peaks": FormatEncoding(
        lambda depth: ["-c:a", "pcm_s16le"], lambda options: [], ("-f", "s16le"), 0
    ),
}


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
        raise InvalidOptions(
            f'"br:{options.br}" is not accepted: {output_form} has no bitrate to set.'
        )
    if not bounds[0] <= options.br <= bounds[1]:
        raise InvalidOptions(
            f'"br:{options.br}" is not accepted: {output_form} takes {bounds[0]} to {bounds[1]}'
            " kbps."
        )


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

    Its header states it, a fade ends there, or the decoder outputs padding after it.
    """
    is_padded = (probe.container, probe.codec) in _DECODED_PADDING
    return options.f in LENGTH_HEADERS or fades_out(options) or is_padded


def expected_samples(options: VariantOptions, probe: Probe) -> int | None:
    """Return the number of samples of the output; None where nothing confirms it.

    :raises InvalidOptions: for options that do not fit this source.
    """
    return output_samples(options, probe, find_sample_range(options, probe))


def stated_length(options: VariantOptions, probe: Probe) -> StatedLength | None:
    """Return the length that the header of the output states.

    It is None where the format states none, and where nothing confirms the length of the source.

    :raises InvalidOptions: for options that do not fit this source.
    """
    samples = expected_samples(options, probe)
    if options.f not in LENGTH_HEADERS or samples is None:
        return None
    form = OutputForm(
        samples,
        output_rate(options, probe),
        output_channels(options, probe),
        sample_bytes=int(output_depth(options, probe).rstrip("f") or 0) // 8,
        kbps=None if options.q is not None else options.br or _MP3_KBPS,
    )
    return StatedLength(form, LENGTH_HEADERS[options.f])


def encoder_arguments(
    ffmpeg: str,
    source: Input,
    options: VariantOptions,
    probe: Probe,
    resampler: tuple[str, ...] = SOXR,
) -> list[str]:
    """Return the command line of a render, which writes to stdout and never seeks there.

    :param resampler: the arguments that select the resampler.
    :raises InvalidOptions: for options that do not fit this source.
    """
    check_bitrate(options, probe)
    sample_range = find_sample_range(options, probe)
    samples = not copies_floats(options, probe)
    encoder = ENCODERS[options.f]
    stated = stated_length(options, probe)
    filters = [
        *regularity_checks(source, probe, sample_range.seek, samples=samples),
        *filter(None, [filter_chain(options, probe, sample_range)]),
        # Gaps in the time stamps of a source would be gaps in the output. A stated length has none.
        *(["asetpts=N"] if stated is None else []),
    ]
    return [
        *open_source(ffmpeg, source, probe, sample_range.seek),
        *_BIT_EXACT,
        *(["-af", ",".join(filters)] if filters else []),
        *resampler,
        *encoder.codec(output_depth(options, probe)),
        *encoder.quality(options),
        "-sample_fmt",
        output_sample_format(options, probe),
        "-ar",
        str(output_rate(options, probe)),
        "-ac",
        str(output_channels(options, probe)),
        "-abort_on",
        "empty_output",
        *([] if stated is None else stated.muxer),
        *encoder.muxer,
        "pipe:1",
    ]


def decoder_command(ffmpeg: str, source: Input, options: VariantOptions, probe: Probe) -> list[str]:
    """Return the command line of the decoder of an irregular source."""
    seek, finite = find_sample_range(options, probe).seek, not copies_floats(options, probe)
    return decoder_arguments(ffmpeg, source, probe, seek, finite=finite)


def loudness_arguments(
    ffmpeg: str,
    source: Input,
    options: VariantOptions,
    probe: Probe,
    resampler: tuple[str, ...] = SOXR,
) -> list[str]:
    """Return the command line that measures the loudness of what a render would encode.

    :raises InvalidOptions: for options that do not fit this source.
    """
    sample_range = find_sample_range(options, probe)
    chain = filter_chain(options, probe, sample_range)
    layout = OUTPUT_LAYOUTS[output_channels(options, probe)]
    filters = [*filter(None, [chain]), *loudness_filters(output_rate(options, probe), layout)]
    return _loudness_arguments(ffmpeg, source, probe, sample_range.seek, filters, resampler)


def source_loudness_arguments(
    ffmpeg: str,
    source: Input,
    options: VariantOptions,
    probe: Probe,
    resampler: tuple[str, ...] = SOXR,
) -> list[str]:
    """Return the command line that measures the loudness of a source, with all its channels.

    :param options: without effect.
    """
    filters = loudness_filters(probe.sample_rate, None)
    return _loudness_arguments(ffmpeg, source, probe, 0, filters, resampler)


def _loudness_arguments(
    ffmpeg: str,
    source: Input,
    probe: Probe,
    seek: int,
    filters: list[str],
    resampler: tuple[str, ...],
) -> list[str]:
    checks = regularity_checks(source, probe, seek, samples=True)
    return [
        *open_source(ffmpeg, source, probe, seek),
        *("-af", ",".join([*checks, *filters])),
        *resampler,
        *("-f", "null", "-"),
    ]
