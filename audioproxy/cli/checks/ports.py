"""Check of the ports: each is free, or the service itself runs and holds it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import treq
from treq.client import HTTPClient
from twisted.internet.endpoints import HostnameEndpoint
from twisted.web.client import URI, Agent, HTTPConnectionPool
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from audioproxy._twisted import monotonic_clock
from audioproxy.cli.checks.results import CheckResult, Verdict, bad, good, note
from audioproxy.cli.checks.settings import UsableSettings
from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import Expired
from audioproxy.grammar.signature import sign
from audioproxy.http_client.errors import TransportError, translate_error
from audioproxy.server.listener import is_live, open_socket

# Maximum seconds and bytes for a response.
_TIMEOUT = 3.0
_DOCUMENT = 1024 * 1024


async def check_ports(
    reactor: Any, settings: UsableSettings, timeout: float = _TIMEOUT
) -> AsyncIterator[CheckResult]:
    """Check the ports; a program that holds one has some seconds to respond."""
    config = settings.config
    # Whether the service seems to run.
    runs = True
    for variable, port, bind in (
        ("AP_PORT", config.port, config.bind or ""),
        ("AP_METRICS_PORT", config.metrics_port, config.metrics_bind),
    ):
        if variable in settings.refused:
            continue
        if variable == "AP_PORT" and config.socket_path is not None:
            yield (result := _check_socket(config.socket_path))
            runs = result.verdict is Verdict.NOTE
            continue
        try:
            open_socket(bind, port).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                yield _explain_failure(variable, port, bind, error)
                continue
        else:
            runs = False
            yield good(variable, f"{port} is free" if port else "any free port")
            continue
        holder = _Holder(reactor, port, bind, timeout)
        if variable == "AP_PORT":
            yield (result := await _check_holder(holder, _signed_question(settings)))
            runs = result.verdict is Verdict.GOOD
        else:
            yield await _check_metrics_holder(holder, runs)


def _check_socket(path: str) -> CheckResult:
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
    if isinstance(error, PermissionError):
        wanted = f"set {variable} to 1024 or more, or give the service CAP_NET_BIND_SERVICE"
        return bad(variable, f"{port} needs a privilege; {wanted}")
    fault = f"cannot listen on {bind or 'any address'} ({os.strerror(error.errno or 0)})"
    name = variable.replace("PORT", "BIND") if bind else variable
    return bad(name, f"{fault}; an address of this machine is required")


def _signed_question(settings: UsableSettings) -> str | None:
    """Return an expired path, 410 with the same key and else 401; None without a valid key."""
    path, config = "/exp:0/plain/local://doctor", settings.config
    if config.key is not None and config.salt is not None:
        return f"/{sign(config.key, config.salt, path.encode()).decode()}{path}"
    refused = {"AP_KEY", "AP_SALT", "AP_ALLOW_INSECURE"} & settings.refused
    return None if refused else f"/insecure{path}"


@implementer(IAgentEndpointFactory)
class _Holder:
    def __init__(self, reactor: Any, port: int, bind: str, timeout: float) -> None:
        self.port = port
        self._timeout = timeout
        self._reactor = reactor
        self._host = bind if bind not in ("", "0.0.0.0", "::") else "127.0.0.1"
        pool = HTTPConnectionPool(reactor, persistent=False)
        self._client = HTTPClient(Agent.usingEndpointFactory(reactor, self, pool))

    def endpointForURI(self, uri: URI) -> HostnameEndpoint:
        """Return the endpoint of the port: treq accepts no URL with an IPv6 address."""
        return HostnameEndpoint(self._reactor, self._host, self.port)

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body of a response, or raise `TransportError`."""
        deadline = Deadline(monotonic_clock(self._reactor), self._timeout)
        try:
            return await deadline.limit(self._get(path))
        except Exception as error:
            raise translate_error(error, not deadline.remaining) from error

    async def _get(self, path: str) -> tuple[int, bytes]:
        url = f"http://localhost:{self.port}{path}"
        response = await self._client.get(url, allow_redirects=False, unbuffered=True)
        body = bytearray()

        def append(piece: bytes) -> None:
            body.extend(piece)
            if len(body) > _DOCUMENT:
                raise TransportError(f"more than {_DOCUMENT} bytes")

        await treq.collect(response, append)
        return response.code, bytes(body)

    def is_other(self, variable: str) -> CheckResult:
        return bad(
            variable,
            f"{self.port} is taken by another program, or by a socket unit whose service does not"
            f" run (`ss -ltnp` shows which); set {variable} to a free port",
        )


async def _check_holder(holder: _Holder, question: str | None) -> CheckResult:
    with suppress(TransportError, ValueError, LookupError, TypeError):
        _, body = await holder.get("/health")
        if (document := json.loads(body))["status"] == "ok":
            found = f"{holder.port} is taken by audioproxy {str(document['version'])[:20]}"
            if question is None or (await holder.get(question))[0] == Expired.status:
                return good("AP_PORT", f"{found}, which is running")
            return bad(
                "AP_PORT",
                f"{found} with another AP_KEY or AP_SALT; set AP_PORT to a free port, or restart"
                " it if it is this service, with settings that have changed",
            )
    return holder.is_other("AP_PORT")


async def _check_metrics_holder(holder: _Holder, runs: bool) -> CheckResult:
    """Check that an audioproxy holds the port of the metrics; it is this one if it ``runs``."""
    with suppress(TransportError):
        _, body = await holder.get("/metrics")
        if b"audio_proxy_renders_total" in body:
            found = f"{holder.port} is taken by an audioproxy"
            if runs:
                return good("AP_METRICS_PORT", f"{found}, which is running")
            return note(
                "AP_METRICS_PORT",
                f"{found} that does not listen on AP_PORT; set AP_METRICS_PORT to a free port,"
                " unless it is this service, with the port of a socket unit",
            )
    return holder.is_other("AP_METRICS_PORT")
