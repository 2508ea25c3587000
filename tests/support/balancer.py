"""A real HAProxy before several nodes, set up as nodes with one store want it."""

from __future__ import annotations

import csv
import os
import shutil
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import SkipTest, TestCase

from tests.support.service import PATIENCE, Process, ask

reactor: Any = _reactor

T = TypeVar("T")

#: Set by ``make test``, which installs it: what is missing then is a failure.
REQUIRED = os.environ.get("AUDIOPROXY_HAPROXY") == "required"

#: The header in which a client is told here which node answered.
NODE = "x-node"

# The descriptors on which HAProxy finds its two ports open.
_CLIENTS, _STATUS = 3, 4

# Seconds that a node may be silent: twice the default of AP_RENDER_TIMEOUT, a probe, and some.
_SILENCE = 2 * 300 + 30

_CONFIGURATION = """\
global
    nbthread 1
    maxconn 2000
    log stdout format raw local0

defaults
    mode http
    timeout connect 5s
    # Longer than a node may be silent, which is AP_RENDER_TIMEOUT in its queue and once more until
    # the first byte. So it is the node that says 429 or 504, and says why.
    timeout client {silence}s
    timeout server {silence}s
    # A node that answers late is busy, not gone.
    timeout check 10s

frontend clients
    bind fd@{clients}
    log global
    option httplog
    default_backend nodes

backend nodes
    log global
    # One URL, one node: all who ask for it at the same time share one render. When a node goes,
    # its own URLs move and no others, and when it comes back, so do they.
    balance uri path-only
    hash-type consistent
    # A node whose queue is full gets no new work. What it has it finishes: there must be no
    # "on-marked-down shutdown-sessions" here.
    option httpchk GET /ready
    default-server check inter 250ms fastinter 50ms downinter 100ms fall 2 rise 1
    # There are only GET and HEAD, so what was not answered may be asked again. An answer is an
    # answer, be it 500, 502 or 504: the next node has the same source and the same store, and a
    # render that takes too long would do so on each of them in turn. So these are not
    # "all-retryable-errors", nor is "response-timeout" among them.
    retry-on conn-failure empty-response junk-response
    retries 3
    # From the first retry on, and not to the node that has just failed.
    option redispatch 1
    http-response set-header {node} %s
{servers}
frontend status
    bind fd@{status}
    stats enable
    stats uri /
"""


def haproxy() -> str:
    """Return the path of HAProxy.

    :raises SkipTest: where it is missing, and may be.
    """
    # Distributions put it where only root looks.
    found = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin")
    if found is None:
        reason = "there is no HAProxy on this machine"
        raise AssertionError(reason) if REQUIRED else SkipTest(reason)
    return found


async def until_told(look: Callable[[], Awaitable[T]], what: str) -> T:
    """Ask somebody until the answer is a true value, and return that.

    :raises AssertionError: past the deadline.
    """
    deadline = reactor.seconds() + PATIENCE
    while not (value := await look()):
        if reactor.seconds() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        # Whoever is asked has better things to do.
        await deferLater(reactor, 0.01)
    return value


async def balance(case: TestCase, folder: Path, nodes: Mapping[str, int]) -> Balancer:
    """Start a balancer before nodes of these names and ports; it ends with the test."""
    balancer = Balancer(folder)
    case.addCleanup(lambda: Deferred.fromCoroutine(balancer.stop()))
    for name, port in nodes.items():
        balancer.add(name, port)
    await balancer.start()
    return balancer


class Balancer:
    """One address for several nodes.

    Its ports are open from the beginning, and HAProxy inherits them: nobody can have taken one
    before it starts.

    :ivar port: where clients connect.
    """

    def __init__(self, folder: Path) -> None:
        """Open the ports.

        :param folder: for the configuration and the log of requests, ``haproxy.log``.
        :raises SkipTest: where there is no HAProxy.
        """
        self._program = haproxy()
        self._file, self._log = folder / "haproxy.cfg", folder / "haproxy.log"
        self._nodes: dict[str, int] = {}
        self._process: Process | None = None
        self._sockets = ExitStack()
        clients, status = (
            self._sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
            for _ in range(2)
        )
        self._inherited = {_CLIENTS: clients.fileno(), _STATUS: status.fileno()}
        self.port, self._status_port = clients.getsockname()[1], status.getsockname()[1]

    def add(self, name: str, port: int) -> None:
        """Put a node behind it, before it starts."""
        self._nodes[name] = port

    async def check(self) -> tuple[int, str]:
        """Return the status of ``haproxy -c`` before a start, and all that it says."""
        process = self._spawn("-c", "-V")
        return await process.end(), process.stdout + process.stderr

    async def start(self) -> None:
        """Start, and come back when every node is up."""
        with open(self._log, "wb") as log:
            self._process = self._spawn("-db", stdout=log.fileno())
        # Where HAProxy has ended, nobody should wait at its ports.
        self._sockets.close()
        await self.until_state(**dict.fromkeys(self._nodes, "UP"))

    async def stop(self) -> None:
        """End it at once."""
        self._sockets.close()
        if self._process is not None:
            self._process.signal(9)
            await self._process.end()

    async def until_state(self, **states: str) -> None:
        """Wait until HAProxy takes each of some nodes to be UP, or DOWN."""

        async def settled() -> bool:
            found = await self._statistics()
            # A node counts as up before it was ever looked at.
            return all(
                found[name]["status"] == state and not found[name]["check_status"].endswith("INI")
                for name, state in states.items()
            )

        await until_told(settled, f"{states}")

    async def sessions(self, name: str) -> int:
        """Return how many requests HAProxy has given to a node and not seen the end of."""
        return int((await self._statistics())[name]["scur"])

    async def retried(self, name: str) -> int:
        """Return how many requests a node got, did not answer, and lost to another one."""
        return int((await self._statistics())[name]["wretr"])

    async def _statistics(self) -> dict[str, dict[str, str]]:
        assert self._process is not None, "it was not started"
        if self._process.code is not None:
            raise AssertionError(f"HAProxy has ended: {self._process.stderr}")
        response = await ask(self._status_port, b"/;csv")
        rows = csv.DictReader(response.body.decode().removeprefix("# ").splitlines())
        return {row["svname"]: row for row in rows if row["svname"] in self._nodes}

    def _configuration(self) -> str:
        # A node's place among the hashes is computed from its id, and so the same in every run.
        servers = [
            f"    server {name} 127.0.0.1:{port} id {number}\n"
            for number, (name, port) in enumerate(self._nodes.items(), 1)
        ]
        return _CONFIGURATION.format(
            silence=_SILENCE,
            clients=_CLIENTS,
            status=_STATUS,
            node=NODE,
            servers="".join(servers),
        )

    def _spawn(self, *words: str, stdout: int | str = "r") -> Process:
        self._file.write_text(self._configuration())
        setpriv = shutil.which("setpriv")
        # It dies with this process, however that ends.
        leash = (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()
        command = (*leash, self._program, *words, "-f", str(self._file))
        process = Process()
        descriptors = {0: "w", 1: stdout, 2: "r", **self._inherited}
        reactor.spawnProcess(process, command[0], command, env={}, childFDs=descriptors)
        return process
