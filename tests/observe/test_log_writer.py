"""Writes of the log in a thread: nothing waits for the reader."""

from __future__ import annotations

import errno
import io
import os
import select
import threading

from twisted.python.logfile import LogFile
from twisted.trial.unittest import SynchronousTestCase

from audioproxy._twisted import write_to_log_file
from audioproxy.observe.log_writer import LogWriter, write_lines
from tests.support.service import PATIENCE

LIMIT = 400_000


def lost_line(count: int) -> str:
    """Return the line about lost lines."""
    return f"lost {count}\n"


class Gate:
    """A stream that blocks until it is opened, and may refuse writes.

    :ivar passes: lets single writes pass while it is not open.
    :ivar written: everything that was written.
    :ivar error: raised by writes, if set.
    :ivar room: bytes of the next write that are not refused; None for all.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.passes = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.written = b""
        self.error: OSError | None = None
        self.room: int | None = None

    def open(self) -> None:
        """Accept every write."""
        self.is_open = True
        self.passes.release()

    def write(self, data: bytes) -> bytes:
        """Write when the gate is open, and return what is refused."""
        self.entered.release()
        if not self.is_open:
            assert self.passes.acquire(timeout=PATIENCE)
        if self.error is not None:
            raise self.error
        self.written += data[: self.room]
        refused = data[self.room :] if self.room is not None else b""
        self.room = None
        return refused


class LogWriterTests(SynchronousTestCase):
    """`LogWriter`"""

    def setUp(self) -> None:
        self.gate = Gate()
        self.addCleanup(self.gate.open)
        self.writer = LogWriter(self.gate.write, "utf-8", lost_line, LIMIT, pause=0)

    def start(self) -> None:
        """Start the thread, and let it block in the write of a first line."""
        self.writer.start()
        self.writer.write("first\n")
        self.assertTrue(self.gate.entered.acquire(timeout=PATIENCE))

    def finish(self) -> list[str]:
        """Open the gate, and return all lines that were written."""
        self.gate.open()
        self.writer.drain(PATIENCE)
        return self.gate.written.decode().splitlines()

    def test_before_the_start(self) -> None:
        """Before the start, text is written at once."""
        self.gate.open()
        self.writer.write("a\n")
        self.writer.drain(0)
        self.assertEqual(b"a\n", self.gate.written)

    def test_lost(self) -> None:
        """Lines beyond the limit are lost; one line says how many, where they would have been."""
        self.start()
        block = "x" * 99 + "\n"
        accepted = (LIMIT - len("first\n")) // len(block)
        for _ in range(accepted + 7):
            self.writer.write(block)
        lines = self.finish()
        self.assertEqual(["first", *[block.strip()] * accepted, "lost 7"], lines)
        self.writer.write("after\n")
        self.assertEqual(["lost 7", "after"], self.finish()[-2:])

    def test_drain(self) -> None:
        """The wait for a reader that does not come back is bounded."""
        self.start()
        self.writer.drain(0.01)
        self.assertEqual(b"", self.gate.written)

    def test_refused(self) -> None:
        """Lines that the system refuses are counted, as on a full disk."""
        self.gate.error = OSError(errno.ENOSPC, "No space left on device")
        self.start()
        self.assertEqual([], self.finish())
        self.gate.error = None
        self.writer.write("second\n")
        self.assertEqual(["lost 1", "second"], self.finish())

    def test_torn(self) -> None:
        """What follows a line that was written in part begins on a line of its own."""
        self.start()
        self.writer.write("second\nthird\n")
        self.gate.room = len("fir")
        lines = self.finish()
        self.assertEqual(["fir", "second", "third", "lost 1"], lines)
        self.gate.room = 0
        for text in ("a\n", "b\nc\n"):
            self.writer.write(text)
            self.writer.drain(PATIENCE)
        self.assertEqual(["lost 1", "b", "c"], self.finish()[-3:])


class WriteLinesTests(SynchronousTestCase):
    """`write_lines`"""

    def setUp(self) -> None:
        self.reading, self.writing = os.pipe()
        self.reader = io.FileIO(self.reading)
        self.addCleanup(self.reader.close)

    def write_in_thread(self, data: bytes) -> threading.Thread:
        """Write in a thread, and close the pipe."""

        def write() -> None:
            write_lines(self.writing, data)
            os.close(self.writing)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        return thread

    def test_whole_lines(self) -> None:
        """A full pipe holds whole lines, and gets the others later, also longer than PIPE_BUF."""
        lines = [b"%d %s\n" % (number, b"x" * (number % 3000)) for number in range(500)]
        lines += [b"x" * 20_000 + b"\n", b"no end" * 2000]
        for blocking in (True, False):
            os.set_blocking(self.writing, blocking)
            os.write(self.writing, b"unread\n")
            thread = self.write_in_thread(b"".join(lines))
            poll = select.poll()
            poll.register(self.writing, select.POLLOUT)
            while poll.poll(0):
                pass
            received = os.read(self.reading, 1 << 20)
            self.assertEqual(b"\n", received[-1:])
            while data := self.reader.read(3000):
                received += data
            thread.join(PATIENCE)
            self.assertEqual(b"".join([b"unread\n", *lines]), received)
            self.reader.close()
            self.reading, self.writing = os.pipe()
            self.reader = io.FileIO(self.reading)
        os.close(self.writing)

    def test_refused(self) -> None:
        """What the system refuses is returned: a reader that is gone, or a full disk."""
        self.reader.close()
        self.assertEqual(b"a\n", write_lines(self.writing, b"a\n"))
        os.close(self.writing)
        full = os.open("/dev/full", os.O_WRONLY)
        self.addCleanup(os.close, full)
        self.assertEqual(b"a\nb\n", write_lines(full, b"a\nb\n"))

    def test_log_file(self) -> None:
        """A log file is rotated as before, and says what it has not written."""
        path = os.path.abspath(self.mktemp())
        file = LogFile.fromFullPath(path, rotateLength=5)
        for text in (b"first\n", b"second\n"):
            self.assertEqual(b"", write_to_log_file(file, write_lines, text))
        for name, text in ((path + ".1", "first\n"), (path, "second\n")):
            with open(name) as written:
                self.assertEqual(text, written.read())
        refused = write_to_log_file(file, lambda descriptor, data: data[1:], b"x\n")
        self.assertEqual((b"\n", 1), (refused, file.size))
        file.close()
        os.close(self.writing)
