"""Mutate pure parts of the package with mutmut, and print the mutants that no test detects.

Each mutant is run with the unit tests of its folder alone. mutmut changes the bodies of functions
without decorators: tables, dataclass fields and properties stay as they are. A repeated run tests
only what has changed; remove build/mutants for a new one.
"""

from __future__ import annotations

import argparse
import fnmatch
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import chdir
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name

ROOT = Path(__file__).parent.parent

# The modules of a scope, and the folders or modules with their tests.
SCOPES = {
    "grammar": (("grammar/*",), ("grammar",)),
    "web": (("web/response_plan.py", "web/conditions.py"), ("web",)),
    "variants": (("variants/*",), ("variants",)),
    "media": (("media/*",), ("media",)),
}
CONFIG = """\
[mutmut]
source_paths = audioproxy
only_mutate =
    {modules}
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
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("audioproxy", "tests"):
        for each in (folder / name, folder / "mutants" / name):
            if name == "tests" or each.parent == folder:
                shutil.rmtree(each, ignore_errors=True)
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("node_modules"))
    patterns, folders = SCOPES[scope]
    tests = [
        str(path.relative_to(ROOT))
        for each in folders
        for path in sorted((ROOT / "tests" / each).rglob("test_*.py"))
        if not path.stem.endswith("_live")
    ]
    modules = [f"audioproxy/{pattern}" for pattern in patterns]
    lines = "\n    ".join
    (folder / "tests/conftest.py").write_text(CONFTEST)
    (folder / "setup.cfg").write_text(CONFIG.format(modules=lines(modules), tests=lines(tests)))


def names_of(folder: Path, scope: str) -> list[str]:
    """Return the names of all mutants of a scope, in order."""
    names = []
    # mutmut reads its configuration in the working directory.
    with chdir(folder):
        for path in sorted(Path("audioproxy").rglob("*.py")):
            if any(fnmatch.fnmatch(str(path), f"audioproxy/{each}") for each in SCOPES[scope][0]):
                made = mutate_file_contents(str(path), path.read_text()).mutant_names
                names += [get_mutant_name(path, name) for name in made]
    return names


def mutmut(folder: Path, *words: str) -> str:
    """Run mutmut and return its output."""
    ended = subprocess.run(
        [sys.executable, "-m", "mutmut", *words], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    return ended.stdout


def main() -> None:
    """Run the scopes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scopes", nargs="*", choices=[[], *SCOPES], metavar="SCOPE")
    parser.add_argument("--sample", type=int, help="mutants of each scope; all by default")
    parser.add_argument("--seed", type=int, default=1, help="which mutants a sample has")
    given = parser.parse_args()
    for scope in given.scopes or SCOPES:
        folder = ROOT / "build" / "mutants" / scope
        prepare(folder, scope)
        names = names_of(folder, scope)
        chosen = names
        if given.sample is not None and given.sample < len(names):
            chosen = random.Random(given.seed).sample(names, given.sample)
        print(f"{scope}: {len(names)} mutants, {len(chosen)} of them run", flush=True)
        output = mutmut(folder, "run", "--max-children", "1", *(chosen if chosen != names else []))
        found = dict(
            re.findall(r"^    (\S+): (.+)$", mutmut(folder, "results", "--all", "1"), re.M)
        )
        results = Counter(found.get(name, "not checked") for name in chosen)
        print(f"{scope}: {dict(results)}", flush=True)
        if results["not checked"]:
            print(output[-2000:])
        for name in sorted(chosen):
            if found.get(name) not in ("killed", "timeout"):
                with chdir(folder):
                    print(f"\n{name}: {found.get(name)}\n{get_diff_for_mutant(name)}", flush=True)


if __name__ == "__main__":
    main()
