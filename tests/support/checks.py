"""Checks of `audioproxy doctor`, run in the process of the tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from operator import attrgetter
from typing import Any

from twisted.internet.defer import succeed

from audioproxy.cli.checks import machine as machine_module
from audioproxy.cli.checks.results import CheckResult
from audioproxy.cli.doctor import check_all
from audioproxy.engine import parts as engine_module
from audioproxy.process.programs import Programs
from audioproxy.process.starters import UtilLinuxStarter
from tests.support.service import reactor


async def run_checks(
    case: Any, environment: Mapping[str, str], ffmpeg: bool = False
) -> list[CheckResult]:
    """Run all checks and return their results.

    :param case: the test, which restores the environment at its end.
    :param ffmpeg: whether to check ffmpeg and its cell too, which is slow.
    """
    case.patch(os, "environ", {"PATH": os.environ["PATH"], **environment})
    # The real function raises the descriptor limit of the whole test process.
    case.patch(machine_module, "raise_descriptor_limit", lambda: None)
    if not ffmpeg:
        paths = attrgetter("ffmpeg", "ffprobe")
        case.patch(Programs, "probe_missing", lambda _: succeed([]))
        case.patch(Programs, "probe_versions", lambda it: succeed(dict.fromkeys(paths(it), "")))
        case.patch(Programs, "probe_shortcoming", lambda _: succeed(None))
        case.patch(engine_module, "find_starter", lambda *_: (UtilLinuxStarter(), []))
    results: list[CheckResult] = []
    await check_all(reactor, environment, results.append)
    return results


def single_result(results: list[CheckResult], check: str) -> CheckResult:
    """Return the result of a check; fail unless the check has exactly one result."""
    found = [result for result in results if result.check == check]
    assert len(found) == 1, [result.line for result in results]
    return found[0]


async def collect(check: AsyncIterator[CheckResult]) -> list[CheckResult]:
    """Return the results of a check."""
    return [result async for result in check]
