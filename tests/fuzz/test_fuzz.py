"""A short, deterministic run of every fuzz target; ``make fuzz`` runs longer."""

from __future__ import annotations

import traceback

from hypothesis import HealthCheck, given, settings
from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz.targets import TARGETS, Target

SHORT = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

#: Settings for the target whose examples are much slower than those of the others.
SHORTER = settings(SHORT, max_examples=60)


def fuzz(target: Target, how: settings) -> None:
    """Draw inputs for a target, and check its promise."""

    @how
    @given(data=target.inputs)
    def check(data: bytes) -> None:
        target.check(data)

    check()


class FuzzTests(SynchronousTestCase):
    """Promises that hold for any input bytes."""

    def test_seeds(self) -> None:
        """The check of every fuzz target accepts all of its seeds."""
        for target in TARGETS.values():
            for seed in target.seeds:
                target.check(seed)

    def test_any_bytes(self) -> None:
        """The check of every fuzz target accepts any bytes."""
        broken = []
        for name, target in TARGETS.items():
            try:
                fuzz(target, SHORTER if name == "server" else SHORT)
            except Exception:
                broken.append(f"{name}: {traceback.format_exc()}")
        self.assertEqual([], broken, "\n".join(broken))
