"""Services and commands that are forked, not started."""

from __future__ import annotations

import signal
import socket
import sys

from tests.support.preloaded import COMMAND, run, server
from tests.support.service import ServiceCase, is_running, until

#: Python code that prints all that a process is given.
REPORT = """\
import os, signal, socket, sys, threading
shown = open("/proc/self/environ", "rb").read().rstrip(b"\\0").split(b"\\0")
print(sorted(os.environb.items()), sorted(shown))
print(sys.argv, sys.path, __name__, os.getcwd(), os.getppid(), os.getpgid(0), os.getsid(0))
print([(each.encoding, each.errors, each.isatty(), each.line_buffering)
       for each in (sys.stdin, sys.stdout, sys.stderr)])
print([(number, os.get_inheritable(number)) for number in range(100)
       if os.path.exists(f"/proc/self/fd/{number}")])
print([str(signal.getsignal(number)) for number in signal.valid_signals()])
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.umask(0), os.nice(0))
print(threading.get_native_id() == os.getpid(), threading.active_count())
print(socket.socket(fileno=7).getsockname(), sys.stdin.read())
print("unflushed", end="")
raise SystemExit(3)
"""

#: Python code that starts a fork, which prints its process ID, and waits.
START = """\
import sys
from tests.support.preloaded import PROJECT, fork
code = "import os, time; print(os.getpid(), 'started', flush=True); time.sleep(1000)"
fork((sys.executable, "-c", code), {"PYTHONPATH": str(PROJECT)}, None, {1: 1, 2: 2})
input()
"""


class ForkTests(ServiceCase):
    """A fork in place of a new process"""

    async def test_same(self) -> None:
        """A fork has the variables, words, folder, descriptors and signals of a new process."""
        listening = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listening.close)
        seen = []
        for cold in (True, False):
            process = self.spawn(
                *(sys.executable, "-c", REPORT, "a word"),
                path=str(self.root),
                descriptors={0: "w", 1: "r", 2: "r", 7: listening.fileno()},
                cold=cold,
                **self.environment(AP_LOG_LEVEL="\u00e4\udcff"),
            )
            process.transport.write(b"input")  # type: ignore[union-attr]
            process.transport.closeStdin()  # type: ignore[union-attr]
            seen.append((await process.end(), process.stdout.splitlines(), process.stderr))
        self.assertEqual((3, ""), seen[0][::2])
        self.assertEqual(*seen)

    async def test_killed(self) -> None:
        """A fork ends with the process that has started it, even if that is killed."""
        tests = self.spawn(sys.executable, "-c", START, cold=True, **self.environment())
        pid = int((await tests.printed(r"(\d+) started", "the fork"))[1])
        self.assertTrue(is_running(pid))
        tests.signal(signal.SIGKILL)
        await until(lambda: not is_running(pid), "the end of the fork")
        await tests.end()

    def test_ended(self) -> None:
        """A fork server that has ended is started again."""
        server()[1].kill()
        self.assertEqual(0, run((*COMMAND, "--version"), self.environment())[0])
