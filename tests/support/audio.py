"""Sound for the tests: sources made on the spot, real runs of ffmpeg, and what they put out.

A run is the exact command line that the service would use, with the source as its descriptor 3,
but synchronous: one process after the other, and everything in memory.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import struct
import subprocess
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import mul
from typing import Any

from audioproxy.errors import NothingDecoded, ProbeFailed, RenderFailed
from audioproxy.grammar.options import Options
from audioproxy.grammar.reading import read_options
from audioproxy.media.diagnostics import classify
from audioproxy.media.encoding import ENCODERS, encoder_arguments, measure_arguments
from audioproxy.media.inputs import local_input
from audioproxy.media.probing import Probe, probe_arguments, read_probe
from audioproxy.media.regions import needs_measuring, past_the_end

#: As in the service: nothing of its own environment reaches a child (D45).
ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}

# Seconds; no run of these sounds takes one.
_PATIENCE = 120

_OUT_TIME = re.compile(rb"^out_time_us=(\d+)$", re.MULTILINE)
_LOUDNESS = re.compile(rb"Integrated loudness:\s+I:\s+(-?[\d.]+) LUFS")
_PEAK = re.compile(rb"Peak:\s+(-?[\d.]+|-inf) dBFS")


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Sound:
    """Decoded samples, one array a channel, full scale being 1."""

    rate: int
    channels: tuple[array[float], ...]

    def __len__(self) -> int:
        return len(self.channels[0])

    def part(self, start: int, end: int | None = None) -> Sound:
        """Return the samples from ``start`` to ``end``."""
        return Sound(self.rate, tuple(channel[start:end] for channel in self.channels))


def run(arguments: Sequence[str], source: bytes = b"", stdout: int = subprocess.PIPE) -> Ended:
    """Run a program that finds ``source`` as its descriptor 3, seekable."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(source)
        file.flush()
        # The shell puts the file where the program looks for it, and becomes the program.
        ended = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" 3<"$0"', file.name, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            timeout=_PATIENCE,
            check=False,
        )
    return Ended(ended.returncode, ended.stdout or b"", ended.stderr)


def options(text: str) -> Options:
    """Read options as they stand in a URL, such as ``f:wav/t:1:2``."""
    return read_options(text.encode().split(b"/"))[0]


def probe(source: bytes) -> Probe:
    """Examine a source as the service does."""
    ended = run(probe_arguments("ffprobe", local_input()), source)
    if ended.code == 0:
        return read_probe(ended.stdout, ended.stderr)
    raise (classify(ended.stderr) or ProbeFailed)(repr(ended.stderr[-2000:]))


def command(source: bytes, wanted: Options) -> list[str]:
    """Return the command line of a render, after all that has to be found out for it."""
    return _command(wanted, _examined(source, wanted))


def _examined(source: bytes, wanted: Options) -> Probe:
    found = probe(source)
    if not needs_measuring(wanted, found):
        return found
    ended = run(measure_arguments("ffmpeg", local_input()), source)
    times = _OUT_TIME.findall(ended.stdout)
    if ended.code or not times:
        raise (classify(ended.stderr) or RenderFailed)(repr(ended.stderr[-2000:]))
    return replace(found, duration=int(times[-1]) / Probe.MICROSECONDS, exact=True, measured=True)


def _command(wanted: Options, found: Probe) -> list[str]:
    return encoder_arguments("ffmpeg", local_input(), wanted, found)
