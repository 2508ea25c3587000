"""Downmixes to stereo and mono by the coefficients of Recommendation ITU-R BS.775 (D60).

The recommendation has equations for 3/2 sources. In stereo, the center and the surrounds are 3 dB
lower than the front. In mono, the front is 3 dB lower than the center, and the surrounds are 6 dB
lower. All other speakers have the gain of the nearest speaker of a 3/2 layout. A speaker above or
behind the middle is split between both surrounds at equal power. Low-frequency channels are left
out.

Ambisonics have no speakers. They are mixed by the matrices of RFC 8486 (section 4), whose channels
are in ACN order with SN3D normalization: W+Y is a cardioid that faces left, W-Y one that faces
right, and W is mono.

The sums of the equations can exceed full scale, so all outputs are scaled by the same factor. In
mono, this makes stereo its mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import sqrt

OUTPUT_LAYOUTS = {1: "mono", 2: "stereo"}
_LOWER = sqrt(0.5)

_LEFT, _SURROUND_LEFT = (1.0, 0.0), (_LOWER, 0.0)
_RIGHT, _SURROUND_RIGHT = (0.0, 1.0), (0.0, _LOWER)
_CENTER, _BEHIND = (_LOWER, _LOWER), (0.5, 0.5)
_OMITTED = (0.0, 0.0)
_OMNIDIRECTIONAL, _LEFT_TO_RIGHT = (0.5, 0.5), (0.5, -0.5)

# The gains of a speaker in the left and in the right output, by ffmpeg's name of the speaker.
_GAINS = {
    speaker: gains
    for gains, speakers in {
        _LEFT: "FL FLC WL DL BIL",
        _SURROUND_LEFT: "BL SL SDL TFL TBL TSL BFL SSL TTL",
        _RIGHT: "FR FRC WR DR BIR",
        _SURROUND_RIGHT: "BR SR SDR TFR TBR TSR BFR SSR TTR",
        _CENTER: "FC",
        _BEHIND: "BC TC TFC TBC BFC",
        _OMITTED: "LFE LFE2",
    }.items()
    for speaker in speakers.split()
}

#: The speakers of the layouts that have a name in FFmpeg 5.1 to 9.0. Versions differ in the
#: speakers of some names, such as ``5.1.2``, but not in their gains.
NAMED_LAYOUTS = {
    "stereo": "FL+FR",
    "2.1": "FL+FR+LFE",
    "3.0": "FL+FR+FC",
    "3.0(back)": "FL+FR+BC",
    "4.0": "FL+FR+FC+BC",
    "quad": "FL+FR+BL+BR",
    "quad(side)": "FL+FR+SL+SR",
    "3.1": "FL+FR+FC+LFE",
    "5.0": "FL+FR+FC+BL+BR",
    "5.0(side)": "FL+FR+FC+SL+SR",
    "4.1": "FL+FR+FC+LFE+BC",
    "5.1": "FL+FR+FC+LFE+BL+BR",
    "5.1(side)": "FL+FR+FC+LFE+SL+SR",
    "6.0": "FL+FR+FC+BC+SL+SR",
    "6.0(front)": "FL+FR+FLC+FRC+SL+SR",
    "3.1.2": "FL+FR+FC+LFE+TFL+TFR",
    "hexagonal": "FL+FR+FC+BL+BR+BC",
    "6.1": "FL+FR+FC+LFE+BC+SL+SR",
    "6.1(back)": "FL+FR+FC+LFE+BL+BR+BC",
    "6.1(front)": "FL+FR+LFE+FLC+FRC+SL+SR",
    "7.0": "FL+FR+FC+BL+BR+SL+SR",
    "7.0(front)": "FL+FR+FC+FLC+FRC+SL+SR",
    "7.1": "FL+FR+FC+LFE+BL+BR+SL+SR",
    "7.1(wide)": "FL+FR+FC+LFE+BL+BR+FLC+FRC",
    "7.1(wide-side)": "FL+FR+FC+LFE+FLC+FRC+SL+SR",
    "5.1.2": "FL+FR+FC+LFE+SL+SR+TFL+TFR",
    "5.1.2(back)": "FL+FR+FC+LFE+BL+BR+TFL+TFR",
    "octagonal": "FL+FR+FC+BL+BR+BC+SL+SR",
    "cube": "FL+FR+BL+BR+TFL+TFR+TBL+TBR",
    "5.1.4": "FL+FR+FC+LFE+SL+SR+TFL+TFR+TBL+TBR",
    "7.1.2": "FL+FR+FC+LFE+BL+BR+SL+SR+TFL+TFR",
    "7.1.4": "FL+FR+FC+LFE+BL+BR+SL+SR+TFL+TFR+TBL+TBR",
    "7.2.3": "FL+FR+FC+LFE+BL+BR+SL+SR+TFL+TFR+TBC+LFE2",
    "9.1.4": "FL+FR+FC+LFE+BL+BR+FLC+FRC+SL+SR+TFL+TFR+TBL+TBR",
    "9.1.6": "FL+FR+FC+LFE+BL+BR+FLC+FRC+SL+SR+TFL+TFR+TBL+TBR+TSL+TSR",
    "hexadecagonal": "FL+FR+FC+BL+BR+BC+SL+SR+TFL+TFC+TFR+TBL+TBC+TBR+WL+WR",
    "binaural": "BIL+BIR",
    "downmix": "DL+DR",
    "22.2": "FL+FR+FC+LFE+BL+BR+FLC+FRC+BC+SL+SR+TC+TFL+TFC+TFR+TBL+TBC+TBR+LFE2+TSL+TSR+BFC+BFL"
    "+BFR",
}

# The most channels with labels that ffmpeg's filters accept.
_MOST_LABELED = 8

# The layouts that ffmpeg assumes for unlabeled channels. For three channels it assumes 2.1, whose
# third channel would be left out.
_ASSUMED = {2: "stereo", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}

# How ffprobe spells a layout without a name, such as `2 channels (BL+BR)`. A speaker may have a
# label, such as `FL@a`.
_LISTED = re.compile(r"\d+ channels \((.+)\)")

# How ffprobe spells Ambisonics of an order, which may have further channels for speakers.
_AMBISONIC = re.compile(r"ambisonic (\d{1,2})(?:\+(.+))?")


@dataclass(frozen=True, slots=True)
class Mix:
    """A filter that changes the number of channels or their labels.

    :ivar computed: the filter adds or scales samples.
    """

    filter: str
    computed: bool


def speaker_names(channels: int, layout: str | None) -> list[str] | None:
    """Return ffmpeg's names of the speakers of a source.

    They are None where neither labels nor ffmpeg's default layout name them, and where the labels
    leave one side silent: labels such as FL+LFE are more likely wrong than meant.

    :param layout: as ffprobe spells it; None where the source has no labels.
    """
    if channels == 1:
        return ["FC"]
    name = layout or _ASSUMED.get(channels, "")
    listed = _LISTED.fullmatch(name)
    text = listed[1] if listed else NAMED_LAYOUTS.get(name, "")
    speakers = [speaker.partition("@")[0] for speaker in text.split("+")]
    if len(speakers) != channels or not all(speaker in _GAINS for speaker in speakers):
        return None
    sides = zip(*(_GAINS[speaker] for speaker in speakers), strict=True)
    return speakers if all(any(side) for side in sides) else None


def layout_of_filters(channels: int, layout: str | None) -> str | None:
    """Return the layout in which ffmpeg's filters process all channels of a source.

    It is None where they cannot: for too many channels, and those without labels of their own.

    :param layout: as ffprobe spells it; None where the source has no labels.
    """
    speakers = speaker_names(channels, layout)
    if speakers is None or not len(set(speakers)) == channels <= _MOST_LABELED:
        return None
    # The speakers of a name depend on the version of ffmpeg.
    return layout if layout in NAMED_LAYOUTS else "+".join(speakers)


def channel_mix(source: int, layout: str | None, channels: int) -> Mix | None:
    """Return the change from a source's channels to one or two channels; None for no change."""
    if source == channels and layout in (None, OUTPUT_LAYOUTS[channels]):
        return None
    gains = _speaker_gains(source, layout)
    if gains is None:
        # Channels without labels go alternately to the left and the right, with the same gain.
        members = [range(first, source, channels) for first in range(channels)]
        rows = [[(channel in each) / len(each) for channel in range(source)] for each in members]
    else:
        rows = _downmix(gains, channels)
    sources = [[number for number, gain in enumerate(row) if gain] for row in rows]
    if all(len(numbers) == 1 for numbers in sources):
        # BS.775 would lower mono by 3 dB on both sides. A channel without others keeps its level.
        return Mix(_copy([number for [number] in sources]), computed=False)
    sums = (
        "+".join(f"{gain:.9f}*c{number}" for number, gain in enumerate(row) if gain) for row in rows
    )
    outputs = "|".join(f"c{number}={mixed}" for number, mixed in enumerate(sums))
    outputs = outputs.replace("+-", "-")
    return Mix(f"pan={OUTPUT_LAYOUTS[channels]}|{outputs}", computed=True)


