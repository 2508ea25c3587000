"""The bugs of `tests.soak.bugs` still fit the current source code."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.soak.bugs import BUGS
from tests.support.service import PROJECT


class BugTests(SynchronousTestCase):
    """Bugs can be put into the source code."""

    def test_places(self) -> None:
        """The text that a bug replaces occurs exactly once in its module."""
        counts = {
            bug.name: (PROJECT / "audioproxy" / bug.path).read_text("utf-8").count(bug.old)
            for bug in BUGS
        }
        self.assertEqual({}, {name: count for name, count in counts.items() if count != 1})

    def test_syntax(self) -> None:
        """A module with a bug still compiles, so that no bug is detected only by a SyntaxError."""
        for bug in BUGS:
            text = (PROJECT / "audioproxy" / bug.path).read_text("utf-8")
            compile(text.replace(bug.old, bug.new), bug.path, "exec")
