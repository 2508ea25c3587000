"""The ``audioproxy`` program: output errors, and its reactor."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.cli.command import SECRETS
from tests.support.runs import RunResult, run_program
from tests.support.service import PROJECT

PROGRAM = Path(sys.executable).with_name("audioproxy")
# A program imports this source tree, not an installed package.
run = partial(run_program, environment={"PYTHONPATH": str(PROJECT), **SECRETS})

# The signal arrives before the first await, when `run` has no Deferred yet that it could cancel.
INTERRUPTED = """
import os, signal
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from audioproxy.cli.reactor import run

async def work(reactor):
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await Deferred()
    finally:
        await deferLater(reactor, 0)
        print("ended")

try:
    run(work)
except KeyboardInterrupt:
    print("interrupted")
"""

FAILED = """
from audioproxy.cli.reactor import run

async def work(reactor):
    raise ValueError("no such thing")

try:
    run(work)
except ValueError as error:
    print(error)
"""


class ProgramTests(SynchronousTestCase):
    """The ``audioproxy`` program in a process of its own."""

    def test_unwritable_output(self) -> None:
        """A closed pipe ends the command with 1 and no words, a full disk with one line."""
        readable, writable = os.pipe()
        os.close(readable)
        with open(writable, "wb") as pipe:
            sources = "local://a\n" * 10_000
            ended = run(PROGRAM, "sign", "-", input=sources, stdout=pipe)
        self.assertEqual(RunResult(1, "", ""), ended)
        with open("/dev/full", "wb") as full:
            ended = run(PROGRAM, "completion", "bash", stdout=full)
        self.assertEqual(1, ended.status)
        self.assertRegex(ended.err, r"\Aaudioproxy: .*No space left on device.*\n\Z")

    def test_no_streams(self) -> None:
        """A closed standard output, or input that ``-`` reads, is reported in one line, with 2."""
        for redirection, words in ((">&-", "standard output"), ("<&-", "standard input")):
            ended = run("sh", "-c", f'"$0" sign - {redirection}', PROGRAM)
            self.assertEqual((2, 1), (ended.status, ended.err.count("\n")), redirection)
            self.assertIn(words, ended.err)

    def test_reactor(self) -> None:
        """A signal cancels the work of `run`, which may clean up; its exception is raised."""
        for code, output in ((INTERRUPTED, "ended\ninterrupted\n"), (FAILED, "no such thing\n")):
            ended = run(sys.executable, "-c", code)
            self.assertEqual(RunResult(0, output, ""), ended)
