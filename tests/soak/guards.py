"""``python -m tests.soak.guards``: check that the tests detect known bugs.

Each bug of `BUGS` names checks of a soak run, or a test module. With the bug in the service, one of
these checks has to fail in a short run, or this module has to fail. A run without a bug has to
pass.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.soak.bugs import BUGS
from tests.support.service import PROJECT

_SECONDS = 14
# Time limit of one run in seconds. A soak run that exceeds it is reported as a run without a
# result. A test module that exceeds it ends this program with TimeoutExpired.
_TIMEOUT = 600
_ROW = re.compile(r"^\| ([a-z -]+) \| ([0-9]+|good) \| .* \|$", re.MULTILINE)
_NO_RESULT = "the run gave no result"
_TRIAL = """\
import sys
from tests.soak.bugs import inject
from twisted.scripts.trial import run
inject(sys.argv.pop(1))
run()
"""


def failed_checks(name: str, seed: int) -> list[str]:
    """Make a short soak run with a bug; return the names of the failed checks.

    If the run gives no result, the list holds a message instead.

    :param name: of the bug; empty for none.
    """
    with tempfile.TemporaryDirectory(prefix="guards-") as folder:
        report = Path(folder, "report.md")
        words = ["-m", "tests.soak", f"--bug={name}", f"--seconds={_SECONDS}", f"--seed={seed}"]
        words += [f"--report={report}", f"--keep={folder}/run"]
        try:
            ended = _run(words, PROJECT)
        except subprocess.TimeoutExpired:
            return [f"{_NO_RESULT}: it did not end within {_TIMEOUT} s"]
        if ended.returncode == 0:
            return []
        if not report.exists():
            return [f"{_NO_RESULT}: {ended.stderr.decode(errors='replace').strip()[-100:]}"]
        rows = _ROW.findall(report.read_text(encoding="utf-8"))
        return [check for check, result in rows if result != "good"]


def failed_module(name: str, module: str) -> list[str]:
    """Run a test module with a bug; return the module's name in a list if a test failed."""
    with tempfile.TemporaryDirectory(prefix="guards-") as folder:
        ended = _run(["-c", _TRIAL, name, "--exitfirst", module], Path(folder))
    return [module] if b"\nFAILED (" in ended.stdout else []


def _run(words: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        timeout=_TIMEOUT,
    )


def main(words: list[str]) -> int:
    """Print a table; return 0 if every bug is detected, and a run without a bug passes."""
    parser = argparse.ArgumentParser("python -m tests.soak.guards", description=__doc__)
    parser.add_argument("--only", default="", help="try only bugs whose names contain this")
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args(words)
    print("| Bug | Expected failure | Failed |\n|---|---|---|", flush=True)
    found = failed_checks("", given.seed)
    print(f"| none | nothing | {', '.join(found) or 'nothing'} |", flush=True)
    unexpected = len(found)
    chosen = [bug for bug in BUGS if given.only in bug.name]
    for bug in chosen:
        expected = bug.detected_by
        if expected[0].startswith("tests."):
            found = failed_module(bug.name, *expected)
        else:
            found = failed_checks(bug.name, given.seed)
        failed = ", ".join(found) or "**NOTHING**"
        print(f"| {bug.name} | {' or '.join(expected)} | {failed} |", flush=True)
        unexpected += not set(expected) & set(found)
    print(f"\n{len(chosen)} bugs, {unexpected} unexpected results")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
