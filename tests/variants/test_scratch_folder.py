"""Scratch files: nothing is left of them, whoever dies."""

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
    """`AnonymousSpace` and `AnonymousFile`"""

    def test_no_name(self) -> None:
        """A file without a name is in TMPDIR, where nobody sees it, and takes bytes (D46)."""
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
        """To close it again is harmless, and its descriptor is closed once."""
        before = open_descriptors()
        made = AnonymousFile()
        made.close()
        made.close()
        self.assertEqual(open_descriptors(), before)

    def test_no_room(self) -> None:
        """Where there is no such folder, that is an error of the system."""
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
        """It is gone when it is closed, and closing it again is harmless."""
        made = NamedFile(str(self.path))
        self.assertTrue(self.path.exists())
        made.close()
        made.close()
        self.assertFalse(self.path.exists())

    def test_moved(self) -> None:
        """Once it was moved, its new name stays, and so does whoever has its old name."""
        made = NamedFile(str(self.path))
        os.write(made.descriptor, b"abc")
        self.path.rename(self.folder / "b")
        made.moved()
        self.path.write_bytes(b"other")
        made.close()
        self.assertEqual(sorted(os.listdir(self.folder)), ["a", "b"])

    def test_never_another_file(self) -> None:
        """It is a new file, never one that was there."""
        self.path.write_bytes(b"other")
        self.assertRaises(FileExistsError, NamedFile, str(self.path))
        self.assertEqual(self.path.read_bytes(), b"other")

    def test_gone(self) -> None:
        """One whose name or folder is gone is closed without complaint."""
        made = NamedFile(str(self.path))
        self.path.unlink()
        made.close()

    def test_cannot_be_removed(self) -> None:
        """One that cannot be removed is closed without complaint: the next boot removes it."""
        made = NamedFile(str(self.path))
        self.path.unlink()
        self.folder.rmdir()
        self.folder.write_bytes(b"not a folder any more")
        made.close()


class ScratchFolderTests(SynchronousTestCase):
    """`ScratchFolder`"""

    #: Another process, which holds a folder with a file in it until its stdin ends.
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
        """Open one more folder."""
        folder = ScratchFolder(str(self.parent))
        folder.open()
        self.addCleanup(folder.close)
        return folder

    def start_other(self) -> tuple[subprocess.Popen[bytes], Path]:
        """Return another process and the file that it holds."""
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
        """A folder holds new files while it is open, and nothing is left when it is closed."""
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
        """To close it again is harmless, and its lock is let go of once."""
        folder = self.open()
        folder.close()
        folder.close()
        self.assertEqual(open_descriptors(), self.before)

    def test_not_open(self) -> None:
        """A folder that is not open holds no files."""
        folder = ScratchFolder(str(self.parent))
        self.assertRaises(OSError, folder.create)
        folder.close()
        folder.open()
        folder.close()
        self.assertRaises(OSError, folder.create)

    def test_reopened(self) -> None:
        """A service that is started again has a folder again."""
        folder = self.open()
        folder.close()
        folder.open()
        folder.create().close()

    def test_what_the_dead_left(self) -> None:
        """What a process left that died by ``kill -9`` is removed at the next boot (D40)."""
        other, path = self.start_other()
        other.kill()
        other.wait()
        self.assertTrue(path.exists())
        self.open()
        self.assertFalse(path.parent.exists())
        self.assertEqual(len(os.listdir(self.parent)), 2)

    def test_folder_without_a_lock(self) -> None:
        """A folder whose lock is gone belongs to nobody, and is removed (D40)."""
        (self.parent / "a").mkdir(parents=True)
        (self.parent / "a" / "b").touch()
        self.open()
        self.assertFalse((self.parent / "a").exists())

    def test_what_the_living_hold(self) -> None:
        """What another live process holds is never removed: nodes share a store (D40)."""
        _, path = self.start_other()
        for _ in range(2):
            self.open().close()
        self.assertTrue(path.exists())

    def test_many_dead(self) -> None:
        """Whatever many dead processes left is removed, whole folders and bare locks."""
        self.parent.mkdir()
        for name in ("a", "b", "c"):
            (self.parent / f"{name}.lock").touch()
            if name != "b":
                (self.parent / name).mkdir()
                (self.parent / name / "file").write_bytes(b"left")
        self.open().close()
        self.assertEqual(os.listdir(self.parent), [])

    def test_lock_goes_away(self) -> None:
        """A lock that another boot removes meanwhile is no matter."""
        self.parent.mkdir()
        for name in ("a", "b"):
            (self.parent / f"{name}.lock").touch()
        take = scratch_folder_module._lock_abandoned

        def take_all_but_the_last(path: str) -> int | None:
            for each in self.parent.glob("?.lock"):
                each.unlink()
            return take(path)

        self.patch(scratch_folder_module, "_lock_abandoned", take_all_but_the_last)
        self.open().close()
        self.assertEqual(os.listdir(self.parent), [])

    def test_lock_swept_before_it_was_held(self) -> None:
        """A boot whose new lock file another boot takes for an abandoned one makes a new one."""
        real, swept = fcntl.flock, []

        def sweep_first(lock: int, operation: int) -> None:
            if operation == fcntl.LOCK_EX and not swept:
                # Between making the file and locking it: the other one's whole sweep.
                swept.extend(self.parent.glob("*.lock"))
                ScratchFolder(str(self.parent))._remove_abandoned()
            real(lock, operation)

        self.patch(scratch_folder_module.fcntl, "flock", sweep_first)
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
        """A parent that is a file is an error, and leaves nothing open."""
        self.parent.write_bytes(b"")
        folder = ScratchFolder(str(self.parent))
        self.assertRaises(OSError, folder.open)
        folder.close()
        self.assertEqual(open_descriptors(), self.before)

    def test_removed_while_open(self) -> None:
        """A store that is cleared at run time, scratch folder and all, goes on to work."""
        folder = self.open()
        shutil.rmtree(self.parent)
        made = folder.create()
        os.write(made.descriptor, b"bytes")
        made.close()
        self.assertEqual(len(os.listdir(self.parent)), 2)
        folder.close()
        self.assertEqual(open_descriptors(), self.before)

    def test_away(self) -> None:
        """A store that is away for a while takes nothing meanwhile, and everything after."""
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
        # What was left behind, unlocked, is swept at the next boot.
        again = ScratchFolder(str(store / "scratch"))
        again.open()
        again.close()
        self.assertEqual(os.listdir(store / "scratch"), [])
        self.assertEqual(open_descriptors(), self.before)

    def test_closed_while_away(self) -> None:
        """A file that is closed while its store is away is removed once the store is back."""
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
        """Only the last folder is made: a disk that is not mounted is not made up."""
        folder = ScratchFolder(str(self.parent / "b"))
        self.assertRaises(FileNotFoundError, folder.open)
        self.assertFalse(self.parent.exists())

    def test_half_open(self) -> None:
        """A folder that could not be made leaves no lock behind, and touches nothing else."""

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
