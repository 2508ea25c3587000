"""The real service, in this process or in a process of its own, and a client on real sockets."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from inspect import isawaitable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, UNIXClientEndpoint, connectProtocol
from twisted.internet.error import ConnectionDone, ProcessDone
from twisted.internet.protocol import ProcessProtocol, Protocol
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from audioproxy._twisted import ForkedProcess
from audioproxy.config import Config, FileStore
from audioproxy.grammar.signature import sign
from audioproxy.process.programs import ProgramsMonitor
from audioproxy.service import AudioProxy
from tests.support import preloaded
from tests.support.children import child_processes, command_line, is_linked
from tests.support.http import KEY, SALT, Response, ResponseReader, write_request
from tests.support.linked_programs import SharedServer
from tests.support.preloaded import PROJECT
from tests.support.programs import FFMPEG, write_script
from tests.support.servers import PATIENCE
from tests.support.sounds import keep

reactor: Any = _reactor

T = TypeVar("T")

#: Timeout in seconds of a whole test: far longer than it takes.
TEST_PATIENCE = 900.0

#: What services of this process have found out about ffmpeg, by its path.
EXAMINED: dict[str, Any] = {}

#: Python code that runs twistd. A service protects its process: only root can read its descriptors.
#: Tests that run as another user turn the protection off, because they read the descriptors of
#: services.
TWISTD = "import sys; from twisted.scripts.twistd import run; sys.exit(run())"
if os.getuid():
    TWISTD = f"import audioproxy.tap as tap; tap.hide_from_children = lambda: None; {TWISTD}"

#: Python code before `TWISTD` that disables the service's check of ffmpeg.
WITHOUT_FFMPEG_CHECK = """\
from audioproxy.process.programs import ProgramsMonitor
ProgramsMonitor.start = lambda self: None
"""


async def until(
    condition: Callable[[], T | Awaitable[T]],
    what: str = "the condition",
    seconds: float = PATIENCE,
) -> T:
    """Poll a condition, or a coroutine function, until its value is true, and return the value.

    :raises AssertionError: if the deadline passes.
    """
    deadline = reactor.seconds() + seconds
    while True:
        value: Any = condition()
        # The longer pause keeps a server that the condition asks from being busy with it.
        pause = 0.02 if isawaitable(value) else 0.003
        if isawaitable(value):
            value = await value
        if value:
            return value  # type: ignore[no-any-return]
        if reactor.seconds() > deadline:
            raise AssertionError(f"timed out waiting for {what}: {value!r}")
        await deferLater(reactor, pause)


class Client(Protocol):
    """Client protocol that collects the response to one request.

    :ivar received: all bytes so far.
    """

    def __init__(self, method: bytes = b"GET") -> None:
        self.method = method
        self.received = bytearray()
        self.closed: Failure | None = None
        self._done: list[Deferred[None]] = []
        self._reader = ResponseReader(method)
        self._parsed = 0

    def dataReceived(self, data: bytes) -> None:
        """Collect received bytes."""
        self.received += data

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """Record how the connection ended."""
        self.closed = reason
        waiting, self._done = self._done, []
        for waiter in waiting:
            waiter.callback(None)

    @property
    def response(self) -> Response | None:
        """The response received so far; None before all of its headers have arrived."""
        new, self._parsed = bytes(self.received[self._parsed :]), len(self.received)
        self._reader.feed(new)
        return self._reader.response(
            self.closed is not None and self.closed.check(ConnectionDone) is not None
        )

    def start_next(self) -> None:
        """Forget the response; the next one on the connection follows."""
        self.received.clear()
        self._reader, self._parsed = ResponseReader(self.method), 0

    async def end(self) -> Response:
        """Wait for the end of the connection and return the response."""
        if self.closed is None:
            waiter: Deferred[None] = Deferred()
            self._done.append(waiter)
            waiter.addTimeout(PATIENCE, reactor)
            await waiter
        response = self.response
        if response is None:
            raise AssertionError(f"no complete response headers in {bytes(self.received)!r}")
        return response

    def pause(self) -> None:
        """Stop reading."""
        self.transport.pauseProducing()  # type: ignore[union-attr]

    def resume(self) -> None:
        """Resume reading."""
        if self.closed is None:
            self.transport.resumeProducing()  # type: ignore[union-attr]

    async def leave(self) -> None:
        """Abort the connection."""
        self.transport.abortConnection()  # type: ignore[union-attr]
        await until(lambda: self.closed, "the connection to close")


async def send(
    where: int | str | Any,
    target: bytes,
    method: bytes = b"GET",
    client: Any = None,
    **headers: bytes,
) -> Any:
    """Connect and send a request; see `write_request`. By default, it closes the connection.

    :param where: a port, the path of a Unix socket, or an endpoint.
    """
    client = client or Client(method)
    if isinstance(where, int):
        where = TCP4ClientEndpoint(reactor, "127.0.0.1", where)
    elif isinstance(where, str):
        where = UNIXClientEndpoint(reactor, where)
    await connectProtocol(where, client)
    client.transport.write(  # type: ignore[union-attr]
        write_request(target, method, **{"connection": b"close", **headers})
    )
    return client


async def fetch(
    where: int | str, target: bytes, method: bytes = b"GET", **headers: bytes
) -> Response:
    """Send a request and return the whole response."""
    return await (await send(where, target, method, **headers)).end()


async def until_hit(port: int, path: bytes) -> Response:
    """Repeat a request until it joins no render any more, and return the hit (D37)."""

    async def find() -> Response | None:
        response = await fetch(port, path)
        found = response["x-audio-proxy"]
        assert found in (b"HIT", b"COALESCED"), f"not a HIT: {response.headers}"
        return response if found == b"HIT" else None

    return await until(find, f"a HIT of {path!r}")


def signed(rest: str) -> bytes:
    """Return the signed path for ``rest``, which starts with a slash."""
    path = rest.encode()
    return b"/" + sign(KEY, SALT, path) + path


# Sources


def generate_audio(path: Path, *words: str) -> Path:
    """Generate a file with ffmpeg's own synthesizers."""
    generate_all(path.parent, {path.name: words})
    return path


