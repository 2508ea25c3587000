"""The ``audioproxy`` subcommand of twistd: reads the environment, sets up the log, starts."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TextIO

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.logger import ILogObserver
from twisted.python.components import Componentized
from twisted.python.failure import Failure
from twisted.python.logfile import LogFile
from twisted.python.usage import Options as UsageOptions

from audioproxy._twisted import (
    first_environment,
    forget_exit_signal,
    skip_log_prefixes,
    use_monotonic_clock,
    without_openssl,
    write_to_log_file,
)
from audioproxy.config import Config, ConfigError, Problem, load
from audioproxy.observe.access_log import log_request
from audioproxy.observe.log_context import Logger
from audioproxy.observe.log_writer import LogWriter, write_lines
from audioproxy.observe.logs import LineObserver, is_journal, journal_prefix, lost_lines
from audioproxy.service import AudioProxy, BootError

# More descriptors are of no use: with so many connections, a process reaches other limits first.
MAX_DESCRIPTORS = 16_384

# Threads of the reactor's pool, which resolves host names. With the default of 10 threads, names
# that no server resolves would soon occupy all of them.
_NAME_THREADS = 64

# Objects that are created, and not freed, before the garbage collector visits them. Python's
# default is 700, which a dozen requests create.
_COLLECTOR_THRESHOLD = 10_000

# Seconds that the end of the process waits for the reader of the log.
_LOG_DRAIN = 1.0

# Variables of systemd that are meant for this process, so its children do not inherit them.
_SYSTEMD_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET")
# The first descriptor that systemd passes follows stdin, stdout and stderr.
_FIRST_DESCRIPTOR = 3
_SOCKET_ADVICE = "set ListenStream= to a port, and leave Accept= out, in the socket unit"
# FileDescriptorName= of the socket for the metrics.
METRICS_NAME = "metrics"
# EX_CONFIG of sysexits.h: another start with the same settings is in vain.
WRONG_SETTINGS = 78

# prctl(2)
_PR_SET_DUMPABLE = 4

_log = Logger()


class Options(UsageOptions):
    """Options of twistd: none, since the whole configuration is in the environment."""

    synopsis = ""
    longdesc = (
        "An audio transcoding proxy for signed URLs. It is configured by AP_* environment"
        " variables; docs/configuration.md lists them."
    )

    config: Config
    warnings: tuple[Problem, ...]
    listening: socket.socket | None
    metrics_socket: socket.socket | None
    notify: Callable[[str], None]

    def postOptions(self) -> None:
        """Read the environment; on errors, print every problem and exit."""
        environ = first_environment(os.environ)
        for name in _SYSTEMD_VARIABLES:
            os.environ.pop(name, None)
        self.notify = find_notifier(environ)
        with _plain_exit(WRONG_SETTINGS):
            self.listening, self.metrics_socket = find_sockets(environ, os.getpid())
            # The values of unused settings, which contradict no other one.
            ignored = {} if self.listening is None else {"AP_BIND": "", "AP_PORT": "0"}
            if self.metrics_socket is not None:
                ignored |= {"AP_METRICS_BIND": "", "AP_METRICS_PORT": "0"}
            self.config, self.warnings = load({**os.environ, **ignored})
        wanted = "set ListenStream= in the socket unit instead"
        fault = "ignored, since systemd passes the listening socket"
        self.warnings += tuple(
            Problem(name, fault, wanted) for name in ignored if os.environ.get(name)
        )


class _TwistdService(AudioProxy):
    """The service in a process of its own, with twistd's log."""

    def __init__(self, options: Options) -> None:
        with nullcontext() if options.config.has_outbound_requests else without_openssl():
            from twisted.internet import reactor

        use_monotonic_clock(reactor)
        raise_descriptor_limit()
        hide_from_children()
        reactor.suggestThreadPoolSize(_NAME_THREADS)  # type: ignore[attr-defined]
        self._options = options
        self._reactor: Any = reactor
        # Tests construct the options without twistd as their parent.
        self._twistd: Any = getattr(options, "parent", None) or {}
        self._writer, self._lines = _find_log(self._twistd, options.config.log_level, reactor)
        access_log = log_request
        if self._lines is not None:
            access_log = self._lines.request
            skip_log_prefixes()
        super().__init__(
            options.config,
            reactor,
            access_log,
            listens=True,
            listening=options.listening,
            metrics_socket=options.metrics_socket,
        )

    def setServiceParent(self, parent: Any) -> None:
        Service.setServiceParent(self, parent)
        if isinstance(parent, Componentized) and self._lines is not None:
            parent.setComponent(ILogObserver, self._lines)

    def startService(self) -> Deferred[None]:
        """Start, or print the reason in one line and exit with status 1."""
        if self._writer is not None:
            # twistd has forked by now.
            self._writer.start()
            atexit.register(self._writer.drain, _LOG_DRAIN)
        for warning in self._options.warnings:
            _log.warn("{text}", text=str(warning))
        # The reactor installs its own handlers after the port is open, and a signal may arrive
        # earlier.
        _set_handlers(self._signal_received)
        signal.signal(signal.SIGHUP, self._hangup_received)
        failures: list[Failure] = []
        starting = super().startService().addErrback(failures.append)
        for failure in failures:
            # twistd reports an exception of a daemon through the daemon's parent process, but not
            # SystemExit.
            with _plain_exit(1) if self._twistd.get("nodaemon", True) else nullcontext():
                failure.raiseException()
        return starting.addCallback(lambda _: self._conclude(failures))

    def stopService(self) -> Deferred[None]:
        """Let requests finish; a second signal ends the process at once (D39)."""
        self._options.notify("STOPPING=1")
        if self._lines is not None:
            self._lines.write_through()
        _set_handlers(signal.SIG_DFL)
        forget_exit_signal(self._reactor)
        return super().stopService()

    def _conclude(self, failures: list[Failure]) -> None:
        if not failures:
            # With Python's defaults the garbage collector takes an eighth of the CPU time of a
            # redirect. A full collection visits the objects of the code too, for tens of
            # milliseconds, and they live as long as the process. Requests leave few cycles.
            gc.freeze()
            gc.set_threshold(_COLLECTOR_THRESHOLD)
            self._options.notify("READY=1")
        for failure in failures:
            if failure.check(CancelledError):
                continue
            if failure.check(BootError):
                # At this point twistd has replaced sys.stderr with its log.
                _complain(failure.value, sys.__stderr__)
            else:
                _log.failure("the start crashed", failure)
            # twistd exits with 0 whenever the reactor was stopped. These handlers run after its
            # own cleanup, the last first, and ahead of the handlers that were registered earlier.
            atexit.register(os._exit, 1)
            if self._writer is not None:
                atexit.register(self._writer.drain, _LOG_DRAIN)
            self._reactor.stop()

    def _signal_received(self, number: int, _frame: object) -> None:
        self._reactor.callFromThread(self._stop_for, signal.Signals(number).name)

    def _hangup_received(self, number: int, _frame: object) -> None:
        # By default, SIGHUP ends a process, and systemd takes that for an orderly end.
        text = "SIGHUP has no effect: settings are read only at startup"
        self._reactor.callFromThread(_log.warn, text)

    def _stop_for(self, name: str) -> None:
        _log.info("Received {name}, shutting down.", name=name)
        with suppress(ReactorNotRunning):
            self._reactor.stop()


