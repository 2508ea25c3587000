"""The service and its peers as processes that are started, measured and stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from audioproxy.urls import Signer, Variant

PROJECT = Path(__file__).parents[1]

#: Folder of all files of the benchmarks: audio, peers, samples.
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


@dataclass(slots=True)
class Program:
    """A running program.

    :ivar port: port on which it listens.
    :ivar base: URL of its root.
    """

    process: subprocess.Popen[bytes]
    port: int
    base: str = field(init=False)

    def __post_init__(self) -> None:
        self.base = f"http://127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        """The process and its children, such as the workers of a server."""
        pid = self.process.pid
        return [pid, *children(pid)]

    def cpu_seconds(self) -> float:
        """Return the CPU time of the program, including the workers of a server."""
        return cpu_seconds(*self.pids)

    def resident_bytes(self) -> int:
        """Return the resident memory of the program's main process."""
        return resident_bytes(self.process.pid)


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # Threads may start and end during the loop.
        with suppress(FileNotFoundError):
            found += [int(number) for number in (task / "children").read_text().split()]
    return found


def settled(program: Program) -> None:
    """Wait until a program has no children, such as encoders without clients.

    :raises RuntimeError: if some children remain.
    """
    deadline = time.monotonic() + _PATIENCE
    while children(program.process.pid):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{program.base} keeps its children")
        time.sleep(0.002)


def move(program: Program, core: int) -> None:
    """Pin a program with all of its threads and future children to one core."""
    for task in Path(f"/proc/{program.process.pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {core})


def cpu_seconds(*pids: int) -> float:
    """Return the CPU time of processes, in user and system mode."""
    ticks = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / _TICKS


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def pinned(core: int | None, command: Sequence[str | Path]) -> list[str]:
    """Return a command that runs on one core, or on all cores."""
    words = [str(word) for word in command]
    return words if core is None else ["taskset", "--cpu-list", str(core), *words]


@contextmanager
def started(
    command: Sequence[str | Path], port: int, *, core: int | None = None, **options: object
) -> Iterator[Program]:
    """Run a server for the duration of a block."""
    with (FOLDER / "servers.log").open("ab") as log:
        process = subprocess.Popen(  # type: ignore[call-overload]
            pinned(core, command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **options,
        )
        try:
            _wait_for_port(process, port)
            yield Program(process, port)
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a program and its children."""
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """Return a port on which no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode}; see servers.log")
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.01)
    raise RuntimeError(f"{process.args} does not listen on {port}")


# The service


@dataclass(slots=True)
class Service(Program):
    """The service, with the key for its signatures.

    :ivar metrics_port: port of its metrics.
    :ivar started: seconds from its start to the open port.
    """

    metrics_port: int
    started: float
    signer: Signer = field(init=False)

    def __post_init__(self) -> None:
        Program.__post_init__(self)
        self.signer = Signer(KEY, SALT)

    @property
    def pids(self) -> list[int]:
        """Only the process itself: its children are encoders."""
        return [self.process.pid]

    def path(self, options: str, source: str) -> str:
        """Return the signed path of a variant of a file below the local root."""
        return self.signer.url(f"local://{source}", Variant.read(options))


def own_path() -> str:
    """Return a PATH with the project's own programs before the system's."""
    return f"{OWN_FFMPEG}:{SYSTEM}"


@contextmanager
def service(
    folder: Path,
    settings: Mapping[str, str],
    *,
    core: int | None = None,
    path: str | None = None,
) -> Iterator[Service]:
    """Run the service with `twistd`, with a log file as its stdout.

    :param folder: folder for its log.
    :param path: PATH, to use another ffmpeg than the system's.
    """
    environment = {
        "PATH": path or SYSTEM,
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
    command = pinned(core, [twistd, "--nodaemon", "--pidfile=", "audioproxy"])
    log = folder / "service.log"
    start = time.perf_counter()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        metrics_port, port = _read_ports(process, log)
        yield Service(process, port, metrics_port, time.perf_counter() - start)
    finally:
        stop(process)


def _read_ports(process: subprocess.Popen[bytes], log: Path) -> tuple[int, int]:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if found := _LISTENING.search(log.read_text()):
            return int(found[1]), int(found[2])
        if process.poll() is not None:
            break
        time.sleep(0.002)
    raise RuntimeError(f"the service does not start: {log.read_text()}")
