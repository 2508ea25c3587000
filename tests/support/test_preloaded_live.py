"""Services and commands that are forked, not started."""

from __future__ import annotations

import socket
import sys

from tests.support.service import ServiceCase

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
