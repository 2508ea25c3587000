"""``python -m tests.soak.guards``: check that the tests detect known bugs.

Each bug of `BUGS` is put into a copy of the tree. The bug names a check of a fault run, or a test
module. This check has to fail in a short fault run of the copy, or this module has to fail in the
copy. A fault run of a copy without a bug has to pass.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.soak.bugs import BUGS, Bug
from tests.support.service import PROJECT

_PARTS = ("audioproxy", "tests", "twisted", "setup.cfg", "pyproject.toml")
_JUNK = shutil.ignore_patterns("__pycache__", "node_modules", "_trial_temp*")
_SECONDS = 14
# Time limit of one run in seconds. A fault run that exceeds it is reported as a run without a
# result. A test module that exceeds it ends this program with TimeoutExpired.
_LONGEST = 150
_ROW = re.compile(r"^\| ([a-z ]+) \| ([0-9]+|good) \| .+ \|$", re.MULTILINE)
_BROKE = "the run gave no result"


def spoil(bug: Bug, tree: Path) -> None:
    """Put a bug into a copy of the tree.

    :raises ValueError: if the text to replace does not occur exactly once.
    """
    path = tree / "audioproxy" / bug.path
    text = path.read_text(encoding="utf-8")
    if text.count(bug.old) != 1:
        raise ValueError(
            f"{bug.path} contains the text of {bug.name!r} {text.count(bug.old)} times, not once"
        )
    path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")


def failed_checks(bug: Bug | None, seed: int) -> list[str]:
    """Test a copy of the tree; return the names of the failed checks, or the failed test module.

    If a fault run gives no result, the list holds a message instead.
    """
    with tempfile.TemporaryDirectory(prefix="guards-") as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        for part in _PARTS:
            source = PROJECT / part
            if source.is_dir():
                shutil.copytree(source, tree / part, ignore=_JUNK)
            else:
                shutil.copy2(source, tree / part)
        if bug is not None:
            spoil(bug, tree)
            if bug.detected_by.startswith("tests."):
                return failed_tests(bug.detected_by, tree)
        report = Path(folder, "report.md")
        words = ["-m", "tests.soak", f"--seconds={_SECONDS}", f"--seed={seed}"]
        words += [f"--report={report}", f"--keep={folder}/run"]
        try:
            ended = subprocess.run(
                [sys.executable, *words],
                cwd=tree,
                env={**os.environ, "PYTHONPATH": str(tree)},
                capture_output=True,
                timeout=_LONGEST,
            )
        except subprocess.TimeoutExpired:
            return [f"{_BROKE}: it did not end within {_LONGEST} s"]
        if ended.returncode == 0:
            return []
        if not report.exists():
            return [_BROKE + ": " + ended.stderr.decode(errors="replace").strip()[-100:]]
        rows = _ROW.findall(report.read_text(encoding="utf-8"))
        return [name for name, result in rows if result != "good"]


def failed_tests(module: str, tree: Path) -> list[str]:
    """Run a test module in a copy of the tree; return its name in a list if a test failed."""
    ended = subprocess.run(
        [sys.executable, "-m", "twisted.trial", module],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        timeout=_LONGEST,
    )
    return [module] if b"\nFAILED (" in ended.stdout else []


def main(words: list[str]) -> int:
    """Print a table; return 0 if every bug is detected and the unchanged tree passes."""
    parser = argparse.ArgumentParser("python -m tests.soak.guards", description=__doc__)
    parser.add_argument("--only", default="", help="try only bugs whose names contain this")
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args(words)
    chosen = [bug for bug in BUGS if given.only in bug.name]
    print("| Bug | In | Expected failure | Failed |\n|---|---|---|---|", flush=True)
    unseen = 0
    for bug in [None, *chosen]:
        found = failed_checks(bug, given.seed)
        if bug is None:
            print(f"| none | | nothing | {', '.join(found) or 'nothing'} |", flush=True)
            unseen += bool(found)
        else:
            seen = ", ".join(found) or "**NOTHING**"
            print(f"| {bug.name} | {bug.path} | {bug.detected_by} | {seen} |", flush=True)
            unseen += bug.detected_by not in found
    print(f"\n{len(chosen)} bugs, {unseen} unexpected results")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
