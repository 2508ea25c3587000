"""Rules for every test of this suite, checked in the source of the tests."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import dedent

from twisted.trial.unittest import SynchronousTestCase

#: Base classes that drop a coroutine instead of running it, and the one that awaits coroutines.
DROPPING_COROUTINES = {
    "twisted.trial.unittest.SynchronousTestCase",
    "unittest.TestCase",
    "unittest.case.TestCase",
}
AWAITING = "twisted.trial.unittest.TestCase"

SLEEPS = {"asyncio.sleep", "time.sleep"}

#: Position of the port number among the arguments of calls that open a port.
PORT_ARGUMENT = {
    "bind": 0,
    "create_server": 0,
    "listenSSL": 0,
    "listenTCP": 0,
    "listenUDP": 0,
    "TCP4ServerEndpoint": 1,
    "TCP6ServerEndpoint": 1,
}

#: Number of arguments with which a skip gives a reason.
SKIPS = {"SkipTest": 1, "skip": 1, "skipIf": 2, "skipTest": 1, "skipUnless": 2}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """Parsed module of the suite."""

    name: str
    tree: ast.Module

    @classmethod
    def parse(cls, name: str, source: str) -> Module:
        """Parse the source of the module ``name``."""
        return cls(name, ast.parse(dedent(source)))

    def complaint(self, node: ast.AST, what: str) -> str:
        """Return a complaint with the module and the line."""
        return f"{self.name}, line {getattr(node, 'lineno', 1)}: {what}"

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the syntax tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """All classes, including nested ones."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls."""
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def full_name(self, node: ast.AST) -> str:
        """Return the full name of an expression like ``a.b``, with imports resolved."""
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
    """Return ``a.b.c`` for an expression of names and attributes; an empty string for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


def last_name(node: ast.AST) -> str:
    """Return ``c`` for ``a.b.c``, where ``a.b`` may be any expression."""
    return node.attr if isinstance(node, ast.Attribute) else dotted(node)


def tests_of(case: ast.ClassDef) -> Iterator[Function]:
    """Yield the test methods in the body of a class."""
    for node in case.body:
        if isinstance(node, Function) and node.name.startswith("test"):
            yield node


def never_run(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for each test coroutine that never runs; trial reports it as a success."""
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
        if family & DROPPING_COROUTINES and AWAITING not in family:
            for module, case in (cases[member] for member in sorted(family & cases.keys())):
                for test in tests_of(case):
                    if isinstance(test, ast.AsyncFunctionDef):
                        yield module.complaint(test, f"{name} never runs {test.name}")


def sleeps(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for each wait in real time."""
    for module in modules:
        for call in module.calls:
            if (name := module.full_name(call.func)) in SLEEPS:
                yield module.complaint(call, f"{name} is called")


def fixed_ports(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for each call that opens a fixed port; with 0 the system chooses one."""
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
    """Yield the port arguments of a call that opens a port."""
    if name in PORT_ARGUMENT:
        yield from (keyword.value for keyword in call.keywords if keyword.arg == "port")
        for argument in call.args[PORT_ARGUMENT[name] :][:1]:
            # The address of a socket is a tuple of host and port.
            yield from argument.elts[1:2] if isinstance(argument, ast.Tuple) else [argument]


def constant(node: ast.expr) -> object:
    """Return the value of a literal; None for any other expression."""
    return node.value if isinstance(node, ast.Constant) else None


def missing_docstrings(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for each test without a docstring."""
    for module in modules:
        for case in module.classes:
            for test in tests_of(case):
                if not (ast.get_docstring(test) or "").strip():
                    yield module.complaint(test, f"{test.name} has no docstring")


def silent_skips(modules: list[Module]) -> Iterator[str]:
    """Yield a complaint for each skip without a reason: in calls, decorators and attributes."""
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
                # For trial, None means no skip.
                silent = skips and blank(node.value) and constant(node.value) is not None
            if silent:
                yield module.complaint(node, "a skip gives no reason")


def blank(node: ast.expr) -> bool:
    """Return whether an expression is a literal other than a non-empty text."""
    if not isinstance(node, ast.Constant):
        return False
    return not isinstance(node.value, str) or not node.value.strip()


def suite() -> list[Module]:
    """Return all modules of the suite."""
    root = Path(__file__).parent
    return [
        Module.parse(
            ".".join(path.relative_to(root.parent).with_suffix("").parts),
            path.read_text(encoding="utf-8"),
        )
        for path in sorted(root.rglob("*.py"))
    ]


class SuiteTests(SynchronousTestCase):
    """Check of all modules of this suite."""

    def test_rules(self) -> None:
        """No test module breaks a rule.

        Coroutines must be awaited. Tests must not wait in real time or open fixed ports. Each test
        needs a docstring that says what a user may rely on, and each skip needs a reason.
        """
        # All rules are in one test, because reading the modules takes longer than checking them.
        modules = suite()
        names = {module.name for module in modules}
        self.assertLessEqual({"tests.test_structure", "tests.test_suite"}, names)
        for rule in (never_run, sleeps, fixed_ports, missing_docstrings, silent_skips):
            self.assertEqual([], list(rule(modules)), rule.__name__)


class RuleTests(SynchronousTestCase):
    """Tests of the rules: each rule reports every spelling of a violation and nothing else."""

    def complaints(self, rule: Callable[[list[Module]], Iterator[str]], *sources: str) -> list[str]:
        """Return the complaints of a rule about example modules ``tests.a`` to ``tests.c``."""
        modules = [
            Module.parse(f"tests.{name}", text) for name, text in zip("abc", sources, strict=False)
        ]
        return [complaint.partition(": ")[2] for complaint in rule(modules)]

    def test_coroutine_that_is_dropped(self) -> None:
        """A dropped coroutine is found for every base class, with inheritance and with mixins."""
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
        """Coroutines are allowed as tests of Trial's TestCase, and as helpers of any test case."""
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
        """A sleep is found under any imported name; a ``sleep`` of another object is ignored."""
        for source in ("import time\ntime.sleep(1)", "from time import sleep as nap\nnap(1)"):
            self.assertEqual(["time.sleep is called"], self.complaints(sleeps, source), source)
        self.assertEqual([], self.complaints(sleeps, "def f(time):\n    time.sleep(1)"))

    def test_fixed_port(self) -> None:
        """A fixed port is found in every call that opens a port; port 0 is accepted."""
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
        """A test without a docstring is found, and so is a test with an empty one."""
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
            self.complaints(missing_docstrings, source),
        )

    def test_silent_skip(self) -> None:
        """A skip without a reason is found in every spelling."""
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
        """A skip with a literal or computed reason is accepted."""
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
