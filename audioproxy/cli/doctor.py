"""All that `doctor` looks at, one after the other: what fails stops nothing else."""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent
from zope.interface import provider

from audioproxy import __version__
from audioproxy.cli.checks.machine import (
    look_at_certificates,
    look_at_files,
    look_at_local_sources,
    look_at_ports,
    look_at_programs,
    look_at_room,
)
from audioproxy.cli.checks.results import (
    Finding,
    Verdict,
    about_setting,
    as_document,
    bad,
    conclude,
    good,
)
from audioproxy.cli.checks.settings import Settled, settle
from audioproxy.cli.checks.stores import look_at_stores
from audioproxy.cli.exit_status import DONE, NO, complain
from audioproxy.cli.reactor import run
from audioproxy.service import AudioProxy, BootError, make_resource

_SETTING = re.compile(r"(?:AP|AWS)_\w+: ")


def examine(environment: Mapping[str, str], *, as_json: bool) -> int:
    """Look at everything, print what was found, and return the exit status."""
    findings: list[Finding] = []

    def report(finding: Finding) -> None:
        findings.append(finding)
        if not as_json:
            print(finding.line, flush=True)

    warnings: list[str] = []

    @provider(ILogObserver)
    def hear(event: LogEvent) -> None:
        level, text = event.get("log_level"), formatEvent(event)
        if level is not None and level >= LogLevel.error:
            complain(text)
        elif level is LogLevel.warn and _SETTING.match(text):
            warnings.append(text)

    run(lambda reactor: look(reactor, environment, report, warnings), hear)
    print(as_document(findings) if as_json else f"\n{conclude(findings)}")
    return NO if any(finding.verdict is Verdict.BAD for finding in findings) else DONE


async def look(
    reactor: Any,
    environment: Mapping[str, str],
    report: Callable[[Finding], None],
    warnings: list[str],
) -> None:
    """Look at everything.

    :param report: told of each thing as soon as it is known.
    :param warnings: where the log's lines about settings end up.
    """
    report(good("audioproxy", f"{__version__}, Python {platform.python_version()}, as {_user()}"))
    settled = settle(environment)
    for finding in settled.findings:
        report(finding)
    settled, proxy = _build(reactor, environment, settled, report)
    for warning in dict.fromkeys(warnings):
        report(about_setting(Verdict.NOTE, warning))
    try:
        for what, looking in _looks(reactor, settled, proxy):
            try:
                async for finding in looking:
                    report(finding)
            except CancelledError:
                raise
            except Exception as error:
                report(bad(what, f"the look itself failed ({error!r})"))
    finally:
        await proxy.stopService()


def _build(
    reactor: Any,
    environment: Mapping[str, str],
    settled: Settled,
    report: Callable[[Finding], None],
) -> tuple[Settled, AudioProxy]:
    """Build the service, without the settings that it refuses."""
    refused = settled.refused
    while True:
        try:
            return settled, make_resource(settled.config, reactor)
        except BootError as error:
            finding = about_setting(Verdict.BAD, str(error))
            report(finding)
        # Without any setting it is built in any case.
        environment = {} if finding.what in refused else {**environment, finding.what: ""}
        refused |= {finding.what}
        # SSL_CERT_FILE is read from here.
        os.environ.pop(finding.what, None)
        settled = settle(environment)
        settled = Settled(settled.config, settled.refused | refused, ())


def _looks(
    reactor: Any, settled: Settled, proxy: AudioProxy
) -> list[tuple[str, AsyncIterator[Finding]]]:
    config = settled.config
    return [
        # Too few of them make the programs look broken.
        ("open files", look_at_files(config)),
        ("ffmpeg", look_at_programs(proxy)),
        ("local sources", look_at_local_sources(config)),
        ("variant store", look_at_stores(proxy, settled)),
        ("certificates", look_at_certificates(reactor, settled)),
        ("temporary files", look_at_room(config)),
        ("ports", look_at_ports(reactor, settled, proxy)),
    ]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run as one that has no name.
        return f"user {os.getuid()}"
