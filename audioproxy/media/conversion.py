"""Conversions of sample rates and sample formats: resamplers, the working format, dither (D60)."""

from __future__ import annotations

from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.probe import Probe

# Resamplers compute in double precision. If they converted 16 bits to 16 bits, libsoxr would add
# random dither of its own.
_INTERNAL = "internal_sample_fmt=dblp"
#: Options of the filter aresample; docs/quality.md has the measurements. They are never options of
#: an output: since FFmpeg 8, ``-precision`` there is an option of subtitles.
SOXR = f"resampler=soxr:precision=28:{_INTERNAL}"
#: The same for an ffmpeg without libsoxr. The defaults of libswresample leave aliases at -20 dBFS.
SWRESAMPLE = f"filter_size=160:phase_shift=10:kaiser_beta=12:{_INTERNAL}"

#: The sample format of all stages that compute samples.
WORKING_FORMAT = "dblp"

# Arguments of aresample that dither to each depth; None for floats, which lossy formats have too,
# and for waveforms. Below 4 kHz, where hearing is sensitive, the noise of triangular_hp is 5 dB
# lower than plain triangular noise.
_DITHERED = {"16": "osf=s16", "24": "osf=s32:output_sample_bits=24", "32f": None, "": None}


def output_depth(options: VariantOptions, probe: Probe) -> str:
    """Return the output's bit depth as a value of ``bd``; empty for formats without a depth.

    Without ``bd`` it is the format's smallest depth that holds the source's depth, else its
    largest.
    """
    depths = options.format.depths
    if options.bd is not None or not depths:
        return options.bd or ""
    return next((d for d in depths if int(d.rstrip("f")) >= probe.bit_depth), depths[-1])


def output_sample_format(options: VariantOptions, probe: Probe) -> str:
    """Return the sample format of the output's encoder, as ffmpeg names it."""
    return ENCODERS[options.f].encoders[output_depth(options, probe)][1]


def resample(rate: int, output_rate: int, resampler: str) -> list[str]:
    """Return the filters that convert the sample rate; none where it stays the same.

    Every change of rate has a filter of its own: those that ffmpeg inserts have default settings.

    :param rate: Hz.
    :param resampler: `SOXR` or `SWRESAMPLE`.
    """
    return [] if rate == output_rate else [f"aresample={output_rate}:{resampler}"]


def convert_samples(
    rate: int, layout: str | None = None, sample_format: str = WORKING_FORMAT
) -> str:
    """Return the filter that converts samples of a rate, by default to the working format.

    ffmpeg 5.1 cannot choose a channel layout between two conversions of a source in which it seeks
    (measured with loudnorm). So the layout is stated where it is known.

    :param rate: Hz.
    """
    words = f"aformat=sample_fmts={sample_format}:sample_rates={rate}"
    return words if layout is None else f"{words}:channel_layouts={layout}"


def dither_filter(options: VariantOptions, probe: Probe, *, computed: bool) -> str | None:
    """Return the filter that reduces samples to the output's depth; None where nothing is lost.

    Its noise is the same on every run. Samples must arrive in the working format: libswresample
    would let the sum of 32-bit integers and noise overflow.

    :param computed: a stage has computed samples, which have all bits of the working format.
    """
    depth = output_depth(options, probe)
    dithered = _DITHERED[depth]
    if dithered is None or not (computed or probe.decoded_bits > int(depth)):
        return None
    return f"aresample={dithered}:dither_method=triangular_hp"
