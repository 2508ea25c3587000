"""What every test of this suite owes its reader, read from the source of the tests."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import dedent

from twisted.trial.unittest import SynchronousTestCase

#: Test cases that drop a coroutine instead of running it, and the one that awaits it.
IGNORING_INPUT = {
    "twisted.trial.unittest.SynchronousTestCase",
    "unittest.TestCase",
    "unittest.case.TestCase",
}
AWAITING = "twisted.trial.unittest.TestCase"

SLEEPS = {"asyncio.sleep", "time.sleep"}

#: Where calls that open a port take its number: the position of the argument.
PORT_ARGUMENT = {
    "bind": 0,
    "create_server": 0,
    "listenSSL": 0,
    "listenTCP": 0,
    "listenUDP": 0,
    "TCP4ServerEndpoint": 1,
    "TCP6ServerEndpoint": 1,
}

#: How many arguments a skip has when it gives its reason.
SKIPS = {"SkipTest": 1, "skip": 1, "skipIf": 2, "skipTest": 1, "skipUnless": 2}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One module of the suite, parsed."""

    name: str
    tree: ast.Module

    @classmethod
    def parse(cls, name: str, source: str) -> Module:
        """Parse a source that is, or could be, the module ``name``."""
        return cls(name, ast.parse(dedent(source)))

    def complaint(self, node: ast.AST, what: str) -> str:
        """Return a complaint that says where it applies."""
        return f"{self.name}, line {getattr(node, 'lineno', 1)}: {what}"

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All that the module is made of."""
        return list(ast.walk(self.tree))

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """The classes, inner ones too."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def calls(self) -> list[ast.Call]:
        """The calls."""
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def full_name(self, node: ast.AST) -> str:
        """Return the full name of an expression like ``a.b``, whatever ``a`` was imported as."""
        first, dot, rest = dotted(node).partition(".")
        return self._imported.get(first, f"{self.name}.{first}") + dot + rest

    @cached_property
    def _imported(self) -> dict[str, str]:
        names = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    names[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom):
                above = self.name.split(".")[: -node.level] if node.level else []
                origin = ".".join([*above, *filter(None, [node.module])])
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{origin}.{alias.name}"
        return names


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` for the expression that is spelled so, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


def last_name(node: ast.AST) -> str:
    """Return ``c`` for ``a.b.c``, whatever ``a.b`` is."""
    return node.attr if isinstance(node, ast.Attribute) else dotted(node)


def tests_of(case: ast.ClassDef) -> Iterator[Function]:
    """Yield the test methods that stand in a class."""
    for node in case.body:
        if isinstance(node, Function) and node.name.startswith("test"):
            yield node


def never_run(modules: list[Module]) -> Iterator[str]:
    """Yield the coroutines that a test case makes and drops, which trial calls a success."""
    cases = {
        f"{module.name}.{case.name}": (module, case)
        for module in modules
        for case in module.classes
    }

    def ancestry(name: str) -> Iterator[str]:
        yield name
        if name in cases:
            module, case = cases[name]
            for base in case.bases:
                yield from ancestry(module.full_name(base))

    for name in cases:
        family = set(ancestry(name))
        if family & IGNORING_INPUT and AWAITING not in family:
            for module, case in (cases[member] for member in sorted(family & cases.keys())):
                for test in tests_of(case):
                    if isinstance(test, ast.AsyncFunctionDef):
                        yield module.complaint(test, f"{name} never runs {test.name}")


def sleeps(modules: list[Module]) -> Iterator[str]:
    """Yield the waits for real time."""
    for module in modules:
        for call in module.calls:
            if (name := module.full_name(call.func)) in SLEEPS:
                yield module.complaint(call, f"{name} is called")


def fixed_ports(modules: list[Module]) -> Iterator[str]:
    """Yield the calls that open a port of a given number; 0 lets the system choose."""
    for module in modules:
        for call in module.calls:
            name = last_name(call.func)
            if name == "serverFromString":
                _, _, port = str(constant(call.args[-1]) or "").partition(":")
                fixed = port[:1].isdigit() and not port.startswith("0")
            else:
                fixed = any(constant(node) for node in port_arguments(name, call))
            if fixed:
                yield module.complaint(call, f"{name} is given a fixed port")


def port_arguments(name: str, call: ast.Call) -> Iterator[ast.expr]:
    """Yield what a call gives as the number of the port, if it opens one."""
    if name in PORT_ARGUMENT:
        yield from (keyword.value for keyword in call.keywords if keyword.arg == "port")
        for argument in call.args[PORT_ARGUMENT[name] :][:1]:
            # A socket's address is a tuple of a host and a port.
            yield from argument.elts[1:2] if isinstance(argument, ast.Tuple) else [argument]


def constant(node: ast.expr) -> object:
    """Return the value of a literal; None for anything else."""
    return node.value if isinstance(node, ast.Constant) else None


def unpromised(modules: list[Module]) -> Iterator[str]:
    """Yield the tests that do not say what they promise."""
    for module in modules:
        for case in module.classes:
            for test in tests_of(case):
                if not (ast.get_docstring(test) or "").strip():
                    yield module.complaint(test, f"{test.name} has no docstring")


def silent_skips(modules: list[Module]) -> Iterator[str]:
    """Yield the skips without a reason, by call, by decorator and by attribute."""
    for module in modules:
        called = {id(call.func) for call in module.calls}
        for node in module.nodes:
            silent = False
            if isinstance(node, ast.Call) and last_name(node.func) in SKIPS:
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                silent = len(given) < SKIPS[last_name(node.func)] or blank(given[-1])
            elif isinstance(node, ast.Raise) and node.exc and id(node.exc) not in called:
                silent = last_name(node.exc) == "SkipTest"
            elif isinstance(node, Function | ast.ClassDef):
                silent = any(last_name(decorator) in SKIPS for decorator in node.decorator_list)
            elif isinstance(node, ast.Assign):
                skips = any(last_name(target) == "skip" for target in node.targets)
                # Trial takes None for no skip at all.
                silent = skips and blank(node.value) and constant(node.value) is not None
            if silent:
                yield module.complaint(node, "a skip gives no reason")


def blank(node: ast.expr) -> bool:
    """Tell whether a literal is anything but a text with something in it."""
    if not isinstance(node, ast.Constant):
        return False
    return not isinstance(node.value, str) or not node.value.strip()


def suite() -> list[Module]:
    """Return every module of the suite."""
    root = Path(__file__).parent
    return [
        Module.parse(
            ".".join(path.relative_to(root.parent).with_suffix("").parts),
            path.read_text(encoding="utf-8"),
        )
        for path in sorted(root.rglob("*.py"))
    ]


class SuiteTests(SynchronousTestCase):
    """Every test of this suite can be trusted to run, to say what it is for, and to be quick."""

    def test_rules(self) -> None:
        """No module breaks a rule: those of whoever adds tests are read without further ado.

        Each coroutine is awaited; nobody waits for real time to pass, or wants a certain port;
        each test says in a sentence what a user may rely on, and each skip why.
        """
        # One test, since to read all of the modules takes longer than all of the rules.
        modules = suite()
        names = {module.name for module in modules}
        self.assertLessEqual({"tests.test_structure", "tests.test_suite"}, names)
        for rule in (never_run, sleeps, fixed_ports, unpromised, silent_skips):
            self.assertEqual([], list(rule(modules)), rule.__name__)


class RuleTests(SynchronousTestCase):
    """The rules see what they forbid, in every spelling, and nothing else."""

    def complaints(self, rule: Callable[[list[Module]], Iterator[str]], *sources: str) -> list[str]:
        """Return what a rule says about made-up modules ``tests.a``, ``tests.b`` ..."""
        modules = [
            Module.parse(f"tests.{name}", text) for name, text in zip("abc", sources, strict=False)
        ]
        return [complaint.partition(": ")[2] for complaint in rule(modules)]

    def test_coroutine_that_is_dropped(self) -> None:
        """It is found in each spelling of the test case, inherited ones and mixins included."""
        body = "    async def test_it(self): pass"
        for source in (
            f"from twisted.trial.unittest import SynchronousTestCase as S\nclass A(S):\n{body}",
            f"from twisted.trial import unittest as u\nclass A(u.SynchronousTestCase):\n{body}",
            f"import unittest\nclass A(unittest.TestCase):\n{body}",
        ):
            self.assertEqual(
                ["tests.a.A never runs test_it"], self.complaints(never_run, source), source
            )
        self.assertEqual(
            ["tests.b.B never runs test_it"],
            self.complaints(
                never_run,
                f"class Mixin:\n{body}",
                """
                from twisted.trial.unittest import SynchronousTestCase
                from .a import Mixin
                class Base(SynchronousTestCase): pass
                class B(Mixin, Base): pass
                """,
            ),
        )

    def test_coroutine_that_is_awaited(self) -> None:
        """Trial's own TestCase may have coroutines, and any test case may have helpers."""
        source = """
            from twisted.trial.unittest import SynchronousTestCase, TestCase
            class A(TestCase):
                async def test_it(self): pass
            class B(SynchronousTestCase):
                async def helper(self): pass
                def test_it(self): pass
            """
        self.assertEqual([], self.complaints(never_run, source))

    def test_sleep(self) -> None:
        """A sleep is found in each of its spellings; a clock of the tests' own is none."""
        for source in ("import time\ntime.sleep(1)", "from time import sleep as nap\nnap(1)"):
            self.assertEqual(["time.sleep is called"], self.complaints(sleeps, source), source)
        self.assertEqual([], self.complaints(sleeps, "def f(time):\n    time.sleep(1)"))

    def test_fixed_port(self) -> None:
        """A number is found in each way to open a port, and 0 is none."""
        for call in (
            "reactor.listenTCP({}, site)",
            "reactor.listenTCP(port={}, factory=site)",
            "endpoints.TCP4ServerEndpoint(reactor, {}, interface='127.0.0.1')",
            "serverFromString(reactor, 'tcp:{}:interface=127.0.0.1')",
            "listener.bind(('127.0.0.1', {}))",
            "socket.create_server(('127.0.0.1', {}))",
        ):
            self.assertEqual(1, len(self.complaints(fixed_ports, call.format(4000))), call)
            self.assertEqual([], self.complaints(fixed_ports, call.format(0)), call)
        self.assertEqual([], self.complaints(fixed_ports, "reactor.listenTCP(port, site)"))

    def test_docstring(self) -> None:
        """A test without one is found, and an empty one is none."""
        source = """
            class A:
                def test_a(self): pass
                def test_b(self):
                    " "
                async def test_c(self): pass
                def test_d(self):
                    "A promise."
                def helper(self): pass
            """
        self.assertEqual(
            [f"test_{letter} has no docstring" for letter in "abc"],
            self.complaints(unpromised, source),
        )

    def test_silent_skip(self) -> None:
        """A skip that gives no reason is found in each of its spellings."""
        for source in (
            "raise SkipTest",
            "raise unittest.SkipTest()",
            "raise SkipTest('')",
            "self.skipTest(' ')",
            "class A:\n    skip = True",
            "A.test_it.skip = ''",
            "@unittest.skip\ndef test_it(self): pass",
            "@unittest.skipIf(True)\ndef test_it(self): pass",
            "@skipUnless(True, '')\nclass A: pass",
        ):
            self.assertEqual(
                ["a skip gives no reason"], self.complaints(silent_skips, source), source
            )

    def test_reasoned_skip(self) -> None:
        """A reason may be written out or computed."""
        source = """
            class A:
                skip = None if ffmpeg else "There is no ffmpeg."
            A.test_it.skip = None
            raise SkipTest(f"There is no {encoder}.")
            self.skipTest(reason="There is no IPv6.")
            @skipIf(root, "Root may read everything.")
            def test_it(self): pass
            """
        self.assertEqual([], self.complaints(silent_skips, source))
