"""Conversions of sample rates and sample formats: resamplers and the working format (D60)."""

from __future__ import annotations

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


def resample(rate: int, output_rate: int, resampler: str) -> list[str]:
    """Return the filters that convert the sample rate in Hz; none where it stays the same.

    Every change of rate has a filter of its own: those that ffmpeg inserts have default settings.
    """
    return [] if rate == output_rate else [f"aresample={output_rate}:{resampler}"]


def convert_samples(
    rate: int, layout: str | None = None, sample_format: str = WORKING_FORMAT
) -> str:
    """Return the filter that converts samples of a rate in Hz, by default to the working format.

    ffmpeg 5.1 cannot choose a channel layout between two conversions of a source in which it seeks
    (measured with loudnorm). So the layout is stated where it is known.
    """
    words = f"aformat=sample_fmts={sample_format}:sample_rates={rate}"
    return words if layout is None else f"{words}:channel_layouts={layout}"
