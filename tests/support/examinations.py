"""What `audioproxy doctor` finds, in the process of the tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from audioproxy import service as service_module
from audioproxy.cli.checks import machine as machine_module
from audioproxy.cli.checks.results import Finding
from audioproxy.cli.run_checks import look
from tests.support.service import reactor


async def examine(case: Any, environment: Mapping[str, str], ffmpeg: bool = False) -> list[Finding]:
    """Look at everything, and return what was found.

    :param case: the test, at whose end all is as it was.
    :param ffmpeg: look at ffmpeg too, which takes its time.
    """
    case.patch(os, "environ", {"PATH": os.environ["PATH"], **environment})
    # The limit is the whole process's.
    case.patch(machine_module, "raise_descriptor_limit", lambda: None)
    if not ffmpeg:
        case.patch(service_module, "find_missing", _miss_nothing)
        case.patch(service_module, "find_version", _no_version)
    findings: list[Finding] = []
    await look(reactor, environment, findings.append, [])
    return findings


def only(findings: list[Finding], what: str) -> Finding:
    """Return the one finding about something."""
    found = [finding for finding in findings if finding.what == what]
    assert len(found) == 1, [finding.line for finding in findings]
    return found[0]


async def _miss_nothing(*arguments: Any) -> list[str]:
    return []


async def _no_version(*arguments: Any) -> str:
    return ""
