"""Gaps in the time stamps of a source, which are silence (D70).

Packets may be missing: those of a pause that nobody recorded, or of a live stream that was lost.
Others are there, and their decoder skips them, such as the frames of AMR that describe silence. The
time stamps of the audio after them tell how long the silence is.

Time stamps are not exact: containers round them, recorders copy a clock that differs from that of
the samples, and packets arrive early or late. So the samples count, and only a frame that begins
late by half a frame or more has silence ahead of it.
"""

from __future__ import annotations

import re

from audioproxy.media.probe import Probe
from audioproxy.media.reading import LONGEST_GAP

# Containers with a time stamp for each packet or page. Those of AVI count bytes.
_STAMPED = ("amr", "asf", "flv", "matroska", "mov", "mpeg", "mpegts", "ogg")
# Those that round time stamps to a millisecond.
_ROUNDED = ("asf", "flv", "matroska")
# Seconds of silence after which a source gets no more: a small file may state years.
_MOST_SILENCE = 6 * 3600
# Time stamps of MPEG-TS may jump.
_LONGEST = {"mpegts": 10}

# Frames by which a frame after a gap is late, at least. A single frame is no gap where ffmpeg is
# wrong by one, or nearly. It gives a packet of MPEG-PS the time of the next one. Where blocks of
# Vorbis change their size, time stamps are late until the end of the page. 5.1 decodes the last
# frame of the first packet of Windows Media with the time stamp of the second one, and takes the
# header of a further FLAC stream for a frame.
_HALF_A_FRAME, _TWO_FRAMES = 0.5, 1.5
# Codecs whose decoder skips frames of silence.
_SKIPS_SILENCE = ("amr_nb", "amr_wb")
# Containers whose duration includes silence at the end, and is that of the audio.
_STATES_END = ("amr",)
# Where a file was joined with itself, ffmpeg 5.1 and 7.1 take the headers of Opus for packets of 48
# frames of 20 ms each. The frame ahead of the join is trimmed, and that ahead of a pause is not.
_OPUS_HEADERS = 46080

# The variables of the expression that computes time stamps, in samples, and the value that a frame
# gives each of them. They begin at 0.
_VARIABLES = {
    # By how much the frame begins later than the one ahead of it ends.
    "late": "if(N,PTS-end,0)",
    # The same, less the time by which time stamps overlapped: packets arrive at irregular times.
    "left": "late-overlap",
    # The end of a stream, or the beginning of another one, may have shorter frames.
    "frame": "max(NB_SAMPLES,max(last,before))",
    "whole": "frame*round(left/frame)",
    # A gap of 2 ms or more. Containers that round time stamps to a millisecond have whole frames.
    "silence": "if(gte(left,max({frames}*frame-last,SR/500))*lte(late,{longest}*SR)"
    "*gt(N,{delay}*last)*lte(gaps,{most}*SR)*not(eq(late,{headers})*lt(last,before)),"
    "if(lte(abs(left-whole),{rounding}*SR),whole,left),0)",
    "gaps": "gaps+silence",
    # Neither drift nor a step back to an earlier time stamp is an overlap.
    "overlap": "if(silence+gt(late,{longest}*SR)+lt(late,-last),0,"
    "if(lte(abs(late),last/16+{rounding}*SR),overlap,clip(overlap-late,0,floor(SR/2))))",
    "end": "PTS+NB_SAMPLES",
    "before": "last",
    "last": "NB_SAMPLES",
}
_LOADED = {name: f"ld({number})" for number, name in enumerate(_VARIABLES)}


def may_have_gaps(probe: Probe) -> bool:
    if probe.container == "mov":
        return probe.stamps.has_gaps is not False
    if probe.kind == ("ogg", "flac"):
        return probe.stamps.has_gaps is True
    return probe.container in _STAMPED


def jump_arguments(probe: Probe) -> list[str]:
    """Return ffmpeg's arguments for jumps of time stamps, which it closes in some containers."""
    if not may_have_gaps(probe):
        return []
    return ["-dts_delta_threshold", str(_longest(probe))]


def keep_time(probe: Probe) -> list[str]:
    """Return the filters that put silence into gaps; none for a source that has no gaps.

    The first filter adds up the gaps, and counts samples besides. So the second one, which inserts
    silence wherever time stamps have a gap, finds no other differences. It changes no sample. Ahead
    of them, what precedes the first sample is cut.
    """
    first = probe.stamps.first_stamp
    start = [] if first is None else [f"atrim=start_pts={first}"]
    if not may_have_gaps(probe):
        return start
    point = probe.seek_point
    if point is not None and point.unstamped:
        start = [f"asetpts=if(lt(N\\,{point.unstamped})\\,{point.first_stamp}+N\\,PTS)"]
    return [
        *start,
        f"asetpts={_expression(probe)}",
        "aresample=async=1:min_comp=0.001:min_hard_comp=0.001",
        *_silent_end(probe),
    ]


def _silent_end(probe: Probe) -> list[str]:
    """Return the filter that adds the silence at the end that the decoder of AMR skips."""
    # Elsewhere, a length shows that the file was not cut.
    states_end = probe.exact and (probe.container in _STATES_END or probe.length is not None)
    if probe.codec not in _SKIPS_SILENCE or probe.duration is None or not states_end:
        return []
    return [f"apad=whole_len={round(probe.duration * probe.sample_rate)}"]


def _longest(probe: Probe) -> int:
    return _LONGEST.get(probe.container, LONGEST_GAP)


def _expression(probe: Probe) -> str:
    """Return the time stamp of a frame, as an expression of ffmpeg."""
    kind = probe.kind
    is_uncertain = probe.codec.startswith("wma") or kind[0] == "mpeg"
    is_uncertain |= kind in (("ogg", "flac"), ("ogg", "vorbis"))
    # The first packet may be the encoder's delay, ahead of a track that starts late. Of the frames
    # of a Speex packet, the first one alone has a time stamp.
    has_delay = kind == ("mov", "aac") and probe.audio.first_time_stamp >= 0
    numbers = {
        "frames": 1 + (_TWO_FRAMES if is_uncertain else _HALF_A_FRAME),
        "longest": _longest(probe),
        "most": _MOST_SILENCE,
        "delay": int(has_delay or probe.codec == "speex"),
        "headers": _OPUS_HEADERS if kind == ("ogg", "opus") else 0,
        "rounding": 0.001 if probe.container in _ROUNDED else 0,
    }
    steps = [f"st({n},{text})" for n, text in enumerate(_VARIABLES.values())]
    expression = ";".join([*steps, "STARTPTS+N+gaps"]).format(**numbers)
    loaded = re.sub("[a-z]+", lambda found: _LOADED.get(found[0], found[0]), expression)
    # As the argument of a filter in a chain.
    return re.sub("([,;])", r"\\\1", loaded)
