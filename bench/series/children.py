"""The cost of the cells that ffmpeg and ffprobe run in."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence

from audioproxy.media.inputs import SOURCE_DESCRIPTOR
from audioproxy.process.child_limits import ChildLimits
from audioproxy.process.find_starter import find_starter
from bench.figures import Figure
from bench.settings import Bench

_LIMITS = ChildLimits(1 << 30).of_child(60, 1 << 30)
_RUNS = 20


class IncompleteCell(Exception):
    """This machine cannot confine programs fully."""


def cells(bench: Bench) -> list[Figure]:
    """Measure starts and a render in cells beside bare ones, in turn.

    :raises IncompleteCell: with what the machine lacks.
    """
    programs = [shutil.which(name) or name for name in ("ffprobe", "ffmpeg")]
    starter, shortcomings = find_starter(programs, _LIMITS, {})
    if shortcomings:
        raise IncompleteCell(*shortcomings)
    figures = []
    source = os.open(bench.sounds / "three.flac", os.O_RDONLY)
    try:
        opened = f"file:/dev/fd/{SOURCE_DESCRIPTOR}"
        render = ["-nostdin", "-v", "error", "-i", opened, "-f", "mp3", "pipe:1"]
        for program, arguments, runs, target in (
            (programs[0], ["-version"], bench.count(_RUNS), 1.1),
            (programs[1], ["-version"], bench.count(_RUNS), 1.1),
            (programs[1], render, 1, 1.01),
        ):
            command = [program, *arguments]
            words = starter.command_line(command, [SOURCE_DESCRIPTOR], _LIMITS)
            name = os.path.basename(program)
            is_render = arguments is render
            work = "3 minutes of FLAC to mp3 by `ffmpeg`" if is_render else f"`{name} -version`"
            figure = Figure(work, "in a cell, over the bare program", "ms", target=target)
            figure.on_page = name == "ffmpeg"
            for _ in range(bench.rounds):
                figure.add(_milliseconds(words, source, runs), _milliseconds(command, source, runs))
            figures.append(figure)
    finally:
        os.close(source)
    return figures


def _milliseconds(command: Sequence[str], source: int, runs: int) -> float:
    """Return the milliseconds of one run, the mean of some."""
    start = time.perf_counter()
    for _ in range(runs):
        pid = os.posix_spawn(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, source, SOURCE_DESCRIPTOR),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
        )
        if status := os.waitpid(pid, 0)[1]:
            raise subprocess.CalledProcessError(status, command)
    return (time.perf_counter() - start) / runs * 1000