def generate_all(folder: Path, outputs: Mapping[str, Sequence[str]], *inputs: str) -> None:
    """Generate files in a folder with one run of ffmpeg.

    :param outputs: the options of each file, by name.
    """

    def make() -> dict[str, bytes]:
        command = [FFMPEG, *opened]
        for name, words in outputs.items():
            command += [*words, "-bitexact", str(folder / name)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
        return {name: (folder / name).read_bytes() for name in outputs}

    folder.mkdir(parents=True, exist_ok=True)
    opened = ["-nostdin", "-v", "error", "-y", *inputs]
    named = [word for name, words in outputs.items() for word in (*words, name)]
    for name, content in keep(FFMPEG, [*opened, *named], make).items():
        (folder / name).write_bytes(content)


@cache
def long_flac() -> Path:
    """Return ten minutes of FLAC, generated once for all tests in trial's working folder."""
    chirp = "sine=frequency=300:beep_factor=4:sample_rate=22050:duration=600"
    return generate_audio(Path("sounds/long.flac").resolve(), "-f", "lavfi", "-i", chirp)


@cache
def short_flac() -> Path:
    """Return one second of FLAC."""
    sine = "sine=frequency=440:sample_rate=44100:duration=1"
    return generate_audio(Path("sounds/short.flac").resolve(), "-f", "lavfi", "-i", sine)


# Processes


def children(pid: int | None = None) -> list[int]:
    """Return a process's children, including zombies; by default those of this process.

    Servers of the whole suite are left out, and so are linked programs without a request.
    """
    return [child for child in all_children(pid) if not is_linked(child)]


def all_children(pid: int | None = None) -> list[int]:
    """Return a process's children, with its fork servers and those that wait for a request."""
    return child_processes(pid or os.getpid())


def encoders(pid: int | None = None) -> list[int]:
    """Return the children that are encoders."""
    found = []
    for child in children(pid):
        words = command_line(child).split(b"\0")
        if words[0].endswith(b"ffmpeg") and b"pipe:1" in words:
            found.append(child)
    return found


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def scratch_files(store: Any) -> list[str]:
    """Return the names of the scratch files of renders."""
    return [
        name for _, _, names in os.walk(store / ".scratch") for name in names if "." not in name
    ]


class Process(ProcessProtocol):
    """Child process that collects its output.

    :ivar code: its exit status after its end; the negative signal number if a signal ended it.
    """

    def __init__(self) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self.code: int | None = None

    def outReceived(self, data: bytes) -> None:
        """Collect stdout."""
        self.out += data

    def errReceived(self, data: bytes) -> None:
        """Collect stderr."""
        self.err += data

    def processEnded(self, reason: Failure) -> None:
        """Record the exit status."""
        if reason.check(ProcessDone):
            self.code = 0
        else:
            value: Any = reason.value
            self.code = -value.signal if value.signal else value.exitCode

    @property
    def pid(self) -> int:
        """The process's id."""
        return int(self.transport.pid)  # type: ignore[union-attr]

    @property
    def stdout(self) -> str:
        """The process's stdout so far."""
        return self.out.decode()

    @property
    def stderr(self) -> str:
        """The process's stderr so far."""
        return self.err.decode()

    def signal(self, number: int) -> None:
        """Send a signal if the process still runs."""
        if self.code is None:
            os.kill(self.pid, number)

    async def kill(self) -> None:
        """Kill the process if it still runs, and wait for its end."""
        self.signal(9)
        await self.end()

    async def end(self) -> int:
        """Wait until the process ends and return its exit status."""
        await until(lambda: self.code is not None, "the process to end")
        assert self.code is not None
        return self.code

    async def printed(self, pattern: str, what: str) -> re.Match[str]:
        """Wait until the process prints text on stdout that matches, and return the match.

        :raises AssertionError: if it ends without printing it.
        """

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.stdout)
            if match is None and self.code is not None:
                raise AssertionError(f"ended with status {self.code}: {self.stdout}{self.stderr}")
            return match

        match = await until(found, what)
        assert match is not None
        return match

    async def port(self) -> int:
        """Wait until the service listens and return its port."""
        return int((await self.printed(r"listening on port (\d+)", "the service to listen"))[1])

    async def metrics_port(self) -> int:
        """Wait until the service listens and return the port of its metrics."""
        line = r"metrics on 127\.0\.0\.1 port (\d+)"
        return int((await self.printed(line, "the metrics to be served"))[1])


