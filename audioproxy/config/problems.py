"""What is wrong with settings: one line for each problem, and the errors that carry them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from audioproxy.config.values import listed
from audioproxy.errors import Unusable


@dataclass(frozen=True, slots=True)
class Problem:
    """An invalid setting, or a warning about a valid one. Its ``str`` is one line.

    :ivar fault: what is wrong; contains no secret.
    :ivar wanted: what would be right; empty where the fault says it.
    :ivar related: the variables that a conflict is with.
    """

    variable: str
    fault: str
    wanted: str
    related: tuple[str, ...] = ()

    @classmethod
    def of(cls, variable: str, error: Unusable) -> Problem:
        """Return the problem of a variable whose value cannot be used."""
        return cls(variable, error.fault, error.wanted)

    @classmethod
    def missing(cls, name: str, present: Iterable[str], group: Iterable[str]) -> Problem:
        """Return the problem of a variable that is missing while others of its group are set."""
        fault = f"missing beside {listed(present)}"
        return cls(name, fault, f"set {listed(group)} together", tuple(group))

    @property
    def text(self) -> str:
        """The line without the variable."""
        return f"{self.fault}; {self.wanted}" if self.wanted else self.fault

    def __str__(self) -> str:
        return f"{self.variable}: {self.text}"


class ConfigError(Exception):
    """The environment variables are invalid.

    :ivar problems: all problems found, in the order of the variables.
    :ivar warnings: as `load` returns with a valid configuration. A misspelled variable is often the
        cause of a missing one.
    """

    def __init__(self, problems: Iterable[Problem], warnings: Iterable[Problem] = ()) -> None:
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        super().__init__("\n".join(map(str, self.problems)))


class BootError(Exception):
    """The service cannot start; the problem names the variable to change."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem
