"""The filter chain of a render, in an order that does not depend on the order of the options.

    trim, enhance, channels, norm, gain, fade, sample rate, bit depth, exact length

Enhance precedes every other stage that changes the sound (Time-domain and preview options; D51), so
it processes each channel of the source. Norm follows channels, so the loudness is that of the
output's channels. Gain follows norm, which would undo it. Fades follow norm, which would raise the
quiet parts again. The bit depth is reduced once, after all stages that compute samples (D60).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.values import Fade, print_decimal
from audioproxy.media.command.downmix import OUTPUT_LAYOUTS, Mix, layout_of_filters
from audioproxy.media.command.exact_length import (
    exact_length_filters,
    length_tolerance,
    resampled_count,
)
from audioproxy.media.command.needs import Needs
from audioproxy.media.command.normalization import norm_filters
from audioproxy.media.command.presets import LOWEST_RATE, PRESETS
from audioproxy.media.command.stages import (
    computes,
    dither_filter,
    output_channels,
    output_mix,
    output_rate,
    output_sample_format,
    stage_rates,
)
from audioproxy.media.command.trim import SampleRange, trim_filters, trim_range
from audioproxy.media.conversion import SOXR, WORKING_FORMAT, convert_samples, resample
from audioproxy.media.probe import Probe

#: All filters of ffmpeg that command lines contain, which are checked at boot.
FILTERS = (
    "aformat aresample atrim asetpts apad channelmap pan volume afade loudnorm"
    " highpass afftdn deesser acompressor alimiter"
    " aloop ametadata aselect asetnsamples asplit concat asettb aeval silencedetect"
).split()

#: Ahead of every stage whose output depends on the sizes of the frames that reach it, so that it is
#: the same whatever decodes the source (D78). These are dither, whose noise begins anew at the end
#: of a frame (findings/ffmpeg-dither-frame-size.sh), and highpass, the first filter of a preset,
#: which rounds otherwise after an odd number of samples (measured on ffmpeg 5.1, 7.1 and 9.0, with
#: frames of 333 to 8191 samples).
EVEN_FRAMES = "asetnsamples=n=4096:p=0"
# The numbers of samples that the header of flac can state: years of audio.
_MOST_SAMPLES = 1 << 36
# If a stage has more than twice the sample rate of the source, the audio is split into frames of
# 100 ms. Otherwise ffmpeg 5.1.9 takes gigabytes to resample a frame that lasts long. Without that
# memory, libswresample drops the frame and reports no error. The split changes no sample of the
# output.
_MOST_FOLD = 2
_FRAMES_PER_SECOND = 10


def output_samples(options: VariantOptions, probe: Probe) -> int | None:
    """Return the number of samples of the output.

    It is None where nothing confirms it, and where only a broken source can have so many.
    """
    sample_range = trim_range(options, probe)
    if sample_range.length is None:
        return None
    start = sample_range.seek + sample_range.start
    rate = output_rate(options, probe)
    samples = resampled_count(start, sample_range.length, probe.sample_rate, rate)
    return samples if samples < _MOST_SAMPLES else None


def filter_chain(options: VariantOptions, probe: Probe, resampler: str = SOXR) -> list[str]:
    """Return the stages of the chain for ``-af``; there may be none.

    ffmpeg converts sample formats wherever two stages differ. So the format is fixed ahead of the
    stages that count samples or compute them, and after these stages.

    :raises InvalidOptions: for options that do not fit this source.
    """
    sample_range = trim_range(options, probe)
    rate, layout = probe.sample_rate, OUTPUT_LAYOUTS[output_channels(options, probe)]
    mix = output_mix(options, probe)
    computed = computes(options) or (mix is not None and mix.computed)
    padding = []
    if needed := Needs.of(options, probe).padding:
        padding = [f"apad=whole_len={needed}"]
    stages = [*trim_filters(sample_range, rate), *padding]
    if stages:
        rate_filter = f"aformat=sample_rates={rate}"
        stages = [rate_filter, *stages, rate_filter]
    if max(stage_rates(options, probe)) > _MOST_FOLD * rate:
        stages.insert(0, f"asetnsamples=n={-(-rate // _FRAMES_PER_SECOND)}:p=0")
    if computed:
        stages.append(convert_samples(rate, layout if mix is None else None))
    stages += _changes(options, probe, sample_range, mix, layout, resampler, padding)
    if computed:
        stages.append(convert_samples(rate, layout))
    samples, output = output_samples(options, probe), output_rate(options, probe)
    dither = dither_filter(options, probe, computed=computed or output != rate)
    ends = [] if dither is None else [EVEN_FRAMES, dither]
    if padding:
        ends.append(f"atrim=end_sample={samples}")
    if samples is not None:
        ends.append(exact_length_filters(samples, output, length_tolerance(probe, output)))
    stages += resample(rate, output, resampler)
    if ends:
        # Otherwise ffmpeg may round resampled audio to the format of the source.
        sample_format = WORKING_FORMAT if dither else output_sample_format(options, probe)
        stages.append(convert_samples(output, layout, sample_format))
    stages += ends
    # Neighboring stages may fix the same rate and format; one filter does.
    return [stage for stage, _ in groupby(stages)]


def _changes(
    options: VariantOptions,
    probe: Probe,
    sample_range: SampleRange,
    mix: Mix | None,
    layout: str,
    resampler: str,
    padding: list[str],
) -> Iterator[str]:
    """Yield the stages from ``enhance`` to ``fade``.

    :param padding: the filters that pad a sound of too few samples. Otherwise the number of samples
        is restored after the stages that have a rate of their own.
    """
    rate = probe.sample_rate
    for key, value in (("enhance", options.enhance), ("norm", options.norm)):
        if value is not None and rate < LOWEST_RATE:
            why = f"it takes sources of at least {LOWEST_RATE} Hz, and this one has {rate}"
            raise InvalidOptions.of(f"{key}:{value}", why)
    unmixed = None if mix is None else layout_of_filters(probe.channels, probe.audio.layout)
    if mix is not None and unmixed is None:
        # The filters of `enhance` need a layout.
        yield mix.filter
    if options.enhance is not None:
        yield EVEN_FRAMES
        yield from PRESETS[options.enhance](rate, unmixed or layout, resampler)
    if mix is not None and unmixed is not None:
        yield mix.filter
    if options.norm is not None:
        if padding:
            # The silence that follows the sound would lower its loudness.
            yield f"atrim=end_sample={sample_range.length}"
        yield from norm_filters(options, probe, layout, resampler, sample_range.length)
        yield from padding
    if not padding and (options.enhance or options.norm):
        # Resampling there and back has added one sample. The output is cut to the end of `t` or to
        # a measured length, but not to a length that the source only states: if the source has more
        # samples than it states, all of them are rendered.
        if sample_range.end is not None:
            yield f"atrim=end_sample={sample_range.end - sample_range.start}"
        elif probe.measured and sample_range.length is not None:
            yield f"atrim=end_sample={sample_range.length}"
    if options.gain:
        yield f"volume=volume={print_decimal(options.gain)}dB:precision=double:eval=once"
    if options.fade is not None:
        yield from _fades(options.fade, sample_range, rate)


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
