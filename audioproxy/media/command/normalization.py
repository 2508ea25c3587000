"""The stage ``norm``: loudness normalization by EBU R 128.

No sound that is shorter than a block of ITU-R BS.1770 has a loudness, and each version of ffmpeg
changes such a sound by another gain. So its gain is that of the sound repeated to this length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal

from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.values import print_decimal
from audioproxy.media.command.trim import may_be_shorter
from audioproxy.media.conversion import convert_samples, resample
from audioproxy.media.probe import Probe

#: Seconds of a block of the loudness measurement (ITU-R BS.1770-5, annex 1).
BLOCK = Decimal("0.4")
#: Hz at which loudnorm works.
LOUDNORM_RATE = 192_000

# Where a resampler directly follows loudnorm, ffmpeg 7.1.5 aborts at the end of some sources, by an
# assertion. Frames of 100 ms in between prevent it, and change no sample.
_FRAMES = f"asetnsamples=n={LOUDNORM_RATE // 10}:p=0"
# FFmpeg 6.0 to 9.0 output samples that are no numbers for less than 3 seconds of silence
# (findings/ffmpeg6-loudnorm-silence.sh).
_SHORTEST_SILENCE = Decimal(3)
_KEEP_SILENCE = "aeval=if(isnan(val(ch))\\,0\\,val(ch)):c=same"


def norm_filters(
    options: VariantOptions, probe: Probe, layout: str, resampler: str, length: int | None
) -> Iterator[str]:
    """Yield the filters of the stage for a sound of so many samples, or of an unknown number."""
    targets, rate = options.norm, probe.sample_rate
    assert targets is not None
    block = math.ceil(BLOCK * rate)
    brief = length if length is not None and length < block else None
    if brief is not None:
        yield f"aloop=loop={block // brief}:size={brief},atrim=end_sample={block}"
    yield convert_samples(rate, layout)
    yield from resample(rate, LOUDNORM_RATE, resampler)
    yield (
        f"loudnorm=I={print_decimal(targets.integrated)}:TP={print_decimal(targets.true_peak)}"
        f":LRA={print_decimal(targets.loudness_range)}:linear=false:dual_mono=false"
    )
    yield _FRAMES
    yield from resample(LOUDNORM_RATE, rate, resampler)
    yield convert_samples(rate, layout)
    if may_be_shorter(options, probe, _SHORTEST_SILENCE):
        yield _KEEP_SILENCE
    if brief is not None:
        yield f"atrim=end_sample={brief}"
