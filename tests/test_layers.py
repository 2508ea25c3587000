"""The arrows of ``docs/architecture.md``, read from the source of every module."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from twisted.trial.unittest import SynchronousTestCase

import audioproxy

#: The parts of the package from the bottom up. A part may import itself and what stands in a
#: row below it; the parts of one row do not know each other.
LAYERS = (
    {"audioproxy", "errors"},
    {"grammar"},
    {"settings"},
    {"log_context", "recent", "threads"},
    {"config", "logs", "metrics", "urls"},
    {"media"},
    {"process", "storage"},
    {"render"},
    {"web"},
    {"backends", "systemd"},
    {"service"},
    {"tap"},
    {"cli"},
)
RANKS = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}

#: What everything below `service` receives as arguments, and may import to name its types only.
RECEIVED = {"config", "logs", "metrics"}

#: The parts without Twisted, I/O, a clock or chance, and what would bring them in.
PURE = {"audioproxy", "errors", "grammar", "media"}
IMPURE = set(
    "asyncio botocore concurrent datetime glob http.client logging multiprocessing os pathlib "
    "random requests secrets select selectors shutil signal socket ssl subprocess tempfile "
    "threading time treq twisted urllib.request uuid".split()
)
IMPURE_BUILTINS = {"input", "open", "print"}

#: The parts that may reach for the reactor and the environment of the process.
OUTERMOST = {"service", "tap", "cli"}
GLOBALS = set("twisted.internet.reactor os.environ os.environb os.getenv os.getenvb".split())

LONGEST = 400


@dataclass(frozen=True)
class Import:
    """One imported thing by its full name; ``from a import b`` imports ``a.b``."""

    name: str
    bound_as: str
    line: int
    for_types: bool


@dataclass(frozen=True)
class Module:
    """One module, parsed. ``package`` is the name that its relative imports start from."""

    name: str
    package: str
    tree: ast.Module
    lines: int

    @classmethod
    def parse(cls, name: str, source: str, is_package: bool = False) -> Module:
        """Parse a source that is, or could be, the module ``name``."""
        package = name if is_package else name.rpartition(".")[0]
        return cls(name, package, ast.parse(source), len(source.splitlines()))

    @property
    def part(self) -> str:
        """The part of the house that the module belongs to."""
        return part_of(self.name)

    def imports(self) -> Iterator[Import]:
        """Yield what the module imports, wherever the import stands."""
        for_types = {
            id(inner)
            for test in ast.walk(self.tree)
            if isinstance(test, ast.If) and dotted(test.test).endswith("TYPE_CHECKING")
            for statement in test.body
            for inner in ast.walk(statement)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    name = alias.name
                    bound_as = alias.asname or name
                    if isinstance(node, ast.ImportFrom):
                        name = f"{self._origin(node)}.{name}"
                    yield Import(name, bound_as, node.lineno, id(node) in for_types)

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        above = self.package.split(".")
        return ".".join([*above[: len(above) + 1 - node.level], node.module or ""]).rstrip(".")

    def complaint(self, line: int, what: str) -> str:
        """Return a complaint that says where it applies."""
        return f"{self.name}, line {line}: {what}"


def part_of(name: str) -> str:
    """Return the part that a module, or a name inside one, belongs to."""
    _, _, below = name.partition(".")
    part = below.partition(".")[0]
    return "audioproxy" if not part or part.startswith("__") else part


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` for the expression that is spelled so, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


def within(name: str, those: Iterable[str]) -> bool:
    """Tell whether a full name is one of ``those`` or lies inside one."""
    return any(f"{name}.".startswith(f"{that}.") for that in those)


def ours(module: Module) -> Iterator[tuple[Import, str]]:
    """Yield the imports from this package, each with the part that it comes from."""
    for found in module.imports():
        if within(found.name, {"audioproxy"}):
            yield found, part_of(found.name)


def arrows_up(module: Module) -> Iterator[str]:
    """Yield the imports of a part that does not stand below."""
    if module.part not in RANKS:
        yield module.complaint(1, f"LAYERS has no place for {module.part}")
        return
    for found, part in ours(module):
        if part not in RANKS:
            yield module.complaint(found.line, f"LAYERS has no place for {part}")
        elif part != module.part and RANKS[part] >= RANKS[module.part]:
            yield module.complaint(found.line, f"{module.part} may not import {part}")


def fetched(module: Module) -> Iterator[str]:
    """Yield the imports of what should have come as an argument."""
    for found, part in ours(module):
        receives = RANKS.get(module.part, 0) < RANKS["backends"]
        if part in RECEIVED - {module.part} and receives and not found.for_types:
            yield module.complaint(found.line, f"{module.part} receives {part} as an argument")


def impurities(module: Module) -> Iterator[str]:
    """Yield what a pure module should not have within reach."""
    if module.part not in PURE:
        return
    for found in module.imports():
        if within(found.name, IMPURE):
            yield module.complaint(found.line, f"{module.part} is pure, {found.name} is not")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and dotted(node.func) in IMPURE_BUILTINS:
            yield module.complaint(node.lineno, f"{module.part} may not {dotted(node.func)}")


def globals_used(module: Module) -> Iterator[str]:
    """Yield the uses of the one reactor and the one environment."""
    if module.part in OUTERMOST:
        return
    full_names = {}
    for found in module.imports():
        full_names[found.bound_as] = found.name
        if within(found.name, GLOBALS):
            yield module.complaint(found.line, f"{found.name} is global")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and (name := dotted(node)):
            first, _, rest = name.partition(".")
            name = f"{full_names.get(first, first)}.{rest}"
            if name in GLOBALS:
                yield module.complaint(node.lineno, f"{name} is global")


def overlong(module: Module) -> Iterator[str]:
    """Yield the length of a module that holds more than one idea."""
    if module.lines > LONGEST:
        yield module.complaint(module.lines, f"more than {LONGEST} lines")


def house() -> Iterator[Module]:
    """Yield every module of the package."""
    root = Path(audioproxy.__file__).parent
    for path in sorted(root.rglob("*.py")):
        names = path.relative_to(root.parent).with_suffix("").parts
        is_package = names[-1] == "__init__"
        name = ".".join(names[:-1] if is_package else names)
        yield Module.parse(name, path.read_text(encoding="utf-8"), is_package)


class LayerTests(SynchronousTestCase):
    """The package keeps to the map that its documentation shows."""

    def assert_kept(self, rule: Callable[[Module], Iterator[str]]) -> None:
        """Assert that no module gives the rule a reason to complain."""
        self.assertEqual([], [complaint for module in house() for complaint in rule(module)])

    def test_every_module_is_read(self) -> None:
        """Whoever adds a module has it checked without further ado."""
        names = {module.name for module in house()}
        self.assertLessEqual({"audioproxy", "audioproxy.errors", "audioproxy.grammar"}, names)

    def test_arrows_point_down(self) -> None:
        """A part can be read and tested without what is built on top of it."""
        self.assert_kept(arrows_up)

    def test_settings_come_as_arguments(self) -> None:
        """Configuration, logs and metrics are handed down by what wires the parts, not fetched."""
        self.assert_kept(fetched)

    def test_purity(self) -> None:
        """The grammar and what ffmpeg is told are the same on every machine at every time."""
        self.assert_kept(impurities)

    def test_globals(self) -> None:
        """An embedder's reactor and environment are touched at the outermost edge only."""
        self.assert_kept(globals_used)

    def test_length(self) -> None:
        """Each module can be read at one sitting."""
        self.assert_kept(overlong)

    def test_plugin(self) -> None:
        """Listing twistd's commands costs nothing: the plugin imports the ServiceMaker only."""
        root = Path(audioproxy.__file__).parent.parent
        source = (root / "twisted/plugins/audioproxy_plugin.py").read_text(encoding="utf-8")
        plugin = Module.parse("audioproxy_plugin", source)
        self.assertEqual(
            ["twisted.application.service.ServiceMaker"],
            [found.name for found in plugin.imports()],
        )


