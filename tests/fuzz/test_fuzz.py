"""A short, deterministic run of every fuzz target; ``make fuzz`` runs longer."""

from __future__ import annotations

import traceback

from hypothesis import settings
from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz.targets import SETTINGS, TARGETS

SHORT = settings(SETTINGS, max_examples=150, derandomize=True, database=None)
#: Settings for the target whose examples are much slower than those of the others.
SHORTER = settings(SHORT, max_examples=60)


class FuzzTests(SynchronousTestCase):
    """Promises that hold for any input."""

    def test_seeds(self) -> None:
        """The check of every fuzz target accepts all of its seeds."""
        for target in TARGETS.values():
            for seed in target.seeds:
                target.check(*seed)

    def test_any_input(self) -> None:
        """The check of every fuzz target accepts any input."""
        broken = []
        for name, target in TARGETS.items():
            try:
                target.fuzz(SHORTER if name == "server" else SHORT)
            except Exception:
                broken.append(f"{name}: {traceback.format_exc()}")
        self.assertEqual([], broken, "\n".join(broken))
