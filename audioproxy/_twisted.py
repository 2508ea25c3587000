"""Private and undocumented parts of Twisted that the package uses, each in one place.

``tests/test_twisted.py`` and ``tests/test_twisted_live.py`` fail when a release makes one of them
unnecessary or changes it. `audioproxy.http_client._twisted` has those of the client.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.interfaces import IReactorTime
from twisted.internet.process import Process
from twisted.internet.protocol import ProcessProtocol
from twisted.python.logfile import LogFile
from twisted.python.runtime import seconds as seconds_since_1970
from twisted.web.http import HTTPChannel


def count_unsent(transport: Any) -> int:
    """Return how many bytes that were written to a transport the system does not have yet.

    Twisted 26.10: written bytes wait in ``dataBuffer``, of which ``offset`` bytes are sent, and
    then in ``_tempDataBuffer``; other transports have none. Unnecessary when ``ITransport`` has it.
    """
    waiting = len(getattr(transport, "dataBuffer", b"")) - getattr(transport, "offset", 0)
    return waiting + sum(map(len, getattr(transport, "_tempDataBuffer", ())))


def is_plain_tcp(transport: Any) -> bool:
    """Return whether a transport is a TCP socket without TLS.

    Twisted 26.10: ``startTLS`` changes the class of a transport in place, and sets ``TLS``.
    Unnecessary when ``ITCPTransport`` exposes it.
    """
    # This imports OpenSSL, unless `without_openssl` has prevented it in the reactor.
    from twisted.internet.tcp import Connection

    return isinstance(transport, Connection) and not transport.TLS


def send_now(transport: Any, data: bytes) -> bytes:
    """Send what the system accepts at once over plain TCP, and return the rest.

    Only if `count_unsent` is 0. Twisted 26.10: ``write`` sends in the next turn of the reactor,
    after two more system calls. Unnecessary when ``write`` sends at once.
    """
    try:
        sent = transport.getHandle().send(data)
    except OSError:
        # The buffer of the system is full, or the connection is lost: ``write`` handles both.
        return data
    return data[sent:]


def pause_until_writable(transport: Any) -> None:
    """Request that the producer of a transport is resumed when the system accepts bytes again.

    Twisted 26.10: only a full buffer of the transport does that, which ``sendfile`` bypasses.
    Unnecessary when transports send files.
    """
    transport.producerPaused = True
    transport.startWriting()


def set_send_buffer(transport: Any, size: int) -> None:
    """Set how many bytes a transport buffers before its producer is paused.

    Twisted 26.10: the attribute ``bufferSize`` of ``FileDescriptor``, 64 KiB, decides this, and the
    size of each read. Unnecessary when transports have such a setting.
    """
    transport.bufferSize = size


def limit_accepts(port: Any, count_room: Callable[[], int]) -> None:
    """Make a listening port accept only as many connections in a row as there is room for.

    Twisted 26.10: ``Port.doRead`` accepts ``numberAccepts`` connections in a row, which it sets
    itself, and closes those for which the factory has no protocol. Unnecessary when ``Port`` has a
    limit, and leaves other connections in the system's queue.

    :param count_room: called when clients wait to be accepted.
    """
    accept = port.doRead

    def accept_some() -> None:
        port.numberAccepts = count_room()
        accept()

    port.doRead = accept_some


def keep_path(port: Any) -> None:
    """Make the port of a Unix socket leave its path alone when it closes.

    Twisted 26.10: the port removes its path, even if that is another process's socket by now, and
    ``stopListening`` fails or never ends where it cannot. Unnecessary when ``Port.connectionLost``
    compares the path with its socket, and ignores such an error.
    """
    # A name that begins with a zero is not in the file system.
    port._bindPath = b"\0"


@contextmanager
def without_openssl() -> Iterator[None]:
    """Import the reactor in this block, for a process that does not use TLS.

    Twisted 26.10: the reactor imports OpenSSL if it is installed. An idle node with local sources
    takes 44 MB without it and 56 MB with it, more than its 50 MB in docs/benchmarks.md. Unnecessary
    when ``listenSSL``, ``connectSSL`` and ``startTLS`` import it.
    """
    if "OpenSSL" in sys.modules:
        yield
        return
    # An import of a module that is None here fails, as if it were not installed.
    sys.modules["OpenSSL"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["OpenSSL"]


def skip_log_prefixes() -> None:
    """Stop the reactor from setting a log prefix for each event of a descriptor.

    Twisted 26.10: ``epollreactor`` handles each event in ``log.callWithLogger``, whose prefix
    `audioproxy.observe.logs` never shows. With it, a core serves 8 % fewer stored variants.
    Unnecessary when the reactor sets no prefix, or when this is cheap.
    """
    try:
        module: Any = import_module("twisted.internet.epollreactor")
    except ImportError:
        return
    module.log = SimpleNamespace(callWithLogger=lambda _owner, call, *arguments: call(*arguments))


def forget_exit_signal(reactor: Any) -> None:
    """Make twistd exit with 0 after a signal and a clean stop.

    Twisted 26.10: twistd sends itself again the signal for which the reactor has stopped.
    Unnecessary when a service can set the exit status of twistd.
    """
    reactor._exitSignal = None


def first_environment(fallback: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that the process was started with, or else ``fallback``.

    Twisted 26.10: importing ``twisted.internet.endpoints`` removes the variables of systemd's
    socket activation from ``os.environ``. Unnecessary when the import keeps them.
    """
    try:
        pairs = os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
    except OSError:
        return dict(fallback)
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def write_to_log_file(file: LogFile, write: Callable[[int, bytes], bytes], data: bytes) -> bytes:
    """Write lines to a log file that is rotated, and return the rest that the system refused.

    Twisted 26.10: ``LogFile.write`` ignores that the system has written only a part. Unnecessary
    when it reports that.
    """
    if file.shouldRotate():
        file.rotate()
    rest = write(file._file.fileno(), data)
    file.size += len(data) - len(rest)
    return rest


