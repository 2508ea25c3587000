"""What the stages of a chain make of a source: rate, channels and depth of the output (D60)."""

from __future__ import annotations

from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.downmix import Mix, channel_mix
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.normalization import LOUDNORM_RATE
from audioproxy.media.command.presets import PRESET_RATE
from audioproxy.media.probe import Probe

# Arguments of aresample that dither to each depth; None for floats, which lossy formats have too,
# and for waveforms. Below 4 kHz, where hearing is sensitive, the noise of triangular_hp is 5 dB
# lower than plain triangular noise.
_DITHERED = {"16": "osf=s16", "24": "osf=s32:output_sample_bits=24", "32f": None, "": None}


def output_depth(options: VariantOptions, probe: Probe) -> str:
    """Return the output's bit depth as a value of ``bd``; empty for formats without a depth.

    Without ``bd`` it is the format's smallest depth that holds the source's, else its largest.
    """
    depths = options.format.depths
    if options.bd is not None or not depths:
        return options.bd or ""
    return next((d for d in depths if int(d.rstrip("f")) >= probe.audio.bit_depth), depths[-1])


def output_sample_format(options: VariantOptions, probe: Probe) -> str:
    return ENCODERS[options.f].encoders[output_depth(options, probe)][1]


def output_channels(options: VariantOptions, probe: Probe) -> int:
    """Return the number of channels that ffmpeg outputs: ``ch``, else the source's, at most 2.

    For peaks of a stereo source, it is 2 if no stage but trimming is requested: the reduction
    (`audioproxy.media.waveform`) mixes the two bit for bit as audiowaveform does.
    """
    if options.f == "peaks" and probe.channels == 2 and not computes(options):
        return 2
    return options.ch or min(probe.channels, 2)


def output_rate(options: VariantOptions, probe: Probe) -> int:
    """Return the output's sample rate in Hz: ``sr``, else the nearest to the source's (D8)."""
    return options.sr or options.format.rates.nearest(probe.sample_rate)


def stage_rates(options: VariantOptions, probe: Probe) -> set[int]:
    """Return the sample rates in Hz of the output, and of the stages that have their own."""
    rates = {output_rate(options, probe)}
    if options.enhance is not None:
        rates.add(PRESET_RATE)
    if options.norm is not None:
        rates.add(LOUDNORM_RATE)
    return rates


def output_mix(options: VariantOptions, probe: Probe) -> Mix | None:
    return channel_mix(probe.channels, probe.audio.layout, output_channels(options, probe))


def has_memory(options: VariantOptions) -> bool:
    """Return whether a stage computes samples from others, or by their place in the output."""
    fades = options.fade is not None and (options.fade.fade_in or options.fade.fade_out)
    return bool(options.enhance or options.norm or fades)


def computes(options: VariantOptions) -> bool:
    """Return whether a stage other than the mix of channels computes samples."""
    return bool(options.gain or has_memory(options))


def copies_floats(options: VariantOptions, probe: Probe) -> bool:
    return output_depth(options, probe) == "32f" and _keeps_samples(options, probe)


def copies_samples(options: VariantOptions, probe: Probe) -> bool:
    """Return whether no stage but ``t`` changes samples of the source or mixes them."""
    return output_mix(options, probe) is None and _keeps_samples(options, probe)


def _keeps_samples(options: VariantOptions, probe: Probe) -> bool:
    mix = output_mix(options, probe)
    same_rate = output_rate(options, probe) == probe.sample_rate
    return same_rate and not computes(options) and (mix is None or not mix.computed)


def dither_filter(options: VariantOptions, probe: Probe, *, computed: bool) -> str | None:
    """Return the filter that reduces samples to the output's depth; None where nothing is lost.

    Its noise is the same on every run. Samples must arrive in the working format: libswresample
    would let the sum of 32-bit integers and noise overflow. Computed samples have all of its bits.
    """
    depth = output_depth(options, probe)
    dithered = _DITHERED[depth]
    if dithered is None or not (computed or probe.audio.decoded_bits > int(depth)):
        return None
    return f"aresample={dithered}:dither_method=triangular_hp"
