"""The encoders and filters of the installed ffmpeg."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.programs import LISTS, list_arguments, missing_from
from tests.support.audio import run


class InstalledTests(SynchronousTestCase):
    """The ffmpeg on the PATH"""

    def test_complete(self) -> None:
        """The ffmpeg of the tests is complete (D34)."""
        for flag, kind, needed in LISTS:
            listing = run(list_arguments("ffmpeg", flag)).stdout
            self.assertEqual(
                missing_from(listing, [*needed, "no_such_thing"]), ["no_such_thing"], kind
            )
