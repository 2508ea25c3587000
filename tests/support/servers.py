"""Third-party servers that run beside the tests and outlive each single test."""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

#: Timeout in seconds of each wait in tests, far longer than the events take, even on a machine with
#: ten times as much to do as it has processors.
PATIENCE = 120.0

#: Ids of processes that belong to the whole suite. A test that looks for leftovers ignores them.
RUNNING: set[int] = set()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait(pid: int) -> int:
    """Wait for a child, and return its exit status; a negative number is a signal."""
    descriptor = os.pidfd_open(pid)
    has_ended, _, _ = select.select([descriptor], [], [], PATIENCE)
    os.close(descriptor)
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Server:
    """Program that runs until it is killed or this process ends.

    It is not a child of the reactor, because a child of the reactor has to end with the test that
    started it. Create it on the main thread: the kernel sends the parent-death signal when the
    thread that created the child ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        descriptors: Collection[int] = (),
    ) -> None:
        # setpriv makes the kernel kill the server when this process ends, even if this process is
        # killed.
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=descriptors,
            )
        RUNNING.add(self.pid)
        atexit.register(self.kill)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def output_tail(self) -> str:
        """The last 2000 characters of its output."""
        return self._log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """Kill the process and wait for its end; a second call has no effect."""
        atexit.unregister(self.kill)
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        RUNNING.discard(self.pid)
