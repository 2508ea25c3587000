"""The layouts of the installed ffmpeg."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.downmix import NAMED_LAYOUTS, channel_mix, speaker_names
from tests.support.audio import run
from tests.support.programs import FFMPEG


class LayoutsTests(SynchronousTestCase):
    """`NAMED_LAYOUTS`"""

    def test_ffmpeg(self) -> None:
        """Every layout of ffmpeg is mixed as its speakers are, which are all known (D60).

        The speakers of a name depend on the version.
        """
        speakers, layouts = run([FFMPEG, "-v", "error", "-layouts"]).stdout.decode().split("\n\n")
        # Each table has a title and the names of its columns.
        named = dict(line.split() for line in layouts.splitlines()[2:])
        self.assertEqual(named.pop("mono"), "FC")
        for name, text in named.items():
            self.assertIn(name, NAMED_LAYOUTS)
            channels = text.count("+") + 1
            listed = channel_mix(channels, f"{channels} channels ({text})", 1)
            self.assertEqual(channel_mix(channels, name, 1), listed, name)
        self.assertIn("22.2", named)
        names = [line.split()[0] for line in speakers.splitlines()[2:]]
        self.assertIn("LFE2", names)
        for name in set(names) - {"FL", "FR"}:
            layout = f"3 channels (FL+FR+{name})"
            self.assertEqual(speaker_names(3, layout), ["FL", "FR", name])
