"""Runs of programs that are linked once."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.audio import run
from tests.support.programs import FFMPEG, write_script
from tests.support.service import all_children

WORDS = [FFMPEG, *"-v error -f s16le -ar 8000 -ac 1 -i file:/dev/fd/3 -f wav pipe:1".split()]


class LinkedProgramTests(SynchronousTestCase):
    """`start_linked`, and `run`, which uses it"""

    def test_run(self) -> None:
        """A linked program and any other one read and write alike, and leave no child."""
        script = Path(self.mktemp()).absolute()
        write_script(script, f'#!/bin/sh\nexec {FFMPEG} "$@"\n')
        for words in (WORDS, [*WORDS[:-1], "pipe:9"]):
            ended = [run([program, *words[1:]], bytes(1000)) for program in (FFMPEG, str(script))]
            # Since FFmpeg 7, messages have addresses in memory.
            linked, other = (
                (each.returncode, each.stdout, re.sub(rb"0x\w+", b"", each.stderr))
                for each in ended
            )
            self.assertEqual(linked, other)
        self.assertEqual([], all_children())
