"""The filter chain of a render, in an order that does not depend on the order of the options.

    trim, enhance, channels, norm, gain, fade, exact length

Enhance precedes every other stage that changes the sound (Time-domain and preview options; D51), so
it processes each channel of the source. Norm follows channels, so the loudness is that of the
output's channels. Gain follows norm, which would undo it. Fades follow norm, which would raise the
quiet parts again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.options import Fade, Loudness, VariantOptions
from audioproxy.grammar.values import print_decimal
from audioproxy.media.exact_length import exact_length_filters, resampled_count
from audioproxy.media.length_headers import LENGTH_HEADERS
from audioproxy.media.presets import HIGHEST_RATE, LOWEST_RATE, PRESETS
from audioproxy.media.probe import Probe
from audioproxy.media.trim import SampleRange, find_sample_range

_LAYOUTS = {1: "mono", 2: "stereo"}
# ffmpeg guesses the layout of up to eight unlabeled channels. It takes three channels for 2.1, and
# drops the third one.
_GUESSED_CHANNELS = 8
_MISTAKEN_CHANNELS = 3

# How ffprobe spells a layout that has no name, such as `2 channels (BL+BR)`.
_LISTED_LAYOUT = re.compile(r"\d+ channels \((.+)\)")
_AMBISONIC = "ambisonic"
_FRONT = ("FL", "FR", "FC")
_PAIRS = (("FL", "FR"), ("SL", "SR"), ("BL", "BR"), ("FLC", "FRC"))

# The numbers of samples that the header of flac can state: years of audio.
_MOST_SAMPLES = 1 << 36
_LOUDNORM_RATE = 192_000
_SAMPLES_TO_NORMALIZE = 100
# libswresample outputs nothing for fewer samples than its filter has taps. The least number that
# gives an output is 33, counted at the lower of the input's and the output's rate (measured on
# ffmpeg 5.1). The limit has a margin.
_SAMPLES_TO_RESAMPLE = 64


def output_channels(options: VariantOptions, probe: Probe) -> int:
    """Return the number of channels that ffmpeg outputs: ``ch``, else the source's, at most 2.

    For peaks of a stereo source, it is 2 if no stage but trimming is requested. If one channel is
    requested, the reduction (`audioproxy.media.waveform`) mixes the two, bit for bit as
    audiowaveform does.
    """
    if options.f == "peaks" and probe.channels == 2 and not _processes(options):
        return 2
    return options.ch or min(probe.channels, 2)


def output_rate(options: VariantOptions, probe: Probe) -> int:
    """Return the output's sample rate in Hz: ``sr``, else the nearest to the source's (D8)."""
    return options.sr or options.format.rates.nearest(probe.sample_rate)


def output_samples(options: VariantOptions, probe: Probe, sample_range: SampleRange) -> int | None:
    """Return the number of samples of the output.

    It is None where nothing confirms it, and where only a broken source can have so many.
    """
    if sample_range.length is None:
        return None
    start = sample_range.seek * probe.sample_rate + sample_range.start
    rate = output_rate(options, probe)
    samples = resampled_count(start, sample_range.length, probe.sample_rate, rate)
    return samples if samples < _MOST_SAMPLES else None


def may_need_length(options: VariantOptions, probe: Probe) -> bool:
    """Return whether measuring the source may change the outcome of a render that output no audio.

    The source may end before ``t`` starts, whatever its header states. Or it has fewer samples than
    a resampler needs; it is padded once the number of its samples is known (D13).
    """
    resampled = output_rate(options, probe) != probe.sample_rate
    return not probe.measured and (options.t is not None or resampled)


def is_too_short_to_resample(options: VariantOptions, probe: Probe) -> bool:
    """Return whether a resampler needs more samples than a measured source gives it (D13)."""
    length = find_sample_range(options, probe).length
    output = output_rate(options, probe)
    return (
        probe.measured
        and length is not None
        and output != probe.sample_rate
        and length < _enough_to_resample(output, probe)
    )


def _enough_to_resample(output: int, probe: Probe) -> int:
    return _SAMPLES_TO_RESAMPLE * -(-probe.sample_rate // output)


def _processes(options: VariantOptions) -> bool:
    stages = (options.enhance, options.norm, options.gain, options.fade)
    return any(stage is not None for stage in stages)


def filter_chain(options: VariantOptions, probe: Probe, sample_range: SampleRange) -> str:
    """Return the chain for ``-af``; it is empty where no filter is needed.

    The sample rate is pinned to the source's around every stage that could change it. Otherwise
    ffmpeg extends loudnorm's rate of 192 kHz to the stages before it.

    :raises InvalidOptions: for a source that a stage does not support.
    """
    rate = probe.sample_rate
    rate_filter = f"aformat=sample_rates={rate}"
    stages = list(_stages(options, probe, sample_range, rate_filter))
    if stages and stages[-1] != rate_filter:
        stages.append(rate_filter)
    output, samples = output_rate(options, probe), output_samples(options, probe, sample_range)
    if is_too_short_to_resample(options, probe):
        stages += _pad_and_cut(output, probe, samples)
    if options.f in LENGTH_HEADERS and samples is not None:
        if output != rate:
            stages.append(f"aformat=sample_rates={output}")
        stages.append(exact_length_filters(samples, output))
    return ",".join(stages)


def _stages(
    options: VariantOptions, probe: Probe, sample_range: SampleRange, rate_filter: str
) -> Iterator[str]:
    channels = output_channels(options, probe)
    if _lacks_layout(probe):
        # The filters of `enhance` need a layout.
        yield _pan(probe.channels, channels)
    if sample_range.start or sample_range.end is not None:
        yield rate_filter
        yield from _trim(sample_range)
    if options.enhance is not None:
        yield rate_filter
        yield from _enhance(options.enhance, probe.sample_rate)
    if not _lacks_layout(probe):
        yield from _mix(probe.channels, channels)
    if options.norm is not None:
        yield from _normalize(options.norm, probe, sample_range, rate_filter)
    if options.gain is not None:
        yield f"volume=volume={print_decimal(options.gain)}dB:precision=double:eval=once"
    if options.fade is not None:
        yield from _fades(options.fade, sample_range, probe.sample_rate)


def _lacks_layout(probe: Probe) -> bool:
    """Return whether the channels have no layout that ffmpeg can mix. Mono needs no layout."""
    if probe.channels > _GUESSED_CHANNELS:
        return True
    if probe.layout is None:
        return probe.channels == _MISTAKEN_CHANNELS
    return probe.channels > 1 and not _can_be_mixed(probe.layout)


def _can_be_mixed(layout: str) -> bool:
    """Return whether libswresample accepts the layout (sane_layout in its rematrix.c).

    It requires a front speaker. Of each pair of speakers, it requires both or neither. All speaker
    layouts that have a name meet these conditions.
    """
    if layout.startswith(_AMBISONIC):
        return False
    listed = _LISTED_LAYOUT.fullmatch(layout)
    if listed is None:
        return True
    speakers = set(listed[1].split("+"))
    return not speakers.isdisjoint(_FRONT) and all(
        (left in speakers) == (right in speakers) for left, right in _PAIRS
    )


def _mix(source: int, channels: int) -> Iterator[str]:
    """Yield the filters that mix channels with a known layout."""
    if (source, channels) == (1, 2):
        # ffmpeg's own mix lowers each side by 3 dB. Mono from two speakers should keep its level.
        yield "pan=stereo|c0=c0|c1=c0"
    elif source != channels:
        # By default ffmpeg mixes float samples louder than integer samples, and past full scale.
        yield "aresample=rematrix_maxval=1"
        yield f"aformat=channel_layouts={_LAYOUTS[channels]}"


def _pan(source: int, channels: int) -> str:
    """Return the filter that mixes channels without a usable layout.

    For stereo, the channels go alternately to the left and the right. All channels of one side have
    the same weight.
    """
    if source == channels:
        # The filter below would check the layout even where nothing is mixed.
        return f"channelmap=map=0|1:channel_layout={_LAYOUTS[channels]}"
    mixes = []
    for target in range(channels):
        members = range(target, source, channels)
        mix = "+".join(f"{1 / len(members):.6f}*c{member}" for member in members)
        mixes.append(f"c{target}={mix}")
    return f"pan={_LAYOUTS[channels]}|" + "|".join(mixes)


def _trim(sample_range: SampleRange) -> Iterator[str]:
    end = "" if sample_range.end is None else f":end_sample={sample_range.end}"
    yield f"atrim=start_sample={sample_range.start}{end}"
    yield "asetpts=PTS-STARTPTS"


def _enhance(preset: str, rate: int) -> tuple[str, ...]:
    _check_rate(f"enhance:{preset}", rate, HIGHEST_RATE)
    return PRESETS[preset](rate)


def _check_rate(segment: str, rate: int, highest: int | None) -> None:
    """Refuse a source whose sample rate is outside the bounds of a stage."""
    if LOWEST_RATE <= rate <= (highest or rate):
        return
    accepted = f"at least {LOWEST_RATE}" if highest is None else f"{LOWEST_RATE} to {highest}"
    raise InvalidOptions(
        f'"{segment}" is not accepted: it takes sources of {accepted} Hz, and this one has {rate}.'
    )


def _normalize(
    norm: Loudness, probe: Probe, sample_range: SampleRange, rate_filter: str
) -> Iterator[str]:
    """Yield the filters that change the loudness and nothing else.

    loudnorm works at its own rate. Resampling there and back shortens an input of a few samples. At
    some rates, it adds one sample to inputs of some lengths (measured on ffmpeg 5.1 from 1 to 384
    kHz). The output is cut to the end of ``t`` or to a measured length, but not to a length that
    the source only states. If the source has more samples than it states, all of them are rendered.
    """
    rate = probe.sample_rate
    _check_rate(f"norm:{norm}", rate, highest=None)
    enough = _SAMPLES_TO_NORMALIZE * -(-rate // _LOUDNORM_RATE)
    length = None if sample_range.end is None else sample_range.end - sample_range.start
    yield rate_filter
    if probe.measured and sample_range.length is not None and sample_range.length < enough:
        length = sample_range.length
        yield f"apad=whole_len={enough}"
    yield (
        f"loudnorm=I={print_decimal(norm.integrated)}:TP={print_decimal(norm.true_peak)}"
        f":LRA={print_decimal(norm.loudness_range)}:linear=false:dual_mono=false"
    )
    yield rate_filter
    if length is not None:
        yield f"atrim=end_sample={length}"


def _pad_and_cut(output: int, probe: Probe, samples: int | None) -> Iterator[str]:
    """Yield the filters that pad a short input for the resampler and cut its output (D13).

    They follow only a measured length. If a source gives no samples, padding it with silence would
    make it look decodable.

    :param output: the output's rate in Hz.
    :param samples: the number of samples of the output.
    """
    yield f"apad=whole_len={2 * _enough_to_resample(output, probe)}"
    yield f"aformat=sample_rates={output}"
    yield f"atrim=end_sample={samples}"


def _fades(fade: Fade, sample_range: SampleRange, rate: int) -> Iterator[str]:
    fade_in = round(fade.fade_in * rate)
    if fade.fade_in or fade.fade_out:
        # The filter counts samples by their time stamps, which have gaps where a source is damaged.
        yield "asetpts=N"
    if fade_in:
        yield f"afade=t=in:ss=0:ns={fade_in}:curve=tri"
    # A fade-out that is longer than the output covers all of it.
    fade_out = round(fade.fade_out * rate)
    if fade_out and sample_range.length is not None:
        fade_out = min(fade_out, sample_range.length)
        yield f"afade=t=out:ss={sample_range.length - fade_out}:ns={fade_out}:curve=tri"
