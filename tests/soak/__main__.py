"""``python -m tests.soak``: make a fault run and print its report.

The exit status is 0 if every check passes, and 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from tests.soak.rig import Rig, RunParameters
from tests.soak.run import Run


def read_arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="seconds of load; default 120")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices; default 1")
    parser.add_argument("--report", type=Path, help="also write the report to this file")
    parser.add_argument("--keep", type=Path, help="keep all files in this new folder")
    return parser.parse_args(words)


async def main(given: argparse.Namespace) -> None:
    """Make one fault run, print its report, and write the requested files.

    :raises SystemExit: with status 1 if a check failed.
    """
    base = given.keep or Path(tempfile.mkdtemp(prefix="soak-"))
    base = base.resolve()
    try:
        rig = Rig.build(RunParameters.of(given.seconds, given.seed), base)
        # The fork server writes its log into the current folder.
        with contextlib.chdir(base):
            outcome = await Run(rig).run()
        print(outcome.report, flush=True)
        if given.report is not None:
            given.report.write_text(outcome.report, encoding="utf-8")
        if given.keep is not None:
            for node in (rig.a, rig.b):
                (base / f"{node.name}.log").write_text(node.log + node.said, encoding="utf-8")
    finally:
        if given.keep is None:
            shutil.rmtree(base, ignore_errors=True)
    if outcome.problems:
        raise SystemExit(1)


if __name__ == "__main__":
    arguments: Any = read_arguments(sys.argv[1:])
    react(lambda _: Deferred.fromCoroutine(main(arguments)))
