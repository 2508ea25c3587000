"""The library that counts, fails and records system calls does so."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.faults.calls import SHORT, Change, Changed, Page, Step, read_changes, recorded

_PASSED = "no variable of the library is left"
_CHECK = f"import os, subprocess, sys; assert 'LD_PRELOAD' not in os.environ, {_PASSED!r}\n"

_CHANGES = """\
folder = sys.argv[1] + "/ab"
os.mkdir(folder)
file = os.open(folder + "/x", os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.write(file, b"hello")
os.pwrite(file, b"EL", 1)
subprocess.run(["sh", "-c", "printf more"], stdout=file)
os.fsync(file)
os.rename(folder + "/x", folder + "/y")
os.ftruncate(file, 3)
opened = os.open(folder, os.O_RDONLY)
os.fsync(opened)
os.link("y", "z", src_dir_fd=opened, dst_dir_fd=opened)
os.unlink(folder + "/y")
os.unlink(folder + "/z")
child = [sys.executable, "-c", "import os, sys; os.rmdir(sys.argv[1])", folder]
os.posix_spawn(sys.executable, child, {})
os.wait()
open("elsewhere", "w").close()
"""


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()

    def run_python(self, code: str, **variables: str) -> str:
        """Run a program in the folder; return what it prints."""
        command = [sys.executable, "-c", _CHECK + code, str(self.folder)]
        done = subprocess.run(
            command, env=variables, cwd=self.folder.parent, check=False, capture_output=True
        )
        self.assertEqual((b"", 0), (done.stderr, done.returncode))
        return done.stdout.decode()


class RecordTests(Case):
    def test_changes(self) -> None:
        """A record has each change below the root, in order, with what children have written."""
        record = self.folder.with_name("record")
        self.run_python(_CHANGES, **recorded(self.folder, record))
        changes = list(read_changes(record))
        folder, file = (change.inode for change in changes[:2])
        process = changes[0].process

        def changed(change: Change, inode: int, path: str, **more: object) -> Changed:
            return Changed(change, process, inode, path, **more)  # type: ignore[arg-type]

        expected = [
            changed(Change.MADE, folder, "ab"),
            changed(Change.CREATED, file, "ab/x"),
            changed(Change.WRITTEN, file, "ab/x", data=b"hello"),
            changed(Change.WRITTEN, file, "ab/x", offset=1, data=b"EL"),
            changed(Change.CONTENT, file, "ab/x", data=b"hELlomore"),
            changed(Change.SYNCED, file, "ab/x"),
            changed(Change.RENAMED, file, "ab/x", target="ab/y"),
            changed(Change.TRUNCATED, file, "ab/y", offset=3),
            changed(Change.SYNCED, folder, "ab"),
            changed(Change.LINKED, file, "ab/y", target="ab/z"),
            changed(Change.UNLINKED, file, "ab/y"),
            changed(Change.UNLINKED, file, "ab/z"),
        ]
        self.assertEqual(expected, changes[:-1])
        removed = changes[-1]
        self.assertEqual((Change.REMOVED, folder), (removed.change, removed.inode))
        self.assertNotEqual(process, removed.process)


class PageTests(Case):
    def run_armed(self, code: str, step: Step | None = None, fault: int = 0) -> str:
        """Run a program with a page that was armed before."""
        self.page = Page(self.folder / "page")
        self.addCleanup(self.page.close)
        self.page.arm(step, fault)
        return self.run_python(code, **self.page.variables)

    def test_counted(self) -> None:
        """Calls are counted by kind and object, but for those that read modules."""
        self.run_armed("import wave\nos.mkdir('made'); os.mkdir('made too'); os.stat('made')\n")
        self.assertEqual(2, self.page.counts["mkdir", "path"])
        self.assertEqual(0, self.page.failed)
        last = [call for call in self.page.calls if call.step.kind in ("mkdir", "stat")][-3:]
        names = [(str(call.step), call.name, call.result) for call in last[:2]]
        self.assertEqual("made", last[2].name)
        expected = [
            ("mkdir of path number 1", "made", 0),
            ("mkdir of path number 2", "made too", 0),
        ]
        self.assertEqual(expected, names)
        self.assertFalse([call for call in self.page.calls if "wave" in call.name])

    def test_failed(self) -> None:
        """The call that is named fails, and no other one."""
        code = (
            "os.mkdir('a')\ntry:\n    os.mkdir('b')\nexcept OSError as error:\n    print(error)\n"
        )
        printed = self.run_armed(code + "os.mkdir('c')", Step("mkdir", "path", 2), errno.EIO)
        self.assertEqual("[Errno 5] Input/output error: 'b'\n", printed)
        self.assertEqual(
            ["a", "c"], [name for name in "abc" if (self.folder.parent / name).exists()]
        )
        self.assertEqual([True], [call.failed for call in self.page.calls if call.name == "b"])

    def test_short(self) -> None:
        """A short call handles half of the bytes."""
        code = (
            "file = os.open('file', os.O_RDWR | os.O_CREAT)\nprint(os.pwrite(file, b'12345678', 0))"
        )
        self.assertEqual("4\n", self.run_armed(code, Step("pwrite", "file", 1), SHORT))

    def test_children(self) -> None:
        """Forks and other programs are not counted."""
        code = "subprocess.run(['mkdir', 'made'], check=True)\nif not os.fork(): os.mkdir('too')\n"
        self.run_armed(code + "else: os.wait()\n")
        self.assertTrue((self.folder.parent / "made").exists())
        self.assertNotIn(("mkdir", "path"), self.page.counts)
        self.assertLess(0, self.page.counts["spawn", "other"])
        self.assertTrue((self.folder.parent / "too").exists())
