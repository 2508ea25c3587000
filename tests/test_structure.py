"""Rules for modules that no linter checks; import-linter checks the layers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import audioproxy
from audioproxy import errors

_PACKAGE = Path(audioproxy.__file__).parent


def _modules() -> dict[str, str]:
    """Return the source of each module of the package by its dotted name."""
    paths = sorted(_PACKAGE.rglob("*.py"))
    return {
        ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts): path.read_text("utf-8")
        for path in paths
    }


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _called(tree: ast.Module) -> set[str]:
    """Return the names of the functions that a module calls by a plain name."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {call.id for call in calls if isinstance(call, ast.Name)}


class StructureTests(SynchronousTestCase):
    """The pure packages, the layers below the command, and the plugin of twistd"""

    def test_pure(self) -> None:
        """The pure packages call no built-in function that reads or writes."""
        parts = ("audioproxy.errors", "audioproxy.grammar.", "audioproxy.media.")
        pure = {name: source for name, source in _modules().items() if name.startswith(parts)}
        self.assertIn("audioproxy.media.command.filters", pure)
        for name, source in pure.items():
            self.assertEqual(set(), _called(ast.parse(source)) & {"input", "open", "print"}, name)

    def test_exceptions(self) -> None:
        """`audioproxy.errors` draws all its exceptions, each below its base and with its status."""
        drawn = {}
        path = []
        for indent, name, status in re.findall(
            r"^    (\W*)(\w+) *(\d{3})?", errors.__doc__ or "", re.M
        ):
            path[len(indent) // 4 :] = [name]
            drawn[name] = (path[-2] if len(path) > 1 else "Exception", status)
        classes = [each for each in vars(errors).values() if isinstance(each, type)]
        self.assertEqual([each.__name__ for each in classes], list(drawn))
        for each in classes:
            base = each.__bases__[0]
            own = vars(each).get("status")
            self.assertEqual((base.__name__, str(own or "")), drawn[each.__name__])

    def test_below_the_command(self) -> None:
        """No module below the command names it in a string, for example to start it."""
        for name, source in _modules().items():
            nodes = () if name.startswith("audioproxy.cli.") else ast.walk(ast.parse(source))
            texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
            named = [text for text in texts if isinstance(text, str) and "audioproxy.cli" in text]
            self.assertEqual([], named, name)

    def test_plugin(self) -> None:
        """The twistd plugin imports only ServiceMaker, so that listing commands stays fast."""
        plugin = _PACKAGE.parent / "twisted" / "plugins" / "audioproxy_plugin.py"
        imported = set(_imported(ast.parse(plugin.read_text("utf-8"))))
        self.assertEqual(
            {"twisted.application.service", "twisted.application.service.ServiceMaker"}, imported
        )
