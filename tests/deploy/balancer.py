"""Real HAProxy or nginx in front of several nodes, with the configuration from ``deploy/``.

`tests.deploy.proxies` has the other proxies.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
from collections.abc import Collection, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

from twisted.internet import reactor as _reactor
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SkipTest, TestCase

from tests.support.authority import Certificate
from tests.support.service import PATIENCE, PROJECT, Process, fetch, until

reactor: Any = _reactor

T = TypeVar("T")

#: Response header with the node's name; the tests enable it in the shipped configurations.
NODE = "x-node"


def installed(program: str, variable: str = "") -> str:
    """Return the path of a program that tests need.

    :param variable: the program's environment variable; ``AUDIOPROXY_HAPROXY`` for haproxy, if
        omitted. ``make test-more`` sets the variables of programs that it installs.
    :raises SkipTest: if the program is missing.
    :raises AssertionError: if the program is missing although its variable is "required".
    """
    # Distributions install servers in folders that only root has on the PATH.
    own = f"{PROJECT}/build/bin:{Path(sys.executable).parent}"
    places = f"{own}:{os.environ['PATH']}:/usr/local/sbin:/usr/sbin"
    found = shutil.which(program, path=places)
    if found is None:
        variable = variable or f"AUDIOPROXY_{program.upper().replace('-', '_')}"
        reason = f"there is no {program} on this machine"
        raise AssertionError(reason) if os.environ.get(variable) == "required" else SkipTest(reason)
    return found


def parent_death_prefix() -> tuple[str, ...]:
    """Return the prefix of a command that ends when this process ends for any reason.

    The signal is not KILL: programs with children of their own, such as nginx, would leave them
    behind.
    """
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "TERM", "--") if setpriv else ()


def version_of(*command: str) -> tuple[int, ...]:
    """Return the version that a program prints."""
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    (found,) = re.findall(r"\d+(?:\.\d+){1,2}", ended.stdout + ended.stderr)[:1]
    return tuple(map(int, found.split(".")))


def shipped(name: str, changes: Mapping[str, str], enabled: Collection[str] = ()) -> str:
    """Return a file of ``deploy/`` with some of its lines replaced.

    :param changes: replacements by line, without surrounding whitespace. They apply to enabled
        lines too.
    :param enabled: lines, each of which begins a commented-out block to enable.
    :raises AssertionError: if the file lacks one of these lines.
    """
    lines, is_enabled, missing = [], False, {*changes, *enabled}
    for line in (PROJECT / "deploy" / name).read_text().splitlines():
        bare = line.strip()
        missing.discard(bare)
        # A comment has one blank before its text.
        is_enabled = bool(re.match(r"#(?! \S)", bare)) and (is_enabled or bare in enabled)
        if is_enabled:
            line = line.replace("#", "", 1)
            bare = line.strip()
            missing.discard(bare)
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(textwrap.indent(changes.get(bare, bare), indent))
    if missing:
        raise AssertionError(f"{name} has no line {missing}")
    return "\n".join([*lines, ""])


B = TypeVar("B", bound="Balancer")


async def balance(
    case: TestCase,
    kind: type[B],
    folder: Path,
    nodes: Mapping[str, int],
    certificate: Certificate | None = None,
) -> B:
    """Start a balancer in front of these nodes (names and ports); it ends with the test."""
    balancer = kind(folder, nodes, certificate)
    case.addCleanup(balancer.stop)
    await balancer.start()
    return balancer


class Balancer:
    """Load balancer with one address for several nodes.

    The constructor reserves its ports until the program listens there.

    :cvar file: its shipped file.
    :cvar variable: the environment variable that requires the program, as in `installed`.
    :cvar showing_version: arguments that print its version.
    :cvar checking: arguments that check a configuration, whose path follows.
    :cvar running: arguments that run it.
    :cvar hosts: the addresses at which it looks for the nodes.
    :ivar port: where clients connect.
    :ivar log: the file with the program's standard output or access log.
    """

    program: str
    file: ClassVar[str]
    variable: ClassVar[str] = ""
    showing_version: ClassVar[tuple[str, ...]] = ("-v",)
    checking: tuple[str, ...]
    running: tuple[str, ...]
    hosts: ClassVar[tuple[str, ...]] = ("127.0.0.1",) * 3

    def __init__(
        self, folder: Path, nodes: Mapping[str, int], certificate: Certificate | None = None
    ) -> None:
        """Reserve the ports.

        :param folder: for the configuration and the log.
        :param nodes: their names and ports.
        :param certificate: if given, clients connect over TLS.
        :raises SkipTest: if the program is not installed.
        """
        self._path = installed(self.program, self.variable)
        self._folder, self._nodes, self._certificate = folder, nodes, certificate
        self.log = folder / f"{self.program}.log"
        self._process: Process | None = None
        self._reserved = [socket.socket() for _ in range(2)]
        for each in self._reserved:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        self.port, self._status_port = (each.getsockname()[1] for each in self._reserved)

    @classmethod
    def version(cls) -> tuple[int, ...]:
        """Return the version of the program."""
        return version_of(installed(cls.program, cls.variable), *cls.showing_version)

    @property
    def stderr(self) -> str:
        """The program's standard error, which is separate from its log."""
        assert self._process is not None, "the balancer was not started"
        return self._process.stderr

    async def check(self) -> tuple[int, str]:
        """Run the program's own configuration check; return its exit status and its output."""
        process = self._spawn(*self.checking, self._configuration())
        return await process.end(), process.stdout + process.stderr

    async def start(self) -> None:
        """Start the program, and return when it listens."""
        with open(self.log, "wb") as log:
            words = (*self.running, self._configuration())
            self._process = self._spawn(*words, stdout=log.fileno())
        await self.until_started()

    async def until_started(self) -> None:
        """Wait until the program responds."""
        await until(lambda: deferToThread(self._has_routes), f"{self.program} to start")
        self._release()

    def _release(self) -> None:
        for each in self._reserved:
            each.close()

    def _has_routes(self) -> bool:
        """Return whether the program responds to a request, and not with a 404 of its own."""
        if self._process is not None and self._process.code is not None:
            raise AssertionError(f"{self.program} has ended: {self.stderr}{self.log.read_text()}")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        url = f"http{'s' if self._certificate else ''}://localhost:{self.port}/health"
        try:
            urlopen(url, context=context, timeout=PATIENCE).close()
        except HTTPError as error:
            return error.code != 404
        except (OSError, HTTPException):
            return False
        return True

    async def stop(self) -> None:
        """Stop the program at once."""
        self._release()
        if self._process is not None:
            self._process.signal(signal.SIGTERM)
            await self._process.end()

    def _configuration(self) -> str:
        """Write the configuration, and return its path."""
        raise NotImplementedError

    def _spawn(self, *words: str, stdout: int | str = "r", **variables: str) -> Process:
        command = (*parent_death_prefix(), self._path, *words)
        process = Process()
        descriptors = {0: "w", 1: stdout, 2: "r"}
        reactor.spawnProcess(process, command[0], command, env=variables, childFDs=descriptors)
        return process


