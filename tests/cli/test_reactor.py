"""`run`, which runs the reactor for a command."""

from __future__ import annotations

import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.support.service import PROJECT

# The signal arrives before the first await, when `run` has no Deferred yet that it could cancel.
_INTERRUPTED = """
import os, signal
from twisted.internet.defer import Deferred
from audioproxy.cli.reactor import run

async def work(reactor):
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await Deferred()
    finally:
        print("ended")

try:
    run(work)
except KeyboardInterrupt:
    print("interrupted")
"""

_FAILED = """
from audioproxy.cli.reactor import run

async def work(reactor):
    raise ValueError("no such thing")

try:
    run(work)
except ValueError as error:
    print(error)
"""


class RunTests(SynchronousTestCase):
    """The function `run`, in a process of its own, since a reactor runs once per process."""

    def run_program(self, program: str) -> tuple[int, str, str]:
        """Return the exit status, the output and the error output of a program."""
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd=PROJECT,
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )
        return ended.returncode, ended.stdout, ended.stderr

    def test_interrupt(self) -> None:
        """A signal before the first await cancels the work, and its cleanup runs."""
        self.assertEqual((0, "ended\ninterrupted\n", ""), self.run_program(_INTERRUPTED))

    def test_failure(self) -> None:
        """An exception of the work is raised to the caller and not logged."""
        self.assertEqual((0, "no such thing\n", ""), self.run_program(_FAILED))