def start_process(
    process: Process,
    command: Sequence[str],
    variables: Mapping[str, str],
    path: str | None = None,
    descriptors: dict[int, Any] | None = None,
    *,
    cold: bool = False,
) -> None:
    """Start a program; a service or a command is forked where that is the same.

    :param path: the working directory.
    :param descriptors: its descriptors in place of three pipes.
    :param cold: whether the program has to be a new process.
    """
    if cold or not preloaded.can_fork(command, variables):
        reactor.spawnProcess(process, command[0], command, variables, path, childFDs=descriptors)
        return
    fork = partial(preloaded.fork, command, variables, path)
    pipes = descriptors or {0: "w", 1: "r", 2: "r"}
    ForkedProcess(reactor, process, pipes, fork, lambda status: None)


def descriptors(pid: int) -> int:
    """Return the number of open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def _state(pid: int) -> str:
    """Return the state of a process as a letter, as proc(5) names it; X if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return _state(pid) not in "ZX"


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, for example by SIGSTOP."""
    return _state(pid) == "T"


# Metrics


def read_metrics(exposition: bytes) -> dict[str, float]:
    """Parse the Prometheus text format into values by series."""
    lines = [line for line in exposition.decode().splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def counter_increases(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return the increase of each counter that increased; histograms and gauges are left out."""
    return {
        series.removeprefix("audio_proxy_"): after[series] - before.get(series, 0)
        for series in after
        if series.partition("{")[0].endswith("_total") and after[series] != before.get(series, 0)
    }


async def scrape(port: int) -> dict[str, float]:
    """Fetch and parse all series from the metrics listener."""
    return read_metrics((await fetch(port, b"/metrics")).body)


async def until_scraped(
    port: int, condition: Callable[[dict[str, float]], object], what: str
) -> dict[str, float]:
    """Scrape metrics until a condition of them is true; return them."""

    async def find() -> dict[str, float] | None:
        series = await scrape(port)
        return series if condition(series) else None

    return await until(find, what)


# Base classes of tests


def begin(service: AudioProxy) -> None:
    """Start a service whose boot checks complete at once, as with a store in a folder.

    :raises BootError: if one of the checks fails.
    """
    failures: list[Failure] = []
    starting = service.startService().addErrback(failures.append)
    for failure in failures:
        failure.raiseException()
    assert starting.called, "the service did not start at once"


