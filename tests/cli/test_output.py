"""What commands print."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.cli.output import progress_bar
from tests.support.service import children


class ProgressTests(SynchronousTestCase):
    """`progress_bar`."""

    def test_processes(self) -> None:
        """A bar starts no process."""
        progress_bar("sources", quiet=True).close()
        self.assertEqual([], children())
