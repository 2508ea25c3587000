"""The rights of each kind of child, and which programs run in a cell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from audioproxy.process import cell as cell_module
from audioproxy.process import starters as starters_module
from audioproxy.process.cell import CellStarter, ConfinedProgram, find_starter
from audioproxy.process.starters import Starter, UtilLinuxStarter
from tests.support.service import PATIENCE

#: What audioproxy-cell prints where everything works.
WHOLE = "7 1"


def options(words: list[str]) -> dict[str, list[str]]:
    """Return the arguments of each option of audioproxy-cell."""
    found: dict[str, list[str]] = {}
    rest = iter(words[1 : words.index("--")])
    for option in rest:
        arguments = found.setdefault(option, [])
        if option not in ("-k", "-c", "-s"):
            arguments.append(next(rest))
    return found


class RightsTests(SynchronousTestCase):
    """The command lines of `CellStarter`"""

    cells = CellStarter(
        "/x/cell", {"/x/ffmpeg": ConfinedProgram(("/x/ffmpeg", "/ld.so"), ("/lib/x",), False)}
    )

    def rights(self, *arguments: str, descriptors: tuple[int, ...] = ()) -> dict[str, list[str]]:
        """Return the rights of ffmpeg with arguments."""
        words = self.cells.command_line(
            ["/x/ffmpeg", *arguments], descriptors, {}, parent_death_signal=False
        )
        self.assertEqual(["--", "/x/ffmpeg", *arguments], words[words.index("--") :])
        return options(words)

    def test_no_source(self) -> None:
        """A child without a source, or that reads a pipe, opens its program and no other file."""
        for descriptors in (), (0, 1):
            rights = self.rights("-version", descriptors=descriptors)
            self.assertEqual({"-k", "-c", "-r", "-w", "-x"}, rights.keys())
            self.assertEqual(["/x/ffmpeg", "/ld.so"], rights["-x"])
            self.assertEqual(["/dev/null"], rights["-w"])
            readable = set(rights["-r"])
            self.assertIn("/lib/x", readable)
            others = {path for path in readable if not path.endswith(("/lib", "/lib64", "/lib/x"))}
            self.assertEqual({"/etc/ld.so.cache", "/dev/urandom"}, others)

    def test_local(self) -> None:
        """A child with an open source may open that file again, and has no network."""
        rights = self.rights("-i", "file:/dev/fd/3", descriptors=(1, 3))
        self.assertEqual((["3"], None), (rights["-d"], rights.get("-p")))

    def test_remote(self) -> None:
        """A child with a URL may connect to its port, look up names and read the authorities."""
        for url, port in (
            ("https://origin.test/a.wav", "443"),
            ("https://origin.test:8443/a.wav", "8443"),
            ("http://[::1]:9000/bucket/a.wav?X-Amz-Date=1", "9000"),
            ("http://store.test/a.wav", "80"),
        ):
            rights = self.rights("-ca_file", "/x/ca.pem", "-i", url, descriptors=(1,))
            self.assertEqual((None, [port, "53"]), (rights.get("-d"), rights["-p"]), url)
            self.assertLessEqual({"/etc/resolv.conf", "/x/ca.pem"}, set(rights["-r"]))

    def test_words_that_look_like_a_source(self) -> None:
        """Values of other options grant nothing."""
        words = ("-i", "file:/dev/fd/3", "-metadata", "title=-i", "-metadata", "https://x.test")
        self.assertNotIn("-p", self.rights(*words, descriptors=(3,)))

    def test_other_programs(self) -> None:
        """Other programs have limits and the parent-death signal, but no cell (D40)."""
        words = self.cells.command_line(
            ["/x/python", "-m", "a"], (), {"core": (0, 1)}, parent_death_signal=True
        )
        self.assertEqual(["/x/cell", "-k", "-l", "4=0:1", "--", "/x/python", "-m", "a"], words)
        bare = self.cells.command_line(["true"], (), {}, parent_death_signal=False)
        self.assertEqual(["/x/cell", "--", shutil.which("true")], bare)


class FindTests(SynchronousTestCase):
    """`find_starter` with programs that each test writes"""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()
        self.patch(starters_module, "_TIMEOUT", PATIENCE)

    def write(self, name: str, text: str) -> str:
        """Write a script, and return its path."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def find(self, binary: str, *programs: str) -> tuple[Starter, list[str]]:
        """Find the starter of programs with a binary in the place of audioproxy-cell."""
        self.patch(cell_module, "BINARY", Path(binary))
        return find_starter(programs, {})

    def test_kernels(self) -> None:
        """What the kernel lacks is named, with what is required."""
        for output, shortcomings in (
            (WHOLE, []),
            ("4 1", []),
            ("3 1", ["Linux 6.7 or newer is required"]),
            ("1 1", ["Linux 6.7 or newer is required"]),
            ("0 1", ["Linux 5.13 or newer"]),
            ("7 0", ["CONFIG_SECCOMP_FILTER is required"]),
            ("0 0", ["no Landlock", "no seccomp filters"]),
        ):
            binary = self.write("binary", f"#!/bin/sh\necho {output}\n")
            starter, found = self.find(binary, "/usr/bin/ffmpeg")
            self.assertEqual(len(shortcomings), len(found), output)
            for words, text in zip(shortcomings, found, strict=True):
                self.assertIn(words, text)
            assert isinstance(starter, CellStarter)
            self.assertEqual({"/usr/bin/ffmpeg"}, starter.programs.keys())

    def test_no_binary(self) -> None:
        """Without a binary that runs, util-linux starts the children, and one line says so."""
        for binary in ("/nowhere/audioproxy-cell", self.write("broken", "#!/bin/sh\nexit 1\n")):
            starter, (text,) = self.find(binary, "/usr/bin/ffmpeg")
            self.assertIsInstance(starter, UtilLinuxStarter)
            self.assertIn(f"cc -O2 -static -o {binary} ", text)

    def test_programs(self) -> None:
        """A program that does not run in its cell has none, and is named.

        A script runs in a cell unless it starts other programs.
        """
        binary = str(cell_module.BINARY)
        if shortcomings := self.find(binary)[1]:
            raise SkipTest(f"the cell is incomplete: {shortcomings}")
        python = os.path.realpath(sys.executable)
        for text, is_confined in (
            ("#!/bin/sh\necho version\n", True),
            (f"#!{python} -I\nprint('version')\n", True),
            ("#!/bin/sh\nexec /bin/true\n", False),
            ("#!/bin/sh\n/bin/true\n", False),
            ("#!/usr/bin/env sh\n:\n", True),
        ):
            program = self.write("ffmpeg", text)
            starter, shortcomings = self.find(binary, program)
            assert isinstance(starter, CellStarter)
            self.assertEqual(is_confined, program in starter.programs, text)
            self.assertEqual(
                [] if is_confined else [program], [line.split()[0] for line in shortcomings]
            )

    def test_kernel_without_anything(self) -> None:
        """Where nothing works, audioproxy-cell says so, and starts programs all the same."""
        binary, program = str(cell_module.BINARY), "/usr/bin/true"
        starter, _ = self.find(binary, program)
        # In a cell, the system calls that make one are forbidden, and this signal is set.
        inner = starter.command_line([program], (), {}, parent_death_signal=False)
        inner.remove("-k")
        confined = replace(ConfinedProgram.of(binary), is_script=True)
        confined = replace(confined, executable=(*confined.executable, program))
        outer = CellStarter(binary, {binary: confined})
        for command, output in (([binary, "-q"], b"0 0\n"), (inner, b"")):
            words = outer.command_line(command, (), {}, parent_death_signal=False)
            ended = subprocess.run(words, capture_output=True)
            self.assertEqual((0, output, b""), (ended.returncode, ended.stdout, ended.stderr))

    def test_missing_program(self) -> None:
        """A program that is installed later runs in a cell, or not at all."""
        binary = self.write("binary", f"#!/bin/sh\necho {WHOLE}\n")
        starter, shortcomings = self.find(binary, "ffmpeg-of-tomorrow")
        assert isinstance(starter, CellStarter)
        self.assertEqual(({"ffmpeg-of-tomorrow"}, []), (starter.programs.keys(), shortcomings))
