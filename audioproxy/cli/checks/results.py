"""Results of checks, printed as one line each, and their summary."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from audioproxy.cli.exit_status import CRASHED
from audioproxy.cli.output import Colour, format_count, printable
from audioproxy.config import Problem

# The length of the longest name of a check that always runs.
_WIDTH = 16


class Verdict(Enum):
    """The verdict of a check, with the mark that is printed for it."""

    GOOD = "ok", Colour.GREEN
    NOTE = "--", Colour.YELLOW
    BAD = "!!", Colour.RED


@dataclass(frozen=True, slots=True)
class CheckResult:
    verdict: Verdict
    check: str
    text: str

    @property
    def line(self) -> str:
        return f"{self.verdict.value[0]}  {self.check:{_WIDTH}}  {printable(self.text)}"

    @property
    def values(self) -> dict[str, str]:
        return {"check": self.check, "verdict": self.verdict.name.lower(), "text": self.text}

    @classmethod
    def of_setting(cls, verdict: Verdict, problem: Problem) -> CheckResult:
        return cls(verdict, problem.variable, problem.text)


good = partial(CheckResult, Verdict.GOOD)
#: The check found a risk, or was skipped.
note = partial(CheckResult, Verdict.NOTE)
#: The service cannot work.
bad = partial(CheckResult, Verdict.BAD)


def crashed(check: str) -> CheckResult:
    """Print the traceback of an exception that is being handled, and return the result."""
    traceback.print_exc()
    return bad(check, CRASHED)


def summarize(results: Iterable[CheckResult]) -> str:
    verdicts = [result.verdict for result in results]
    if failed := verdicts.count(Verdict.BAD):
        return f"{format_count(failed, 'problem')} should be solved before the service is used."
    if Verdict.NOTE in verdicts:
        return "The service can work. Check the lines marked --."
    return "All is well."
