"""Nodes: twistd processes with their own temporary folders, and measurements of them."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.observe.test_metrics import parse
from tests.soak.lines import PATIENCE, wait_for
from tests.support.children import fork_servers
from tests.support.service import (
    TWISTD,
    WITHOUT_FFMPEG_CHECK,
    Process,
    all_children,
    children,
    encoders,
    fetch,
    start_process,
)

# Nodes keep blocks of remote sources for seconds, so that they become idle soon.
_IDLE_SOON = "from audioproxy.sources import far_files\nfar_files.KEPT_SECONDS = 2\n"

# Parts of a descriptor's target that differ between files, sockets or pipes of the same kind.
_NUMBERS = re.compile(r"[0-9a-f]{32,}|(?<=\[)\d+")


class Node:
    """One node, across restarts of its process.

    :ivar name: a letter.
    :ivar up: whether the node has started to listen, and the run has not ended it since.
    """

    def __init__(self, name: str, base: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.up = False
        self.port = 0
        self.temporary = base / f"tmp-{name}"
        self.temporary.mkdir()
        self.process = Process()
        self._base = base
        self._environment = environment
        self._past = ""
        self._metrics_port = 0

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self.process.pid

    @property
    def log(self) -> str:
        """Standard output of all processes of the node."""
        return self._past + self.process.out.decode("utf-8", "replace")

    @property
    def said(self) -> str:
        """Standard error of the current process."""
        return self.process.err.decode("utf-8", "replace")

    async def start(self) -> None:
        """Start a process, and wait until it listens."""
        self._past = self.log
        self.process = Process()
        # A check of ffmpeg takes as long as several renders.
        program = WITHOUT_FFMPEG_CHECK + _IDLE_SOON + TWISTD
        command = (sys.executable, "-c", program, "--nodaemon", "--pidfile=", "audioproxy")
        own = {"TMPDIR": str(self.temporary), "AP_PORT": "0", "AP_METRICS_PORT": "0"}
        environ = {**self._environment, **own}
        start_process(self.process, command, environ, str(self._base))
        self.port = await self.process.port()
        self._metrics_port = await self.process.metrics_port()
        self.up = True

    async def kill(self) -> list[int]:
        """Kill the process; return its children, which have to die with it."""
        self.up = False
        orphans = self.all_children()
        self.process.signal(signal.SIGKILL)
        await wait_for(lambda: self.process.code is not None, PATIENCE)
        return orphans

    async def stop(self) -> int | None:
        """Send SIGTERM; return the exit status, or None past the deadline."""
        self.up = False
        self.process.signal(signal.SIGTERM)
        await wait_for(lambda: self.process.code is not None, PATIENCE)
        return self.process.code

    async def metrics(self) -> Metrics:
        """Read the metrics."""
        return Metrics((await fetch(self._metrics_port, b"/metrics")).body)

    def descriptors(self) -> Counter[str]:
        """Return the targets of the open descriptors, without ids and digests."""
        found: Counter[str] = Counter()
        for path in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found[_NUMBERS.sub("*", os.readlink(path))] += 1
        return found

    def children(self) -> list[int]:
        """Return the ids of the child processes with work, zombies included."""
        return children(self.pid) if self.process.code is None else []

    def all_children(self) -> list[int]:
        """Return the ids of all child processes, with those that wait for a request."""
        return all_children(self.pid) if self.process.code is None else []

    def has_only_servers(self) -> bool:
        """Return whether the children are two fork servers with a spare child each."""
        return len(self.all_children()) == 4 and len(fork_servers(self.pid)) == 2

    def encoders(self) -> list[int]:
        """Return the encoders that run; children that have not called ``exec`` yet are left out."""
        return encoders(self.pid) if self.process.code is None else []


class Metrics:
    """One reading of the metrics."""

    def __init__(self, text: bytes) -> None:
        self.values = parse(text)

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of all samples with this name and these labels."""
        expected = set(labels.items())
        found = self.values.items()
        return sum(value for (each, own), value in found if each == name and expected <= set(own))


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
