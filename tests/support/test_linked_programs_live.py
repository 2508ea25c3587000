"""Runs of programs that are linked once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.audio import ENVIRONMENT, run
from tests.support.linked_programs import LIBRARY, start_linked, wait
from tests.support.programs import FFMPEG
from tests.support.service import all_children

WORDS = [FFMPEG, *"-v error -f s16le -ar 8000 -ac 1 -i file:/dev/fd/3 -f wav pipe:1".split()]


class LinkedProgramTests(SynchronousTestCase):
    """`start_linked`, and `run`, which uses it"""

    def start(self, program: str) -> int | None:
        """Start a program in place of ffmpeg."""
        with open(os.devnull, "r+b") as null:
            return start_linked([program, "-version"], {1: null.fileno()}, ENVIRONMENT)

    def test_run(self) -> None:
        """A linked program and any other one read and write alike, and leave no child."""
        script = Path(self.mktemp()).absolute()
        script.write_text(f'#!/bin/sh\nexec {FFMPEG} "$@"\n')
        script.chmod(0o755)
        for words in (WORDS, [*WORDS[:-1], "pipe:9"]):
            ended = [run([program, *words[1:]], bytes(1000)) for program in (FFMPEG, str(script))]
            self.assertEqual(*((each.returncode, each.stdout, each.stderr) for each in ended))
        self.assertEqual([], all_children())

    def test_linked(self) -> None:
        """ffmpeg is linked where audioproxy's library is; a script of its name is not."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        script = folder / "ffmpeg"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
        for program in (script, "/bin/true", folder / "none/ffmpeg"):
            self.assertIsNone(self.start(str(program)), program)
        linked = shutil.copy("/bin/true", folder / "ffprobe")
        pid = self.start(str(linked))
        self.assertEqual(Path(LIBRARY).exists(), pid is not None)
        self.assertEqual(0, 0 if pid is None else wait(pid))
