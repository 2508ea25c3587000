"""The table of known bugs fits the code of today."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.soak.bugs import BUGS
from tests.support.service import PROJECT


class BugTests(SynchronousTestCase):
    """Each bug can be put in."""

    def test_places(self) -> None:
        """The text that a bug replaces stands in its module exactly once."""
        counts = {
            bug.name: (PROJECT / "audioproxy" / bug.path).read_text("utf-8").count(bug.old)
            for bug in BUGS
        }
        self.assertEqual({}, {name: count for name, count in counts.items() if count != 1})

    def test_syntax(self) -> None:
        """A module with its bug is still a module, so that the run and not the import fails."""
        for bug in BUGS:
            text = (PROJECT / "audioproxy" / bug.path).read_text("utf-8")
            compile(text.replace(bug.old, bug.new), bug.path, "exec")