def makeService(options: Options) -> AudioProxy:
    with _plain_exit(WRONG_SETTINGS):
        return _TwistdService(options)


def find_sockets(
    environ: Mapping[str, str], pid: int, first: int = _FIRST_DESCRIPTOR
) -> tuple[socket.socket | None, socket.socket | None]:
    """Return the listening sockets that systemd passed to ``pid``, for clients and for metrics.

    This is sd_listen_fds(3). ``twisted.python.systemd.ListenFDs`` ignores what is refused here, and
    sockets without names, which old versions of systemd pass.
    """
    count = environ.get("LISTEN_FDS") or "0"
    if environ.get("LISTEN_PID") != str(pid) or count == "0":
        return None, None
    if not count.isdecimal():
        raise _refused_socket("not a number", "systemd sets it; remove it from the environment")
    names = [*environ.get("LISTEN_FDNAMES", "").split(":"), ""][: min(int(count), 3)]
    kinds = [METRICS_NAME if name == METRICS_NAME else "clients" for name in names]
    if len(kinds) != len(set(kinds)) or len(kinds) != int(count):
        raise _refused_socket(
            f"{count} sockets",
            "one is required: keep one ListenStream= in the socket unit. Only a second one with"
            f" FileDescriptorName={METRICS_NAME} is possible",
        )
    found = {kind: _open_socket(number) for number, kind in enumerate(kinds, first)}
    return found.get("clients"), found.get(METRICS_NAME)


