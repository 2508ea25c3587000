"""Named filter chains. A name keeps its exact chain forever (Time-domain and preview options).

An improved chain gets a new name. The old chain stays, and a test compares its text.
"""

from __future__ import annotations

from collections.abc import Callable

from audioproxy.media.conversion import convert_samples, resample

#: The sample rate in Hz at which presets run. The de-esser compares neighboring samples, so its
#: effect depends on the rate: with these settings, it lowers sibilants by 11 dB at 22.05 kHz, by 4
#: at 48 kHz, and by nothing at 96 kHz (docs/quality.md).
PRESET_RATE = 48_000

#: The lowest sample rate of sources, in Hz. Far below, the times of a limiter are shorter than a
#: sample, and loudnorm, which works at 192 kHz, does not terminate.
LOWEST_RATE = 1000

# afftdn delays its output by two hops, and drops the last two hops. A hop is an eightieth of a
# second (measured on ffmpeg 5.1). Padding and trimming keep length and position exact.
_DENOISER_DELAY = 2 * PRESET_RATE // 80


def _voice(rate: int, layout: str, resampler: str) -> tuple[str, ...]:
    """Return the chain for speech at ``rate`` Hz: high-pass, denoise, de-ess, compress, limit.

    Every parameter is written out, so that the sound does not depend on the defaults of an ffmpeg
    version. The limiter runs at the rate of the source: resampling after it would raise the peaks.
    It compensates its own delay with ``latency=1``.
    """
    return (
        *resample(rate, PRESET_RATE, resampler),
        convert_samples(PRESET_RATE, layout),
        "highpass=f=80:p=2:t=q:w=0.707:m=1:n=0:a=di:r=auto",
        f"apad=pad_len={_DENOISER_DELAY}",
        "afftdn=nr=10:nf=-40:nt=w:rf=-38:tn=0:tr=0:om=o:ad=0.5:fo=1:nl=min",
        f"atrim=start_sample={_DENOISER_DELAY}",
        "asetpts=PTS-STARTPTS",
        "deesser=i=0.4:m=0.5:f=0.5:s=o",
        "acompressor=level_in=1:mode=downward:threshold=0.125893:ratio=3:attack=10:release=120"
        ":makeup=1.412538:knee=2.828427:link=average:detection=rms:level_sc=1:mix=1",
        *resample(PRESET_RATE, rate, resampler),
        convert_samples(rate, layout),
        "alimiter=level_in=1:level_out=1:limit=0.891:attack=5:release=50:asc=0:asc_level=0.5"
        ":level=0:latency=1",
    )


#: The chain of each value of ``enhance``, by the sample rate in Hz and the channel layout of the
#: samples, and by the resampler.
PRESETS: dict[str, Callable[[int, str, str], tuple[str, ...]]] = {"voice": _voice}