class RuleTests(SynchronousTestCase):
    """The rules see what they forbid, in every spelling, and nothing else."""

    def complaints(
        self,
        rule: Callable[[Module], Iterator[str]],
        name: str,
        source: str,
        is_package: bool = False,
    ) -> list[str]:
        """Return what a rule says about a made-up module, without its place."""
        module = Module.parse(name, dedent(source), is_package)
        return [complaint.partition(": ")[2] for complaint in rule(module)]

    def test_arrow_up(self) -> None:
        """An import from above is found in each of its spellings, and inside functions too."""
        for source in (
            "import audioproxy.render.render",
            "from audioproxy import render",
            "from audioproxy.render import job",
            "from .. import render",
            "from ..render.job import Job",
            "def run():\n    from audioproxy.render import job",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..render import job",
        ):
            self.assertEqual(
                ["process may not import render"],
                self.complaints(arrows_up, "audioproxy.process.child", source),
                source,
            )

    def test_arrow_up_from_a_package(self) -> None:
        """In a package's own module one dot is the package itself."""
        self.assertEqual(
            ["grammar may not import web"],
            self.complaints(
                arrows_up,
                "audioproxy.grammar",
                "from . import values\nfrom ..web import root",
                is_package=True,
            ),
        )

    def test_arrow_aside(self) -> None:
        """Parts of one row do not know each other."""
        self.assertEqual(
            ["storage may not import process"],
            self.complaints(arrows_up, "audioproxy.storage.s3", "import audioproxy.process.child"),
        )
        self.assertEqual(
            ["urls may not import config"],
            self.complaints(arrows_up, "audioproxy.urls", "from audioproxy.config import Config"),
        )

    def test_arrow_down(self) -> None:
        """A part imports itself, what is below it, the version, and other people's packages."""
        source = """
            import os
            from audioproxy import __version__, errors
            from audioproxy.grammar import keys
            from audioproxy.render.output import Backlog
            from twisted.internet import defer
            """
        self.assertEqual([], self.complaints(arrows_up, "audioproxy.render.render", source))

    def test_unknown_part(self) -> None:
        """A new part has to be given its place before anything uses it."""
        complaint = ["LAYERS has no place for helpers"]
        self.assertEqual(complaint, self.complaints(arrows_up, "audioproxy.helpers", ""))
        source = "from audioproxy import helpers"
        self.assertEqual(complaint, self.complaints(arrows_up, "audioproxy.web.root", source))

    def test_fetched(self) -> None:
        """Configuration is imported below the wiring to name its type, and for nothing else."""
        line = "from audioproxy.config import Config"
        self.assertEqual(
            ["web receives config as an argument"],
            self.complaints(fetched, "audioproxy.web.root", line),
        )
        self.assertEqual(
            ["web receives config as an argument"],
            self.complaints(
                fetched, "audioproxy.web.root", f"if TYPE_CHECKING:\n    pass\nelse:\n    {line}"
            ),
        )
        for name, source in (
            ("audioproxy.web.root", f"if TYPE_CHECKING:\n    {line}"),
            ("audioproxy.web.root", f"import typing\nif typing.TYPE_CHECKING:\n    {line}"),
            ("audioproxy.backends", line),
            ("audioproxy.service", line),
        ):
            self.assertEqual([], self.complaints(fetched, name, source), source)

    def test_impurity(self) -> None:
        """Twisted, files and clocks are found in a pure package, and allowed outside."""
        for source, name in (
            ("import os.path", "os.path"),
            ("from os import path", "os.path"),
            ("from twisted.internet import defer", "twisted.internet.defer"),
            ("import time as clock", "time"),
            ("from datetime import datetime", "datetime.datetime"),
            ("import urllib.request", "urllib.request"),
        ):
            self.assertEqual(
                [f"media is pure, {name} is not"],
                self.complaints(impurities, "audioproxy.media.probe", source),
            )
            self.assertEqual([], self.complaints(impurities, "audioproxy.web.root", source))
        self.assertEqual(
            ["errors may not open"],
            self.complaints(impurities, "audioproxy.errors", "open('/dev/null')"),
        )

    def test_pure(self) -> None:
        """Arithmetic, hashing and the taking apart of strings are pure."""
        source = "import hashlib, json, re\nfrom urllib.parse import quote\nquote('opened')"
        self.assertEqual([], self.complaints(impurities, "audioproxy.grammar.cache_key", source))

    def test_global(self) -> None:
        """The reactor and the environment are found in each of their spellings."""
        for source, name in (
            ("from twisted.internet import reactor", "twisted.internet.reactor"),
            ("import twisted.internet.reactor", "twisted.internet.reactor"),
            ("def f():\n    from twisted.internet import reactor as r", "twisted.internet.reactor"),
            ("from twisted import internet\ninternet.reactor.stop()", "twisted.internet.reactor"),
            ("import os\nos.environ['AP_KEY']", "os.environ"),
            ("import os as system\nsystem.getenv('AP_KEY')", "os.getenv"),
            ("from os import environ", "os.environ"),
        ):
            self.assertEqual(
                [f"{name} is global"],
                self.complaints(globals_used, "audioproxy.process.child", source),
                source,
            )
            self.assertEqual([], self.complaints(globals_used, "audioproxy.tap", source))

    def test_not_global(self) -> None:
        """A reactor that was handed in may be called by its name."""
        source = "import os\ndef f(self, reactor):\n    self.reactor = reactor\n    os.environment"
        self.assertEqual([], self.complaints(globals_used, "audioproxy.web.root", source))

    def test_overlong(self) -> None:
        """The last allowed line is allowed."""
        name = "audioproxy.web.root"
        self.assertEqual([], self.complaints(overlong, name, "x = 0\n" * 400))
        self.assertEqual(["more than 400 lines"], self.complaints(overlong, name, "x = 0\n" * 401))