class HAProxy(Balancer):
    """HAProxy, which checks its nodes and reports their states.

    :cvar alpn: the protocols over TLS.
    """

    program = "haproxy"
    file = "haproxy/haproxy.cfg"
    alpn: ClassVar[str] = "http/1.1"
    checking = ("-c", "-V", "-f")
    running = ("-db", "-f")

    async def start(self) -> None:
        """Start HAProxy and return when every node is up."""
        await super().start()
        await self.until_state(**dict.fromkeys(self._nodes, "UP"))

    async def until_state(self, **states: str) -> None:
        """Wait until HAProxy reports the given states (UP or DOWN) of the given nodes."""

        async def settled() -> bool:
            found = await self._statistics()
            # HAProxy reports a node as up before its first check.
            return all(
                found[name]["status"] == state and not found[name]["check_status"].endswith("INI")
                for name, state in states.items()
            )

        await until(settled, f"{states}")

    async def _statistics(self) -> dict[str, dict[str, str]]:
        assert self._process is not None, "the balancer was not started"
        if self._process.code is not None:
            raise AssertionError(f"HAProxy has ended: {self.stderr}")
        response = await fetch(self._status_port, b"/;csv")
        rows = csv.DictReader(response.body.decode().removeprefix("# ").splitlines())
        return {row["svname"]: row for row in rows if row["pxname"] == "nodes"}

    def _configuration(self) -> str:
        # HAProxy computes a node's place in the hash ring from its id, so every run has the same
        # places.
        servers = [
            f"server {name} 127.0.0.1:{port} id {number}"
            for number, (name, port) in enumerate(self._nodes.items(), 1)
        ]
        tls = "#bind :443,:::443 v6only ssl crt /etc/haproxy/audioproxy.pem alpn http/1.1"
        condition = "{ res.hdr(X-Audio-Proxy) MISS COALESCED }"
        cdn = f"http-response set-header Cache-Control no-store if {condition}"
        bind = f"bind 127.0.0.1:{self.port}"
        if self._certificate is not None:
            bind += f" ssl crt {self._certificate.both()} alpn {self.alpn}"
        text = shipped(
            self.file,
            {
                # The tests run HAProxy as their own user, in a folder of their own.
                "log /dev/log len 4096 local0": "log stdout format raw local0",
                "chroot /var/lib/haproxy": "nbthread 1",
                "user haproxy": "",
                "group haproxy": "",
                "bind :80,:::80 v6only": bind,
                tls: "",
                "bind 127.0.0.1:8404": f"bind 127.0.0.1:{self._status_port}",
                f"#{cdn}": cdn,
                # Shorter intervals keep the tests fast.
                "default-server check inter 1s fastinter 250ms downinter 500ms fall 2 rise 1": (
                    "default-server check inter 250ms fastinter 50ms downinter 100ms fall 2 rise 1"
                ),
                "#http-response set-header x-node %s": f"http-response set-header {NODE} %s",
                "server node1 10.0.0.11:4000 id 1": "\n".join(servers),
                "server node2 10.0.0.12:4000 id 2": "",
                "server node3 10.0.0.13:4000 id 3": "",
            },
        )
        path = self._folder / "haproxy.cfg"
        path.write_text(text)
        return str(path)


