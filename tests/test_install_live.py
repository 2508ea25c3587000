"""The wheel, installed into fresh environments: with its dependencies, and for its signer alone."""

from __future__ import annotations

import os
import re
import shutil
import sys
import venv
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from twisted.trial.unittest import SkipTest, SynchronousTestCase

import audioproxy
from audioproxy.urls import Signer, Variant
from tests.cli.command import SECRETS
from tests.support.programs import FFMPEG
from tests.support.runs import output_of, run_program
from tests.support.service import PROJECT, TWISTD

VERSION = audioproxy.__version__

#: What a wheel is built from.
CONTENTS = ("LICENSE", "README.md", "audioproxy", "pyproject.toml", "setup.cfg", "twisted")
#: Maximum seconds for one installation.
PATIENCE = 300
UNREACHABLE = re.compile("Max retries exceeded|ConnectionError|NameResolutionError|ConnectTimeout")

#: Prints a URL, and imports the standard library and the package only. Modules that Python itself
#: imports when it starts do not count: Debian's Python imports a sitecustomize.
LIBRARY = """
import sys
imported_at_start = set(sys.modules)
from audioproxy.urls import Signer, Variant
imported = {name.partition(".")[0] for name in sys.modules.keys() - imported_at_start}
assert imported - set(sys.stdlib_module_names) == {"audioproxy"}, imported
print(Signer.from_hex(*sys.argv[1:3]).url("local://a", Variant(f="opus", t=[0.1 + 0.2, 5])))
"""


