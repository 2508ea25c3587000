"""The cost of the programs that set the limits of ffmpeg and ffprobe before they start."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

from audioproxy.process.spawn import probe_limits, probe_parent_death_prefix
from bench.figures import Figure
from bench.settings import Bench

_MEMORY = 1 << 30
_RUNS = 20


def prefixes(bench: Bench) -> list[Figure]:
    """Measure the start of ffprobe and ffmpeg with their prefixes beside bare starts."""
    limits = probe_limits(_MEMORY)
    assert limits is not None, "prlimit is needed"
    words = limits.prefix(60, 1 << 30)
    figures = []
    for program, prefix, name in (
        ("ffprobe", words, "prlimit"),
        ("ffmpeg", [*words, *probe_parent_death_prefix()], "prlimit and setpriv"),
    ):
        figure = Figure(
            f"`{program} -version`",
            f"with {name} ahead of it",
            "ms",
            peer="the bare program",
            target=1.1,
        )
        for _ in range(bench.rounds):
            command = [program, "-version"]
            figure.add(_milliseconds([*prefix, *command]), _milliseconds(command))
        figures.append(figure)
    return figures


def _milliseconds(command: Sequence[str]) -> float:
    """Return the milliseconds of one run, the mean of some."""
    start = time.perf_counter()
    for _ in range(_RUNS):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) / _RUNS * 1000
