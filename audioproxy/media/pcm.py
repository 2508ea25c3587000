"""Uncompressed samples that the service reads itself, without a decoder."""

from __future__ import annotations

from dataclasses import dataclass

from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.filters import takes_all
from audioproxy.media.probe import Probe

# Codecs whose samples the service converts.
_CODECS = frozenset(
    f"pcm_{kind}"
    for kind in "u8 s8 s16le s16be s24le s24be s32le s32be f32le f32be f64le f64be".split()
)


class UnusualSamples(Exception):
    """Only ffmpeg can convert the samples: they are NaN, infinite or huge."""


@dataclass(frozen=True, slots=True)
class PcmSamples:
    """Where a source has its samples, and their form.

    :ivar codec: ffprobe's name.
    :ivar offset: of the first sample, in bytes.
    :ivar frames: their number; a frame has a sample of each channel.
    """

    codec: str
    offset: int
    frames: int
    channels: int


def may_read_samples(options: VariantOptions, probe: Probe) -> bool:
    """Return whether a render may read the samples itself, if it knows where they are.

    That is so for a waveform of all samples, without any change to them.
    """
    return options.f == "peaks" and probe.codec in _CODECS and takes_all(options, probe)


def find_samples(options: VariantOptions, probe: Probe) -> PcmSamples | None:
    """Return the samples that a render reads itself; None where it needs ffmpeg."""
    length = probe.length
    if length is None or not length.data_offset or not may_read_samples(options, probe):
        return None
    return PcmSamples(probe.codec, length.data_offset, length.samples, probe.channels)
