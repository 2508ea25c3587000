"""The duration in an info document, where ffprobe has none or a wrong one (D71)."""

from __future__ import annotations

from decimal import Decimal

from audioproxy.media.lengths.containers import may_be_exact, read_length, run_reader
from audioproxy.media.lengths.mp3 import read_duration
from audioproxy.media.probe import Check, Probe
from audioproxy.media.reading import ReadRange

# Kinds in which ffprobe reads a duration that the file contradicts, and the seconds by which it may
# differ. In Ogg, ffprobe takes the granule position of the last page for the end. The position is
# wrong in files that were cut out of a longer stream, and in those of some phones. Usually it
# differs by the encoder's delay alone. In Musepack, ffprobe rounds down to whole packets.
_DOUBTFUL = {
    ("ogg", "opus"): Decimal("0.1"),
    ("ogg", "flac"): Decimal("0.1"),
    ("mpc8", "musepack8"): Decimal(0),
}

# ffprobe prints durations with six decimals.
_DECIMALS = 6


def is_doubtful(probe: Probe) -> bool:
    """Return whether reading the source may give another duration than that of ffprobe."""
    if Check.DURATION not in probe.pending:
        return False
    if probe.container == "mp3":
        # ffprobe reads each header that states the duration, and may count the padding.
        return True
    lacks_duration = probe.description.duration is None and may_be_exact(probe)
    return lacks_duration or probe.kind in _DOUBTFUL


async def describe(read: ReadRange, size: int, probe: Probe) -> Probe:
    """Return the probe of a source that `is_doubtful`, with the right duration and bit rate."""
    probe = probe.checked(Check.DURATION)
    if probe.container == "mp3":
        return await run_reader(read, size, read_duration(size, probe)) or probe
    length = probe.length or await read_length(read, size, probe)
    stated = probe.description.duration
    if length is not None and length.exact:
        duration = round(Decimal(length.samples) / probe.sample_rate, _DECIMALS)
        tolerance = _DOUBTFUL.get(probe.kind, Decimal(0))
        if stated is None or abs(stated - duration) > tolerance:
            bitrate = 8 * size * probe.sample_rate // length.samples
            return probe.described(duration=duration, bitrate=bitrate)
    return probe
