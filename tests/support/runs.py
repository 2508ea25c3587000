"""Programs that run to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.servers import PATIENCE


@dataclass(frozen=True)
class RunResult:
    """Exit status and output of a program."""

    status: int
    out: str
    err: str


def run_program(
    *words: object, environment: Mapping[str, str] | None = None, **options: Any
) -> RunResult:
    """Run a program in a process of its own to its end.

    :param environment: all of its variables; None for those of this process.
    :param options: see `subprocess.run`.
    """
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = {**defaults, "timeout": PATIENCE, "check": False, **options}
    ended = subprocess.run(words, env=environment, **options)
    return RunResult(ended.returncode, ended.stdout or "", ended.stderr or "")


def output_of(*words: object, **options: Any) -> str:
    """Return the output of a program as `run_program` runs it; it must succeed without errors."""
    ended = run_program(*words, **options)
    assert (ended.status, ended.err) == (0, ""), ended
    return ended.out
