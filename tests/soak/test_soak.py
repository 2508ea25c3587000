"""A short fault run, so that every change has to pass one."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import TestCase

from tests.soak.rig import Rig, RunParameters
from tests.soak.run import Run
from tests.support.service import TEST_PATIENCE

SECONDS, SEED = 1, 11


class SoakTests(TestCase):
    """A fault run of a second, with some of the variants of a longer run."""

    timeout = TEST_PATIENCE

    async def test_short_run(self) -> None:
        """Under load and faults every byte is right, nothing leaks, and all counters agree."""
        rig = Rig.build(RunParameters.of(SECONDS, SEED), Path(self.mktemp()).resolve())
        outcome = await Run(rig).run()
        self.assertEqual([], outcome.problems, outcome.report)
