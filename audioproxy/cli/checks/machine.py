"""Checks of the machine: programs, permissions, certificates and open files."""

from __future__ import annotations

import os
import resource
import shutil
import stat
from collections.abc import AsyncIterator
from shlex import quote
from typing import Any

from audioproxy.cli.checks.disk import filesystem_of
from audioproxy.cli.checks.results import CheckResult, bad, good, note
from audioproxy.cli.checks.settings import UsableSettings
from audioproxy.cli.output import format_count
from audioproxy.config import Config
from audioproxy.config.values import listed
from audioproxy.engine import Engine
from audioproxy.http_client.client import ClientsByBundle
from audioproxy.server.listener import max_clients
from audioproxy.tap import raise_descriptor_limit

_FFMPEG = "a complete ffmpeg on the PATH is required: apt-get install ffmpeg"
# Numbers of clients: the thresholds for a note and for a bad result. A listener accepts at least 16
# clients, even with too few descriptors.
_FEW_CLIENTS, _TOO_FEW_CLIENTS = 500, 16


async def check_programs(engine: Engine) -> AsyncIterator[CheckResult]:
    await engine.starter.prepare()
    if absent := [name for name in ("ffmpeg", "ffprobe") if shutil.which(name) is None]:
        verb = "is" if len(absent) == 1 else "are"
        yield bad("ffmpeg", f"{listed(absent)} {verb} not on the PATH; {_FFMPEG}")
    elif missing := await engine.programs.probe_missing():
        yield bad("ffmpeg", f"renders will fail: {', '.join(missing)}; {_FFMPEG}")
    else:
        versions = await engine.programs.probe_versions()
        if len(set(versions.values())) > 1:
            found = listed(f"{path} {version}" for path, version in versions.items())
        else:
            found = f"{listed(versions)} {next(iter(versions.values()))}".rstrip()
        yield good("ffmpeg", f"{found}, with everything that renders need")
        if shortcoming := await engine.programs.probe_shortcoming():
            yield note("libsoxr", f"{shortcoming}; a complete one: apt-get install ffmpeg")
    copied = "remote sources are copied before they are read"
    if not engine.starter.is_wanted:
        yield good("start", f"each child is started anew, as AP_WARM_PROGRAMS=0 says, and {copied}")
    # Without a cell, another line says what is missing.
    elif engine.starter.programs and (obstacles := engine.starter.far_obstacles):
        yield note("start", f"{copied}: {', '.join(obstacles)}")
    for path, program in engine.starter.programs.items():
        if program.obstacle is None:
            cost = f"{1000 * program.cpu_seconds:.0f} ms of CPU time"
            yield good("start", f"{path} is linked once, and forked; linking took {cost}")
        elif path not in absent:
            yield note("start", f"{path} is started anew for each child: {program.obstacle}")
    if engine.cell_shortcomings:
        yield note("cell", "; ".join(engine.cell_shortcomings))
    else:
        yield good("cell", "ffmpeg and ffprobe can open their own source, and nothing else")


def check_settings_file(path: str, status: os.stat_result, uid: int) -> CheckResult:
    remedies = []
    # The owner may also be root.
    if status.st_uid not in (0, uid):
        remedies.append(f"chown root {quote(path)}")
    if status.st_mode & 0o077:
        remedies.append(f"chmod 600 {quote(path)}")
    if not remedies:
        return good("settings file", f"{path} is for its owner only")
    found = f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
    return note(
        "settings file",
        f"other users may read or change the key in {path} ({found}): {' && '.join(remedies)}",
    )


async def check_local_sources(config: Config) -> AsyncIterator[CheckResult]:
    root = config.local_root
    if root is None:
        return
    try:
        with os.scandir(root) as entries:
            empty = next(entries, None) is None
    except OSError as error:
        yield bad("local sources", f"AP_LOCAL_ROOT cannot be read ({error.strerror})")
        return
    text = f"{root} ({filesystem_of(root)}) can be read"
    result = note("local sources", f"{text}, but it is empty")
    yield result if empty else good("local sources", text)


async def check_certificates(reactor: Any, settings: UsableSettings) -> AsyncIterator[CheckResult]:
    if settings.config.source_allowlist is None or "SSL_CERT_FILE" in settings.refused:
        return
    path = ClientsByBundle(reactor, os.environ.get("SSL_CERT_FILE") or None).ca_file
    if path is None:
        yield bad(
            "certificates",
            "no file with the system's certificates was found, so https sources cannot be verified;"
            " install one: apt-get install ca-certificates",
        )
    elif not os.access(path, os.R_OK):
        yield bad("certificates", f"{path} cannot be read; set SSL_CERT_FILE to a readable file")
    else:
        yield good("certificates", f"https sources are verified against {path}")


async def check_open_files(
    config: Config, env_file: str | None = None
) -> AsyncIterator[CheckResult]:
    raise_descriptor_limit()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = max_clients(config.max_concurrency + config.max_probe_concurrency, limit)
    most = "without limit" if limit == resource.RLIM_INFINITY else f"{limit} at most"
    if env_file is not None:
        most += " in this shell (a unit has LimitNOFILE=)"
    text = f"{most}, which is enough for {format_count(clients, 'client')} at a time"
    advice = "raise the limit: LimitNOFILE=16384 in the service's unit, or ulimit -Hn 16384"
    if clients <= _TOO_FEW_CLIENTS:
        yield bad("open files", f"{most}, which is too few for renders and clients; {advice}")
    elif clients < _FEW_CLIENTS:
        yield note("open files", f"{text}; {advice}")
    else:
        yield good("open files", text)