def pip(*words: object) -> None:
    """Run pip.

    :raises SkipTest: if the package index cannot be reached.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "0", *words]
    # Trial's worker processes set PYTHONPATH to the project, which pip would regard as installed.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    ended = run_program(*command, environment=environment, timeout=PATIENCE)
    if ended.status and UNREACHABLE.search(ended.err):
        raise SkipTest("pip cannot reach the package index")
    if ended.status:
        raise AssertionError(ended.out + ended.err)


def build_wheel(source: Path, version: str) -> Path:
    """Copy the project, set its version, and build its wheel."""
    source.mkdir()
    for name in CONTENTS:
        path = PROJECT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source)
    package = source / "audioproxy/__init__.py"
    package.write_text(package.read_text().replace(f'"{VERSION}"', f'"{version}"'))
    pip("wheel", "--no-deps", "--wheel-dir", source / "wheels", source)
    (wheel,) = (source / "wheels").iterdir()
    return wheel


def requirements(of: Distribution, extra: str = "") -> dict[tuple[str, str], Distribution]:
    """Return what a distribution with an extra requires directly and indirectly.

    The keys are names and extras.
    """
    found: dict[tuple[str, str], Distribution] = {}
    for line in of.requires or ():
        required = Requirement(line)
        if required.marker is None or required.marker.evaluate({"extra": extra}):
            for each in ("", *required.extras):
                found[required.name, each] = distribution(required.name)
    for (_, each), one in list(found.items()):
        found |= requirements(one, each)
    return found


def link(entry: Path, folder: Path) -> None:
    """Link a file or folder into a folder, or its entries if the folder has one of this name."""
    target = folder / entry.name
    if not target.exists():
        target.symlink_to(entry)
    elif not target.is_symlink():
        for each in entry.iterdir():
            link(each, target)


class Environment:
    """A fresh virtual environment with the package and, if asked for, its dependencies.

    The dependencies are those of this test's environment, since their installation takes minutes.
    """

    def __init__(self, folder: str, wheel: Path, dependencies: bool = False) -> None:
        venv.create(folder)
        self.programs = Path(folder).resolve() / "bin"
        place = ("--python", self.programs / "python")
        pip(*place, "install", "--no-compile", "--no-deps", wheel)
        if dependencies:
            (packages,) = Path(folder).glob("lib/python*/site-packages")
            (package,) = distributions(path=[str(packages)])
            for one in requirements(package).values():
                for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
                    link(Path(str(one.locate_file(name))), packages)
            pip(*place, "check")

    def run(self, program: str, *words: str, **settings: str) -> tuple[int, str]:
        """Return the exit status and the output of a program of the environment."""
        environment = {**SECRETS, "PATH": str(Path(FFMPEG).parent), **settings}
        path = self.programs / program
        ended = run_program(path, *words, environment=environment, cwd=self.programs)
        return ended.status, ended.out + ended.err


class InstallTests(SynchronousTestCase):
    """Both ways to install the package."""

    def test_wheel(self) -> None:
        """Without dependencies, the wheel signs and verifies; with them, all commands work.

        A command that lacks a package names it and how to install it, with status 2.
        """
        wheel = build_wheel(Path(self.mktemp()), VERSION)
        self.check_signer(Environment(self.mktemp(), wheel))
        self.check_service(Environment(self.mktemp(), wheel, dependencies=True))

    def check_signer(self, alone: Environment) -> None:
        """Check an environment that has only the standard library and the package."""
        self.assertEqual((0, f"audioproxy {VERSION}\n"), alone.run("audioproxy", "--version"))
        signer = Signer.from_hex(SECRETS["AP_KEY"], SECRETS["AP_SALT"])
        url = signer.url("local://a", Variant(f="opus", t=(0.3, 5)))
        secrets = tuple(SECRETS.values())
        self.assertEqual((0, f"{url}\n"), alone.run("python", "-c", LIBRARY, *secrets))
        sign = ("sign", "--options", "f:opus/t:0.3:5", "local://a")
        self.assertEqual((0, f"{url}\n"), alone.run("audioproxy", *sign))
        self.assertEqual((0, f"good: {url}\n"), alone.run("audioproxy", "verify", url))
        for name in ("sign", "verify"):
            status, text = alone.run("audioproxy", name, "--help")
            self.assertEqual((0, True), (status, "--env-file" in text), text)
        for name, package in (
            ("completion", "shtab"),
            ("warm", "cachetools"),
            ("doctor", "twisted"),
        ):
            status, text = alone.run("audioproxy", name)
            self.assertEqual(2, status, text)
            self.assertEqual(
                f"audioproxy: audioproxy {name} needs {package}, which is not installed; in a"
                " checkout of the project, `pip install .` installs the package and all that it"
                " needs\n",
                text,
            )

    def check_service(self, whole: Environment) -> None:
        """Check an environment that has the dependencies too."""
        root, store = Path(self.mktemp()).resolve(), Path(self.mktemp()).resolve()
        root.mkdir()
        store.mkdir()
        settings = {"AP_LOCAL_ROOT": str(root), "AP_VARIANT_STORE": f"file://{store}"}
        settings |= {"AP_SERVE_MODE": "proxy", "AP_PORT": "0", "AP_METRICS_PORT": "0"}
        status, text = whole.run("audioproxy", "doctor", **settings)
        self.assertEqual(0, status, text)
        self.assertRegex(text, rf"(?m)^ok +audioproxy +{re.escape(VERSION)}, Python")
        # The wheel has the source of the program that confines ffmpeg, and no compiler.
        command = re.search(r"(?m)^--  cell .*`(cc .+?)`", text)
        assert command is not None, text
        output_of("sh", "-c", command[1])
        status, text = whole.run("audioproxy", "doctor", **settings)
        self.assertEqual((0, False), (status, "audioproxy-cell is missing" in text), text)
        self.assertRegex(text, r"(?m)^ok +start .* linked once, and forked")
        status, text = whole.run("python", "-c", TWISTD, "--help")
        self.assertEqual(0, status, text)
        self.assertRegex(text, r"(?m)^ +audioproxy +Serve audio")
        status, text = whole.run("audioproxy", "completion", "bash")
        self.assertEqual((0, True), (status, "--env-file" in text))
