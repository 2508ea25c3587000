"""The spawn prefixes of child processes."""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process import spawn as spawn_module

# Prints whether the process leads its own process group.
LEADS = "import os; print(os.getpgid(0) == os.getpid())"


class SpawnPrefixTests(SynchronousTestCase):
    """The prefix of every child's command line"""

    def leads_a_group(self, terminal: bool) -> bool:
        """Return whether a child leads its own process group."""
        self.patch(spawn_module.os, "isatty", lambda descriptor: terminal)
        command = [
            *spawn_module.find_session_prefix(),
            *spawn_module.find_parent_death_prefix(),
            sys.executable,
            "-c",
            LEADS,
        ]
        return subprocess.run(command, capture_output=True, check=True).stdout == b"True\n"

    def test_in_a_terminal(self) -> None:
        """Ctrl-C does not reach the encoders, so running renders can finish (D39)."""
        self.assertTrue(self.leads_a_group(terminal=True))

    def test_without_a_terminal(self) -> None:
        """Without a terminal there is no Ctrl-C, and the session prefix is omitted."""
        self.assertFalse(self.leads_a_group(terminal=False))

    def test_without_util_linux(self) -> None:
        """Without util-linux, children run without prefixes."""
        self.patch(os, "environ", {"PATH": "/nowhere"})
        self.patch(spawn_module.os, "isatty", lambda descriptor: True)
        self.assertEqual(
            ((), ()), (spawn_module.find_session_prefix(), spawn_module.find_parent_death_prefix())
        )
