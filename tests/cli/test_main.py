"""The command, run in the test's process: help, usage errors and shell completion."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

import audioproxy
from audioproxy.cli import store
from audioproxy.cli.main import build_parser
from tests.cli.command import command

COMMANDS = ("sign", "verify", "explain", "warm", "store", "doctor", "completion")
#: The commands that have examples.
WITH_EXAMPLES = (*COMMANDS, *(f"store {name}" for name in store.COMMANDS))


class HelpTests(SynchronousTestCase):
    """Help texts and completion scripts."""

    def test_examples(self) -> None:
        """Each command's help has examples, and the command accepts their arguments."""
        for name in WITH_EXAMPLES:
            text = command(*name.split(), "--help").out
            lines = text.split("examples:\n")[1].split("\n\n")[0].splitlines()
            called = [line for line in lines if f"audioproxy {name}" in line]
            self.assertTrue(called, name)
            for line in called:
                words = line.split(f"audioproxy {name}")[1].split("|")[0].split("<")[0]
                words = words.split(">")[0]
                build_parser().parse_args([*name.split(), *words.split()])

    def test_version(self) -> None:
        """`--version` prints the version; wrong words print the usage and exit with 2."""
        self.assertEqual(f"audioproxy {audioproxy.__version__}\n", command("--version").out)
        for words in ((), ("bake",), ("sign",), ("verify", "--what")):
            ended = command(*words)
            self.assertEqual((2, ""), (ended.status, ended.out), words)
            self.assertIn("usage: audioproxy", ended.err)

    def test_suggestion(self) -> None:
        """A word that is nearly a command gets a suggestion, and any other one all commands."""
        for word, hint in (("sing", "did you mean sign?"), ("bake", "the commands are sign, ")):
            self.assertIn(f"'{word}' is not a command; {hint}", command(word, "local://a").err)

    def test_scripts(self) -> None:
        """`completion` prints scripts for bash, zsh and tcsh that contain every command."""
        for shell in ("bash", "zsh", "tcsh"):
            ended = command("completion", shell)
            self.assertEqual(0, ended.status, shell)
            for name in COMMANDS:
                self.assertIn(name, ended.out, shell)
