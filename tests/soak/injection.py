"""The form of a bug, and how it replaces a part of the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: What `MonkeyPatcher` takes: a module or class, the name of its attribute, and the new value.
Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Bug:
    """One bug.

    :ivar patch: the change that makes the bug.
    :ivar detected_by: names of checks of a soak run. At least one of them has to fail. If a short
        run cannot provoke the bug, this is the test module that has to fail.
    """

    name: str
    patch: Patch
    detected_by: tuple[str, ...]


class Bugs(list[Bug]):
    """The bugs of one module, each with its checks, and named after the docstring that it gets."""

    def constant(self, docstring: str, owner: Any, name: str, value: Any, *checks: str) -> None:
        """Add a bug that gives an attribute another value."""
        title = docstring.removesuffix(".")
        self.append(Bug(title[0].lower() + title[1:], (owner, name, value), checks))

    def replace(self, owner: Any, name: str, *checks: str) -> Callable[[Any], Any]:
        """Return a decorator: the function or the class replaces an attribute."""

        def add(value: Any) -> Any:
            self.constant(value.__doc__, owner, name, value, *checks)
            return value

        return add

    def wrap(self, owner: Any, name: str, *checks: str) -> Callable[[Any], Any]:
        """Return a decorator: the function also gets the original one, as its first argument."""
        original = getattr(owner, name)

        def add(wrapper: Callable[..., Any]) -> Any:
            def wrapped(*words: Any, **more: Any) -> Any:
                return wrapper(original, *words, **more)

            self.constant(wrapper.__doc__ or "", owner, name, wrapped, *checks)
            return wrapper

        return add
