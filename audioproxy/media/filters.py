"""The filter chain of a render: one fixed order, whatever the order of the options.

    trim, enhance, channels, norm, gain, fade, length

Enhance comes ahead of every other stage (contract: enhance; D51), so it processes each channel of
the source. Loudness is measured on the channels that are heard. Gain follows norm, which would undo
it; fades follow norm, which would lift them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.options import Fade, Loudness, VariantOptions
from audioproxy.grammar.values import print_decimal
from audioproxy.media.presets import HIGHEST_RATE, LOWEST_RATE, PRESETS
from audioproxy.media.probe import Probe
from audioproxy.media.trim import SampleRange

_LAYOUTS = {1: "mono", 2: "stereo"}
# Up to here ffmpeg guesses the layout of unlabelled channels; three it takes for 2.1 and
# drops the third.
_GUESSED_CHANNELS = 8
_MISTAKEN_CHANNELS = 3

# How ffprobe spells a layout that has no name, such as `2 channels (BL+BR)`.
_LISTED_LAYOUT = re.compile(r"\d+ channels \((.+)\)")
_AMBISONIC = "ambisonic"
_FRONT = ("FL", "FR", "FC")
_PAIRS = (("FL", "FR"), ("SL", "SR"), ("BL", "BR"), ("FLC", "FRC"))

_LOUDNORM_RATE = 192_000
_SAMPLES_TO_NORMALIZE = 100
# libswresample puts out nothing for fewer samples than its filter has taps: 33 at the lower of the
# two rates (measured on ffmpeg 5.1).
_SAMPLES_TO_RESAMPLE = 64


def output_channels(options: VariantOptions, probe: Probe) -> int:
    """Return how many channels ffmpeg puts out: those of the source, at most 2.

    Where nothing but trimming is done to the source, the one channel of peaks is mixed where it
    is reduced (`audioproxy.media.waveform`), to the same bit as audiowaveform's.
    """
    if options.f == "peaks" and probe.channels == 2 and not _processes(options):
        return 2
    return options.ch or min(probe.channels, 2)


def output_rate(options: VariantOptions, probe: Probe) -> int:
    """Return the output's sample rate in Hz: ``sr``, else the nearest to the source's (D8)."""
    return options.sr or options.format.rates.nearest(probe.sample_rate)


def may_need_length(options: VariantOptions, probe: Probe) -> bool:
    """Return whether a render without audio may end otherwise once the source is measured.

    The source may end before ``t``, whatever it states; or it has fewer samples than a resampler
    needs, which are padded once their number is known (D13).
    """
    resampled = output_rate(options, probe) != probe.sample_rate
    return not probe.measured and (options.t is not None or resampled)


def _processes(options: VariantOptions) -> bool:
    stages = (options.enhance, options.norm, options.gain, options.fade)
    return any(stage is not None for stage in stages)


def filter_chain(options: VariantOptions, probe: Probe, region: SampleRange) -> str:
    """Return the chain for ``-af``, or nothing where the source passes as it is.

    The rate is pinned to the source's around every stage that could move it. Without that,
    ffmpeg carries the 192 kHz that loudnorm works at back to the stages before it.

    :raises InvalidOptions: for a source that a stage does not work with.
    """
    rate = probe.sample_rate
    pin = f"aformat=sample_rates={rate}"
    stages = list(_stages(options, probe, region, pin))
    if stages and stages[-1] != pin:
        stages.append(pin)
    stages += _lengthen(output_rate(options, probe), probe, region)
    return ",".join(stages)


def _stages(options: VariantOptions, probe: Probe, region: SampleRange, pin: str) -> Iterator[str]:
    channels = output_channels(options, probe)
    if _lacks_layout(probe):
        # The filters of `enhance` need a layout.
        yield _pan(probe.channels, channels)
    if region.start or region.end is not None:
        yield pin
        yield from _trim(region)
    if options.enhance is not None:
        yield pin
        yield from _enhance(options.enhance, probe.sample_rate)
    if not _lacks_layout(probe):
        yield from _mix(probe.channels, channels)
    if options.norm is not None:
        yield from _normalize(options.norm, probe, region, pin)
    if options.gain is not None:
        yield f"volume=volume={print_decimal(options.gain)}dB:precision=double:eval=once"
    if options.fade is not None:
        yield from _fades(options.fade, region, probe.sample_rate)


def _lacks_layout(probe: Probe) -> bool:
    """Return whether the channels have no layout that ffmpeg can mix. One needs none."""
    if probe.channels > _GUESSED_CHANNELS:
        return True
    if probe.layout is None:
        return probe.channels == _MISTAKEN_CHANNELS
    return probe.channels > 1 and not _can_be_mixed(probe.layout)


def _can_be_mixed(layout: str) -> bool:
    """Return whether libswresample takes the layout (sane_layout in its rematrix.c).

    It wants a speaker in front, and both of each pair. All layouts of speakers that have a name of
    their own are such.
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
    """Mix channels that have a layout."""
    if (source, channels) == (1, 2):
        # ffmpeg's own mix takes 3 dB off each side. One voice from two speakers is that voice.
        yield "pan=stereo|c0=c0|c1=c0"
    elif source != channels:
        # Left to itself, ffmpeg mixes floats louder than integers, and past full scale.
        yield "aresample=rematrix_maxval=1"
        yield f"aformat=channel_layouts={_LAYOUTS[channels]}"


