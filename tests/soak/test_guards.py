"""The bugs of `tests.soak.bugs` still fit the service."""

from __future__ import annotations

from twisted.python.monkey import MonkeyPatcher
from twisted.trial.unittest import SynchronousTestCase

from tests.soak.bugs import BUGS


class BugTests(SynchronousTestCase):
    """Bugs can be injected."""

    def test_names(self) -> None:
        """Everything that a bug replaces exists, and no two bugs have the same name."""
        for bug in BUGS:
            patcher = MonkeyPatcher(bug.patch)
            patcher.patch()
            patcher.restore()
        self.assertEqual(len(BUGS), len({bug.name for bug in BUGS}))
