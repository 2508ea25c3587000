"""Measure what proxies and clients do with streams that break off, and write the tables.

``make proxies`` writes them into docs/proxies.md. It fails if a shipped file lets a torn stream
look complete.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from twisted.internet.task import react

from bench.blocks import fill
from bench.machine import today
from tests.deploy.balancer import (
    Balancer,
    Behavior,
    HAProxy,
    Nginx,
    installed,
    parent_death_prefix,
    shipped,
    version_of,
)
from tests.deploy.nodes import Connection, Node
from tests.deploy.proxies import PROXIES, Apache, Caddy, Envoy, Lighttpd, Proxy, Traefik
from tests.support.authority import Authority
from tests.support.service import PROJECT, Process, reactor, until
from tests.support.wire import chunk, reply_without_length

PAGE = PROJECT / "docs/proxies.md"
SCRIPTS = Path(__file__).parent / "node_proxies"

#: Cell of a torn stream that its client takes for a complete one.
COMPLETE = "**looks complete**"

#: Bytes of a part of a stream: the first begins with the header of a wav file without a length.
PART = 1 << 16
PARTS = 1024
_FORMAT = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 2, 44100, 176400, 4, 16)
BEGINNING = b"RIFF\xff\xff\xff\xffWAVE" + _FORMAT + b"data\xff\xff\xff\xff"
BEGINNING += bytes(PART - len(BEGINNING))

#: Protocols, each with the options of curl.
PROTOCOLS = {
    "HTTP/1.1": ("--http1.1",),
    "HTTP/2": ("--http2",),
    "h2c": ("--http2-prior-knowledge",),
}


def respond(connection: Connection) -> None:
    """Begin a stream; the end of the target says whether it has a Content-Length."""
    headers = {"Content-Type": "audio/wav", "Transfer-Encoding": "chunked"}
    beginning = chunk(BEGINNING)
    if connection.target.endswith("stated"):
        headers = {"Content-Type": "audio/wav", "Content-Length": str(2 * PART)}
        beginning = BEGINNING
    connection.write(reply_without_length(200, beginning, headers))


def end_whole(connection: Connection) -> None:
    """Send the second part, and the last chunk."""
    connection.write(chunk(bytes(PART)) + chunk(b""))


def abort(connection: Connection) -> None:
    """Break the stream off, as a render does that fails."""
    connection.transport.abortConnection()  # type: ignore[union-attr]


def send_large(connection: Connection) -> None:
    """Send a large rest."""
    for _ in range(PARTS):
        connection.write(chunk(bytes(PART)))
    connection.write(chunk(b""))


def shown(version: tuple[int, ...]) -> str:
    """Return a version as its program prints it."""
    return ".".join(map(str, version))


class HAProxyWithH2(HAProxy):
    """HAProxy with HTTP/2."""

    alpn = "h2,http/1.1"


class LighttpdWithH2(Lighttpd):
    """lighttpd with HTTP/2."""

    flags = '"server.h2proto" => "enable", "server.h2c" => "enable"'


class LighttpdThatCollects(Lighttpd):
    """lighttpd without ``server.stream-response-body``."""

    streaming = 0


class OldCaddy(Caddy):
    """Debian's Caddy, which does not know all of the shipped file."""

    program = "caddy-debian"

    def _configuration(self) -> str:
        certificate = self._certificate
        scheme = "https" if certificate else "http"
        tls = f"tls {certificate.chain} {certificate.key}" if certificate else ""
        return self._write(
            "Caddyfile",
            f"{{\n\tadmin off\n\tauto_https off\n}}\n{scheme}://localhost:{self.port} {{\n\t{tls}\n"
            f"\treverse_proxy {self._address(0)} {{\n\t\tflush_interval -1\n\t}}\n}}\n",
        )


