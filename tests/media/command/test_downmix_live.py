"""The layouts of the installed ffmpeg."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.downmix import NAMED_LAYOUTS, speaker_names
from tests.support.audio import run
from tests.support.programs import FFMPEG


class LayoutsTests(SynchronousTestCase):
    """`NAMED_LAYOUTS`"""

    def test_ffmpeg(self) -> None:
        """Every layout of ffmpeg has the same speakers, and every speaker is known (D60)."""
        speakers, layouts = run([FFMPEG, "-v", "error", "-layouts"]).stdout.decode().split("\n\n")
        # Each table has a title and the names of its columns.
        named = dict(line.split() for line in layouts.splitlines()[2:])
        self.assertEqual(named.pop("mono"), "FC")
        self.assertEqual(named, {name: NAMED_LAYOUTS.get(name) for name in named})
        self.assertIn("22.2", named)
        names = [line.split()[0] for line in speakers.splitlines()[2:]]
        self.assertIn("LFE2", names)
        for name in set(names) - {"FL", "FR"}:
            layout = f"3 channels (FL+FR+{name})"
            self.assertEqual(speaker_names(3, layout), ["FL", "FR", name])
