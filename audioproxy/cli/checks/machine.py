"""The machine: programs, folders, certificates, open files and ports."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from audioproxy.cli.checks.disk_space import filesystem_of, room
from audioproxy.cli.checks.results import Finding, bad, good, note
from audioproxy.cli.checks.settings import Settled
from audioproxy.cli.formatting import listed_number
from audioproxy.config import Config, FileStore
from audioproxy.config.values import listed
from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import HttpClient
from audioproxy.http_client.clients import HttpClients
from audioproxy.http_client.errors import TransportError
from audioproxy.scratch import AnonymousFile
from audioproxy.server.listener import Listener, most_clients
from audioproxy.server.site import ProxySite
from audioproxy.service import AudioProxy
from audioproxy.tap import raise_descriptor_limit

_FFMPEG = "a complete ffmpeg on the PATH is required: apt-get install ffmpeg"
# Clients that few files leave room for; a listener takes so many however few there are.
_FEW_CLIENTS, _TOO_FEW_CLIENTS = 500, 16
# Seconds, and bytes, for whoever has a port to say who it is.
_PATIENCE = 3.0
_ANSWER = 1024 * 1024


async def look_at_programs(proxy: AudioProxy) -> AsyncIterator[Finding]:
    """Look for ffmpeg and what it was built with, and for what ends it in time."""
    if absent := [name for name in ("ffmpeg", "ffprobe") if shutil.which(name) is None]:
        verb = "is" if len(absent) == 1 else "are"
        yield bad("ffmpeg", f"{listed(absent)} {verb} not on the PATH; {_FFMPEG}")
    elif missing := await proxy.find_missing():
        yield bad("ffmpeg", f"renders will fail: {', '.join(missing)}; {_FFMPEG}")
    else:
        versions = await proxy.find_versions()
        if len(set(versions.values())) > 1:
            found = listed(f"{path} {version}" for path, version in versions.items())
        else:
            found = f"{listed(versions)} {next(iter(versions.values()))}".rstrip()
        yield good("ffmpeg", f"{found}, with all that renders need")
    if proxy.dies_with_parent:
        yield good("setpriv", "no encoder outlives a service that is killed")
    else:
        yield note(
            "setpriv",
            "not there, so encoders may outlive a service that is killed; util-linux's is"
            " required: apt-get install util-linux",
        )


async def look_at_local_sources(config: Config) -> AsyncIterator[Finding]:
    """Look whether the root can be read."""
    root = config.local_root
    if root is None:
        return
    try:
        with os.scandir(root) as entries:
            empty = next(entries, None) is None
    except OSError as error:
        yield bad("local sources", f"AP_LOCAL_ROOT cannot be read ({error})")
        return
    text = f"{root} ({filesystem_of(root)}) can be read"
    if empty:
        yield note("local sources", f"{text}, and there is nothing in it")
    else:
        yield good("local sources", text)


async def look_at_certificates(reactor: Any, settled: Settled) -> AsyncIterator[Finding]:
    """Look what https sources are verified against, by ffmpeg too."""
    if settled.config.source_allowlist is None or "SSL_CERT_FILE" in settled.refused:
        return
    file = os.environ.get("SSL_CERT_FILE")
    path = HttpClients(reactor, file or None).ca_file
    if path is None:
        yield bad(
            "certificates",
            "there are none in one file, and so no https sources; install those of the system:"
            " apt-get install ca-certificates",
        )
    elif not os.access(path, os.R_OK):
        yield bad("certificates", f"{path} cannot be read; SSL_CERT_FILE has to name one that can")
    else:
        yield good("certificates", f"https sources are verified against {path}")


async def look_at_room(config: Config) -> AsyncIterator[Finding]:
    """Look whether temporary files can be made, and how large they may grow."""
    wanted = os.environ.get("TMPDIR")
    try:
        file = AnonymousFile()
        try:
            os.write(file.descriptor, bytes(4096))
        finally:
            file.close()
    except OSError as error:
        yield bad("temporary files", f"none can be made ({error}); set TMPDIR to where they can")
        return
    folder = tempfile.gettempdir()
    if wanted and os.path.abspath(wanted) != folder:
        yield note(
            "temporary files",
            f"TMPDIR is {wanted}, where none can be made, so they are in {folder}; set it to a"
            " directory that this user may write into",
        )
    renders, needed, by = config.max_concurrency, 0, []
    if not isinstance(config.variant_store, FileStore):
        needed += renders * config.max_variant_bytes
        by.append("variants of AP_MAX_VARIANT_BYTES")
    if config.source_allowlist is not None:
        needed += renders * config.max_src_bytes
        by.append("https sources of AP_MAX_SRC_BYTES")
    yield room(
        "temporary files",
        folder,
        needed,
        f"{renders} renders at a time (AP_MAX_CONCURRENCY), with {listed(by or ['nothing'])},",
        "give it room, set TMPDIR to where there is some, or lower one of them",
    )


async def look_at_files(config: Config) -> AsyncIterator[Finding]:
    """Look how many files may be open, and so how many clients there can be."""
    raise_descriptor_limit()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = most_clients(config.max_concurrency + config.max_probe_concurrency)
    most = "without limit" if limit == resource.RLIM_INFINITY else f"{limit} at most"
    text = f"{most}, which is enough for {listed_number(clients, 'client')} at a time"
    remedy = "raise it: LimitNOFILE=16384 in the service's unit, or ulimit -Hn 16384"
    if clients <= _TOO_FEW_CLIENTS:
        yield bad("open files", f"{most}, which renders alone need; {remedy}")
    elif clients < _FEW_CLIENTS:
        yield note("open files", f"{text}; {remedy}")
    else:
        yield good("open files", text)


async def look_at_ports(
    reactor: Any, settled: Settled, proxy: AudioProxy
) -> AsyncIterator[Finding]:
    """Look whether the ports are free, or the service's own already."""
    config = settled.config
    client = HttpClients(reactor, None).client()
    site = ProxySite(proxy.resource, reactor, 1)
    try:
        for variable, port, bind in (
            ("AP_PORT", config.port, ""),
            ("AP_METRICS_PORT", config.metrics_port, config.metrics_bind),
        ):
            if variable in settled.refused:
                continue
            if port == 0:
                yield good(variable, "any that is free")
                continue
            listener = Listener(reactor, site)
            try:
                listener.open(port, bind)
            except OSError as error:
                yield await _taken(client, variable, port, bind, error)
            else:
                await listener.close()
                yield good(variable, f"{port} is free")
    finally:
        await client.close()