def _pan(source: int, channels: int) -> str:
    """Mix channels without a layout that can be mixed: in turn left and right, evenly."""
    if source == channels:
        # Where nothing is mixed, the filter below would look at the layout all the same.
        return f"channelmap=map=0|1:channel_layout={_LAYOUTS[channels]}"
    mixes = []
    for target in range(channels):
        members = range(target, source, channels)
        mix = "+".join(f"{1 / len(members):.6f}*c{member}" for member in members)
        mixes.append(f"c{target}={mix}")
    return f"pan={_LAYOUTS[channels]}|" + "|".join(mixes)


def _trim(region: SampleRange) -> Iterator[str]:
    end = "" if region.end is None else f":end_sample={region.end}"
    yield f"atrim=start_sample={region.start}{end}"
    yield "asetpts=PTS-STARTPTS"


def _enhance(preset: str, rate: int) -> tuple[str, ...]:
    _check_rate(f"enhance:{preset}", rate, HIGHEST_RATE)
    return PRESETS[preset](rate)


def _check_rate(segment: str, rate: int, highest: int | None) -> None:
    """Refuse a source so slow that a second of it is an age, or too fast."""
    if LOWEST_RATE <= rate <= (highest or rate):
        return
    accepted = f"at least {LOWEST_RATE}" if highest is None else f"{LOWEST_RATE} to {highest}"
    raise InvalidOptions(
        f'"{segment}" is not accepted: it takes sources of {accepted} Hz, and this one has {rate}.'
    )


def _normalize(norm: Loudness, probe: Probe, region: SampleRange, pin: str) -> Iterator[str]:
    """Change the loudness and nothing else.

    loudnorm works at its own rate. The way there and back makes less of a few samples, and one too
    many of some lengths at some rates (measured on ffmpeg 5.1 from 1 to 384 kHz). What the source
    states of its length is not used to cut, only what was measured: where more comes, all of it is
    heard.
    """
    rate = probe.sample_rate
    _check_rate(f"norm:{norm}", rate, highest=None)
    enough = _SAMPLES_TO_NORMALIZE * -(-rate // _LOUDNORM_RATE)
    length = None if region.end is None else region.end - region.start
    yield pin
    if probe.measured and region.length is not None and region.length < enough:
        length = region.length
        yield f"apad=whole_len={enough}"
    yield (
        f"loudnorm=I={print_decimal(norm.integrated)}:TP={print_decimal(norm.true_peak)}"
        f":LRA={print_decimal(norm.loudness_range)}:linear=false:dual_mono=false"
    )
    yield pin
    if length is not None:
        yield f"atrim=end_sample={length}"


def _lengthen(output: int, probe: Probe, region: SampleRange) -> Iterator[str]:
    """Give the resampler enough samples, and cut its output to the right length (D13).

    Only what was measured is known well enough: silence in place of a source that gives nothing
    would make it look decodable.

    :param output: the output's rate in Hz.
    """
    rate, length = probe.sample_rate, region.length
    enough = _SAMPLES_TO_RESAMPLE * -(-rate // output)
    if output == rate or not probe.measured or length is None or length >= enough:
        return
    yield f"apad=whole_len={2 * enough}"
    yield f"aformat=sample_rates={output}"
    yield f"atrim=end_sample={max(1, round(length * output / rate))}"


def _fades(fade: Fade, region: SampleRange, rate: int) -> Iterator[str]:
    fade_in = round(fade.fade_in * rate)
    if fade_in:
        yield f"afade=t=in:ss=0:ns={fade_in}:curve=tri"
    # One that is longer than the output has the whole of it.
    fade_out = round(fade.fade_out * rate)
    if fade_out and region.length is not None:
        fade_out = min(fade_out, region.length)
        yield f"afade=t=out:ss={region.length - fade_out}:ns={fade_out}:curve=tri"
