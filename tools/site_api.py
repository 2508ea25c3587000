"""Reference of the public modules as Markdown, from their source: nothing of them is imported."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

_PROJECT = Path(__file__).parent.parent

#: What applications import.
MODULES = (
    "audioproxy.urls",
    "audioproxy.service",
    "audioproxy.config",
    "audioproxy.loudness",
    "audioproxy.testing",
)

#: A field of a docstring. Groups: its kind, its name if any, and its text.
_FIELD = re.compile(r"^:(\w+)(?: ([\w.]+))?: (.*(?:\n +.*)*)\n?", re.MULTILINE)
_KINDS = {"ivar": "", "param": "", "raises": "raises ", "returns": "returns"}

_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def reference() -> Iterator[str]:
    """Yield the Markdown of each module, class, function and type."""
    for module in MODULES:
        tree, _ = _read(module)
        yield f"## `{module}`"
        yield _text(tree, {})
        for name in _public(tree):
            yield from _describe(name, *_find(module, name))


def _read(module: str) -> tuple[ast.Module, list[str]]:
    """Return the parsed source of a module, and its lines."""
    path = _PROJECT / module.replace(".", "/")
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    return ast.parse(source), source.splitlines()


def _public(tree: ast.Module) -> list[str]:
    """Return the names of ``__all__``, and those that are imported under their own name."""
    listed: list[str] = []
    imported = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = ast.literal_eval(node.value)
        elif isinstance(node, ast.ImportFrom):
            imported += [each.name for each in node.names if each.asname == each.name]
    return [*listed, *imported]


def _find(module: str, name: str) -> tuple[ast.stmt, list[str]]:
    """Return the definition of a name, in the module that the name is imported from."""
    tree, lines = _read(module)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and name in [each.name for each in node.names]:
            return _find(node.module or "", name)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target) == name:
                return node, lines
        elif getattr(node, "name", None) == name:
            return node, lines
    raise LookupError(f"{module} has no {name}")


def _describe(name: str, node: ast.stmt, lines: list[str]) -> Iterator[str]:
    yield f"### `{name}`"
    if isinstance(node, ast.ClassDef):
        fields = {
            ast.unparse(each.target): ast.unparse(each.annotation)
            for each in node.body
            if isinstance(each, ast.AnnAssign)
        }
        yield _text(node, fields)
        for each in node.body:
            if isinstance(each, _FUNCTION) and ast.get_docstring(each):
                if each.name == "__init__":
                    yield from _function(each, lines)
                elif not each.name.startswith("_"):
                    yield f"#### `{name}.{each.name}`"
                    yield from _function(each, lines)
    elif isinstance(node, _FUNCTION):
        yield from _function(node, lines)
    else:
        # The comments in front of a type or a constant explain it.
        start = node.lineno - 1
        while lines[start - 1].startswith("#: "):
            start -= 1
        yield " ".join(line.removeprefix("#: ") for line in lines[start : node.lineno - 1])
        yield _block(lines[node.lineno - 1 : node.end_lineno])


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> Iterator[str]:
    """Yield the head of a function as it is written, and its docstring."""
    first = min(each.lineno for each in (node, *node.decorator_list))
    head = lines[first - 1 : node.body[0].lineno - 1]
    yield _block([*head[:-1], head[-1].removesuffix(":")])
    arguments = (*node.args.args, *node.args.kwonlyargs)
    types = {each.arg: ast.unparse(each.annotation) for each in arguments if each.annotation}
    yield _text(node, types)


def _block(lines: list[str]) -> str:
    return f"```python\n{dedent(chr(10).join(lines))}\n```"


def _text(node: ast.AST, types: dict[str, str]) -> str:
    """Return a docstring as Markdown.

    Its fields become a list, in which parameters and attributes have their types.
    """
    text = ast.get_docstring(node) or ""
    fields = _FIELD.findall(text)
    text = re.sub(r"::$", ":", _FIELD.sub("", text).strip(), flags=re.MULTILINE)
    # A definition list.
    text = re.sub(r"^(`.*`)\n    (?=\S)", r"\n\1\n:   ", text, flags=re.MULTILINE)
    items = []
    for kind, name, words in fields:
        label = f"`{name}`" if name else ""
        of_type = f" (`{types[name]}`)" if name in types and not kind.startswith("r") else ""
        items.append(f"- {_KINDS[kind]}{label}{of_type}: {' '.join(words.split())}")
    return "\n".join([text, "", *items])
