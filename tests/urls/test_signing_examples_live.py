"""Signing examples: each language produces the published signatures."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.deploy.balancer import installed
from tests.support.runs import RunResult, run_program
from tests.support.service import PROJECT
from tests.test_vectors import SIGNATURES

FOLDER = PROJECT / "examples" / "signing"
README = (FOLDER / "README.md").read_text("utf-8")

PAIRS = SIGNATURES["pairs"]
KEY, SALT = PAIRS[0]["key"], PAIRS[0]["salt"]


@dataclass(frozen=True)
class Example:
    """Example program: its command in the README, and a faster way to run it, if there is one.

    :ivar build: a command that compiles the program into the folder ``{out}``.
    :ivar built: a faster command that runs the program.
    :ivar needs: another program that it calls.
    """

    file: str
    command: str
    build: str = ""
    built: str = ""
    needs: str = ""


EXAMPLES = {
    "python": Example("sign.py", "python3 sign.py", built=f"{sys.executable} -I -S sign.py"),
    "go": Example("sign.go", "go run sign.go", "go build -o {out}/sign sign.go", "{out}/sign"),
    "java": Example(
        "Sign.java",
        "java Sign.java",
        "javac -J-XX:TieredStopAtLevel=1 -J-XX:+UseSerialGC -d {out} Sign.java",
        "java -Xint -XX:+UseSerialGC -cp {out} Sign",
    ),
    "shell": Example("sign.sh", "sh sign.sh", needs="openssl"),
}

#: Key, salt and path, and a word that the message must contain: it identifies the mistake.
REFUSED = (
    ("zz" + KEY, SALT, "/", "AP_KEY"),
    (KEY + "\n", SALT, "/", "AP_KEY"),
    (KEY[2:], SALT, "/", "AP_KEY"),
    (KEY, "0x" + SALT, "/", "AP_SALT"),
    (KEY, "", "/", "AP_SALT"),
    (KEY, SALT, "f:mp3/plain/local://a.mp3", "slash"),
    (KEY, SALT, "https://audio.example/f:mp3/plain/local://a.mp3", "slash"),
    (KEY, SALT, "/f:mp3/plain/local://Größe.wav", "percent-encoded"),
    (KEY, SALT, "/f:mp3/plain/local://a.mp3?x=1", "query"),
)


class ExampleTests(SynchronousTestCase):
    """``examples/signing``"""

    def run_one(self, command: str, key: str, salt: str, paths: Sequence[str] = ()) -> RunResult:
        """Run a program in the folder of the examples."""
        environ = {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
            # With the library of Go, which `make languages` has compiled.
            "GOCACHE": str(PROJECT / "build/go"),
        }
        environ |= {"AP_KEY": key, "AP_SALT": salt}
        words = [word.format(out=self.out) for word in command.split()] + list(paths)
        return run_program(*words, environment=environ, cwd=FOLDER, input="")

    def check(self, language: str) -> None:
        """Run one example with all vectors and with input that it must refuse."""
        example = EXAMPLES[language]
        for command in (example.command, example.build, example.needs):
            if program := command.partition(" ")[0]:
                installed(program, "AUDIOPROXY_LANGUAGES")
        self.out = Path(self.mktemp()).resolve()
        self.out.mkdir(parents=True)
        shown = self.run_one(example.command, KEY, SALT, [PAIRS[0]["signed"][0]["path"]])
        self.assertEqual("", shown.err)
        self.assertIn(f"`{shown.out.strip()}`", README)
        quick = example.built or example.command
        if example.build:
            made = self.run_one(example.build, KEY, SALT)
            self.assertEqual((0, ""), (made.status, made.err))
        for pair in PAIRS:
            paths = [row["path"] for row in pair["signed"]]
            ended = self.run_one(quick, pair["key"], pair["salt"], paths)
            self.assertEqual((0, ""), (ended.status, ended.err))
            expected = [f"/{row['signature']}{row['path']}" for row in pair["signed"]]
            self.assertEqual(expected, ended.out.splitlines())
        for key, salt, path, word in REFUSED:
            ended = self.run_one(quick, key, salt, [path])
            self.assertEqual((1, ""), (ended.status, ended.out), (key, salt, path))
            self.assertIn(word, ended.err)
            self.assertEqual(1, len(ended.err.splitlines()), ended.err)
            self.assertNotIn(KEY[4:], ended.err)

    def test_all_are_run(self) -> None:
        """Every example in the folder has a test here, and its command is in the README."""
        files = {path.name for path in FOLDER.iterdir()} - {"README.md", "__pycache__"}
        self.assertEqual(files, {example.file for example in EXAMPLES.values()})
        for example in EXAMPLES.values():
            self.assertIn(f"`{example.command} PATH`", README)

    def test_python(self) -> None:
        """The Python example signs all vectors, and refuses invalid input (Authentication, 1)."""
        self.check("python")

    def test_go(self) -> None:
        """The Go example does so, too."""
        self.check("go")

    def test_java(self) -> None:
        """The Java example does so, too."""
        self.check("java")

    def test_shell(self) -> None:
        """The example for the shell does so, too."""
        self.check("shell")
