"""Downmixes to stereo and mono."""

from __future__ import annotations

import re
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.downmix import (
    NAMED_LAYOUTS,
    Mix,
    channel_mix,
    layout_of_filters,
    speaker_names,
)

# Gains of Recommendation ITU-R BS.775: 3 dB and 6 dB lower.
LOWER, LOWEST = sqrt(1 / 2), 1 / 2
# By position, in the left and the right output of stereo, and in mono. The recommendation has them
# for 3/2 sources. A surround in the middle is split between both surrounds at equal power, so each
# has it 3 dB lower. Low-frequency channels are left out.
GAINS = {
    "left": (1, 0, LOWER),
    "right": (0, 1, LOWER),
    "center": (LOWER, LOWER, 1),
    "left surround": (LOWER, 0, LOWEST),
    "right surround": (0, LOWER, LOWEST),
    "surround": (LOWEST, LOWEST, LOWER),
    "low": (0, 0, 0),
}
# The nearest of these positions for each speaker of ffmpeg.
SPEAKERS = {
    "left": "FL FLC WL DL BIL",
    "right": "FR FRC WR DR BIR",
    "center": "FC",
    "left surround": "BL SL SDL TFL TBL TSL BFL SSL TTL",
    "right surround": "BR SR SDR TFR TBR TSR BFR SSR TTR",
    "surround": "BC TC TFC TBC BFC",
    "low": "LFE LFE2",
}
POSITIONS = {name: position for position, names in SPEAKERS.items() for name in names.split()}
# Gains in a filter are rounded to 9 digits.
ROUNDING = 0.5e-9

#: The filter that copies one channel to both sides.
BOTH_SIDES = "pan=stereo|c0=c0|c1=c0"


def gains(channels: int, layout: str | None, outputs: int) -> NDArray[np.float64]:
    """Return the gain of each channel in each output, as the text of the filter has them."""
    mix = channel_mix(channels, layout, outputs)
    assert mix is not None
    if mix.filter.endswith(f",{BOTH_SIDES}"):
        return gains(channels, layout, 1).repeat(2, axis=0)
    kind, _, text = mix.filter.partition("=")
    rows, name = np.zeros((outputs, channels)), {1: "mono", 2: "stereo"}[outputs]
    if kind == "channelmap":
        found = re.fullmatch(rf"map=([0-9|]+):channel_layout={name}", text)
        assert found, text
        rows[range(outputs), [int(source) for source in found[1].split("|")]] = 1
        return rows
    term = r"\d\.\d{9}\*c\d+"
    sums = "".join(rf"\|c{number}=({term}(?:\+{term})*)" for number in range(outputs))
    found = re.fullmatch(f"pan={name}{sums}", mix.filter)
    assert found, text
    for row, mixed in zip(rows, found.groups(), strict=True):
        for gain, source in (each.split("*c") for each in mixed.split("+")):
            assert not row[int(source)], text
            row[int(source)] = float(gain)
    return rows


def recommended(layout: str, outputs: int) -> NDArray[np.float64]:
    """Return the gains of the recommendation, scaled so that no output can exceed full scale."""
    columns = [GAINS[POSITIONS[speaker]] for speaker in NAMED_LAYOUTS[layout].split("+")]
    rows = np.array(columns).T[2:] if outputs == 1 else np.array(columns).T[:2]
    scaled: NDArray[np.float64] = rows / max(1, rows.sum(axis=1).max())
    return scaled


def count(layout: str) -> int:
    """Return the number of channels of a layout."""
    return len(NAMED_LAYOUTS[layout].split("+"))


