"""Local sources: regular files inside the root are served; everything else is a 404."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred, execute
from twisted.internet.task import Clock
from twisted.logger import LogLevel, eventAsText
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import NoSuchSource, NotFound, UpstreamUnavailable
from audioproxy.grammar.sources import LocalSource
from audioproxy.media.inputs import Input, local_input
from audioproxy.sources.local import LocalSources, OpenLocalSource
from audioproxy.testing import FakeThreads
from tests.support.folders import short_folder
from tests.support.http import Log
from tests.support.processes import open_descriptors, opened_since
from tests.support.strategies import DETERMINISTIC

NOBODY = 65534


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Run as a user to whom file permissions apply."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


class LocalCase(SynchronousTestCase):
    """A root with ``a.mp3`` and ``in/b.mp3``, and secret files beside the root."""

    def setUp(self) -> None:
        self.place = short_folder(self)
        self.place.chmod(0o755)
        self.root = self.place / "root"
        (self.root / "in" / "deep").mkdir(parents=True)
        (self.root / "a.mp3").write_bytes(b"one")
        (self.root / "in" / "b.mp3").write_bytes(b"two")
        # The name of the second folder starts with the name of the root.
        for folder in ("out", "rooted"):
            (self.place / folder).mkdir()
            (self.place / folder / "secret.mp3").write_bytes(b"secret")
        self.files = LocalSources(str(self.root), execute)
        before = open_descriptors()
        self.addCleanup(lambda: self.assertEqual(set(), opened_since(before)))

    def open(self, path: bytes) -> OpenLocalSource:
        """Open a source, which is closed at the end of the test at the latest."""
        opened = self.successResultOf(Deferred.fromCoroutine(self.files.open(LocalSource(path))))
        self.addCleanup(opened.close)
        return opened

    def refusal(self, path: bytes) -> Exception:
        """Return the refusal of a source."""
        opening = Deferred.fromCoroutine(self.files.open(LocalSource(path)))
        error: Exception = self.failureResultOf(opening).value
        return error

    def link(self, targets: Mapping[str, str | Path]) -> None:
        """Create symbolic links below the root."""
        for name, target in targets.items():
            (self.root / name).symlink_to(target)

    def read(self, path: bytes) -> bytes:
        """Return the content of a source."""
        opened = self.open(path)
        try:
            return os.pread(opened.descriptor, 99, 0)
        finally:
            opened.close()

    def assert_refused(self, *paths: bytes) -> None:
        """Assert that each path is a 404 that looks like a missing file."""
        missing = NotFound()
        for path in paths:
            refusal = self.refusal(path)
            self.assertIsInstance(refusal, NotFound, path)
            for name in ("status", "code", "message", "cache_control"):
                self.assertEqual(getattr(refusal, name), getattr(missing, name), path)


class ServedTests(LocalCase):
    """Sources that are served."""

    def test_paths(self) -> None:
        """Regular files inside the root are served, whatever their names and paths are.

        A file name may contain any bytes, not only UTF-8 (D15). A path with ``..`` that stays
        inside the root is served. Symbolic links inside the root are followed, also in chains.
        """
        # The link "round" leaves the root and leads back into it.
        (self.place / "back").symlink_to(self.root / "in")
        self.link(
            {
                "link.mp3": "in/b.mp3",
                "absolute.mp3": self.root / "a.mp3",
                "folder": "in",
                "in/up.mp3": "../a.mp3",
                "chain.mp3": "folder/up.mp3",
                "round": self.place / "back",
            }
        )
        names = (b"\xff\xfe.mp3", b"sp ace\n.mp3", "é.mp3".encode(), b"%2e.mp3", b"-i", b"...")
        for name in names:
            Path(os.fsdecode(os.fsencode(self.root) + b"/" + name)).write_bytes(name)
        one = b"a.mp3 in/../a.mp3 in/deep/../../a.mp3 ./a.mp3 in/./../a.mp3 absolute.mp3"
        expected = {
            **{name: name for name in names},
            **dict.fromkeys((*one.split(), b"folder/../a.mp3", b"chain.mp3"), b"one"),
            **dict.fromkeys((b"in/b.mp3", b"link.mp3", b"folder/b.mp3", b"round/b.mp3"), b"two"),
        }
        self.assertEqual(expected, {path: self.read(path) for path in expected})

    def test_read(self) -> None:
        """Any range is read, in a thread that has a descriptor of its own (D57).

        Closing the source twice is harmless. A range that cannot be read is a failed source: 502.
        """
        opened = self.open(b"a.mp3")
        for offset, count, data in ((0, 3, b"one"), (1, 1, b"n"), (2, 9, b"e"), (9, 9, b"")):
            found = self.successResultOf(Deferred.fromCoroutine(opened.read(offset, count)))
            self.assertEqual(found, data)
        threads = FakeThreads()
        self.files = LocalSources(str(self.root), threads.in_thread)
        opened = self.open(b"a.mp3")
        reading = Deferred.fromCoroutine(opened.read(0, 3))
        opened.close()
        again = os.open(os.devnull, os.O_RDONLY)
        opened.close()
        os.close(again)
        reading.cancel()
        self.failureResultOf(reading, CancelledError)
        threads.run()

        def refuse(work: object) -> Deferred[Any]:
            raise OSError(errno.EAGAIN, "no thread")

        self.files = LocalSources(str(self.root), refuse)
        reading = Deferred.fromCoroutine(self.open(b"a.mp3").read(0, 1))
        self.failureResultOf(reading, UpstreamUnavailable)

    def test_size_and_validator(self) -> None:
        """Size and validator follow the file's size and mtime (Local source confinement, 4)."""
        for times, validator in (((1, 1), b"3-1"), ((1, 2), b"3-2")):
            os.utime(self.root / "a.mp3", ns=times)
            opened = self.open(b"a.mp3")
            self.assertEqual((opened.size, opened.validator), (3, validator))

    def test_certain_identity(self) -> None:
        """The identity of a file that was changed just now is uncertain; later, each is another.

        That of a file that was changed after it was opened stays uncertain.
        """
        path = self.root / "a.mp3"
        os.utime(path, (1, 1))
        # The file that is replaced keeps its inode.
        aside = self.place / "aside"
        seen = []
        for change in (
            lambda: os.utime(path, (2, 2)),
            lambda: path.write_bytes(b"two"),
            lambda: (path.rename(aside), path.write_bytes(b"two"), os.utime(path, (1, 1))),
            lambda: None,
        ):
            descriptor = os.open(path, os.O_RDONLY)
            status = os.fstat(descriptor)
            now = status.st_ctime
            opened = OpenLocalSource(descriptor, status, execute, lambda: now)  # noqa: B023
            for _ in range(2):
                self.assertFalse(opened.has_certain_identity())
                now += 2
            for _ in range(2):
                self.assertTrue(opened.has_certain_identity())
            seen.append(opened.identity)
            change()
            is_last = len(seen) == 4
            self.assertIs(is_last, opened.has_certain_identity())
            opened.close()
            self.assertFalse(opened.has_certain_identity())
        self.assertEqual(len(set(seen)), 4)

    def test_identity(self) -> None:
        """All names of a file have one identity, which other files and other states do not have."""
        self.link({"link.mp3": "a.mp3", "folder": "in"})
        os.link(self.root / "a.mp3", self.root / "hard.mp3")
        for name in ("a.mp3", "in/b.mp3"):
            os.utime(self.root / name, (1, 1))
        one = self.open(b"a.mp3").identity
        for path in (b"link.mp3", b"hard.mp3", b"in/../a.mp3", b"folder/../a.mp3"):
            self.assertEqual(one, self.open(path).identity, path)
        self.assertNotEqual(one, self.open(b"in/b.mp3").identity)
        os.utime(self.root / "a.mp3", (1, 2))
        self.assertNotEqual(one, self.open(b"a.mp3").identity)

    def test_how_it_is_opened(self) -> None:
        """A child inherits the file's descriptor, and all of the file is there (D43)."""
        opened = self.open(b"a.mp3")

        async def look(opened: Input) -> Input:
            return opened

        for opening in (
            opened.inspect(Deadline(Clock(), 1), look),
            opened.input(Deadline(Clock(), 1)),
        ):
            source = self.successResultOf(Deferred.fromCoroutine(opening))
            self.assertEqual(source, local_input())
        with opened.inherit() as descriptors:
            self.assertEqual(descriptors, {3: opened.descriptor})
        self.assertFalse(os.get_inheritable(opened.descriptor))
        waiting = Deferred.fromCoroutine(opened.complete(Deadline(Clock(), 1)))
        self.assertIsNone(self.successResultOf(waiting))
        self.assertIsNone(opened.failure)

    def test_switched_root(self) -> None:
        """A root that is a symbolic link is resolved on each access; deployments may move it."""
        (self.place / "other").mkdir()
        (self.place / "other" / "a.mp3").write_bytes(b"other")
        current = self.place / "current"
        current.symlink_to("root")
        self.files = LocalSources(str(current), execute)
        self.assertEqual(self.read(b"a.mp3"), b"one")
        current.unlink()
        current.symlink_to("other")
        self.assertEqual(self.read(b"a.mp3"), b"other")
        self.assert_refused(b"in/b.mp3")

    def test_root_of_everything(self) -> None:
        """The root may be ``/``."""
        self.files = LocalSources("/", execute)
        path = os.fsencode(self.root / "a.mp3")
        self.assertEqual(self.read(path.removeprefix(b"/")), b"one")

    def test_folder_that_cannot_be_listed(self) -> None:
        """A folder with execute but without read permission can be traversed."""
        (self.root / "in").chmod(0o711)
        with as_unprivileged_user():
            self.assertEqual(self.read(b"in/b.mp3"), b"two")