def use_monotonic_clock(reactor: Any) -> None:
    """Make a reactor's timers independent of the wall clock; to be called before its first timer.

    Twisted 26.10: ``reactor.seconds`` is ``time.time``, so that steps of the wall clock move every
    timer. Unnecessary when the reactor uses a monotonic clock.
    """
    reactor.seconds = time.monotonic


def monotonic_clock(reactor: Any) -> IReactorTime:
    """Return a clock for durations: that of the reactor, unless it is the wall clock.

    The timers remain those of the reactor, which belongs to the application.
    """
    if reactor.seconds is not seconds_since_1970:
        return cast(IReactorTime, reactor)
    return cast(IReactorTime, SimpleNamespace(callLater=reactor.callLater, seconds=time.monotonic))


@contextmanager
def own_process_group() -> Iterator[None]:
    """Make the reactor start processes as leaders of process groups of their own.

    A terminal's Ctrl-C does not reach them, since a drain waits for renders. Nor does SIGHUP, which
    ``systemctl kill -s HUP`` sends to every process of a unit.

    Twisted 26.10: ``spawnProcess`` has no such parameters. The program ``setsid`` would nearly
    double the time of a spawn: 1.5 ms instead of 0.8. Unnecessary when ``spawnProcess`` accepts a
    group. Where the reactor forks instead, the child stays in the group of this process.
    """
    module: Any = os
    spawn = module.posix_spawnp
    module.posix_spawnp = partial(spawn, setpgroup=0, setsigmask=(signal.SIGHUP,))
    try:
        yield
    finally:
        module.posix_spawnp = spawn


class ForkedProcess(Process):
    """A child of this process that the reactor does not start itself.

    Twisted 26.10: ``Process._fork`` starts the child between its opened pipes, and sets ``pid``.
    Unnecessary when ``spawnProcess`` accepts a way to start.
    """

    def __init__(
        self,
        reactor: Any,
        protocol: ProcessProtocol,
        descriptors: Mapping[int, int | str],
        fork: Callable[[Mapping[int, int]], int],
        exited: Callable[[int], object],
    ) -> None:
        """Start the child, and connect its protocol.

        :param fork: starts the child with descriptors of this process, and returns its process ID,
            or raises: then no pipe stays open.
        :param exited: called with the status of waitpid(2).
        """
        self._start = fork
        self._exited = exited
        initialize: Any = super().__init__
        initialize(reactor, "", [], {}, None, protocol, childFDs=descriptors)

    def _fork(self, *_: Any, **options: Any) -> None:
        self.pid = self._start(options["fdmap"])

    def processEnded(self, status: int) -> None:
        self._exited(status)
        super().processEnded(status)


class HookedChannel(HTTPChannel, ABC):
    """An `HTTPChannel` with names for private parts of Twisted 26.10.

    Unnecessary when they are public: requests have ``method`` and ``clientproto`` only when their
    body is complete, and a response to bytes that are no request has no headers and no log line.
    """

    def set_read_ahead(self, size: int) -> None:
        """Set how many pipelined bytes are read while a request is processed.

        Beyond them reading stops, and a disconnect is not noticed.
        """
        self._optimisticEagerReadSize = size

    @property
    def unparsed(self) -> bytes:
        """The received bytes that are not yet a complete line."""
        return self._buffer

    @property
    def command(self) -> bytes:
        """The method of the request whose body is received."""
        return self._command

    @property
    def http_version(self) -> bytes:
        """The version of the request whose headers were received."""
        return self._version

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.reject()

    @abstractmethod
    def reject(self) -> None:
        """Respond to bytes that are not an HTTP request."""