def assert_gains(found: NDArray[np.float64], expected: ArrayLike, what: object) -> None:
    """Assert that gains are equal but for rounding."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1.01 * ROUNDING, err_msg=str(what))


class RecommendationTests(SynchronousTestCase):
    """Layouts whose speakers are known."""

    def test_all_layouts(self) -> None:
        """Each speaker has the gain of the nearest speaker of the recommendation (D60)."""
        for layout in NAMED_LAYOUTS:
            # Stereo stays as it is.
            for outputs in (1, 2) if layout != "stereo" else (1,):
                found = gains(count(layout), layout, outputs)
                assert_gains(found, recommended(layout, outputs), (layout, outputs))
        listed = set("+".join(NAMED_LAYOUTS.values()).split("+"))
        for speaker in {*POSITIONS} - listed:
            # FL and FR have the gain 1 in an output of their own, so they show the scale.
            left, right = gains(4, f"4 channels (FL+FR+FC+{speaker})", 2)
            found = np.array([left[3] / left[0], right[3] / right[1]])
            np.testing.assert_allclose(found, GAINS[POSITIONS[speaker]][:2], atol=1e-8)

    def test_stereo_to_mono(self) -> None:
        """Mono of stereo is the mean of both sides."""
        for layout in (
            *(None, "stereo", "downmix"),
            *(f"2 channels ({pair})" for pair in ("FL+FR", "FR+FL", "BL+BR", "FL+LFE", "LFE+LFE2")),
        ):
            mix = Mix("pan=mono|c0=0.500000000*c0+0.500000000*c1", computed=True)
            self.assertEqual(channel_mix(2, layout, 1), mix, layout)


class CopyTests(SynchronousTestCase):
    """Outputs that are copies of one channel each."""

    def test_no_change(self) -> None:
        """Mono stays mono and stereo stays stereo, whether labeled or not."""
        for layout in (None, "mono"):
            self.assertIsNone(channel_mix(1, layout, 1))
        for layout in (None, "stereo"):
            self.assertIsNone(channel_mix(2, layout, 2))
        relabeled = Mix("channelmap=map=0:channel_layout=mono", computed=False)
        self.assertEqual(channel_mix(1, "1 channels (BL)", 1), relabeled)

    def test_copies(self) -> None:
        """A channel that is alone in an output keeps its level, and no sample is computed (D60)."""
        stereo, mono = ("channelmap=map={}:channel_layout=" + name for name in ("stereo", "mono"))
        for channels, layout, copied in (
            (2, "2 channels (BL+BR)", "0|1"),
            (2, "2 channels (BR+BL)", "1|0"),
            (2, "downmix", "0|1"),
            (3, "2.1", "0|1"),
            # Labels that leave a side silent are ignored.
            *((2, f"2 channels ({each})", "0|1") for each in ("FL+LFE", "FL@a+FR", "UNSD+FR")),
            *((1, layout, "0") for layout in (None, "1 channels (BL)", "ambisonic 0")),
            *((2, "2 channels (FC+LFE)", "0"), (2, "2 channels (LFE+FC)", "1")),
        ):
            both = f"{mono},{BOTH_SIDES}" if len(copied) == 1 else stereo
            mix = Mix(both.format(copied), computed=False)
            self.assertEqual(channel_mix(channels, layout, 2), mix, layout)
        found = channel_mix(2, "2 channels (LFE+FC)", 1)
        self.assertEqual(found, Mix(mono.format(1), computed=False))


class SpeakersTests(SynchronousTestCase):
    """`speaker_names`"""

    def test_unknown(self) -> None:
        """The speakers are unknown if a label is unknown, missing, or leaves a side silent."""
        for channels, layout in (
            (3, None),
            *((channels, None) for channels in range(9, 65)),
            (4, "ambisonic 1"),
            (6, "ambisonic 1+stereo"),
            (5, "5.1"),
            (6, "6 channels"),
            (2, "2 channels (FL+LFE)"),
            (3, "3 channels (FR+SR+LFE)"),
            (2, "2 channels (LFE+LFE2)"),
            (2, "2 channels (FL+USR50)"),
            (2, "unknown"),
        ):
            self.assertIsNone(speaker_names(channels, layout), (channels, layout))

    def test_filters(self) -> None:
        """Filters process channels in the layout of the source, if each has a label of its own."""
        for channels, layout, expected in (
            *((1, None, "FC"), (2, "stereo", "stereo"), (6, None, "FL+FR+FC+LFE+BL+BR")),
            # The speakers of this name depend on the version of ffmpeg.
            (8, "5.1.2", "5.1.2"),
            (3, "3 channels (FL+FR+BL)", "FL+FR+BL"),
            (2, "2 channels (FC+FC)", None),
            *((10, "5.1.4", None), (4, "ambisonic 1", None), (3, None, None)),
        ):
            self.assertEqual(layout_of_filters(channels, layout), expected, (channels, layout))


class AmbisonicTests(SynchronousTestCase):
    """Ambisonics in ACN order, with SN3D normalization"""

    def test_stereo(self) -> None:
        """The left is W+Y and the right W-Y, for any order, as RFC 8486 has them (section 4).

        Channels beside the scene have twice the gain of W, and keep their side.
        """
        for channels, layout, left in (
            (4, "ambisonic 1", "0.5*0 0.5*1"),
            (64, "ambisonic 7", "0.5*0 0.5*1"),
            (6, "ambisonic 1+stereo", "0.25*0 0.25*1 0.5*4"),
            (11, "ambisonic 2+stereo", "0.25*0 0.25*1 0.5*9"),
        ):
            terms = [term.split("*") for term in left.split()]
            one = "+".join(f"{float(gain):.9f}*c{number}" for gain, number in terms)
            # Y has the other sign, and the right channel follows the left one.
            other = one.replace("+", "-", 1)
            if "stereo" in layout:
                other = other.replace(f"*c{terms[-1][1]}", f"*c{int(terms[-1][1]) + 1}")
            mix = Mix(f"pan=stereo|c0={one}|c1={other}", computed=True)
            self.assertEqual(channel_mix(channels, layout, 2), mix, layout)

    def test_mono(self) -> None:
        """Mono is W alone, which keeps its level; channels beside the scene are mixed to it."""
        alone = Mix("channelmap=map=0:channel_layout=mono", computed=False)
        for channels, layout in ((4, "ambisonic 1"), (9, "ambisonic 2"), (64, "ambisonic 7")):
            self.assertEqual(channel_mix(channels, layout, 1), alone, layout)
        third = 1 / 3
        mixed = [[third, 0, 0, 0, third, third]]
        assert_gains(gains(6, "ambisonic 1+stereo", 1), mixed, "stereo")
        assert_gains(gains(3, "ambisonic 0+stereo", 1), [[third] * 3], "order 0")

    def test_unknown(self) -> None:
        """Layouts that do not fit the number of channels are those of unlabeled channels."""
        for channels, layout in (
            *((5, "ambisonic 1"), (3, "ambisonic 1"), (6, "ambisonic 1+5.1")),
            (6, "ambisonic 1+2 channels (UNSD+FR)"),
        ):
            for outputs in (1, 2):
                found = channel_mix(channels, layout, outputs)
                self.assertEqual(found, channel_mix(channels, "unknown", outputs), layout)


class UnlabeledTests(SynchronousTestCase):
    """Channels whose speakers are unknown."""

    def test_alternate(self) -> None:
        """They alternate between left and right at one gain, and none is lost (D13)."""
        for channels, layout in ((3, None), (4, "unknown"), (9, None), (10, None), (64, None)):
            left, right = (channels + 1) // 2, channels // 2
            sides = [[1 / left, 0] * left, [0, 1 / right] * (right + 1)]
            stereo = [side[:channels] for side in sides]
            assert_gains(gains(channels, layout, 2), stereo, channels)
            assert_gains(gains(channels, layout, 1), [[1 / channels] * channels], channels)
            for outputs in (1, 2):
                mix = channel_mix(channels, layout, outputs)
                assert mix is not None
                self.assertTrue(mix.computed)
