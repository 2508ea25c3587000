"""Scratch files, which are removed when they are closed, or else by the next boot."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.files.scratch_files import AnonymousFile, AnonymousSpace, check_folder
from audioproxy.variants import scratch_folder as scratch_folder_module
from audioproxy.variants.scratch_folder import NamedFile, ScratchFolder
from tests.support.processes import open_descriptors


class DescriptorCase(SynchronousTestCase):
    """Tests that leave no descriptor open."""

    def setUp(self) -> None:
        self.parent = Path(self.mktemp()).absolute()
        self.before = open_descriptors()

    def tearDown(self) -> None:
        self.assertEqual(open_descriptors(), self.before)


class AnonymousTests(DescriptorCase):
    """`AnonymousSpace` and `AnonymousFile`."""

    def test_no_name(self) -> None:
        """An anonymous file is in TMPDIR without a name, and is closed once (D46)."""
        self.parent.mkdir()
        made = AnonymousFile(folder=str(self.parent))
        self.assertEqual(os.listdir(self.parent), [])
        os.write(made.descriptor, b"abc")
        self.assertEqual(os.pread(made.descriptor, 9, 1), b"bc")
        self.assertEqual(os.fstat(made.descriptor).st_dev, self.parent.stat().st_dev)
        made.close()
        made.close()

    def test_no_room(self) -> None:
        """If TMPDIR is missing, creating an anonymous file raises OSError."""
        for folder in (str(self.parent), __file__):
            space = AnonymousSpace(folder=folder)
            self.failureResultOf(Deferred.fromCoroutine(space.create()), OSError)
            self.assertRaises(OSError, check_folder, folder)

    def test_full(self) -> None:
        """A directory whose disk is full is accepted at boot: it may have room later."""
        numbers = [errno.ENOSPC, errno.EDQUOT, errno.EIO]

        def fail(**options: object) -> None:
            raise OSError(numbers.pop(0), "fails")

        self.patch(tempfile, "TemporaryFile", fail)
        check_folder("/full")
        check_folder("/full")
        self.assertRaises(OSError, check_folder, "/full")


class NamedFileTests(DescriptorCase):
    """`NamedFile`"""

    def setUp(self) -> None:
        super().setUp()
        self.parent.mkdir()
        self.path = self.parent / "a"

    def test_removed(self) -> None:
        """A named file is removed when it is closed, once or twice."""
        made = NamedFile(str(self.path))
        self.assertTrue(self.path.exists())
        made.close()
        made.close()
        self.assertFalse(self.path.exists())
        made = NamedFile(str(self.path))
        self.path.rename(self.parent / "b")
        made.moved()
        self.path.write_bytes(b"other")
        made.close()
        self.assertEqual(sorted(os.listdir(self.parent)), ["a", "b"])
        self.assertRaises(FileExistsError, NamedFile, str(self.path))
        self.assertEqual(self.path.read_bytes(), b"other")

    def test_cannot_be_removed(self) -> None:
        """Closing a file that is gone, or that cannot be removed, raises no error."""
        made = NamedFile(str(self.path))
        self.path.unlink()
        made.close()
        made = NamedFile(str(self.path))
        self.path.unlink()
        self.parent.rmdir()
        self.parent.write_bytes(b"not a folder any more")
        made.close()


class ScratchFolderTests(DescriptorCase):
    """`ScratchFolder`; `tests.variants.test_crash_live` has those of other processes."""

    def open(self) -> ScratchFolder:
        """Open another scratch folder in the same parent."""
        folder = ScratchFolder(str(self.parent))
        folder.open()
        return folder

    def test_open_and_close(self) -> None:
        """An open folder creates new files; closing the folder, once or twice, removes all."""
        folder = ScratchFolder(str(self.parent))
        self.assertRaises(OSError, folder.create)
        folder.close()
        for _ in range(2):
            folder.open()
            files = [folder.create() for _ in range(3)]
            paths = {str(made.path) for made in files}
            self.assertEqual([Path(path).read_bytes() for path in paths], [b""] * 3)
            folder.close()
            folder.close()
            self.assertEqual(os.listdir(self.parent), [])
            for made in files:
                made.close()
            self.assertRaises(OSError, folder.create)

    def test_leftovers(self) -> None:
        """Boot removes what dead processes left: locks, folders or both (D40)."""
        self.parent.mkdir()
        for name, parts in {"a": "lf", "b": "l", "c": "lf", "d": "f"}.items():
            if "l" in parts:
                (self.parent / f"{name}.lock").touch()
            if "f" in parts:
                (self.parent / name).mkdir()
                (self.parent / name / "file").write_bytes(b"left")
        self.open().close()
        self.assertEqual(os.listdir(self.parent), [])

    def test_lock_goes_away(self) -> None:
        """Boot tolerates that another boot removes an abandoned lock at the same time."""
        self.parent.mkdir()
        for name in ("a", "b"):
            (self.parent / f"{name}.lock").touch()
        real = os.open

        def remove_locks_then_open(path: str, *flags: int, **options: Any) -> int:
            for each in self.parent.glob("?.lock"):
                each.unlink()
            return real(path, *flags, **options)

        self.patch(scratch_folder_module.os, "open", remove_locks_then_open)
        self.open().close()
        self.assertEqual(os.listdir(self.parent), [])

    def test_lock_swept_before_it_was_held(self) -> None:
        """If another boot removes a new lock file before it is locked, another one is created."""
        real, swept = fcntl.flock, []

        def clean_up_first(lock: int, operation: int) -> None:
            if operation == fcntl.LOCK_EX and not swept:
                # The other boot cleans up after this lock file is created and before it is locked.
                swept.extend(self.parent.glob("*.lock"))
                self.open().close()
            real(lock, operation)

        self.patch(scratch_folder_module.fcntl, "flock", clean_up_first)
        folder = self.open()
        self.assertEqual(len(swept), 1)
        self.assertFalse(swept[0].exists())
        made = folder.create()
        self.open().close()
        self.assertTrue(Path(str(made.path)).exists())
        made.close()
        folder.close()

    def test_cannot_be_opened(self) -> None:
        """If the folder cannot be created, no file, lock or descriptor is left."""
        folder = ScratchFolder(str(self.parent / "b"))
        self.assertRaises(FileNotFoundError, folder.open)
        self.assertFalse(self.parent.exists())
        self.parent.write_bytes(b"")
        folder = ScratchFolder(str(self.parent))
        self.assertRaises(OSError, folder.open)
        folder.close()
        self.parent.unlink()

        def refuse(path: str, *_: object) -> None:
            if path != str(self.parent):
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        for module, call in ((fcntl, "flock"), (os, "mkdir")):
            patched = self.patch(module, call, refuse)
            folder = ScratchFolder(str(self.parent))
            self.assertRaises(OSError, folder.open)
            folder.close()
            patched.restore()
            self.assertEqual([], os.listdir(self.parent))

    def test_store_missing(self) -> None:
        """While the store's folder is missing, files cannot be created; afterwards they can."""
        store, elsewhere = self.parent / "store", self.parent / "elsewhere"
        store.mkdir(parents=True)
        folder = ScratchFolder(str(store / "scratch"))
        folder.open()
        made = folder.create()
        path = Path(str(made.path))
        store.rename(elsewhere)
        made.close()
        elsewhere.rename(store)
        self.assertTrue(path.exists())
        folder.create().close()
        self.assertEqual([], list(path.parent.iterdir()))
        store.rename(elsewhere)
        for _ in range(2):
            self.assertRaises(FileNotFoundError, folder.create)
        elsewhere.rename(store)
        folder.create().close()
        folder.close()
        self.assertRaises(FileNotFoundError, folder.create)
        # The next boot removes the folder, which is not locked any more.
        again = ScratchFolder(str(store / "scratch"))
        again.open()
        again.close()
        self.assertEqual(os.listdir(store / "scratch"), [])
