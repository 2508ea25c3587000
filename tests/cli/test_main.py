"""The command as a whole: its help, its statuses, and what a shell completes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import audioproxy
from audioproxy.cli.main import build_parser
from tests.cli.command import SECRETS, command
from tests.support.service import PROJECT

#: The environment of the program: the tree of the tests, be it the installed one or not.
ENVIRONMENT = {**SECRETS, "PYTHONPATH": str(PROJECT)}

COMMANDS = ("sign", "verify", "explain", "warm", "doctor", "completion")


class HelpTests(SynchronousTestCase):
    """The help teaches."""

    def test_overview(self) -> None:
        """It names every command and says what the statuses mean."""
        ended = command("--help")
        self.assertEqual(0, ended.status)
        for words in (*COMMANDS, "exit status", "--env-file"):
            self.assertIn(words, ended.out)

    def test_examples(self) -> None:
        """Each command has examples, and each of these has words that it knows."""
        for name in COMMANDS:
            text = command(name, "--help").out
            lines = text.split("examples:\n")[1].split("\n\n")[0].splitlines()
            called = [line for line in lines if f"audioproxy {name}" in line]
            self.assertTrue(called, name)
            for line in called:
                words = line.split(f"audioproxy {name}")[1].split("|")[0].split("<")[0]
                words = words.split(">")[0]
                build_parser().parse_args([name, *words.split()])

    def test_version(self) -> None:
        """It is the package's."""
        self.assertEqual(f"audioproxy {audioproxy.__version__}\n", command("--version").out)

    def test_mistakes(self) -> None:
        """A command that is none, or no command, is a mistake and prints the usage."""
        for words in ((), ("bake",), ("sign",), ("verify", "--what")):
            ended = command(*words)
            self.assertEqual((2, ""), (ended.status, ended.out), words)
            self.assertIn("usage: audioproxy", ended.err)


class ProgramTests(SynchronousTestCase):
    """The program that is installed."""

    def test_no_twisted_to_sign(self) -> None:
        """`sign` and `verify` start without Twisted, and without the libraries of the service."""
        for words in (["sign", "local://a"], ["verify", command("sign", "local://a").out.strip()]):
            code = (
                f"import sys; from audioproxy.cli.main import main; status = main({words!r});"
                "libraries = ('twisted', 'treq', 'numpy', 'botocore', 'audioproxy.service');"
                "sys.exit(status or any(name in sys.modules for name in libraries))"
            )
            ended = subprocess.run(
                [sys.executable, "-c", code],
                env=ENVIRONMENT,
                capture_output=True,
                check=False,
                text=True,
            )
            self.assertEqual((0, ""), (ended.returncode, ended.stderr))

    def test_closed_pipe(self) -> None:
        """A reader that has seen enough is no reason for a traceback."""
        readable, writable = os.pipe()
        os.close(readable)
        program = Path(sys.executable).with_name("audioproxy")
        with open(writable, "wb") as pipe:
            ended = subprocess.run(
                [program, "sign", "-"],
                env=ENVIRONMENT,
                input=b"local://a\n" * 10_000,
                stdout=pipe,
                stderr=subprocess.PIPE,
                check=False,
            )
        self.assertEqual((1, b""), (ended.returncode, ended.stderr))

    def test_no_room(self) -> None:
        """An output that takes nothing is told in a line."""
        program = Path(sys.executable).with_name("audioproxy")
        with open("/dev/full", "wb") as full:
            ended = subprocess.run(
                [program, "completion", "bash"],
                env=ENVIRONMENT,
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
                text=True,
            )
        self.assertEqual(1, ended.returncode)
        self.assertRegex(ended.stderr, r"\Aaudioproxy: .*No space left on device.*\n\Z")

    def test_no_streams(self) -> None:
        """Without an output, or an input that is asked for, there is one line that says so."""
        program = Path(sys.executable).with_name("audioproxy")
        for redirection, words in ((">&-", "standard output"), ("<&-", "standard input")):
            script = f'"$0" sign - {redirection}'
            ended = subprocess.run(
                ["sh", "-c", script, program], env=ENVIRONMENT, capture_output=True, check=False
            )
            self.assertEqual(2, ended.returncode, redirection)
            self.assertIn(words, ended.stderr.decode())
            self.assertEqual(1, ended.stderr.count(b"\n"))


class CompletionTests(SynchronousTestCase):
    """What a shell completes."""

    def test_scripts(self) -> None:
        """There is a script for bash, zsh and tcsh, which knows every command."""
        for shell in ("bash", "zsh", "tcsh"):
            ended = command("completion", shell)
            self.assertEqual(0, ended.status, shell)
            for name in COMMANDS:
                self.assertIn(name, ended.out, shell)

    def test_bash(self) -> None:
        """bash completes a command, and an option of it."""
        bash = shutil.which("bash")
        if bash is None:
            raise SkipTest("there is no bash on this machine")
        script = command("completion", "bash").out
        for words, expected in (
            (("audioproxy", "exp"), "explain"),
            (("audioproxy", "sign", "--exp"), "--expires-in"),
        ):
            ask = (
                f"{script}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1};"
                "_shtab_audioproxy; printf '%s\\n' \"${COMPREPLY[@]}\""
            )
            ended = subprocess.run(
                [bash, "--norc", "-c", ask], capture_output=True, check=False, text=True
            )
            self.assertIn(expected, ended.stdout.split(), ended.stderr)
