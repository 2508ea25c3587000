"""The exact number of samples of an output, and the filters that make the output have it.

Decoders and resamplers add or drop a few samples. A damaged source has fewer samples than it
states. A source whose headers are wrong may have more samples, or far fewer.
"""

from __future__ import annotations

import re

from audioproxy.media.probe import Probe

# Samples by which resamplers and most decoders miss the exact number.
_ROUNDING = 64
# Seconds of silence that may replace samples that a damaged source lacks.
_LONGEST_PADDING = 1
# Samples of one frame past the stated length. ffmpeg reports each of these frames.
_EXCESS_FRAME = 1 << 20

# Metadata of the frames past which ffmpeg prints: the time stamp is the number of samples.
_TAIL_KEY, _EXCESS_KEY = "audioproxy.tail", "audioproxy.excess"
#: Matches what ffmpeg prints where the source has more samples than it states.
EXCESS = re.escape(_EXCESS_KEY.encode())
_TAIL = re.compile(rb"^frame:0 +pts:(\d+) [^\n]*\n" + re.escape(_TAIL_KEY.encode()), re.MULTILINE)


def resampled_count(start: int, count: int, rate: int, output_rate: int) -> int:
    """Return the number of samples of a range after resampling; at least 1.

    Both ends of the range are rounded, so that consecutive ranges add up.
    """

    def resampled(sample: int) -> int:
        return (2 * sample * output_rate + rate) // (2 * rate)

    return max(1, resampled(start + count) - resampled(start))


def length_tolerance(probe: Probe, output_rate: int) -> int:
    """Return the number of samples by which an output misses its length without a loss.

    Some codecs end within a frame, and decoders do not cut all last frames: a Vorbis block overlaps
    the next one, and the last mp3 frames are those that flush the encoder.
    """
    block = 0 if probe.length is None else probe.length.block
    return max(_ROUNDING, -(-block * output_rate // probe.sample_rate))


def exact_length_filters(samples: int, rate: int, tolerance: int = _ROUNDING) -> str:
    """Return the filters that give an output its exact length.

    The output is split into three parts: the body, the tail, which is the last second up to the
    stated length, and the excess after it. If the tail has any samples, it is padded with silence.
    If the excess is within the tolerance, it is dropped; otherwise all of it is kept.
    """
    tail = min(samples, _LONGEST_PADDING * rate)
    body = samples - tail
    return ";".join(
        (
            # The time stamps of a damaged source have gaps.
            "asetpts=N,asplit=3[body][tail][excess]",
            f"[body]atrim=end_sample={body}[whole_body]",
            f"[tail]atrim=start_sample={body}:end_sample={samples},asetnsamples=n={tail}:p=0,"
            f"{_report(_TAIL_KEY)},asetpts=0,asetnsamples=n={tail}:p=1[padded_tail]",
            f"[excess]atrim=start_sample={samples},asetnsamples=n={tolerance}:p=0,"
            f"aselect=n+gte(samples_n\\,{tolerance}),asetnsamples=n={_EXCESS_FRAME}:p=0,"
            f"{_report(_EXCESS_KEY)},asetpts=N[kept_excess]",
            # The time stamps after concat are microseconds, in which samples cannot be counted.
            f"[whole_body][padded_tail][kept_excess]concat=n=3:v=0:a=1,asettb=1/{rate}",
        )
    )


def _report(key: str) -> str:
    """Return filters that print the number of samples of each frame to stderr."""
    return (
        f"asetpts=S,ametadata=mode=add:key={key}:value=1,"
        f"ametadata=mode=print:key={key}:file=pipe\\\\:2,ametadata=mode=delete:key={key}"
    )


def length_warning(
    stderr: bytes, samples: int, rate: int, tolerance: int = _ROUNDING
) -> str | None:
    """Return how an output differs from its stated length, by what ffmpeg printed, or None."""
    found = _TAIL.search(stderr)
    if found is None:
        return (
            f"the source lacks more than {_LONGEST_PADDING} second of the samples that it states,"
            " so the header states too many"
        )
    missing = min(samples, _LONGEST_PADDING * rate) - int(found[1])
    if missing <= tolerance:
        return None
    return f"the source lacks {missing / rate:.3f} seconds, which are silent at the end"