def _speaker_gains(source: int, layout: str | None) -> list[tuple[float, float]] | None:
    """Return the gains of all channels in the left and in the right output; None where unknown."""
    scene = _AMBISONIC.fullmatch(layout or "")
    if scene is None:
        speakers = speaker_names(source, layout)
        return None if speakers is None else [_GAINS[speaker] for speaker in speakers]
    components = (int(scene[1]) + 1) ** 2
    others = [] if scene[2] is None else speaker_names(source - components, scene[2])
    if others is None or source != components + len(others):
        return None
    gains = [_OMNIDIRECTIONAL, _LEFT_TO_RIGHT, *[_OMITTED] * components][:components]
    return gains + [_GAINS[speaker] for speaker in others]


def _copy(sources: list[int]) -> str:
    """Return the filters that copy one channel of the source to each output."""
    if len(set(sources)) < len(sources):
        # channelmap would give both outputs one buffer, which later filters would process twice.
        return f"{_copy(sources[:1])},pan=stereo|c0=c0|c1=c0"
    copied = "|".join(map(str, sources))
    return f"channelmap=map={copied}:channel_layout={OUTPUT_LAYOUTS[len(sources)]}"


def _downmix(gains: list[tuple[float, float]], channels: int) -> list[list[float]]:
    """Return the gains of all channels for each output; none has a sum of amounts above 1."""
    left, right = zip(*gains, strict=True)
    if channels == 1:
        rows = [[_LOWER * (one + other) for one, other in zip(left, right, strict=True)]]
    else:
        rows = [list(left), list(right)]
    highest = max(1, *(sum(map(abs, row)) for row in rows))
    return [[gain / highest for gain in row] for row in rows]
