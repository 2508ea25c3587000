"""Scratch files, which are removed when they are closed, or else by the next boot."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy import scratch_files as scratch_module
from audioproxy.scratch_files import AnonymousFile, AnonymousSpace
from audioproxy.variants import scratch_folder as scratch_folder_module
from audioproxy.variants.scratch_folder import NamedFile, ScratchFolder
from tests.support.processes import open_descriptors


class AnonymousTests(SynchronousTestCase):
    """`AnonymousSpace` and `AnonymousFile`."""

    def test_no_name(self) -> None:
        """An anonymous file is in TMPDIR without a name, and can be written (D46)."""
        folder = self.mktemp()
        os.mkdir(folder)
        self.patch(scratch_module.tempfile, "tempdir", folder)
        made = AnonymousFile()
        self.addCleanup(made.close)
        self.assertEqual(os.listdir(folder), [])
        os.write(made.descriptor, b"abc")
        self.assertEqual(os.pread(made.descriptor, 9, 1), b"bc")
        self.assertEqual(os.fstat(made.descriptor).st_dev, os.stat(folder).st_dev)

    def test_close_twice(self) -> None:
        """Closing an anonymous file twice closes its descriptor once."""
        before = open_descriptors()
        made = AnonymousFile()
        made.close()
        made.close()
        self.assertEqual(open_descriptors(), before)

    def test_no_room(self) -> None:
        """If TMPDIR is missing, creating an anonymous file raises OSError."""
        self.patch(scratch_module.tempfile, "tempdir", self.mktemp())
        self.failureResultOf(Deferred.fromCoroutine(AnonymousSpace().create()), OSError)


class NamedFileTests(SynchronousTestCase):
    """`NamedFile`"""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        self.path = self.folder / "a"
        self.before = open_descriptors()

    def tearDown(self) -> None:
        self.assertEqual(open_descriptors(), self.before)

    def test_removed(self) -> None:
        """A named file is removed when it is closed; closing twice is harmless."""
        made = NamedFile(str(self.path))
        self.assertTrue(self.path.exists())
        made.close()
        made.close()
        self.assertFalse(self.path.exists())

    def test_moved(self) -> None:
        """After a rename, closing a named file removes neither the new nor the old name."""
        made = NamedFile(str(self.path))
        os.write(made.descriptor, b"abc")
        self.path.rename(self.folder / "b")
        made.moved()
        self.path.write_bytes(b"other")
        made.close()
        self.assertEqual(sorted(os.listdir(self.folder)), ["a", "b"])

    def test_never_another_file(self) -> None:
        """Creating a named file never opens an existing file."""
        self.path.write_bytes(b"other")
        self.assertRaises(FileExistsError, NamedFile, str(self.path))
        self.assertEqual(self.path.read_bytes(), b"other")

    def test_gone(self) -> None:
        """Closing a named file that was already removed raises no error."""
        made = NamedFile(str(self.path))
        self.path.unlink()
        made.close()

    def test_cannot_be_removed(self) -> None:
        """Closing a named file that cannot be removed raises no error; the next boot removes it."""
        made = NamedFile(str(self.path))
        self.path.unlink()
        self.folder.rmdir()
        self.folder.write_bytes(b"not a folder any more")
        made.close()


class ScratchFolderTests(SynchronousTestCase):
    """`ScratchFolder`"""

    #: Program of another process, which keeps a folder with one file open until its stdin ends.
    OTHER = (
        "import sys\n"
        "from audioproxy.variants.scratch_folder import ScratchFolder\n"
        "folder = ScratchFolder(sys.argv[1])\n"
        "folder.open()\n"
        "file = folder.create()\n"
        "print(file.path, flush=True)\n"
        "sys.stdin.read()\n"
    )

    def setUp(self) -> None:
        self.parent = Path(self.mktemp()).absolute()
        self.before = open_descriptors()

    def open(self) -> ScratchFolder:
        """Open another scratch folder in the same parent."""
        folder = ScratchFolder(str(self.parent))
        folder.open()
        self.addCleanup(folder.close)
        return folder

    def start_other(self) -> tuple[subprocess.Popen[bytes], Path]:
        """Start another process, and return it and the path of its file."""
        other = subprocess.Popen(
            [sys.executable, "-c", self.OTHER, str(self.parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.addCleanup(other.communicate)
        self.addCleanup(other.kill)
        assert other.stdout is not None
        return other, Path(os.fsdecode(other.stdout.readline().strip()))

    def test_open_and_close(self) -> None:
        """An open folder creates new files; closing the folder removes everything."""
        folder = self.open()
        paths = set()
        for _ in range(3):
            made = folder.create()
            assert made.path is not None
            self.assertEqual(Path(made.path).read_bytes(), b"")
            paths.add(made.path)
            self.addCleanup(made.close)
        self.assertEqual(len(paths), 3)
        folder.close()
        self.assertEqual(os.listdir(self.parent), [])
        for path in paths:
            self.assertFalse(os.path.exists(path))

    def test_close_twice(self) -> None:
        """Closing a folder twice releases its lock once."""
        folder = self.open()
        folder.close()
        folder.close()
        self.assertEqual(open_descriptors(), self.before)

    def test_not_open(self) -> None:
        """Creating a file in a folder that is not open raises OSError."""
        folder = ScratchFolder(str(self.parent))
        self.assertRaises(OSError, folder.create)
        folder.close()
        folder.open()
        folder.close()
        self.assertRaises(OSError, folder.create)

    def test_reopened(self) -> None:
        """A closed folder can be opened again."""
        folder = self.open()
        folder.close()
        folder.open()
        folder.create().close()

    def test_leftovers_of_killed_process(self) -> None:
        """The next boot removes the files of a process that was killed with ``kill -9`` (D40)."""
        other, path = self.start_other()
        other.kill()
        other.wait()
        self.assertTrue(path.exists())
        self.open()
        self.assertFalse(path.parent.exists())
        self.assertEqual(len(os.listdir(self.parent)), 2)

    def test_folder_without_a_lock(self) -> None:
        """A folder without a lock file is abandoned and is removed at boot (D40)."""
        (self.parent / "a").mkdir(parents=True)
        (self.parent / "a" / "b").touch()
        self.open()
        self.assertFalse((self.parent / "a").exists())

    def test_folder_of_live_process(self) -> None:
        """The folder of another live process is not removed; nodes may share a store (D40)."""
        _, path = self.start_other()
        for _ in range(2):
            self.open().close()
        self.assertTrue(path.exists())

    def test_leftovers_of_several_processes(self) -> None:
        """Boot removes what several dead processes left, including locks without a folder."""
        self.parent.mkdir()
        for name in ("a", "b", "c"):
            (self.parent / f"{name}.lock").touch()
            if name != "b":
                (self.parent / name).mkdir()
                (self.parent / name / "file").write_bytes(b"left")
        self.open().close()
        self.assertEqual(os.listdir(self.parent), [])

    def test_lock_goes_away(self) -> None:
        """Boot tolerates that another boot removes an abandoned lock at the same time."""
        self.parent.mkdir()
        for name in ("a", "b"):
            (self.parent / f"{name}.lock").touch()
        take = scratch_folder_module._lock_abandoned

        def remove_locks_then_lock(path: str) -> int | None:
            for each in self.parent.glob("?.lock"):
                each.unlink()
            return take(path)

        self.patch(scratch_folder_module, "_lock_abandoned", remove_locks_then_lock)
        self.open().close()
        self.assertEqual(os.listdir(self.parent), [])

    def test_lock_swept_before_it_was_held(self) -> None:
        """If another boot removes a new lock file before it is locked, another one is created."""
        real, swept = fcntl.flock, []

        def clean_up_first(lock: int, operation: int) -> None:
            if operation == fcntl.LOCK_EX and not swept:
                # The other boot cleans up after this lock file is created and before it is locked.
                swept.extend(self.parent.glob("*.lock"))
                ScratchFolder(str(self.parent))._remove_abandoned()
            real(lock, operation)

        self.patch(scratch_folder_module.fcntl, "flock", clean_up_first)
        folder = self.open()
        self.assertEqual(len(swept), 1)
        self.assertFalse(swept[0].exists())
        self.patch(scratch_folder_module.fcntl, "flock", real)
        made = folder.create()
        self.open().close()
        assert made.path is not None
        self.assertTrue(os.path.exists(made.path))
        made.close()

    def test_not_a_folder(self) -> None:
        """If the parent is a file, opening the folder raises OSError and leaves nothing open."""
        self.parent.write_bytes(b"")
        folder = ScratchFolder(str(self.parent))
        self.assertRaises(OSError, folder.open)
        folder.close()
        self.assertEqual(open_descriptors(), self.before)

    def test_removed_while_open(self) -> None:
        """A folder that is removed while it is open is created again when needed."""
        folder = self.open()
        shutil.rmtree(self.parent)
        made = folder.create()
        os.write(made.descriptor, b"bytes")
        made.close()
        self.assertEqual(len(os.listdir(self.parent)), 2)
        folder.close()
        self.assertEqual(open_descriptors(), self.before)

    def test_store_missing(self) -> None:
        """While the store's folder is missing, files cannot be created; afterwards they can."""
        store, elsewhere = self.parent / "store", self.parent / "elsewhere"
        store.mkdir(parents=True)
        folder = ScratchFolder(str(store / "scratch"))
        folder.open()
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
        self.assertEqual(open_descriptors(), self.before)

    def test_closed_while_store_missing(self) -> None:
        """A file that is closed while the store's folder is missing is removed later."""
        store, elsewhere = self.parent / "store", self.parent / "elsewhere"
        store.mkdir(parents=True)
        folder = ScratchFolder(str(store / "scratch"))
        folder.open()
        made = folder.create()
        assert made.path is not None
        path = Path(made.path)
        store.rename(elsewhere)
        made.close()
        elsewhere.rename(store)
        self.assertTrue(path.exists())
        folder.create().close()
        self.assertEqual([], list(path.parent.iterdir()))
        folder.close()

    def test_no_grandparent(self) -> None:
        """Only the path's last folder is created, never the mount point of an unmounted disk."""
        folder = ScratchFolder(str(self.parent / "b"))
        self.assertRaises(FileNotFoundError, folder.open)
        self.assertFalse(self.parent.exists())

    def test_half_open(self) -> None:
        """If the folder cannot be created, no lock is left and no other file is touched."""

        def refuse(path: str) -> None:
            raise OSError(28, "No space left on device", path)

        folder = ScratchFolder(str(self.parent))
        self.parent.mkdir()
        self.patch(
            scratch_folder_module.os, "mkdir", lambda path: path == str(self.parent) or refuse(path)
        )
        Path("None.lock").touch()
        self.assertRaises(OSError, folder.open)
        folder.close()
        self.assertEqual(os.listdir(self.parent), [])
        self.assertEqual(open_descriptors(), self.before)
        Path("None.lock").unlink()