class Varnish(Proxy):
    """Varnish behind hitch, which ends TLS.

    :cvar feature: Varnish's ``http2``, with its sign.
    :cvar alpn: hitch's protocols.
    """

    program = "varnishd"
    showing_version = ("-V",)
    feature: ClassVar[str] = "-http2"
    alpn: ClassVar[str] = "http/1.1"

    async def start(self) -> None:
        """Start Varnish, and hitch in front of it."""
        folder = self._folder
        port = f'.port = "{self._address(0).partition(":")[2]}";'
        vcl = self._write("own.vcl", shipped("caches/varnish.vcl", {'.port = "4000";': port}))
        address = f"127.0.0.1:{self.port}"
        if self._certificate is not None:
            address = f"{folder}/socket,PROXY,mode=0666"
        words = ("-F", "-j", "none", "-n", f"{folder}/varnish", "-f", vcl, "-a", address)
        words = (*words, "-s", "malloc,256m", "-p", f"feature={self.feature}")
        # It compiles the file.
        self._process = self._spawn(*words, PATH=os.environ["PATH"])
        self._hitch: Process | None = None
        if self._certificate is not None:
            await until((folder / "socket").exists, "Varnish to start")
            path = self._write(
                "hitch.conf",
                f'frontend = {{ host = "127.0.0.1" port = "{self.port}" }}\n'
                f'backend = "{folder}/socket"\npem-file = "{self._certificate.both()}"\n'
                f'alpn-protos = "{self.alpn}"\nworkers = 1\nwrite-proxy-v2 = on\n'
                'user = "nobody"\ngroup = "nogroup"\n',
            )
            self._path = installed("hitch", self.variable)
            self._hitch = self._spawn("--config", path)
        self.log.touch()
        await self.until_started()

    async def stop(self) -> None:
        """Stop both."""
        if self._hitch is not None:
            self._hitch.signal(15)
            await self._hitch.end()
        await super().stop()


class VarnishWithH2(Varnish):
    """Varnish and hitch with HTTP/2."""

    feature = "+http2"
    alpn = "h2,http/1.1"


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
_OUR_VCL = "our file, `-p feature=%shttp2`, `alpn-protos` %s"
ROWS = (
    Row("HAProxy", HAProxy, "our file"),
    Row("HAProxy", HAProxyWithH2, "our file, `alpn h2,http/1.1`", False, _TLS),
    Row("nginx", Nginx, "our file"),
    Row("Caddy", Caddy, "our file"),
    Row("Caddy", OldCaddy, "`reverse_proxy`", False),
    Row("Apache", Apache, "our file"),
    Row("lighttpd", Lighttpd, "our file"),
    Row("lighttpd", LighttpdWithH2, "our file, `server.h2proto` enabled", False),
    Row("lighttpd", LighttpdThatCollects, "our file, `stream-response-body = 0`", False, _TLS),
    Row("Traefik", Traefik, "our files"),
    Row("Envoy", Envoy, "our file"),
    Row("Varnish, hitch", Varnish, _OUR_VCL % ("-", "http/1.1")),
    Row("Varnish, hitch", VarnishWithH2, _OUR_VCL % ("+", "h2, http/1.1"), False),
    Row("http-proxy-middleware", Middleware, "with the handler", True, _HTTP1),
    Row("http-proxy-middleware", UncuredMiddleware, "defaults", False, _HTTP1),
    Row("@fastify/http-proxy", Fastify, "with the handler", True, _TLS),
    Row("@fastify/http-proxy", UncuredFastify, "defaults", False, _TLS),
)

NAMES = {row.kind: row.name for row in ROWS}
#: Proxies that have no TLS here.
_CLEAR = (Middleware,)


