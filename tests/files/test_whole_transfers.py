"""Reads and writes of whole ranges, however few bytes the system transfers at a time."""

from __future__ import annotations

import errno
import os

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.files.scratch_files import AnonymousFile
from audioproxy.files.whole_transfers import (
    read_in_thread,
    read_up_to,
    read_whole,
    write_next,
    write_whole,
)
from audioproxy.testing import FakeThreads
from tests.support.processes import open_descriptors, opened_since
from tests.support.transfers import Transfers


class WholeTransferTests(SynchronousTestCase):
    """`read_up_to`, `read_whole`, `write_whole`, `write_next`"""

    def setUp(self) -> None:
        self.transfers, write = Transfers(self), os.write
        self.patch(os, "write", lambda file, data: write(file, data[: self.transfers.most]))
        file = AnonymousFile()
        self.addCleanup(file.close)
        self.file = file.descriptor
        os.write(self.file, b"0123456789")

    def test_short(self) -> None:
        """Short transfers are repeated until all bytes are transferred, or the file ends."""
        for most in (None, 1, 3, 10):
            self.transfers.most = most
            self.assertEqual(b"3456", read_up_to(self.file, 4, 3))
            self.assertEqual(b"3456789", read_up_to(self.file, 99, 3))
            self.assertEqual(
                (b"", b""), (read_up_to(self.file, 9, 10), read_up_to(self.file, 0, 3))
            )
            self.assertEqual(b"3456", read_whole(self.file, 4, 3))
            for data in (b"6543", b"", b"3456"):
                write_whole(self.file, data, 3)
                self.assertEqual(data or b"6543", read_whole(self.file, 4, 3))

    def test_next(self) -> None:
        """Short writes at the position of a file are repeated, too."""
        self.transfers.most = 3
        write_next(self.file, b"abcdefgh")
        self.assertEqual(b"0123456789abcdefgh", read_up_to(self.file, 99, 0))

    def test_end(self) -> None:
        """A read that needs bytes behind the end of the file fails, and says where it ends."""
        for most in (None, 3):
            self.transfers.most = most
            error = self.assertRaises(OSError, read_whole, self.file, 8, 3)
            self.assertEqual(errno.EIO, error.errno)
            self.assertIn("the file has 10 of 11 bytes", str(error))

    def test_failures(self) -> None:
        """The error of the call that fails is raised, also behind a short one."""
        self.transfers.most = 3
        for transfer, name, code in (
            (lambda: write_whole(self.file, b"abcdef", 0), "pwrite", errno.ENOSPC),
            (lambda: read_whole(self.file, 6, 0), "pread", errno.ESTALE),
        ):
            for before in range(2):
                self.transfers.failures[name] = [None] * before + [code]
                self.assertEqual(code, self.assertRaises(OSError, transfer).errno)

    def test_nothing_written(self) -> None:
        """A write of no byte at all fails, and is not repeated without end."""
        self.transfers.most = 0
        for write in (write_next, lambda file, data: write_whole(file, data, 0)):
            error = self.assertRaises(OSError, write, self.file, b"abc")
            self.assertEqual(errno.EIO, error.errno)

    def test_in_thread(self) -> None:
        """A read in a thread gets all bytes, even if its file is closed before it begins."""
        self.transfers.most = 3
        before, threads, file = open_descriptors(), FakeThreads(), AnonymousFile()
        write_next(file.descriptor, b"0123456789")
        reading = Deferred.fromCoroutine(read_in_thread(threads.in_thread, file.descriptor, 1, 9))
        file.close()
        threads.run()
        self.assertEqual(b"123456789", self.successResultOf(reading))

        def refuse(work: object) -> Deferred[bytes]:
            raise OSError(errno.EAGAIN, "can't start new thread")

        failing = Deferred.fromCoroutine(read_in_thread(refuse, self.file, 1, 9))
        self.assertEqual(errno.EAGAIN, self.failureResultOf(failing, OSError).value.errno)
        self.assertEqual(set(), opened_since(before))
