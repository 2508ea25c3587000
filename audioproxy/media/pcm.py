"""Uncompressed samples that the service reads itself, without a decoder."""

from __future__ import annotations

from dataclasses import dataclass

from audioproxy.grammar.options import VariantOptions
from audioproxy.media.filters import takes_all
from audioproxy.media.probe import Probe

#: Bytes of a sample of each codec whose samples the service converts.
SAMPLE_BYTES = {
    "pcm_u8": 1,
    "pcm_s8": 1,
    "pcm_s16le": 2,
    "pcm_s16be": 2,
    "pcm_s24le": 3,
    "pcm_s24be": 3,
    "pcm_s32le": 4,
    "pcm_s32be": 4,
    "pcm_f32le": 4,
    "pcm_f32be": 4,
    "pcm_f64le": 8,
    "pcm_f64be": 8,
}


class UnusualSamples(Exception):
    """Only ffmpeg can convert the samples: they are NaN, infinite or huge."""


@dataclass(frozen=True, slots=True)
class PcmSamples:
    """Where a source has its samples, and their form.

    :ivar codec: ffprobe's name, a key of `SAMPLE_BYTES`.
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
    return options.f == "peaks" and probe.codec in SAMPLE_BYTES and takes_all(options, probe)


def find_samples(options: VariantOptions, probe: Probe) -> PcmSamples | None:
    """Return the samples that a render reads itself; None where it needs ffmpeg."""
    length = probe.length
    if length is None or not length.data_offset or not may_read_samples(options, probe):
        return None
    return PcmSamples(probe.codec, length.data_offset, length.samples, probe.channels)
