"""How the children of a machine are started, and which programs run in a cell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from audioproxy.process.cell import CellStarter
from audioproxy.process.find_starter import BINARY, find_starter
from audioproxy.process.starters import Starter, UtilLinuxStarter
from tests.support.processes import set_environment
from tests.support.programs import write_script
from tests.support.service import PATIENCE

#: What audioproxy-cell prints where everything works.
WHOLE = "7 1"


class FindTests(SynchronousTestCase):
    """`find_starter` with programs that each test writes"""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()

    def write(self, name: str, text: str) -> str:
        """Write a script, and return its path."""
        return str(write_script(self.folder / name, text))

    def find(
        self, binary: str, *programs: str, timeout: float = PATIENCE
    ) -> tuple[Starter, list[str]]:
        """Find the starter of programs with a binary in the place of audioproxy-cell."""
        environment = {"PATH": os.defpath}
        return find_starter(programs, {}, environment, expected=Path(binary), timeout=timeout)

    def test_kernels(self) -> None:
        """What the kernel lacks is named, with what is required."""
        for output, shortcomings in (
            (WHOLE, []),
            ("4 1", []),
            ("0 1", ["Linux 5.13 or newer"]),
            ("7 0", ["can use UDP and Unix sockets.*CONFIG_SECCOMP_FILTER is required"]),
            ("0 0", ["no Landlock", "no seccomp filters.*can use all sockets"]),
        ):
            binary = self.write("binary", f"#!/bin/sh\necho {output}\n")
            starter, found = self.find(binary, "/usr/bin/ffmpeg")
            self.assertEqual(len(shortcomings), len(found), output)
            for words, text in zip(shortcomings, found, strict=True):
                self.assertRegex(text, words)
            assert isinstance(starter, CellStarter)
            self.assertEqual({"/usr/bin/ffmpeg"}, starter.programs.keys())

    def test_no_binary(self) -> None:
        """Without a binary that runs, util-linux starts the children, and one line says so."""
        # An installed one could be on the PATH.
        set_environment(self, PATH="/usr/bin:/bin")
        for binary in ("/nowhere/audioproxy-cell", self.write("broken", "#!/bin/sh\nexit 1\n")):
            starter, (text,) = self.find(binary, "/usr/bin/ffmpeg")
            self.assertIsInstance(starter, UtilLinuxStarter)
            self.assertIn(f"cc -O2 -static -o {binary} ", text)

    def test_link_to_a_version(self) -> None:
        """The binary is the one of this version, also after a link was turned to another one."""
        link = self.folder / "current"
        link.symlink_to(sys.prefix)
        program = "from audioproxy.process.find_starter import BINARY; print(BINARY)"
        printed = subprocess.check_output([link / "bin/python", "-c", program], text=True)
        self.assertEqual(f"{Path(sys.prefix).resolve()}/bin/audioproxy-cell\n", printed)

    def test_programs(self) -> None:
        """A program that does not run in its cell has none, and is named."""
        binary = str(BINARY)
        if shortcomings := self.find(binary)[1]:
            raise SkipTest(f"the cell is incomplete: {shortcomings}")
        python = os.path.realpath(sys.executable)
        for text, is_confined in (
            ("#!/bin/sh\necho version\n", True),
            (f"#!{python} -I\nprint('version')\n", True),
            ("#!/bin/sh\n/bin/true\n", False),
            ("#!/usr/bin/env sh\n:\n", True),
            # Those that do not run outside a cell either.
            ("#!/bin/sh\n/bin/true\nexit 1\n", True),
            ("#!/nowhere/sh\n", True),
        ):
            program = self.write("ffmpeg", text)
            starter, shortcomings = self.find(binary, program)
            assert isinstance(starter, CellStarter)
            self.assertEqual(is_confined, program in starter.programs, text)
            self.assertEqual(() if is_confined else (program,), starter.unconfined)
            self.assertEqual(
                [] if is_confined else [program], [line.split()[0] for line in shortcomings]
            )

    def test_slow_program(self) -> None:
        """A program that takes too long, as on a busy machine, keeps its cell."""
        program = self.write("ffmpeg", "#!/bin/sh\nkill -STOP $$\n")
        # On a busy machine, audioproxy-cell itself may need more time.
        for timeout in (0.1, 1.0, 10.0):
            starter, shortcomings = self.find(str(BINARY), program, timeout=timeout)
            if isinstance(starter, CellStarter):
                break
        assert isinstance(starter, CellStarter)
        self.assertEqual(({program}, []), (starter.programs.keys(), shortcomings))

    def test_missing_program(self) -> None:
        """A program that is installed later runs in a cell, or not at all."""
        starter, _ = self.find(str(BINARY), "ffmpeg-of-tomorrow")
        assert isinstance(starter, CellStarter)
        self.assertEqual({"ffmpeg-of-tomorrow"}, starter.programs.keys())
        command = ["ffmpeg-of-tomorrow", "-version"]
        missing = starter.command_line(command, (), {})
        self.assertEqual(command, missing[-2:])
        program = self.write("ffmpeg-of-tomorrow", "#!/bin/sh\necho version\n")
        # The working directory is no part of the PATH.
        ended = subprocess.run(missing, cwd=self.folder, capture_output=True)
        self.assertEqual((127, b""), (ended.returncode, ended.stdout))
        set_environment(self, PATH=str(self.folder))
        words = starter.command_line(command, (), {})
        self.assertEqual([program, "-version"], words[-2:])
        self.assertIn("/bin/sh", words)
        self.assertEqual(b"version\n", subprocess.run(words, capture_output=True).stdout)