class RefusedTests(LocalCase):
    """Paths that are refused, all with the same 404."""

    def test_paths(self) -> None:
        """Any path that does not lead to a file inside the root is a 404.

        That holds for a path that leaves the root, even to return, for an absolute path, and for a
        directory; no path is percent-decoded a second time (Local source confinement, 2 and 3).
        """
        self.link(
            {
                "file.mp3": self.place / "out" / "secret.mp3",
                "folder": "../out",
                "alike": "../rooted",
                "chain.mp3": "in/chain.mp3",
                "in/chain.mp3": "../file.mp3",
                "top": "/",
                "dangling.mp3": "gone.mp3",
                "self.mp3": "self.mp3",
                "loop": "in/loop",
                "in/loop": "../loop",
            }
        )
        inside = os.fsencode(self.root / "a.mp3")
        self.assert_refused(
            # Missing files.
            *b"b.mp3 in/a.mp3 no/b.mp3 no/../a.mp3 A.MP3".split(),
            # Paths that leave the root.
            *b".. ../out/secret.mp3 in/../../out/secret.mp3 in/deep/../../../root/a.mp3".split(),
            *b"../root/a.mp3 ./../root/a.mp3 in//../../root/a.mp3 ../rooted/secret.mp3".split(),
            # Absolute paths.
            *(inside, b"/" + inside, b"/etc/passwd", b"/a.mp3"),
            # NUL bytes, and escapes.
            *(b"a.mp3\0", b"\0", b"in\0/b.mp3", b"a.mp3\0.txt"),
            *(b"%61.mp3", b"in%2fb.mp3", b"%2e%2e/out/secret.mp3"),
            # Links out of the root. After a link, ``..`` is the parent of the link's target.
            *b"file.mp3 folder/secret.mp3 alike/secret.mp3 chain.mp3".split(),
            *(b"top/etc/passwd", b"folder/../out/secret.mp3"),
            # Names that are paths or URLs for ffmpeg.
            *(b"file:" + inside, b"concat:" + inside, b"tcp://127.0.0.1:80", b"a.mp3?x", b"a.mp3 "),
            # Dangling links, and loops of links.
            *(b"dangling.mp3", b"self.mp3", b"loop/a.mp3"),
            # Directories, and files used as directories.
            *(b"in", b"in/", b".", b"./", b"in/..", b"in/deep/../.."),
            *(b"a.mp3/", b"a.mp3/.", b"a.mp3/x", b"a.mp3/../a.mp3", b"in/b.mp3//"),
            # Names and paths that are too long for the system.
            *(b"a" * 256, b"in/../" * 900 + b"a.mp3"),
        )

    def test_irregular(self) -> None:
        """A FIFO, without a wait for its writer, a socket and a device are a 404.

        (Local source confinement, 3)
        """
        os.mkfifo(self.root / "fifo.mp3")
        self.link({"link.mp3": "fifo.mp3"})
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.fspath(self.root / "socket.mp3"))
            self.assert_refused(b"fifo.mp3", b"link.mp3", b"socket.mp3")
        self.files = LocalSources("/dev", execute)
        self.assert_refused(b"null", b"zero")

    def test_missing(self) -> None:
        """A file is certainly missing where its folder has no such name, or is no folder."""
        self.link({"nowhere": "in/none.mp3", "out": self.place / "out"})
        missing = (b"none.mp3", b"none/b.mp3", b"a.mp3/b.mp3", b"nowhere", b"out/none.mp3")
        for path in missing:
            self.assertIs(type(self.refusal(path)), NoSuchSource, path)
        for path in (b"in", b"../out/secret.mp3", b"out/secret.mp3", b"a" * 300):
            self.assertIs(type(self.refusal(path)), NotFound, path)

    def test_unicode_forms(self) -> None:
        """If a name is there in another Unicode form, the reason for operators has its spelling.

        The form of a folder may differ from that of the file. Confinement holds: what is outside
        is not named.
        """
        composed, decomposed = "\u00fc".encode(), b"u\xcc\x88"
        inside = os.fsencode(self.root)
        os.mkdir(inside + b"/" + decomposed)
        for name in (composed, decomposed + b"/" + composed):
            Path(os.fsdecode(inside + b"/" + name + b".mp3")).touch()
        self.link({"\u00fc-out.mp3": self.place / "out" / "secret.mp3"})
        for path, spelling in (
            (decomposed + b".mp3", "%C3%BC.mp3"),
            (composed + b"/" + decomposed + b".mp3", "u%CC%88/%C3%BC.mp3"),
            (composed + b"/" + composed + b".mp3", "u%CC%88/%C3%BC.mp3"),
        ):
            refusal = self.refusal(path)
            self.assertIs(NoSuchSource, type(refusal))
            words = f"; the same name is there in another Unicode form: local://{spelling}"
            self.assertTrue(str(refusal).endswith(words), refusal)
        for path in (decomposed + b"-out.mp3", composed + b"x.mp3", b"\xfc.mp3", b"x.mp3"):
            self.assertNotIn("Unicode", str(self.refusal(path)), path)

        def no_thread(work: object) -> NoReturn:
            raise OSError

        self.files = LocalSources(str(self.root), no_thread)
        self.assertIs(NoSuchSource, type(self.refusal(decomposed + b".mp3")))

    def test_denied(self) -> None:
        """Files without read permission, and files in folders without any permission, are a 404.

        It logs a warning, at most once a minute for each source (D56).
        """
        for name in ("a.mp3", "in"):
            (self.root / name).chmod(0)
        # Only root can remove the folder as it is now.
        self.addCleanup((self.root / "in").chmod, 0o755)
        log, clock = Log(self), Clock()
        self.files = LocalSources(str(self.root), execute, clock.seconds)

        def report(*paths: bytes) -> list[str]:
            log.events.clear()
            with as_unprivileged_user():
                self.assert_refused(*paths)
            self.assertTrue(all(event["log_level"] is LogLevel.warn for event in log.events))
            return [str(eventAsText(event, includeSystem=False)) for event in log.events]

        first = report(b"a.mp3", b"a.mp3", b"in/b.mp3", b"none.mp3", b"../a.mp3")
        for name, line in zip(("a.mp3", "in/b.mp3"), first, strict=True):
            self.assertIn(f"the source local://{name} cannot be read: Permission denied;", line)
            self.assertNotIn(str(self.root), line)
        clock.advance(59.9)
        self.assertEqual([], report(b"a.mp3"))
        clock.advance(0.1)
        self.assertEqual(1, len(report(b"a.mp3", b"a.mp3")))

    def test_system_errors(self) -> None:
        """Too many open files and a failing disk are a 502, and leak nothing (Errors, 8)."""
        for number in (errno.EMFILE, errno.EIO):

            def refuse(*_: object, number: int = number, **__: object) -> int:
                raise OSError(number, os.strerror(number))

            for call in ("open", "fstat"):
                before, patched = open_descriptors(), self.patch(os, call, refuse)
                self.assertIs(type(self.refusal(b"a.mp3")), UpstreamUnavailable, (call, number))
                patched.restore()
                self.assertEqual(set(), opened_since(before))

    def test_status_unknown(self) -> None:
        """A file whose status cannot be read is not certain, and a 502 where that matters."""
        opened = self.open(b"a.mp3")
        opened.close()
        self.assertFalse(opened.has_certain_identity())
        failure = self.failureResultOf(Deferred.fromCoroutine(opened.unchanged()))
        self.assertIs(failure.type, UpstreamUnavailable)

    def test_root_gone(self) -> None:
        """If the root is missing or no directory, every path is a 404."""
        self.files = LocalSources(str(self.place / "gone"), execute)
        self.assert_refused(b"a.mp3", b".")
        self.files = LocalSources(str(self.root / "a.mp3"), execute)
        self.assert_refused(b"a.mp3", b".", b"x")

    @DETERMINISTIC
    @given(
        st.lists(
            st.sampled_from([b"..", b".", b"", b"in", b"deep", b"a.mp3", b"b.mp3", b"root"])
            | st.sampled_from([b"out", b"secret.mp3", b"link", b"up", b"top", b"\xff", b"..."]),
            min_size=1,
            max_size=9,
        )
    )
    def test_any_path(self, components: list[bytes]) -> None:
        """No path reads a byte from outside the root."""
        if not (self.root / "link").is_symlink():
            self.link({"link": "../out", "up": "..", "top": "/"})
        path = b"/".join(components)
        opening = Deferred.fromCoroutine(self.files.open(LocalSource(path)))
        opening.addErrback(lambda failure: failure.trap(NotFound) and None)
        opened = self.successResultOf(opening)
        if opened is not None:
            data = os.pread(opened.descriptor, 99, 0)
            opened.close()
            self.assertIn(data, (b"one", b"two"), path)
            resolved = os.path.realpath(os.fsencode(self.root) + b"/" + path)
            self.assertTrue(resolved.startswith(os.fsencode(self.root) + b"/"), path)


