"""Joined lossless files: the whole of them from any position, or a refusal."""

from __future__ import annotations

from functools import cache

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from tests.matrix.regions import Region, find_differences
from tests.support.audio import (
    Sound,
    convert,
    noise,
    probe_length,
    read_wav,
    render,
    write_wav,
)

# ffmpeg writes a tag with its version behind WavPack and TTA otherwise.
BARE = "-map_metadata -1 -fflags +bitexact -f"
TAGGED = "-metadata title=x -f"
SOUNDS = {
    "short": noise(44100, 50_000, 2, seed=1),
    "equal": noise(44100, 50_000, 2, 0.02, seed=2),
    "long": noise(44100, 180_000, 2, seed=3),
}


@cache
def files(muxer: str, more: str = BARE) -> dict[str, bytes]:
    """Return the sounds as files."""
    return {name: convert(write_wav(sound), f"{more} {muxer}") for name, sound in SOUNDS.items()}


def whole_of(*names: str) -> Sound:
    """Return sounds behind each other, as 16 bits."""
    joined = np.concatenate([SOUNDS[name].channels for name in names], axis=1)
    return read_wav(write_wav(Sound(44100, joined)))


class JoinedTests(SynchronousTestCase):
    """WavPack, TTA and Monkey's Audio"""

    def test_places(self) -> None:
        """``t`` plays what the whole has at its place, and all of the whole is played (D57)."""
        for names in (
            ("short", "long"),
            ("long", "short"),
            ("short", "equal"),
            ("equal", "equal"),
            ("long", "short", "long"),
        ):
            source = b"".join(files("wv")[name] for name in names)
            expected = whole_of(*names)
            self.assertIsNone(probe_length(source).length, names)
            self.assertEqual(read_wav(render(source, "f:wav")), expected, names)
            regions = [Region(1500, None), Region(1050, 200)]
            self.assertEqual([*find_differences(source, regions, expected)], [], names)
            faded = read_wav(render(source, "f:wav/fade:0:0.1"))
            self.assertEqual(len(faded), len(expected), names)
            self.assertRaises(InvalidOptions, render, source, "f:wav/t:99")
