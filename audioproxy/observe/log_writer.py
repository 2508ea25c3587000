"""Writes the log in a thread, so that no request waits for the reader of the log."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

# Bytes of lines that wait for the reader of the log (D68).
_LIMIT = 8 << 20
# Bytes that are written at once: the default capacity of a pipe.
_MOST_AT_ONCE = 64 * 1024
_PAUSE = 0.1


class LogWriter:
    """A text stream whose writes never block, from `start` on: twistd may fork before that.

    What waits is bounded: further lines are lost, as are those that the system refuses, for example
    on a full disk. A line says how many they were, as soon as the next one is accepted.

    :param write: writes whole lines, and returns what the system refused of them. It may block.
    :param lost_line: returns the line that says how many lines were lost.
    :param limit: bytes of lines that wait. After a loss, lines are accepted again below half of it,
        so that one line reports thousands.
    :param pause: seconds of rest after an error, such as a full disk.
    """

    def __init__(
        self,
        write: Callable[[bytes], bytes],
        encoding: str,
        lost_line: Callable[[int], str],
        limit: int = _LIMIT,
        pause: float = _PAUSE,
    ) -> None:
        self.encoding = encoding
        self._limit, self._pause = limit, pause
        self._write = write
        self._lost_line = lost_line
        self._changed = Condition()
        self._waiting: deque[bytes] = deque()
        self._size = self._lost = 0
        self._full = self._started = False
        # Whether the last write ended within a line.
        self._torn = False

    def start(self) -> None:
        self._started = True
        # It may hang in a write for ever, so the process does not wait for it.
        Thread(target=self._run, name="log", daemon=True).start()

    def write(self, text: str) -> None:
        data = text.encode(self.encoding)
        if not self._started:
            self._write(data)
            return
        with self._changed:
            limit = self._limit // 2 if self._full else self._limit - len(data)
            self._full = self._size > limit
            if self._full:
                self._lost += data.count(b"\n")
                return
            self._report_loss()
            self._add(data)
            self._changed.notify_all()

    def flush(self) -> None:
        """Do nothing: the thread writes soon."""

    def drain(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._size, seconds if self._started else 0)

    def _add(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)

    def _report_loss(self) -> None:
        if self._lost:
            self._add(self._lost_line(self._lost).encode(self.encoding))
            self._lost = 0

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._take()
            lost = self._write_whole_lines(data)
            if lost:
                time.sleep(self._pause)
            with self._changed:
                self._size -= len(data)
                self._lost += lost
                if not lost and not self._waiting:
                    self._report_loss()
                self._changed.notify_all()

    def _write_whole_lines(self, data: bytes) -> int:
        """Write lines, below what the last write has torn, and return how many are lost."""
        text = b"\n" + data if self._torn else data
        try:
            rest = self._write(text)
        except (OSError, ValueError):
            # The file cannot be rotated, or was closed.
            rest = text
        if written := text[: len(text) - len(rest)]:
            self._torn = not written.endswith(b"\n")
        return min(rest.count(b"\n"), data.count(b"\n"))

    def _take(self) -> bytes:
        taken = [self._waiting.popleft()]
        size = len(taken[0])
        while self._waiting and size + len(self._waiting[0]) <= _MOST_AT_ONCE:
            taken.append(self._waiting.popleft())
            size += len(taken[-1])
        return b"".join(taken)


def write_lines(descriptor: int, data: bytes) -> bytes:
    """Write whole lines to a descriptor, which may not block; return what the system refused.

    The process may end while it waits for the reader of a pipe. So each write is then one that the
    system does completely or not at all (PIPE_BUF), and ends with a line.
    """
    while data:
        end = len(data)
        if end > select.PIPE_BUF and _unread(descriptor):
            end = data.rfind(b"\n", 0, select.PIPE_BUF) + 1 or data.find(b"\n") + 1 or end
        try:
            data = data[os.write(descriptor, data[:end]) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
        except OSError:
            return data
    return b""


def _unread(descriptor: int) -> int:
    # 0 for files that are no pipes.
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])
    except OSError:
        return 0
