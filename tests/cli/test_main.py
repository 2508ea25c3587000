"""The whole command: help, exit statuses, output errors and shell completion."""

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

#: Environment of the program. PYTHONPATH makes it import this source tree, not an installed
#: package.
ENVIRONMENT = {**SECRETS, "PYTHONPATH": str(PROJECT)}

COMMANDS = ("sign", "verify", "explain", "warm", "doctor", "completion")


class HelpTests(SynchronousTestCase):
    """Help texts."""

    def test_overview(self) -> None:
        """`--help` names every command and explains the exit statuses."""
        ended = command("--help")
        self.assertEqual(0, ended.status)
        for words in (*COMMANDS, "exit status", "--env-file"):
            self.assertIn(words, ended.out)

    def test_examples(self) -> None:
        """Each command's help has examples, and the command accepts their arguments."""
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
        """`--version` prints the version of the package."""
        self.assertEqual(f"audioproxy {audioproxy.__version__}\n", command("--version").out)

    def test_mistakes(self) -> None:
        """An unknown or missing command or argument prints the usage and exits with 2."""
        for words in ((), ("bake",), ("sign",), ("verify", "--what")):
            ended = command(*words)
            self.assertEqual((2, ""), (ended.status, ended.out), words)
            self.assertIn("usage: audioproxy", ended.err)


class ProgramTests(SynchronousTestCase):
    """The ``audioproxy`` program in a process of its own."""

    def test_no_twisted_imports(self) -> None:
        """`sign` and `verify` import neither Twisted nor other libraries of the service."""
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
        """A closed output pipe ends the command with status 1 and without a traceback."""
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

    def test_full_disk(self) -> None:
        """A full disk is reported in one line, with status 1."""
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
        """A closed standard output is reported in one line, with status 2.

        The same applies to a closed standard input, if ``-`` tells the command to read it.
        """
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
    """Shell completion."""

    def test_scripts(self) -> None:
        """`completion` prints scripts for bash, zsh and tcsh that contain every command."""
        for shell in ("bash", "zsh", "tcsh"):
            ended = command("completion", shell)
            self.assertEqual(0, ended.status, shell)
            for name in COMMANDS:
                self.assertIn(name, ended.out, shell)

    def test_bash(self) -> None:
        """bash completes a command, and an option of a command."""
        bash = shutil.which("bash")
        if bash is None:
            raise SkipTest("there is no bash on this machine")
        script = command("completion", "bash").out
        for words, expected in (
            (("audioproxy", "exp"), "explain"),
            (("audioproxy", "sign", "--exp"), "--expires-in"),
        ):
            shell_command = (
                f"{script}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1};"
                "_shtab_audioproxy; printf '%s\\n' \"${COMPREPLY[@]}\""
            )
            ended = subprocess.run(
                [bash, "--norc", "-c", shell_command], capture_output=True, check=False, text=True
            )
            self.assertIn(expected, ended.stdout.split(), ended.stderr)