def _open_socket(descriptor: int) -> socket.socket:
    try:
        given = socket.socket(fileno=descriptor)
    except OSError as error:
        fault = f"descriptor {descriptor} is not a socket ({error.strerror})"
        raise _refused_socket(fault, _SOCKET_ADVICE) from error
    # A listening socket of these address families is a stream socket.
    listening = given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listening or given.family not in (socket.AF_INET, socket.AF_INET6):
        given.close()
        raise _refused_socket(
            f"descriptor {descriptor} is not a listening TCP socket", _SOCKET_ADVICE
        )
    given.set_inheritable(False)
    # Another process that accepts from the socket would block too, even if this one is refused.
    given.setblocking(False)
    return given


def find_notifier(environ: Mapping[str, str]) -> Callable[[str], None]:
    """Return a function that sends a state, such as ``READY=1``, as sd_notify(3) does."""
    name = environ.get("NOTIFY_SOCKET", "")
    # The name of an abstract socket begins with a NUL, which a variable cannot contain.
    address = name.replace("@", "\0", 1) if name.startswith("@") else name

    def notify(state: str) -> None:
        # A notification that fails must not stop the service.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)

    return notify if name else lambda state: None


def _refused_socket(fault: str, wanted: str) -> ConfigError:
    return ConfigError([Problem("LISTEN_FDS", fault, wanted)])


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open descriptors to the hard limit, or to 16,384 if that is less.

    The usual limit, 1024, protects programs that use select(), which this service does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = raised_limit(soft, hard)
    if raised != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


def raised_limit(soft: int, hard: int) -> int:
    """Return the soft limit of descriptors that the service wants, which is never a lower one."""
    if soft == resource.RLIM_INFINITY:
        return soft
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    return max(soft, wanted)


def hide_from_children() -> None:
    """Protect the memory and the environment of this process from other processes of its user.

    Encoders run as the same user: code that exploits a decoder must not find the keys. A program
    that this process executes is not protected, and root can read everything.
    """
    # Only Linux has prctl.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _set_handlers(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


@contextmanager
def _plain_exit(status: int) -> Iterator[None]:
    """Print a boot error as lines that say what would be right, and exit with a status."""
    try:
        yield
    except (ConfigError, BootError) as error:
        _complain(error, sys.stderr)
        raise SystemExit(status) from None


def _complain(error: BaseException | None, stream: TextIO | None) -> None:
    """Print warnings and an error, each line with its priority where systemd's journal reads it."""
    journal = stream is not None and is_journal(os.environ, stream)
    lines = [("warning", str(warning)) for warning in getattr(error, "warnings", ())]
    for level, line in (*lines, *(("error", line) for line in str(error).splitlines())):
        prefix = journal_prefix(level) if journal else ""
        print(f"{prefix}audioproxy: {line}", file=stream, flush=True)


def _find_log(twistd: Any, level: str, clock: Any) -> tuple[LogWriter | None, LineObserver | None]:
    """Return what writes the log; None if twistd uses another logger.

    It must be called before twistd replaces stdout.
    """
    if twistd.get("logger") or twistd.get("syslog"):
        return None, None
    path = twistd.get("logfile") or ("-" if twistd.get("nodaemon", True) else "twistd.log")
    encoding, journal = "utf-8", False
    if path != "-":
        write = partial(write_to_log_file, LogFile.fromFullPath(path), write_lines)
    elif sys.stdout is not None:
        sys.stdout.flush()
        encoding, journal = sys.stdout.encoding, is_journal(os.environ, sys.stdout)
        write = partial(write_lines, sys.stdout.fileno())
    else:
        # It was closed when the process started.
        write = partial(write_lines, os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
    writer = LogWriter(write, encoding, partial(lost_lines, journal=journal))
    return writer, LineObserver(writer, level, clock.callLater, journal=journal)
