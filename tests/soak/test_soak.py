"""A short fault run, so that every change has to pass one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from twisted.trial.unittest import TestCase

from tests.support.service import PROJECT, TEST_PATIENCE, Process, reactor, until

SECONDS, SEED = "1", "11"


class SoakTests(TestCase):
    """A fault run of a few seconds, with about half of the short variants of a longer run."""

    timeout = TEST_PATIENCE

    async def test_short_run(self) -> None:
        """Under load and faults every byte is right, nothing leaks, and all counters agree."""
        base = Path(self.mktemp()).resolve()
        words = ("-m", "tests.soak", "--seconds", SECONDS, "--seed", SEED, "--keep", str(base))
        process = Process()
        environ = {**os.environ, "PYTHONPATH": str(PROJECT)}
        reactor.spawnProcess(process, sys.executable, (sys.executable, *words), environ)
        self.addCleanup(process.signal, 9)
        await until(lambda: process.code is not None, "the run to end", self.timeout)
        self.assertEqual(0, process.code, process.stdout + process.stderr)