def basic_environment(root: Path, store: Path) -> dict[str, str]:
    """Return the variables of a service with its sources in one folder and its store in another."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "PYTHONPATH": str(PROJECT),
        "AP_KEY": KEY.hex(),
        "AP_SALT": SALT.hex(),
        "AP_LOCAL_ROOT": str(root),
        "AP_VARIANT_STORE": f"file://{store}",
        "AP_SERVE_MODE": "proxy",
    }


class ServiceCase(TestCase):
    """Base class of tests that run services; each service is stopped at the end of its test.

    :cvar checks_ffmpeg: whether services check ffmpeg at boot, which takes longer than most tests.
    :cvar shares_programs: whether services in this process use programs that were linked before.
    :ivar root: the folder of the sources.
    :ivar store: the folder of the variants.
    :ivar reactor: that of the services.
    """

    reactor: Any = reactor
    timeout = TEST_PATIENCE
    checks_ffmpeg: ClassVar[bool] = False
    shares_programs: ClassVar[bool] = True

    def setUp(self) -> None:
        """Create the folders."""
        if not self.checks_ffmpeg:
            self.patch(ProgramsMonitor, "start", lambda monitor: None)
        base = Path(self.mktemp()).resolve()
        self.root, self.store = base / "root", base / "store"
        for folder in (self.root, self.store):
            folder.mkdir(parents=True)

    def add(self, name: str, source: Path | bytes) -> Path:
        """Add a file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, bytes):
            path.write_bytes(source)
        else:
            os.link(source, path)
        return path

    def shadow_ffmpeg(self, script: str) -> str:
        """Return a PATH on which a script takes the place of ffmpeg."""
        program = write_script(Path(self.mktemp()).absolute() / "ffmpeg", script)
        return f"{program.parent}:{os.environ['PATH']}"

    def stored(self) -> list[str]:
        """Return the names of all variants in the store."""
        return sorted(path.name for path in self.store.glob("??/*"))

    def config(self, **settings: Any) -> Config:
        """Return a configuration with a store, proxy mode and random ports."""
        return Config(
            **{
                "key": KEY,
                "salt": SALT,
                "port": 0,
                "metrics_port": 0,
                "local_root": str(self.root),
                "variant_store": FileStore(str(self.store)),
                "serve_mode": "proxy",
                "max_concurrency": 2,
                # On a busy machine probes take long; most tests should not fail for that.
                "probe_timeout": PATIENCE,
                **settings,
            }
        )

    def new_service(self, **settings: Any) -> AudioProxy:
        """Return a service; it stops at the end of the test at the latest."""
        service = AudioProxy(self.config(**settings), self.reactor, listens=True)
        self.addCleanup(service.stopService)
        if self.shares_programs:
            for program in service.engine.starter.programs.values():
                program.new_server = partial(SharedServer, program.environment)
        if not self.checks_ffmpeg:
            # A service examines a program again if it was replaced.
            programs = service.engine.programs
            programs.examined = EXAMINED.get(programs.ffmpeg, programs.examined)
            self.addCleanup(lambda: EXAMINED.update({programs.ffmpeg: programs.examined}))
        return service

    def start(self, **settings: Any) -> AudioProxy:
        """Start a service in this process."""
        service = self.new_service(**settings)
        begin(service)
        return service

    def reserve_port(self) -> int:
        """Return a port of the loopback that no other program gets during this test.

        A program that names it can listen there, with SO_REUSEADDR.
        """
        reserved = socket.socket()
        self.addCleanup(reserved.close)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        return int(reserved.getsockname()[1])

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment variables of a service that is configured as by `config`.

        An empty value removes a variable.
        """
        environ = {
            **basic_environment(self.root, self.store),
            "AP_PORT": "0",
            "AP_METRICS_PORT": "0",
            "AP_PROBE_TIMEOUT": f"{PATIENCE:g}",
            **variables,
        }
        return {name: value for name, value in environ.items() if value}

    def twistd(self, *words: str, **variables: str) -> Process:
        """Start a service in a process of its own, which is killed at the end of the test."""
        # The interpreter is an absolute path, because a test may remove PATH.
        program = TWISTD if self.checks_ffmpeg else WITHOUT_FFMPEG_CHECK + TWISTD
        command = (sys.executable, "-c", program, "--nodaemon", "--pidfile=", *words, "audioproxy")
        return self.spawn(*command, path=str(self.root), **self.environment(**variables))

    def spawn(
        self,
        *command: str,
        path: str | None = None,
        descriptors: dict[int, Any] | None = None,
        terminal: bool = False,
        cold: bool = False,
        **variables: str,
    ) -> Process:
        """Start a program, as `start_process` does; it is killed at the end of the test.

        :param terminal: whether a terminal takes the place of the three pipes.
        :param variables: its environment variables.
        """
        process = Process()
        if terminal:
            reactor.spawnProcess(process, command[0], command, variables, path, usePTY=True)
        else:
            start_process(process, command, variables, path, descriptors, cold=cold)
        self.addCleanup(process.kill)
        return process
