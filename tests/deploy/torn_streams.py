"""Measure what proxies do with streams that break off, and write the tables.

``make proxies`` writes them into docs/proxies.md. It fails if a shipped file lets a torn stream
look complete.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from twisted.internet.task import react

from bench.blocks import fill
from bench.machine import today
from tests.deploy.balancer import (
    Balancer,
    HAProxy,
    Nginx,
    installed,
    parent_death_prefix,
)
from tests.deploy.nodes import HALF, Connection, Node, start_stream
from tests.deploy.proxies import Apache, Caddy, Envoy, Lighttpd, Proxy, Traefik
from tests.support.authority import Authority
from tests.support.service import PROJECT, Process, reactor, until

PAGE = PROJECT / "docs/proxies.md"
SCRIPTS = Path(__file__).parent / "node_proxies"

#: Cell of a torn stream that its client takes for a complete one.
COMPLETE = "**looks complete**"

#: Protocols, each with the options of curl.
PROTOCOLS = {
    "HTTP/1.1": ("--http1.1",),
    "HTTP/2": ("--http2",),
    "h2c": ("--http2-prior-knowledge",),
}


def abort(connection: Connection) -> None:
    """Break the stream off, as a render does that fails."""
    connection.transport.abortConnection()  # type: ignore[union-attr]


def shown(version: tuple[int, ...]) -> str:
    """Return a version as its program prints it."""
    return ".".join(map(str, version))


class HAProxyWithH2(HAProxy):
    """HAProxy with HTTP/2."""

    alpn = "h2,http/1.1"


class LighttpdWithH2(Lighttpd):
    """lighttpd with HTTP/2."""

    flags = '"server.h2proto" => "enable", "server.h2c" => "enable"'


def _package(name: str) -> tuple[str, ...]:
    return ("-p", f"require('{SCRIPTS}/node_modules/{name}/package.json').version")


class NodeProxy(Proxy):
    """Proxy in Node.

    :cvar script: its script.
    :cvar words: further arguments of the script.
    """

    program = "node"
    script: ClassVar[str]
    words: ClassVar[tuple[str, ...]] = ()

    async def start(self) -> None:
        """Run the script."""
        words = [str(SCRIPTS / self.script), str(self.port), self._address(0).partition(":")[2]]
        if self._certificate is not None:
            words += [str(self._certificate.chain), str(self._certificate.key)]
        self.log.touch()
        self._process = self._spawn(*words, *self.words)
        await self.until_started()


class Middleware(NodeProxy):
    """http-proxy-middleware with its event handler; it has no TLS here."""

    showing_version = _package("http-proxy-middleware")
    script = "middleware.mjs"


class UncuredMiddleware(Middleware):
    """http-proxy-middleware"""

    words = ("uncured",)


class Fastify(NodeProxy):
    """@fastify/http-proxy with its event handler"""

    showing_version = _package("@fastify/http-proxy")
    script = "fastify.mjs"


class UncuredFastify(Fastify):
    """@fastify/http-proxy"""

    words = ("uncured",)


@dataclass(frozen=True)
class Row:
    """Row of the table.

    :ivar setting: what differs from the proxy's defaults.
    :ivar is_ours: whether torn streams have to break off.
    :ivar protocols: those that are tried.
    """

    name: str
    kind: type[Balancer]
    setting: str
    is_ours: bool = True
    protocols: tuple[str, ...] = ("HTTP/1.1", "HTTP/2", "h2c")


_TLS, _HTTP1 = ("HTTP/1.1", "HTTP/2"), ("HTTP/1.1",)
ROWS = (
    Row("HAProxy", HAProxy, "our file"),
    Row("HAProxy", HAProxyWithH2, "our file, `alpn h2,http/1.1`", False, _TLS),
    Row("nginx", Nginx, "our file"),
    Row("Caddy", Caddy, "our file"),
    Row("Apache", Apache, "our file"),
    Row("lighttpd", Lighttpd, "our file"),
    Row("lighttpd", LighttpdWithH2, "our file, `server.h2proto` enabled", False),
    Row("Traefik", Traefik, "our files"),
    Row("Envoy", Envoy, "our file"),
    Row("http-proxy-middleware", Middleware, "with the handler", True, _HTTP1),
    Row("http-proxy-middleware", UncuredMiddleware, "defaults", False, _HTTP1),
    Row("@fastify/http-proxy", Fastify, "with the handler", True, _TLS),
    Row("@fastify/http-proxy", UncuredFastify, "defaults", False, _TLS),
)

NAMES = {row.kind: row.name for row in ROWS}
#: Proxies that have no TLS here.
_CLEAR = (Middleware,)


class Measurement:
    """A node, proxies and curl in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = Authority(folder / "authority").issue("localhost")
        self.node = Node("one", "127.0.0.1", start_stream)
        self.count = 0

    async def see_torn(self, url: str, words: tuple[str, ...]) -> str:
        """Return what curl sees of a stream that breaks off; "-" without the protocol."""
        path = self.folder / f"body-{self.count}"
        process = Process()
        curl = (installed("curl"), "-skN", *words, "-o", str(path), "-w", "%{http_version}", url)
        command = (*parent_death_prefix(), *curl)
        before = len(self.node.connections)
        reactor.spawnProcess(process, command[0], command, env={"PATH": os.environ["PATH"]})

        def has_begun() -> bool:
            return process.code is not None or (path.exists() and path.stat().st_size >= HALF)

        # A proxy that collects a stream sends nothing yet.
        with suppress(AssertionError):
            await until(has_begun, "the first part", 5)
        if len(self.node.connections) == before:
            await process.kill()
            return "-"
        abort(self.node.connections[-1])
        status = await process.end()
        if words != PROTOCOLS["HTTP/1.1"] and process.stdout != "2":
            return "-"
        return "breaks off" if status else COMPLETE

    async def row(self, row: Row) -> list[str]:
        """Return the cells of a row, and check it."""
        cells = dict.fromkeys(PROTOCOLS, "-")
        for has_tls in (True, False):
            protocols = [each for each in row.protocols if (each != "h2c") == has_tls]
            if not protocols:
                continue
            self.count += 1
            folder = self.folder / f"proxy-{self.count}"
            folder.mkdir(mode=0o755)
            is_clear = not has_tls or issubclass(row.kind, _CLEAR)
            certificate = None if is_clear else self.certificate
            proxy = row.kind(folder, {"one": self.node.port.getHost().port}, certificate)
            await proxy.start()
            base = f"{'http' if is_clear else 'https'}://localhost:{proxy.port}/s/f:wav/enc"
            try:
                for protocol in protocols:
                    self.count += 1
                    url = f"{base}/{self.count}"
                    cells[protocol] = await self.see_torn(url, PROTOCOLS[protocol])
            finally:
                await proxy.stop()
        if row.is_ours and COMPLETE in cells.values():
            raise AssertionError(f"{row}: {cells}")
        return [row.name, shown(row.kind.version()), row.setting, *cells.values()]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(line)} |" for line in (headings, *rows)]
    return "\n".join([lines[0], "|---" * len(headings) + "|", *lines[1:]])


async def measure(reactor: Any, *only: str) -> None:
    """Measure everything, and write the page; with names of classes, print their rows alone."""
    folder = Path(tempfile.mkdtemp(prefix="audioproxy-torn-"))
    folder.chmod(0o777)
    rows = []
    try:
        measurement = Measurement(folder)
        for row in ROWS:
            if not only or row.kind.__name__ in only:
                rows.append(await measurement.row(row))
                print(" | ".join(rows[-1]), flush=True)
    finally:
        shutil.rmtree(folder)
    if not only:
        torn = table(("Proxy", "Version", "Setting", *PROTOCOLS), rows)
        contents = {"torn streams": f"{torn}\n\nMeasured on {today()}."}
        PAGE.write_text(fill(PAGE.read_text(), contents))


if __name__ == "__main__":
    react(measure, sys.argv[1:])