async def _taken(
    client: HttpClient, variable: str, port: int, bind: str, error: OSError
) -> Finding:
    """Return who has a port, or why it cannot be had."""
    if isinstance(error, PermissionError):
        return bad(
            variable,
            f"{port} is not this user's to take; set {variable} to 1024 or more, or give the"
            " service CAP_NET_BIND_SERVICE",
        )
    if error.errno != errno.EADDRINUSE:
        why = os.strerror(error.errno or 0)
        return bad(
            "AP_METRICS_BIND" if bind else variable,
            f"cannot listen on {bind or 'any address'} ({why}); an address of this machine is"
            " required",
        )
    host = bind if bind not in ("", "0.0.0.0", "::") else "127.0.0.1"
    origin = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    asking = _ask_for_metrics if variable == "AP_METRICS_PORT" else _ask_for_health
    try:
        return good(variable, f"{port} is taken by {await asking(client, origin)}, which runs")
    except (TransportError, BodyTooLarge, ValueError, LookupError, TypeError):
        return bad(
            variable,
            f"{port} is taken by another program (`ss -ltnp` tells which); set {variable} to a"
            " free one",
        )


async def _ask_for_health(client: HttpClient, origin: str) -> str:
    answer = await client.request("GET", f"{origin}/health", {}, timeout=_PATIENCE)
    document = json.loads(await answer.read(_ANSWER))
    if document["status"] != "ok":
        raise ValueError("somebody else's health")
    return f"audioproxy {str(document['version'])[:20]}"


async def _ask_for_metrics(client: HttpClient, origin: str) -> str:
    answer = await client.request("GET", f"{origin}/metrics", {}, timeout=_PATIENCE)
    if b"audio_proxy_renders_total" not in await answer.read(_ANSWER):
        raise ValueError("somebody else's metrics")
    return "an audioproxy"
