"""Mutate pure parts of the package with mutmut, and print the mutants that no test detects.

Each mutant is run with the unit tests of its folder alone, media with its subfolders. mutmut
changes the bodies of functions without decorators: tables, dataclass fields and properties stay as
they are, and so does what a module does when it is imported. A repeated run tests only what has
changed.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import chdir
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant

ROOT = Path(__file__).parent.parent

#: Folders, each with its modules.
SCOPES = {
    "grammar": ("*.py",),
    "web": ("conditions.py", "response_plan.py"),
    "variants": ("*.py",),
    "media": ("*.py",),
    "media/command": ("*.py",),
    "media/lengths": ("*.py",),
    "media/seeking": ("*.py",),
}
CONFIG = """\
[mutmut]
source_paths = audioproxy
only_mutate =
    {modules}
do_not_mutate = audioproxy/{scope}/*/*
pytest_add_cli_args_test_selection =
    {tests}
pytest_add_cli_args =
    -p
    no:cacheprovider
# The texts of errors are no part of the score.
do_not_mutate_patterns =
    raise \\w+
# Hypothesis refuses to run a test twice in one process.
process_isolation = forkserver
"""
# Most mutants fail in an example: properties are tried last, and a failing one is not shrunk.
CONFTEST = """\
from hypothesis import Phase, settings

settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate))
settings.load_profile("mutants")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: getattr(item.obj, "is_hypothesis_test", False))
"""


def prepare(folder: Path, scope: str) -> None:
    """Create a folder with the package, the tests and the configuration of one scope."""
    for name in ("audioproxy", "tests"):
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("node_modules"))
    shutil.rmtree(folder / "mutants/tests", ignore_errors=True)
    tests = (ROOT / "tests" / scope.partition("/")[0]).rglob("test_*.py")
    chosen = [str(path.relative_to(ROOT)) for path in tests if not path.stem.endswith("_live")]
    # The published vectors are examples of the grammar.
    chosen += ["tests/test_vectors.py"] * (scope == "grammar")
    modules = [f"audioproxy/{scope}/{name}" for name in SCOPES[scope]]
    listed = {"modules": "\n    ".join(modules), "tests": "\n    ".join(sorted(chosen))}
    (folder / "setup.cfg").write_text(CONFIG.format(scope=scope, **listed))
    (folder / "tests/conftest.py").write_text(CONFTEST)


def mutmut(folder: Path, *words: str) -> str:
    """Run mutmut and return its output."""
    command = [sys.executable, "-m", "mutmut", *words]
    output = subprocess.STDOUT
    return subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=output, text=True
    ).stdout


def results(folder: Path) -> dict[str, str]:
    """Return the result of each mutant by its name."""
    listed = mutmut(folder, "results", "--all", "1")
    return dict(re.findall(r"^    (\S+): (.+)$", listed, re.MULTILINE))


def main() -> None:
    """Run the scopes, and print the score and the survivors of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scopes", nargs="*", help=f"of {', '.join(SCOPES)}; all by default")
    parser.add_argument("--sample", type=int, help="mutants of each scope; all by default")
    parser.add_argument("--seed", type=int, default=1, help="which mutants a sample has")
    given = parser.parse_args()
    if unknown := ", ".join(sorted({*given.scopes} - {*SCOPES})):
        parser.error(f"no such scope: {unknown}; use {', '.join(SCOPES)}")
    for scope in given.scopes or SCOPES:
        folder = ROOT / "build/mutants" / scope.replace("/", "-")
        prepare(folder, scope)
        # mutmut makes the mutants, and ends: none of them has this name.
        output = mutmut(folder, "run", "none")
        chosen = names = sorted(results(folder))
        if not names:
            sys.exit(f"{scope}: mutmut made no mutants\n{output}")
        if given.sample is not None and given.sample < len(names):
            chosen = random.Random(given.seed).sample(names, given.sample)
        print(f"\n# {scope}: {len(names)} mutants, {len(chosen)} of them run", flush=True)
        some = chosen if chosen != names else ()
        output = mutmut(folder, "run", "--max-children", "1", *some)
        found = results(folder)
        counts = Counter(found[name] for name in chosen)
        print(f"{dict(counts)}\n{output[-2000:] if counts['not checked'] else ''}")
        for name in sorted(chosen):
            if found[name] not in ("killed", "timeout"):
                with chdir(folder):
                    print(f"\n{name}: {found[name]}\n{get_diff_for_mutant(name)}", flush=True)


if __name__ == "__main__":
    main()
