"""What a waveform is rendered from: its parameters, and samples that need no decoder."""

from __future__ import annotations

from dataclasses import dataclass

from audioproxy.grammar.options import PEAKS_DEFAULTS, VariantOptions
from audioproxy.media.command.decoding import Pipeline
from audioproxy.media.command.needs import Needs
from audioproxy.media.command.stages import output_channels, output_rate
from audioproxy.media.command.trim import expected_range
from audioproxy.media.lengths.pcm import sample_bytes
from audioproxy.media.probe import Probe
from audioproxy.media.reading import SourceLength


@dataclass(frozen=True, slots=True)
class WaveformSpec:
    """The samples that a waveform is rendered from, and its form.

    :ivar sample_rate: of the decoded frames, in Hz.
    :ivar channels: channels of the waveform; one channel from two decoded ones is their mean.
    :ivar pixels: their number, which does not depend on the source's length.
    :ivar bits: of each value, 8 or 16.
    """

    sample_rate: int
    decoded_channels: int
    channels: int
    pixels: int
    bits: int
    serialization: str

    @classmethod
    def of(cls, options: VariantOptions, probe: Probe) -> WaveformSpec:
        return cls(
            output_rate(options, probe),
            output_channels(options, probe),
            options.ch or PEAKS_DEFAULTS["ch"],
            options.pts or PEAKS_DEFAULTS["pts"],
            options.pk_bits or PEAKS_DEFAULTS["pk_bits"],
            options.pk_fmt or PEAKS_DEFAULTS["pk_fmt"],
        )


class UnusualSamples(Exception):
    """Only ffmpeg can convert the samples: they are NaN, infinite or huge."""


@dataclass(frozen=True, slots=True)
class PcmSamples:
    """Where a source has its samples, and their form; ``offset`` is in bytes."""

    codec: str
    offset: int
    frames: int
    channels: int


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the samples of a waveform, or of a part of it.

    :ivar pipeline: decodes them to raw samples of 16 bits.
    :ivar samples: those that need no decoder, or None.
    :ivar frames: their expected number; None where nothing tells it.
    """

    pipeline: Pipeline
    samples: PcmSamples | None
    frames: int | None
    pixels: int


def expected_frames(
    options: VariantOptions, probe: Probe, length: SourceLength | None = None
) -> int | None:
    """Return how many frames a waveform is expected to have: headers and ``t`` may be wrong."""
    covered = expected_range(options, probe, length)
    return len(covered) if covered else None


def readable_samples(options: VariantOptions, probe: Probe) -> PcmSamples | None:
    """Return the samples that a render reads itself; None where it needs ffmpeg."""
    length = probe.length
    if length is None or not length.data_offset or not Needs.of(options, probe).samples:
        return None
    covered = expected_range(options, probe, length)
    if not covered:
        return None
    offset = length.data_offset + covered.start * probe.channels * sample_bytes(probe.codec)
    return PcmSamples(probe.codec, offset, len(covered), probe.channels)