class SwapTests(LocalCase):
    """Files and folders that change while they are opened or read."""

    def test_written_to(self) -> None:
        """A file that is written to after it was opened counts as changed (D43)."""
        opened = self.open(b"a.mp3")

        def unchanged() -> bool:
            return self.successResultOf(Deferred.fromCoroutine(opened.unchanged()))

        self.assertTrue(unchanged())
        (self.root / "b.mp3").write_bytes(b"a neighbour")
        self.assertTrue(unchanged())
        with (self.root / "a.mp3").open("ab") as file:
            file.write(b"more")
        self.assertFalse(unchanged())

    def test_swapped(self) -> None:
        """A file that becomes something else between the check and the opening is refused (D43).

        A symbolic link is not followed, in place of a file or of its folder. A FIFO is refused
        without a wait.
        """
        (self.place / "out" / "b.mp3").write_bytes(b"secret")
        open_file = os.open
        for number, (make, swapped, path) in enumerate(
            (
                (lambda path: path.symlink_to(self.place / "out"), "in", "in/b.mp3"),
                (lambda path: path.symlink_to(self.place / "out/b.mp3"), "1.mp3", "1.mp3"),
                (os.mkfifo, "2.mp3", "2.mp3"),
                (os.mkdir, "3.mp3", "3.mp3"),
                (lambda path: None, "4.mp3", "4.mp3"),
            )
        ):
            if not (self.root / path).exists():
                (self.root / path).write_bytes(b"one")
            swaps = [make]

            def swap_and_open(*words: Any, swaps: Any = swaps, **more: Any) -> int:
                if swaps:
                    place = self.root / swapped  # noqa: B023
                    place.rename(self.place / f"away-{number}")  # noqa: B023
                    swaps.pop()(place)
                return open_file(*words, **more)

            self.patch(os, "open", swap_and_open)
            self.assert_refused(path.encode())
            self.assertEqual([], swaps)

    def test_path_replaced_later(self) -> None:
        """A child reads the file that was checked, even if its path was replaced later (D43)."""
        opened = self.open(b"a.mp3")
        (self.root / "a.mp3").unlink()
        (self.root / "a.mp3").symlink_to(self.place / "out" / "secret.mp3")
        descriptor = opened.descriptor
        with open(f"/dev/fd/{descriptor}", "rb") as as_a_child_opens_it:
            self.assertEqual(as_a_child_opens_it.read(), b"one")
