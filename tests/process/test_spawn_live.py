"""The spawn prefixes of child processes."""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.spawn import find_parent_death_prefix, find_session_prefix

# Prints whether the process leads its own process group.
LEADS = "import os; print(os.getpgid(0) == os.getpid())"


class SpawnPrefixTests(SynchronousTestCase):
    """The prefix of every child's command line"""

    def test_group(self) -> None:
        """In a terminal, children lead a group, so that Ctrl-C does not reach them (D39).

        Without a terminal there is no Ctrl-C, and the session prefix is omitted.
        """
        for terminal in (True, False):
            self.patch(os, "isatty", lambda descriptor, terminal=terminal: terminal)
            prefix = [*find_session_prefix(), *find_parent_death_prefix()]
            ended = subprocess.run([*prefix, sys.executable, "-c", LEADS], capture_output=True)
            self.assertEqual(ended.stdout, b"%s\n" % str(terminal).encode(), ended)

    def test_without_util_linux(self) -> None:
        """Without util-linux, children run without prefixes."""
        self.patch(os, "environ", {"PATH": "/nowhere"})
        self.patch(os, "isatty", lambda descriptor: True)
        self.assertEqual(((), ()), (find_session_prefix(), find_parent_death_prefix()))
