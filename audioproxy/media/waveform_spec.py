"""The parameters of a waveform that are known before its first sample."""

from __future__ import annotations

from dataclasses import dataclass

from audioproxy.grammar.options import PEAKS_DEFAULTS, VariantOptions
from audioproxy.media.command.filters import output_channels, output_rate
from audioproxy.media.probe import Probe


@dataclass(frozen=True, slots=True)
class WaveformSpec:
    """The samples that a waveform is rendered from, and its form.

    :ivar sample_rate: of the decoded frames, in Hz.
    :ivar decoded_channels: channels of the decoded frames, 1 or 2.
    :ivar channels: channels of the waveform; one channel from two decoded ones is their mean.
    :ivar pixels: their number, which does not depend on the source's length.
    :ivar bits: of each value, 8 or 16.
    :ivar serialization: a value of ``pk_fmt``.
    """

    sample_rate: int
    decoded_channels: int
    channels: int
    pixels: int
    bits: int
    serialization: str

    @classmethod
    def of(cls, options: VariantOptions, probe: Probe) -> WaveformSpec:
        """Return the parameters for the options of an ``f:peaks`` variant."""
        decoded_channels = output_channels(options, probe)
        return cls(
            output_rate(options, probe),
            decoded_channels,
            options.ch or PEAKS_DEFAULTS["ch"],
            options.pts or PEAKS_DEFAULTS["pts"],
            options.pk_bits or PEAKS_DEFAULTS["pk_bits"],
            options.pk_fmt or PEAKS_DEFAULTS["pk_fmt"],
        )
