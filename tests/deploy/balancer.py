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
import sys
from collections.abc import Collection, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

from twisted.internet import reactor as _reactor
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SkipTest, TestCase

from tests.support.authority import Certificate
from tests.support.runs import run_program
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
    ended = run_program(*command, cwd="/")
    (found,) = re.findall(r"\d+(?:\.\d+){1,2}", ended.out + ended.err)[:1]
    return tuple(map(int, found.split(".")))


def shipped(
    name: str,
    changes: Mapping[str, str],
    enabled: Collection[str] = (),
    nodes: Sequence[tuple[str, str, int]] = (),
) -> str:
    """Return a file of ``deploy/`` with some of its text replaced.

    :param changes: replacements of text within a line. They apply to enabled lines too.
    :param enabled: lines, each of which begins a commented-out block to enable.
    :param nodes: name, host and port of each node, in place of those of the file. Lines of further
        nodes are left out.
    :raises AssertionError: if the file lacks one of these texts.
    """
    lines, is_enabled, missing = [], False, {*changes, *enabled}
    for line in (PROJECT / "deploy" / name).read_text().splitlines():
        bare = line.strip()
        missing.discard(bare)
        # A comment has one blank before its text.
        is_enabled = bool(re.match(r"#(?! \S)", bare)) and (is_enabled or bare in enabled)
        if is_enabled:
            line = line.replace("#", "", 1)
            missing.discard(line.strip())
        for old in [each for each in changes if each in line]:
            missing.discard(old)
            line = line.replace(old, changes[old])
        found = re.search(r"10\.0\.0\.1(\d)", line)
        if nodes and found is not None:
            number = int(found[1])
            if number > len(nodes):
                continue
            node, host, port = nodes[number - 1]
            line = line.replace(found[0], host).replace(f"node{number}", node)
            line = re.sub(r"\b4000\b", str(port), line)
        lines.append(line)
    if missing:
        raise AssertionError(f"{name} has no line with {missing}")
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
    :cvar tls: lines of its file, each of which begins a commented-out block for TLS.
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
    tls: ClassVar[tuple[str, ...]] = ()

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

    def _shipped(self, changes: Mapping[str, str]) -> str:
        """Return the shipped file with these changes, with the nodes, and with the certificate."""
        named = zip(self._nodes.items(), self.hosts, strict=False)
        nodes = [(name, host, port) for (name, port), host in named]
        used = self._certificate
        text = shipped(self.file, changes, self.tls if used else (), nodes)
        files = {"crt": str(used.chain), "key": str(used.key)} if used else {}
        return re.sub(r"/etc/\S+/audioproxy\.(crt|key)", lambda it: files.get(it[1], it[0]), text)

    def _write(self, name: str, text: str) -> str:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

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
        bind = f"bind 127.0.0.1:{self.port}"
        if self._certificate is not None:
            bind += f" ssl crt {self._certificate.both()} alpn {self.alpn}"
        changes = {
            # The tests run HAProxy as their own user, in a folder of their own.
            "log /dev/log len 4096 local0": "log stdout format raw local0",
            "chroot /var/lib/haproxy": "nbthread 1",
            "user haproxy": "",
            "group haproxy": "",
            "bind :80,:::80 v6only": bind,
            "127.0.0.1:8404": f"127.0.0.1:{self._status_port}",
            "#http-response set-header Cache-Control": "http-response set-header Cache-Control",
            # Shorter intervals keep the tests fast.
            "inter 1s fastinter 250ms downinter 500ms": (
                "inter 250ms fastinter 50ms downinter 100ms"
            ),
            "#http-response set-header x-node": f"http-response set-header {NODE}",
        }
        return self._write("haproxy.cfg", self._shipped(changes))


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
    tls = ("#listen 443 ssl http2;",)

    def _configuration(self) -> str:
        names = [f'"~:{port}$" {name};' for name, port in self._nodes.items()]
        listen = f"listen 127.0.0.1:{self.port}"
        changes = {
            "listen 80;": f"{listen};",
            "listen [::]:80;": "",
            "/var/log/nginx/audioproxy.log": str(self.log),
            "/var/log/nginx/audioproxy.error.log": f"{self._folder}/audioproxy.error.log",
            "max_fails=1 fail_timeout=2s": self.limits,
            "#add_header x-node $upstream_addr": f"add_header {NODE} $audioproxy_node",
        }
        if self._certificate is not None:
            # The shipped file explains the two spellings.
            rest = "ssl;\nhttp2 on;" if self.version() >= (1, 25, 1) else "ssl http2;"
            changes |= dict.fromkeys(("listen 80;", "listen [::]:443 ssl http2;"), "")
            changes["listen 443 ssl http2;"] = f"{listen} {rest}"
        self._write("audioproxy.conf", self._shipped(changes))
        text = _NGINX.format(
            folder=self._folder,
            temporary=temporary_paths(self._folder),
            names="\n".join(names),
            connections=self.connections,
        )
        return self._write("nginx.conf", text)


class NginxWithOneNode(Nginx):
    """An nginx whose nodes are one node, written twice."""

    limits = "max_fails=0"
