"""Folders that are synced, where their file system can do that."""

from __future__ import annotations

import errno
import os

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.files.folder_sync import sync_folder
from tests.support.processes import open_descriptors


class SyncFolderTests(SynchronousTestCase):
    """`sync_folder`"""

    def test_unsupported(self) -> None:
        """A file system that syncs no folders is no failure; that of /proc is one."""
        descriptor = os.open("/proc/self", os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        refused = self.assertRaises(OSError, os.fsync, descriptor)
        self.assertEqual(errno.EINVAL, refused.errno)
        sync_folder("/proc/self")

    def test_failure(self) -> None:
        """A folder that is missing, or whose disk fails, is a failure, and no file stays open."""
        folder, before = self.mktemp(), open_descriptors()
        self.assertRaises(FileNotFoundError, sync_folder, folder)
        os.mkdir(folder)
        sync_folder(folder)

        def fail(descriptor: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        self.patch(os, "fsync", fail)
        self.assertRaises(OSError, sync_folder, folder)
        self.assertEqual(before, open_descriptors())
