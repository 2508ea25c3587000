"""A short fault run, so that every change has to pass one, or a long one: ``make soak``."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import TestCase

from tests.soak.rig import Rig, RunParameters
from tests.soak.run import Run
from tests.support.service import TEST_PATIENCE

#: Seconds of load, and the seed of all random choices.
SECONDS, SEED = float(os.environ.get("SOAK_SECONDS") or 1), int(os.environ.get("SEED") or 11)
#: Problems in a report.
MOST = 40


class SoakTests(TestCase):
    """A fault run, by default of a second with some of the variants of a longer run."""

    timeout = TEST_PATIENCE + SECONDS

    async def test_run(self) -> None:
        """Under load and faults every byte is right, nothing leaks, and all counters agree."""
        rig = Rig.build(RunParameters.of(SECONDS, SEED), Path(self.mktemp()).resolve())
        problems = await Run(rig).run()
        for node in (rig.a, rig.b):
            (rig.base / f"{node.name}.log").write_text(node.log + node.said)
        done = f"{len(rig.journal.records)} requests in {SECONDS:g} seconds of load, seed {SEED}"
        if SECONDS > 1:
            print(done)
        self.assertFalse(problems, "\n".join([done, *problems[:MOST]]))
