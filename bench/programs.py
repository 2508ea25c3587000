"""The service and its peers as processes that are started, measured and stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from audioproxy.urls import Signer, Variant
from bench.client import fetch
from tests.support.children import child_processes, fork_servers, is_linked

T = TypeVar("T")

PROJECT = Path(__file__).parents[1]

#: Folder of all files of the benchmarks: audio, logs and stores.
FOLDER = PROJECT / "build" / "bench"

#: Folder in which `make ffmpeg` puts the project's own programs.
OWN_FFMPEG = PROJECT / "build" / "ffmpeg" / "bin"

#: ffmpeg of Debian's package, whatever PATH contains.
FFMPEG = "/usr/bin/ffmpeg"

#: The peer for waveforms, which is in no registry: the path in the variable of this name, or "".
AUDIOWAVEFORM = os.environ.get("AUDIOWAVEFORM", "")

#: PATH that finds Debian's ffmpeg.
SYSTEM = "/usr/bin:/bin"

KEY, SALT = b"k" * 32, b"s" * 16

# Seconds after which a program that does not start or exit is a failure.
_PATIENCE = 20.0
_LISTENING = re.compile(r"metrics on \S+ port (\d+)$.*listening on port (\d+)$", re.M | re.S)
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Program:
    """A running program.

    :ivar port: port on which it listens.
    """

    process: subprocess.Popen[bytes]
    port: int

    @property
    def base(self) -> str:
        """URL of its root."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        """The process and its children, such as the workers of a server."""
        return [self.process.pid, *child_processes(self.process.pid)]

    def cpu_seconds(self) -> float:
        """Return the CPU time of the program and its workers, in user and system mode."""
        return sum(_cpu_seconds(pid) for pid in self.pids)

    def resident_bytes(self) -> int:
        """Return the resident memory of the program's main process."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE


@dataclass(frozen=True, slots=True)
class Service(Program):
    """The service.

    :ivar metrics_port: port of its metrics.
    :ivar started: seconds from its start to the open port.
    """

    metrics_port: int
    started: float

    @property
    def pids(self) -> list[int]:
        """Only the process itself: its children are encoders."""
        return [self.process.pid]

    def all_cpu_seconds(self) -> float:
        """Return the CPU time of the service and of its children, those that ended included."""
        mine, others = self.process.pid, child_processes(self.process.pid)
        return _cpu_seconds(mine, reaped=True) + sum(map(_cpu_seconds, others))

    def proportional_bytes(self) -> int:
        """Return the memory of the service and its children; what they share counts once."""
        size = 0
        for pid in (self.process.pid, *child_processes(self.process.pid)):
            # A child that has ended takes nothing.
            with suppress(FileNotFoundError, ProcessLookupError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                size += 1024 * int(text.partition("\nPss:")[2].split()[0])
        return size

    def path(self, options: str, source: str) -> str:
        """Return the signed path of a variant.

        :param source: a file below the local root, or the source in full.
        """
        full = source if "://" in source else f"local://{source}"
        return Signer(KEY, SALT).url(full, Variant.read(options))

    def info_path(self, source: str) -> str:
        """Return the signed path of the info document of a file below the local root."""
        return Signer(KEY, SALT).info_url(f"local://{source}")


def _cpu_seconds(pid: int, *, reaped: bool = False) -> float:
    """Return the CPU time of a process, or also that of the children that it has reaped."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11 : 15 if reaped else 13])) / _TICKS


def working_children(pid: int) -> list[int]:
    """Return the child processes of a service, without those that wait for a request."""
    return [child for child in child_processes(pid) if not is_linked(child)]


def settled(program: Program) -> None:
    """Wait until a program has no children at work, such as encoders without clients.

    :raises RuntimeError: if some children remain.
    """
    _wait_until(lambda: not working_children(program.process.pid), f"{program.base} is busy")


def linked(program: Service, servers: int) -> None:
    """Wait until a service has fork servers, each of which has shown that it works.

    :param servers: their number.
    :raises RuntimeError: if it has others, or other children remain.
    """
    pid = program.process.pid
    problem = f"{program.base} has not {servers} fork servers alone"
    _wait_until(lambda: len(fork_servers(pid)) == servers, problem)
    # A service that responds has noticed its servers, and tries each of them.
    fetch(program.port, "/health")
    _wait_until(lambda: len(child_processes(pid)) == 2 * servers, problem)


def _wait_until(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(problem)
        time.sleep(0.002)


def pinned(core: int | None, command: Sequence[str | Path]) -> list[str]:
    """Return a command that runs on one core, or on all cores."""
    words = [str(word) for word in command]
    return words if core is None else ["taskset", "--cpu-list", str(core), *words]


def free_port() -> int:
    """Return a port on which no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    command: Sequence[str | Path], folder: Path, port: int, *, core: int | None = None
) -> Iterator[Program]:
    """Run a server for the duration of a block.

    :param folder: folder for its log.
    """

    def listens() -> bool:
        with socket.socket() as probe:
            return not probe.connect_ex(("127.0.0.1", port))

    with (
        (folder / "servers.log").open("ab") as log,
        _running(command, core, log) as process,
    ):
        _wait(process, listens)
        yield Program(process, port)


@contextmanager
def service(
    folder: Path, settings: Mapping[str, str], *, core: int | None = None, path: str = SYSTEM
) -> Iterator[Service]:
    """Run the service with `twistd`, with a log file as its stdout.

    :param folder: folder for its log.
    :param path: PATH, to use another ffmpeg than the system's.
    """
    environment = {
        "PATH": path,
        # Renders write here, on the disk that the page names.
        "TMPDIR": str(folder),
        "AP_KEY": KEY.hex(),
        "AP_SALT": SALT.hex(),
        "AP_PORT": "0",
        "AP_METRICS_PORT": "0",
        "AP_SERVE_MODE": "proxy",
        **settings,
    }
    twistd = Path(sys.executable).with_name("twistd")
    command: list[str | Path] = [twistd, "--nodaemon", "--pidfile=", "audioproxy"]
    log = folder / "service.log"
    start = time.perf_counter()
    with log.open("wb") as stream, _running(command, core, stream, env=environment) as process:
        ports = _wait(process, lambda: _LISTENING.search(log.read_text()))
        yield Service(process, int(ports[2]), int(ports[1]), time.perf_counter() - start)


def own_path() -> str | None:
    """Return a PATH with the project's own programs before the system's; None without them."""
    return f"{OWN_FFMPEG}:{SYSTEM}" if (OWN_FFMPEG / "ffmpeg").exists() else None


@contextmanager
def _running(
    command: Sequence[str | Path], core: int | None, output: IO[bytes], **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its children for the duration of a block."""
    process = subprocess.Popen(
        pinned(core, command),
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        **options,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], find: Callable[[], T | None]) -> T:
    """Return the first true result of a function, while a program starts."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if found := find():
            return found
        time.sleep(0.002)
    raise RuntimeError(f"{process.args!r} does not start; see its log in its folder")
