"""One fork server: a program that was linked once, and forks a child for each request.

Debian's ffmpeg links two hundred libraries at each start, which takes nine tenths of a short
render. Here a preloaded library, the second output of ``cell.c``, takes the place of the C
library's ``__libc_start_main``: it waits for requests when everything is linked, before ``main``.

Its children are children of this process, by CLONE_PARENT of clone(2): they are signalled and
reaped as any other, and a server that dies takes no render with it. With fork(3), the server would
have to report their ends, and they would die with it. The price: no handler of pthread_atfork(3)
runs. Those protect locks, which no second thread could hold, and the state of random generators,
which are seeded in the child (``tests.process.test_warm_live``).
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from audioproxy.process.starters import Spawn

#: Variables of the server alone, which removes them itself: ``own_variables`` in cell.c. The loader
#: binds all functions at once. OpenBLAS, which may stand for the libblas of Debian's ffmpeg, starts
#: a thread for each CPU otherwise, and a process with threads cannot be forked.
VARIABLES = {
    "LD_PRELOAD": "/proc/self/fd/4",
    "LD_BIND_NOW": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_CONTROL, _LIBRARY = 3, 4
#: Arguments of a server. The last one is room for the command line of a child: ps(1) reads it where
#: the words of the server were. Without the library, the program would print its version, and end.
WORDS = ["-version", " " * 8192]

# The size of `request` in cell.c. Longer messages cannot be sent.
_MOST_WORDS = 1 << 18
# Seconds within which a server answers, for which everything else waits. It needs less than a
# millisecond, as the child was forked before, but the machine may be busy.
_ANSWER_TIMEOUT = 0.25
# What a child answers: its process ID. A server that cannot fork answers a negative errno.
_ANSWER = struct.Struct("i")
# The end of a server's stderr that is kept.
_STDERR_LIMIT = 1000


class NotForked(Exception):
    """The child was not started: nothing has read or written its descriptors."""

    def __init__(self, reason: str, *, is_lost: bool) -> None:
        # Whether the server is useless from now on.
        self.is_lost = is_lost
        super().__init__(reason)


class ForkServer(ProcessProtocol):
    """The connection to a server, from its start until it is reaped.

    :ivar cpu_seconds: what linking took, once it is ready.
    :ivar answer_timeout: seconds within which it answers; after that, it is lost.
    """

    def __init__(
        self,
        ready: Callable[[ForkServer], object],
        ended: Callable[[ForkServer, str], object],
        answer_timeout: float = _ANSWER_TIMEOUT,
    ) -> None:
        self._ready, self._ended = ready, ended
        self._output = self._errors = b""
        self._reason: str | None = None
        self.pid: int | None = None
        self.answer_timeout = answer_timeout
        self.cpu_seconds = 0.0

    def start(self, spawn: Spawn, library: str, command: Sequence[str]) -> None:
        """Start the process by a command that ends with the program, or raise OSError."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with (
                theirs,
                open(os.devnull, "r+b", buffering=0) as null,
                open(library, "rb", buffering=0) as preloaded,
            ):
                # The kernel doubles this size.
                self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_WORDS // 2)
                descriptors: dict[int, int | str] = {0: null.fileno(), 1: "r", 2: "r"}
                descriptors |= {_CONTROL: theirs.fileno(), _LIBRARY: preloaded.fileno()}
                spawn(self, [*command, *WORDS], descriptors)
        except OSError:
            self._control.close()
            raise

    def fork(self, words: Sequence[str], descriptors: Mapping[int, int]) -> int:
        """Start a child of this process, and return its process ID.

        This waits for the server, as a start without it waits until the program is executed.

        :param words: options of ``audioproxy-cell``, and the command line.
        :param descriptors: of this process, by their numbers in the child.
        """
        # Such a word would be two words.
        if any("\0" in word for word in words):
            raise ValueError("embedded null byte")
        numbers = sorted(descriptors)
        request = [" ".join(map(str, numbers)), *words]
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise NotForked(f"{error.strerror}", is_lost=False) from error
        with ours:
            with theirs:
                sent = [theirs.fileno(), *(descriptors[number] for number in numbers)]
                data = b"".join(os.fsencode(word) + b"\0" for word in request)
                self._send(data, sent)
            # Without a child, nothing has the other end any more.
            ours.settimeout(self.answer_timeout)
            try:
                answer = ours.recv(_ANSWER.size)
            except OSError as error:
                raise NotForked("it does not answer", is_lost=True) from error
            if len(answer) < _ANSWER.size:
                raise NotForked("it has ended", is_lost=True)
            (pid,) = _ANSWER.unpack(answer)
            if pid < 0:
                raise NotForked(f"it cannot fork: {os.strerror(-pid)}", is_lost=False)
            try:
                # A child that was never claimed ends with the group of its server.
                os.setpgid(pid, pid)
                ours.send(b"\0")
            except OSError as error:
                # An application may have reaped it, too.
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                raise NotForked("a child was killed", is_lost=True) from error
            return int(pid)

    def _send(self, data: bytes, descriptors: list[int]) -> None:
        try:
            socket.send_fds(self._control, [data], descriptors, socket.MSG_DONTWAIT)
        except OSError as error:
            # Others are faults of this process, such as a command line that is too long.
            is_lost = error.errno in (errno.EAGAIN, errno.ECONNRESET, errno.EPIPE)
            raise NotForked(f"it cannot be asked: {error.strerror}", is_lost=is_lost) from error

    def kill(self, reason: str) -> None:
        """End the server. Its children run on, except for those that were never claimed."""
        if self._reason is None:
            self._reason = reason
        if self.pid is None:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            # The reactor has given it no group, and it is not linked yet.
            os.kill(self.pid, signal.SIGKILL)

    def connectionMade(self) -> None:
        self.pid = getattr(self.transport, "pid", None)

    def outReceived(self, data: bytes) -> None:
        self._output += data
        if not self._output.endswith(b"\n"):
            return
        try:
            threads, milliseconds = map(int, self._output.split())
        except ValueError:
            self.kill("it is not linked by the C library, or is privileged")
            return
        if threads != 1:
            self.kill(f"a library has started threads when it was linked ({threads} in all)")
            return
        self.cpu_seconds = milliseconds / 1000
        self._ready(self)

    def errReceived(self, data: bytes) -> None:
        self._errors = (self._errors + data)[-_STDERR_LIMIT:]

    def processExited(self, reason: Failure) -> None:
        """End and reap the children that were never claimed: they hold the pipes of the server."""
        group, self.pid = self.pid, None
        with suppress(ChildProcessError):
            while group is not None:
                if os.waitpid(-group, os.WNOHANG) == (0, 0):
                    os.killpg(group, signal.SIGKILL)
                    os.waitpid(-group, 0)

    def processEnded(self, reason: Failure) -> None:
        self._control.close()
        errors = self._errors.decode("utf-8", "replace").strip()
        self._ended(self, self._reason or errors or f"it has ended: {reason.getErrorMessage()}")
