"""How far an encoder has come, by its own reports, and the time that all of its output takes."""

from __future__ import annotations

import re
from decimal import Decimal
from math import ceil

from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.trim import stated_range, trim_range
from audioproxy.media.probe import Probe

#: Makes ffmpeg report to stderr twice a second, whatever its verbosity is. A longer period would
#: delay its end: since FFmpeg 7, it looks for signals once in each period.
REPORT = ("-stats",)

#: Matches a report. All but the last one end with a carriage return. A report may interrupt a line
#: of another thread.
STATUS = re.compile(rb"size= {0,20}\S{1,20} time=\S{1,20} bitrate=[^\r\n]{0,100}[\r\n]")
# Seconds that are decoded ahead of an output, at most, where its decoder seeks.
_MOST_AHEAD = 2
# Before the first packet, the time is N/A or negative.
_TIME = re.compile(rb" time=(\d+):(\d\d):(\d\d\.\d+) ")


def encoded_seconds(status: bytes) -> float:
    """Return the seconds of audio that an encoder had output at its last report; 0 without one."""
    found = _TIME.search(status)
    if found is None:
        return 0
    hours, minutes, seconds = map(float, found.groups())
    return (hours * 60 + minutes) * 60 + seconds


def expected_seconds(options: VariantOptions, probe: Probe) -> float | None:
    """Return the length of an output in seconds, as far as it is known before the render.

    It is None, too, where the source is decoded ahead of ``t``: that takes as long as it takes.
    """
    if trim_range(options, probe).start > _MOST_AHEAD * probe.sample_rate:
        return None
    start, end = stated_range(options, probe)
    return None if end is None else float(max(Decimal(0), end - start))


def read_share(options: VariantOptions, probe: Probe) -> float:
    """Return how much of a source is read for an output, by estimate; 1 where nothing is known."""
    _, end = stated_range(options, probe)
    if end is None or not probe.duration:
        return 1.0
    return float(min(Decimal(1), end / probe.duration))


def describe_progress(
    status: bytes, expected: float | None, begun: float, elapsed: float
) -> str | None:
    """Return how much of an output was encoded by the deadline, and which one would have done.

    :param status: the last report of the encoder.
    :param expected: seconds of the whole output, or None where unknown.
    :param begun: seconds of the render before the encoder was started.
    :param elapsed: seconds of the render.
    """
    encoded = encoded_seconds(status)
    if not encoded:
        return None
    if expected is None or encoded >= expected:
        return f"By then, {encoded:.0f} s of audio were encoded."
    share = encoded / expected
    needed = round_up(begun + (elapsed - begun) / share)
    percent = f"{100 * share:.3g} %"
    return f"By then, {percent} of the output was encoded: about {needed} s would have sufficed."


def round_up(seconds: float) -> int:
    """Return a number of seconds with two significant digits that is not smaller."""
    whole = ceil(seconds)
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // step) * step
