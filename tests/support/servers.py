"""Servers of other people's making, which run beside the tests and outlive each of them."""

from __future__ import annotations

import atexit
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

#: The processes that belong to the whole suite, not to a test, and are nobody's leftovers.
RUNNING: set[int] = set()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Server:
    """A program that runs until it is killed, and no longer than this process.

    The reactor does not know of it: a child of the reactor has to end with the test that started
    it. Make it on the main thread, since the system takes that thread's end for the parent's.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        # The system sees to it even if this process is killed; atexit does if there is no setpriv.
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        RUNNING.add(self.pid)
        atexit.register(self.kill)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """The end of what it said."""
        return self._log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """End it at once, and wait for the end; there is no harm in a second time."""
        atexit.unregister(self.kill)
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        RUNNING.discard(self.pid)
