"""What was looked at, and how it is: one line each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from audioproxy.cli.exit_status import printable
from audioproxy.cli.formatting import listed_number

# The longest name of what is always looked at.
_WIDTH = 16


class Verdict(Enum):
    """How something is, with its mark."""

    GOOD = "ok"
    NOTE = "--"
    BAD = "!!"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    :ivar text: what was found; where it is not good, the cause and what would be right.
    """

    verdict: Verdict
    what: str
    text: str

    @property
    def line(self) -> str:
        """The line for people."""
        return f"{self.verdict.value}  {self.what:{_WIDTH}}  {printable(self.text)}"


def good(what: str, text: str) -> Finding:
    """Return that all is well with something."""
    return Finding(Verdict.GOOD, what, text)


def note(what: str, text: str) -> Finding:
    """Return that something is worth a look, or was not looked at."""
    return Finding(Verdict.NOTE, what, text)


def bad(what: str, text: str) -> Finding:
    """Return that something keeps the service from its work."""
    return Finding(Verdict.BAD, what, text)


def about_setting(verdict: Verdict, line: str) -> Finding:
    """Return what a line says that begins with the name of a setting."""
    what, _, text = line.partition(": ")
    return Finding(verdict, what, text)


def conclude(findings: Iterable[Finding]) -> str:
    """Return the last line for people."""
    verdicts = [finding.verdict for finding in findings]
    if failed := verdicts.count(Verdict.BAD):
        return f"{listed_number(failed, 'thing')} would keep the service from its work."
    if Verdict.NOTE in verdicts:
        return "The service can work. What is marked -- is worth a look."
    return "All is well."


def as_document(findings: Iterable[Finding]) -> str:
    """Return all of it for programs."""
    checks = [
        {"check": finding.what, "verdict": finding.verdict.name.lower(), "text": finding.text}
        for finding in findings
    ]
    document = {"ok": all(check["verdict"] != "bad" for check in checks), "checks": checks}
    return json.dumps(document, indent=2)
