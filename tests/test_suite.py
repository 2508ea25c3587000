"""Rules for every test of this suite that a linter cannot check."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from twisted.trial.runner import TestLoader
from twisted.trial.unittest import SynchronousTestCase, TestCase

import tests
from tests.support.whole_classes import MORE, core, more, place_in_more, test_cases

ROOT = Path(__file__).parent

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
#: A skip without a reason.
SILENT_SKIP = re.compile(r"raise \S*SkipTest(?:\(\))?$|skipTest\(\)|\bskip = True", re.M)


@cache
def all_cases() -> list[Any]:
    """Return the test cases of the whole suite, in the order of its modules."""
    return list(test_cases(TestLoader().loadPackage(tests, recurse=True)))


def broken_rules(case: Any) -> Iterator[str]:
    """Yield a complaint if a test never runs or promises nothing."""
    test = getattr(type(case), case.id().rpartition(".")[2])
    # Only Trial's TestCase awaits a coroutine. Another base class drops it, and reports a success.
    if inspect.iscoroutinefunction(test) and not isinstance(case, TestCase):
        yield f"{case.id()} never runs"
    if not (test.__doc__ or "").strip():
        yield f"{case.id()} has no docstring"


def fixed_ports(source: str) -> Iterator[str]:
    """Yield each call that opens a fixed port; with 0 the system chooses one."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in PORT_ARGUMENT:
            ports = [each.value for each in node.keywords if each.arg == "port"]
            ports += node.args[PORT_ARGUMENT[name] :][:1]
            # The address of a socket is a tuple of host and port.
            ports = [port.elts[1] if isinstance(port, ast.Tuple) else port for port in ports]
            if any(isinstance(port, ast.Constant) and port.value for port in ports):
                yield ast.unparse(node)


class SuiteTests(SynchronousTestCase):
    """Checks of all modules of this suite."""

    def test_cases(self) -> None:
        """Every coroutine is awaited, and every test has a docstring that says what it promises."""
        cases = all_cases()
        self.assertIn(self.id(), [case.id() for case in cases])
        self.assertEqual([], [complaint for case in cases for complaint in broken_rules(case)])

    def test_lists(self) -> None:
        """`make check` runs every test in exactly one of its two lists, and each class at once."""
        names = [each.id() for each in (*core(), *more())]
        loaded = [case.id() for case in test_cases(TestLoader().loadByNames(names))]
        self.assertEqual(sorted(case.id() for case in all_cases()), sorted(loaded))
        self.assertEqual(len(names), len(set(names)))
        used = {place_in_more(name) for name in names}
        self.assertEqual([], [name for place, name in enumerate(MORE) if place not in used])

    def test_source(self) -> None:
        """No test opens a fixed port, and every skip has a reason."""
        for path in ROOT.rglob("*.py"):
            if path != Path(__file__) and "node_modules" not in path.parts:
                source = path.read_text("utf-8")
                if any(name in source for name in PORT_ARGUMENT):
                    self.assertEqual([], list(fixed_ports(source)), path)
                self.assertIsNone(SILENT_SKIP.search(source), path)
