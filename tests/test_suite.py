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


class RuleTests(SynchronousTestCase):
    """Each rule finds a violation, and accepts what is right."""

    def test_broken_rules(self) -> None:
        """A coroutine of another base class than TestCase is found, and a missing docstring."""

        class Mixin:
            async def test_it(self) -> None:
                pass

        class Dropped(Mixin, SynchronousTestCase):
            pass

        class Awaited(TestCase):
            async def test_it(self) -> None:
                """A promise."""

        never_runs, no_docstring = broken_rules(Dropped("test_it"))
        self.assertIn("never runs", never_runs)
        self.assertIn("no docstring", no_docstring)
        self.assertEqual([], list(broken_rules(Awaited("test_it"))))

    def test_fixed_ports(self) -> None:
        """A fixed port is found in every call that opens a port; port 0 is accepted."""
        for call in (
            "reactor.listenTCP({}, site)",
            "reactor.listenTCP(port={}, factory=site)",
            "endpoints.TCP4ServerEndpoint(reactor, {}, interface='127.0.0.1')",
            "listener.bind(('127.0.0.1', {}))",
            "socket.create_server(('127.0.0.1', {}))",
        ):
            self.assertEqual(1, len(list(fixed_ports(call.format(4000)))), call)
            self.assertEqual([], list(fixed_ports(call.format(0))), call)
        self.assertEqual([], list(fixed_ports("reactor.listenTCP(port, site)")))

    def test_silent_skips(self) -> None:
        """A skip without a reason is found; a skip with one is accepted."""
        for skip in ("raise SkipTest", "raise SkipTest()", "self.skipTest()", "skip = True"):
            self.assertTrue(SILENT_SKIP.search(skip), skip)
        for skip in ('raise SkipTest("no IPv6")', 'skip = None if x else "no ffmpeg"'):
            self.assertIsNone(SILENT_SKIP.search(skip), skip)
