"""Checks of the machine: programs, permissions, directories, certificates, open files and ports."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import stat
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from shlex import quote
from typing import Any

from audioproxy.cli.checks.results import CheckResult, Verdict, bad, good, note
from audioproxy.cli.checks.settings import UsableSettings
from audioproxy.cli.env_file import read_environment
from audioproxy.cli.formatting import format_bytes, format_count
from audioproxy.config import Config, FileStore
from audioproxy.config.values import listed
from audioproxy.engine import Engine
from audioproxy.errors import Expired
from audioproxy.files.disk_space import DiskSpace
from audioproxy.files.scratch_files import AnonymousFile, temporary_folder
from audioproxy.grammar.signature import sign
from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import ClientsByBundle, HttpClient
from audioproxy.http_client.errors import TransportError
from audioproxy.server.listener import is_live, max_clients, open_socket
from audioproxy.tap import raise_descriptor_limit

_FFMPEG = "a complete ffmpeg on the PATH is required: apt-get install ffmpeg"
# Numbers of clients: the thresholds for a note and for a bad result. A listener accepts at least 16
# clients, even with too few descriptors.
_FEW_CLIENTS, _TOO_FEW_CLIENTS = 500, 16
# Maximum seconds and bytes for the response of the program that holds a port.
_TIMEOUT = 3.0
_DOCUMENT = 1024 * 1024

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


async def check_programs(engine: Engine) -> AsyncIterator[CheckResult]:
    """Check ffmpeg, its encoders and filters, and how it is started and confined."""
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
        text = f"each child is started anew, as AP_WARM_PROGRAMS=0 says, and {copied}"
        yield good("start", text)
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
    """Check that the file of settings, which has the key, is the operator's alone.

    :param uid: the user of this process. The owner of the file may also be root.
    """
    remedies = []
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
    """Check that the directory of local sources can be read."""
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
    if empty:
        yield note("local sources", f"{text}, but it is empty")
    else:
        yield good("local sources", text)


async def check_certificates(reactor: Any, settings: UsableSettings) -> AsyncIterator[CheckResult]:
    """Check the certificates that the service and ffmpeg verify https sources against."""
    if settings.config.source_allowlist is None or "SSL_CERT_FILE" in settings.refused:
        return
    file = os.environ.get("SSL_CERT_FILE")
    path = ClientsByBundle(reactor, file or None).ca_file
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


async def check_temporary_files(
    config: Config, env_file: str | None = None
) -> AsyncIterator[CheckResult]:
    """Check that temporary files can be created, and that the disk has space for them."""
    folder, whose = temporary_folder(os.environ), ""
    if env_file is not None and "TMPDIR" not in read_environment({}, env_file):
        whose = f", of this shell, since {env_file} has no TMPDIR"
    try:
        with closing(AnonymousFile(folder=folder)) as file:
            os.write(file.descriptor, bytes(4096))
    except OSError as error:
        yield bad(
            "temporary files",
            f"cannot be created in {folder}{whose} ({error.strerror}); set TMPDIR to a writable"
            " directory",
        )
        return
    renders, needed, files = config.max_concurrency, 0, []
    if not isinstance(config.variant_store, FileStore):
        needed += renders * config.max_variant_bytes
        files.append("variants of AP_MAX_VARIANT_BYTES")
    if config.source_allowlist is not None:
        needed += renders * config.max_src_bytes
        files.append("https sources of AP_MAX_SRC_BYTES")
    yield check_free_space(
        "temporary files",
        folder,
        needed,
        f"{renders} renders at a time (AP_MAX_CONCURRENCY), with {listed(files or ['nothing'])},",
        "free some space, set TMPDIR to a larger disk, or lower one of these settings",
        whose,
    )


def check_free_space(
    check: str, path: str, needed: int, consumers: str, advice: str, whose: str = ""
) -> CheckResult:
    """Compare the free space of a directory with the space that renders may need.

    :param needed: the maximum, in bytes.
    :param consumers: what needs the space; "may take 2 GB" follows it in the message.
    :param whose: why this directory is checked.
    """
    free = DiskSpace.of(path).free
    text = f"{path} ({filesystem_of(path)}{whose}) is writable and has {format_bytes(free)} free"
    if free < needed:
        return note(check, f"{text}; {consumers} may take {format_bytes(needed)}; {advice}")
    return good(check, text)


def filesystem_of(path: str) -> str:
    """Return the type of the filesystem that contains a path, by its kernel name."""
    try:
        table = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return "filesystem unknown"
    found, kind = "", "filesystem unknown"
    target = os.path.realpath(path)
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        mount = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), left.split()[4])
        # If two filesystems have the same mount point, the later mount hides the earlier one.
        if len(mount) >= len(found) and f"{target}/".startswith(f"{mount.rstrip('/')}/"):
            found, kind = mount, right.split()[0]
    return kind


async def check_open_files(
    config: Config, env_file: str | None = None
) -> AsyncIterator[CheckResult]:
    """Check the limit of open files, which determines the maximum number of clients."""
    raise_descriptor_limit()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = max_clients(config.max_concurrency + config.max_probe_concurrency)
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


async def check_ports(reactor: Any, settings: UsableSettings) -> AsyncIterator[CheckResult]:
    """Check that each port is free, or that the service itself runs and holds it."""
    config = settings.config
    client = ClientsByBundle(reactor, None).client()
    # Whether the service seems to run.
    runs = True
    try:
        for variable, port, bind in (
            ("AP_PORT", config.port, config.bind or ""),
            ("AP_METRICS_PORT", config.metrics_port, config.metrics_bind),
        ):
            if variable in settings.refused:
                continue
            if variable == "AP_PORT" and config.socket_path is not None:
                result = _check_socket(config.socket_path)
                runs = result.verdict is Verdict.NOTE
                yield result
                continue
            try:
                open_socket(bind, port).close()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    yield _explain_failure(variable, port, bind, error)
                elif variable == "AP_PORT":
                    result = await _check_holder(client, port, bind, _signed_question(settings))
                    runs = result.verdict is Verdict.GOOD
                    yield result
                else:
                    yield await _check_metrics_holder(client, port, bind, runs)
            else:
                runs = False
                yield good(variable, f"{port} is free" if port else "any free port")
    finally:
        await client.close()


def _check_socket(path: str) -> CheckResult:
    """Check that a Unix socket can be created, or that a process listens on it."""
    folder = os.path.dirname(path)
    try:
        if is_live(path):
            return note("AP_BIND", f"a program listens on {path}; only one can")
    except OSError as error:
        return bad("AP_BIND", f"{path} cannot be used ({error.strerror}); another path is required")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        fault = f"{folder} is missing, or not readable and writable"
        return bad("AP_BIND", f"{fault}; such a folder is required")
    return good("AP_BIND", f"{path} is free")


def _explain_failure(variable: str, port: int, bind: str, error: OSError) -> CheckResult:
    """Return the reason why a port that is free cannot be opened."""
    if isinstance(error, PermissionError):
        wanted = f"set {variable} to 1024 or more, or give the service CAP_NET_BIND_SERVICE"
        return bad(variable, f"{port} needs a privilege; {wanted}")
    fault = f"cannot listen on {bind or 'any address'} ({os.strerror(error.errno or 0)})"
    name = variable.replace("PORT", "BIND") if bind else variable
    return bad(name, f"{fault}; an address of this machine is required")


def _signed_question(settings: UsableSettings) -> str | None:
    """Return the path of an expired URL; None where the settings have no valid key.

    A service with the same key responds with 410, and another one with 401. Neither reads a source.
    """
    path, config = "/exp:0/plain/local://doctor", settings.config
    if config.key is not None and config.salt is not None:
        return f"/{sign(config.key, config.salt, path.encode()).decode()}{path}"
    refused = {"AP_KEY", "AP_SALT", "AP_ALLOW_INSECURE"} & settings.refused
    return None if refused else f"/insecure{path}"


async def _check_holder(
    client: HttpClient, port: int, bind: str, question: str | None
) -> CheckResult:
    """Check that the program that holds the main port is an audioproxy with the same key.

    :param question: from `_signed_question`.
    """
    with suppress(TransportError, BodyTooLarge, ValueError, LookupError, TypeError):
        _, body = await _fetch(client, port, bind, "/health")
        if (document := json.loads(body))["status"] == "ok":
            holder = f"{port} is taken by audioproxy {str(document['version'])[:20]}"
            if (
                question is None
                or (await _fetch(client, port, bind, question))[0] == Expired.status
            ):
                return good("AP_PORT", f"{holder}, which is running")
            return bad(
                "AP_PORT",
                f"{holder} with another AP_KEY or AP_SALT; set AP_PORT to a free port, or restart"
                " it if it is this service, with settings that have changed",
            )
    return _taken_by_others("AP_PORT", port)


async def _check_metrics_holder(
    client: HttpClient, port: int, bind: str, runs: bool
) -> CheckResult:
    """Check that an audioproxy holds the port of the metrics.

    :param runs: the service seems to run, so this is its own port.
    """
    with suppress(TransportError, BodyTooLarge):
        _, body = await _fetch(client, port, bind, "/metrics")
        if b"audio_proxy_renders_total" in body:
            holder = f"{port} is taken by an audioproxy"
            if runs:
                return good("AP_METRICS_PORT", f"{holder}, which is running")
            return note(
                "AP_METRICS_PORT",
                f"{holder} that does not listen on AP_PORT; set AP_METRICS_PORT to a free port,"
                " unless it is this service, with the port of a socket unit",
            )
    return _taken_by_others("AP_METRICS_PORT", port)


def _taken_by_others(variable: str, port: int) -> CheckResult:
    fault = f"{port} is taken by another program, or by a socket unit whose service does not run"
    fault += " (`ss -ltnp` shows which)"
    return bad(variable, f"{fault}; set {variable} to a free port")


async def _fetch(client: HttpClient, port: int, bind: str, path: str) -> tuple[int, bytes]:
    """Return the status and the body of a response of the program that holds a port."""
    host = bind if bind not in ("", "0.0.0.0", "::") else "127.0.0.1"
    origin = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    response = await client.request("GET", origin + path, {}, timeout=_TIMEOUT)
    return response.status, await response.read(_DOCUMENT)
