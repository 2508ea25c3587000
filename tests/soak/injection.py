"""The form of a bug, and how it replaces a part of the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: What `MonkeyPatcher` takes: a module or class, the name of its attribute, and the new value.
Patch = tuple[Any, str, Any]
Detector = Callable[[Callable[[], Patch]], Callable[[], Patch]]


@dataclass(frozen=True)
class Bug:
    """One bug.

    :ivar patch: returns the change that makes the bug.
    :ivar detected_by: names of checks of a soak run. At least one of them has to fail. If a short
        run cannot provoke the bug, this is the test module that has to fail.
    """

    name: str
    patch: Callable[[], Patch]
    detected_by: tuple[str, ...]


class Bugs(list[Bug]):
    """The bugs of one module."""

    def detected_by(self, *checks: str) -> Detector:
        """Add a function to the bugs; its docstring is the name of the bug."""

        def add(function: Callable[[], Patch]) -> Callable[[], Patch]:
            name = (function.__doc__ or "").removesuffix(".")
            self.append(Bug(name[0].lower() + name[1:], function, checks))
            return function

        return add


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> Patch:
    """Return a patch that passes the original function to ``wrapper`` as its first argument."""
    original = getattr(owner, name)
    return owner, name, lambda *words, **more: wrapper(original, *words, **more)