# Includes the shipped file, as Debian's nginx.conf does.
_NGINX = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections {connections}; }}
http {{
{temporary}
    # After several tries, the last address is the node that responded.
    map $upstream_addr $audioproxy_node {{
{names}
    }}
    include {folder}/audioproxy.conf;
}}
"""


def temporary_paths(folder: Path) -> str:
    """Return the lines that make nginx keep its temporary files in a folder."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)


class Nginx(Balancer):
    """nginx, which detects a failed node only when a request to the node fails.

    :cvar connections: limit of open connections, including listening sockets and nginx's own pipe.
    :cvar limits: of a node that fails.
    """

    program = "nginx"
    file = "nginx/audioproxy.conf"
    connections: ClassVar[int] = 512
    limits: ClassVar[str] = "max_fails=1 fail_timeout=2s"
    checking = ("-t", "-c")
    running = ("-c",)

    def _tls_and_http2(self) -> str:
        """Return the rest of the ``listen`` line; the shipped file explains the two spellings."""
        return "ssl;\nhttp2 on;" if self.version() >= (1, 25, 1) else "ssl http2;"

    def _configuration(self) -> str:
        servers = [f"server 127.0.0.1:{port} {self.limits};" for port in self._nodes.values()]
        names = [f'"~:{port}$" {name};' for name, port in self._nodes.items()]
        listen = f"listen 127.0.0.1:{self.port}"
        changes = {
            "listen 80;": f"{listen};",
            "listen [::]:80;": "",
            "access_log /var/log/nginx/audioproxy.log audioproxy;": (
                f"access_log {self.log} audioproxy;"
            ),
            "error_log /var/log/nginx/audioproxy.error.log emerg;": (
                f"error_log {self._folder}/audioproxy.error.log emerg;"
            ),
            "server 10.0.0.11:4000 max_fails=1 fail_timeout=2s;": "\n".join(servers),
            "server 10.0.0.12:4000 max_fails=1 fail_timeout=2s;": "",
            "server 10.0.0.13:4000 max_fails=1 fail_timeout=2s;": "",
            "#add_header x-node $upstream_addr always;": (
                f"add_header {NODE} $audioproxy_node always;"
            ),
        }
        if self._certificate is not None:
            changes |= {
                "listen 80;": "",
                "#listen 443 ssl http2;": f"{listen} {self._tls_and_http2()}",
                "#ssl_certificate /etc/nginx/audioproxy.crt;": (
                    f"ssl_certificate {self._certificate.chain};"
                ),
                "#ssl_certificate_key /etc/nginx/audioproxy.key;": (
                    f"ssl_certificate_key {self._certificate.key};"
                ),
            }
        own = self._folder / "audioproxy.conf"
        own.write_text(shipped(self.file, changes))
        path = self._folder / "nginx.conf"
        path.write_text(
            _NGINX.format(
                folder=self._folder,
                temporary=temporary_paths(self._folder),
                names="\n".join(names),
                connections=self.connections,
            )
        )
        return str(path)


class NginxWithOneNode(Nginx):
    """An nginx whose nodes are one node, written twice."""

    limits = "max_fails=0"