class Measurement:
    """Nodes, proxies and clients in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = Authority(folder / "authority").issue("localhost")
        self.node = Node("one", "127.0.0.1", respond)
        self.count = 0

    def spawn(self, *command: str) -> Process:
        """Start a client, whose folder is its home."""
        process = Process()
        command = (*parent_death_prefix(), *command)
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        reactor.spawnProcess(process, command[0], command, env=environ, path=str(self.folder))
        return process

    async def curl(self, url: str, words: tuple[str, ...], rest: Callable[..., None]) -> str:
        """Return what a client sees: the stream broke off, or its number of bytes.

        An empty string means that the proxy does not speak the protocol.
        """
        self.count += 1
        path = self.folder / f"body-{self.count}"
        curl = installed("curl")
        before = len(self.node.connections)
        target = f"{url}/{self.count}"
        client = self.spawn(curl, "-skN", *words, "-o", str(path), "-w", "%{http_version}", target)

        def has_begun() -> bool:
            return client.code is not None or (path.exists() and path.stat().st_size >= PART)

        is_late = False
        try:
            await until(has_begun, "the first part", 5)
        except AssertionError:
            is_late = True
        if len(self.node.connections) == before:
            await client.kill()
            return ""
        rest(self.node.connections[-1])
        status = await client.end()
        if words != PROTOCOLS["HTTP/1.1"] and client.stdout != "2":
            return ""
        seen = "breaks off" if status else str(path.stat().st_size)
        path.unlink(missing_ok=True)
        return f"{seen}, late" if is_late else seen

    async def succeeds(
        self,
        client: tuple[str, ...],
        target: str,
        rest: Callable[[Connection], None] = Connection.close,
    ) -> bool:
        """Return whether a client takes a stream for a complete one."""
        before = len(self.node.connections)
        process = self.spawn(*client, f"http://127.0.0.1:{self.node.port.getHost().port}{target}")
        await until(lambda: len(self.node.connections) > before, f"{client} to ask")
        rest(self.node.connections[-1])
        return await process.end() == 0

    async def row(self, row: Row) -> list[str]:
        """Return the cells of a row, and check it."""
        cells, streams = {}, set()
        for has_tls in (True, False):
            protocols = [each for each in row.protocols if (each != "h2c") == has_tls]
            if not protocols:
                continue
            self.count += 1
            folder = self.folder / f"proxy-{self.count}"
            folder.mkdir(mode=0o755)
            is_clear = not has_tls or issubclass(row.kind, _CLEAR)
            certificate = None if is_clear else self.certificate
            port = self.node.port.getHost().port
            proxy = row.kind(folder, {"one": port}, certificate)
            await proxy.start()
            base = f"{'http' if is_clear else 'https'}://localhost:{proxy.port}/s/f:wav/enc"
            try:
                for protocol in protocols:
                    words = PROTOCOLS[protocol]
                    cells[protocol] = await self.curl(f"{base}/torn", words, abort)
                    if not cells[protocol]:
                        continue
                    slow = await self.curl(f"{base}/slow", words, end_whole)
                    good = {f"{2 * PART}": "at once", f"{2 * PART}, late": "late"}
                    streams.add(good.get(slow, f"slow: {slow}"))
                    large = await self.curl(f"{base}/large", words, send_large)
                    expected = str((PARTS + 1) * PART)
                    streams.add("whole" if large.startswith(expected) else f"large: {large}")
            finally:
                await proxy.stop()
        torn = [
            "-" if not (cell := cells.get(each)) else ("breaks off" if "off" in cell else COMPLETE)
            for each in PROTOCOLS
        ]
        if row.is_ours and (COMPLETE in torn or streams != {"at once", "whole"}):
            raise AssertionError(f"{row}: {cells} {streams}")
        return [row.name, shown(row.kind.version()), row.setting, *torn, ", ".join(sorted(streams))]


#: Programs that download or play, as commands before the URL, whose status is 0 on success; and how
#: they print their version.
_OWN_USER = () if os.getuid() else ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
CLIENTS = {
    "curl": (("curl", "-sf", "-o", "out"), ("curl", "-V")),
    "Python, `urllib`": (
        (sys.executable, "-c", "import sys, urllib.request as u; u.urlopen(sys.argv[1]).read()"),
        (sys.executable, "-V"),
    ),
    "Node, `fetch`": (
        (
            "node",
            "-e",
            "fetch(process.argv[1]).then(r => r.arrayBuffer()).catch(() => process.exit(1))",
        ),
        ("node", "-v"),
    ),
    "PHP, `file_get_contents`": (
        ("php", "-r", "exit(file_get_contents($argv[1]) === false ? 1 : 0);", "--"),
        ("php", "-v"),
    ),
    "Perl, `is_success` of LWP": (
        ("perl", "-MLWP::UserAgent", "-e", "exit !LWP::UserAgent->new->get(@ARGV)->is_success"),
        ("perl", "-MLWP", "-e", "print LWP->VERSION"),
    ),
    "mpv": (("mpv", "--no-config", "--no-video", "--ao=null"), ("mpv", "--version")),
    # VLC refuses to run as root.
    "VLC": (
        (*_OWN_USER, "cvlc", "-I", "dummy", "--aout=dummy", "--no-video", "--play-and-exit"),
        (*_OWN_USER, "vlc", "--version"),
    ),
}


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(line)} |" for line in (headings, *rows)]
    return "\n".join([lines[0], "|---" * len(headings) + "|", *lines[1:]])


def behavior_table() -> str:
    """Return what each proxy does with its file, as `tests.deploy.test_proxies` requires."""
    kinds = (HAProxy, Nginx, *PROXIES)
    behaviors = [kind.behavior for kind in kinds]
    rows: dict[str, Callable[[Behavior], str]] = {
        "all requests for a URL go to one node": lambda each: "yes" if each.hashes else "no",
        "a request that a node closes without a response": lambda each: (
            "is retried" if each.retries else "fails"
        ),
        "a node's own 429, 500, 502, 503, 504": lambda each: (
            f"{', '.join(map(str, each.retried_statuses))} is retried"
            if each.retried_statuses
            else "final"
        ),
        "a node learns that a client of HTTP/1.1 has left its queue": lambda each: (
            "no"
            if each.tells_from is None
            else f"from {shown(each.tells_from)} on"
            if each.tells_from
            else "yes"
        ),
        "checks of the nodes": lambda each: f"`{each.check}`" if each.check else "none",
        "[file names](podcasts.md#end-a-url-in-a-file-name)": lambda each: (
            "yes" if each.names_plain else "for `enc/`"
        ),
        "spellings of a path that are a 400 or 401": lambda each: (
            ", ".join(sorted(each.changed)).replace("|", "\\|") or "none"
        ),
    }
    names = [NAMES[kind] for kind in kinds]
    return table(["What", *names], ([text, *map(row, behaviors)] for text, row in rows.items()))


async def measure(reactor: Any, *only: str) -> None:
    """Measure everything, and write the page; with names of classes, print their rows alone."""
    folder = Path(tempfile.mkdtemp(prefix="audioproxy-torn-"))
    folder.chmod(0o777)
    rows, clients = [], []
    try:
        measurement = Measurement(folder)
        for row in ROWS:
            if not only or row.kind.__name__ in only:
                rows.append(await measurement.row(row))
                print(" | ".join(rows[-1]), flush=True)
        for name, (command, shows_version) in CLIENTS.items():
            if not only or name in only:
                if not await measurement.succeeds(command, "/whole", end_whole):
                    raise AssertionError(f"{name} fails with a complete stream")
                seen = [await measurement.succeeds(command, f"/{x}") for x in ("torn", "stated")]
                cells = ["**no error**" if each else "an error" for each in seen]
                clients.append([name, shown(version_of(*shows_version)), *cells])
                print(" | ".join(clients[-1]), flush=True)
    finally:
        shutil.rmtree(folder)
    if only:
        return
    headings = ("Proxy", "Version", "Setting", *PROTOCOLS)
    measured = f"Measured on {today()}."
    contents = {
        "proxies": behavior_table(),
        "torn streams": f"{table(headings, (row[:-1] for row in rows))}\n\n{measured}",
        "clients": (
            f"{table(('Client', 'Version', 'Without a length', 'With a length'), clients)}\n\n"
            f"{measured}"
        ),
    }
    PAGE.write_text(fill(PAGE.read_text(), contents))


if __name__ == "__main__":
    react(measure, sys.argv[1:])
