"""Fuzzing engines: Hypothesis generates inputs, atheris is guided by code coverage."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.fuzz.targets import TARGETS, Target

ENGINES = ("hypothesis", "atheris")
# Examples in one run of Hypothesis. A run has to be short, because the deadline is checked only
# between runs.
_BATCH = 300
# Seconds for shrinking a failing input.
_SHRINK = 20.0
# Seconds that atheris may take to import, instrument and exit.
_MARGIN = 120
_EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


@dataclass(frozen=True)
class Result:
    """Result of one engine on one target.

    :ivar runs: how many inputs were tried.
    :ivar broken: a short input that breaks the promise, or None.
    :ivar trouble: why the engine failed, or an empty string.
    """

    runs: int
    broken: bytes | None = None
    trouble: str = ""


def has_atheris() -> bool:
    """Return whether atheris is installed; it has no wheel for some Python versions."""
    return importlib.util.find_spec("atheris") is not None


def breaks(check: Callable[[bytes], None], data: bytes) -> str:
    """Return the error that an input causes, or an empty string."""
    try:
        check(data)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run_hypothesis(target: Target, seconds: float, first_seed: int, build: Path) -> Result:
    """Fuzz for the given number of seconds; start with inputs that failed in earlier runs."""
    runs = 0
    failed: list[bytes] = []
    deadline = time.monotonic() + seconds
    database = DirectoryBasedExampleDatabase(build / "hypothesis")
    while time.monotonic() < deadline and not failed:

        @seed(first_seed + runs)
        @settings(
            max_examples=_BATCH,
            deadline=None,
            derandomize=False,
            database=database,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(target.inputs)
        def batch(data: bytes) -> None:
            nonlocal runs
            runs += 1
            try:
                target.check(data)
            except Exception:
                failed.append(data)
                raise

        # Hypothesis raises the error itself, or an exception group if there are errors of several
        # kinds.
        breaks(lambda _, batch=batch: batch(), b"")
    if not failed:
        return Result(runs)
    return Result(runs, shrink(target.check, min(failed, key=len)))


def run_atheris(name: str, seconds: int, first_seed: int, build: Path) -> Result:
    """Fuzz one target in a child process, because ``atheris.Fuzz`` never returns."""
    target, folder = TARGETS[name], build / "fuzz" / name
    corpus, found = folder / "corpus", folder / "found"
    for each in (corpus, found):
        each.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds):
        (corpus / f"seed-{number:03d}").write_bytes(data)
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words), encoding="ascii")
    before = set(found.iterdir())
    command = [sys.executable, "-m", "tests.fuzz.guided", name, str(corpus)]
    command += [f"-max_total_time={max(1, seconds)}", f"-seed={first_seed}", f"-dict={words}"]
    command += [f"-max_len={target.longest}", f"-artifact_prefix={found}{os.sep}"]
    command += ["-print_final_stats=1", "-timeout=30", "-rss_limit_mb=2048"]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=seconds + _MARGIN, check=False)
    except subprocess.TimeoutExpired:
        return Result(0, trouble="atheris did not end")
    output = (ended.stdout + ended.stderr).decode("utf-8", "replace")
    counted = _EXECUTED.search(output)
    runs = int(counted[1]) if counted else 0
    new = [path.read_bytes() for path in sorted(set(found.iterdir()) - before)]
    if new:
        return Result(runs, shrink(target.check, min(new, key=len)))
    return Result(runs, trouble="" if ended.returncode == 0 else output[-2000:])


def shrink(check: Callable[[bytes], None], data: bytes, seconds: float = _SHRINK) -> bytes:
    """Remove slices of an input while it still breaks the promise; return the rest."""
    deadline = time.monotonic() + seconds
    length = len(data)
    while length and time.monotonic() < deadline:
        at = 0
        while at < len(data) and time.monotonic() < deadline:
            shorter = data[:at] + data[at + length :]
            if breaks(check, shorter):
                data = shorter
            else:
                at += length
        length //= 2
    return data


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02X}" for byte in word)
