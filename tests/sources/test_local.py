"""Local sources: regular files inside the root are served; everything else is a 404."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, eventAsText
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NotFound, UpstreamUnavailable
from audioproxy.grammar.sources import LocalSource
from audioproxy.media.inputs import SOURCE_DESCRIPTOR
from audioproxy.sources import local as local_module
from audioproxy.sources.local import LocalSources, OpenLocalSource
from tests.support.http import Log
from tests.support.processes import open_descriptors
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
        # Not in trial's folder: another user may have no access to its parents.
        self.place = Path(tempfile.mkdtemp()).resolve()
        self.addCleanup(shutil.rmtree, self.place)
        self.place.chmod(0o755)
        self.root = self.place / "root"
        (self.root / "in" / "deep").mkdir(parents=True)
        (self.root / "a.mp3").write_bytes(b"one")
        (self.root / "in" / "b.mp3").write_bytes(b"two")
        (self.place / "out").mkdir()
        (self.place / "out" / "secret.mp3").write_bytes(b"secret")
        # The folder's name starts with the name of the root.
        (self.place / "rooted").mkdir()
        (self.place / "rooted" / "secret.mp3").write_bytes(b"secret")
        self.files = LocalSources(str(self.root))
        before = open_descriptors()
        self.addCleanup(lambda: self.assertEqual(open_descriptors(), before))

    def open(self, path: bytes) -> OpenLocalSource:
        """Open a source."""
        opening = Deferred.fromCoroutine(self.files.open(LocalSource(path)))
        return self.successResultOf(opening)

    def read(self, path: bytes) -> bytes:
        """Return the content of a source."""
        opened = self.open(path)
        try:
            return os.pread(opened.descriptors[SOURCE_DESCRIPTOR], 99, 0)
        finally:
            opened.close()

    def assert_refused(self, *paths: bytes) -> None:
        """Assert that each path is a 404 that looks like a missing file."""
        for path in paths:
            opening = Deferred.fromCoroutine(self.files.open(LocalSource(path)))
            refusal = self.failureResultOf(opening).value
            self.assertIs(type(refusal), NotFound, path)
            told = (refusal.status, refusal.code, refusal.message, refusal.cache_control)
            missing = NotFound()
            expected = (missing.status, missing.code, missing.message, missing.cache_control)
            self.assertEqual(told, expected, path)


class ServedTests(LocalCase):
    """Sources that are served."""

    def test_file(self) -> None:
        """Regular files in the root and in its subfolders are served."""
        self.assertEqual((self.read(b"a.mp3"), self.read(b"in/b.mp3")), (b"one", b"two"))

    def test_size_and_validator(self) -> None:
        """Size and validator follow the file's size and mtime (Local source confinement, 4)."""
        opened = self.open(b"a.mp3")
        first = opened.validator
        self.assertEqual(opened.size, 3)
        opened.close()
        os.utime(self.root / "a.mp3", ns=(1, 1))
        touched = self.open(b"a.mp3")
        self.assertEqual(touched.validator, b"3-1")
        touched.close()
        self.assertNotEqual(first, b"3-1")

    def test_fingerprint(self) -> None:
        """A file that was changed just now has no fingerprint; later, each change alters it."""
        path = self.root / "a.mp3"
        seen = []
        for change in (
            lambda: None,
            lambda: path.write_bytes(b"two"),
            lambda: os.utime(path, (1, 1)),
            lambda: (path.unlink(), path.write_bytes(b"two"), os.utime(path, (1, 1))),
        ):
            change()
            descriptor = os.open(path, os.O_RDONLY)
            status = os.fstat(descriptor)
            now = status.st_ctime
            opened = OpenLocalSource(descriptor, status, lambda: now)  # noqa: B023
            self.assertEqual(opened.fingerprint(), b"")
            now += 2
            self.assertEqual(opened.fingerprint(), b"")
            now += 2
            seen.append(opened.fingerprint())
            self.assertEqual(opened.fingerprint(), seen[-1])
            opened.close()
            self.assertEqual(opened.fingerprint(), b"")
        self.assertEqual(len(set(seen)), 4)
        self.assertNotIn(b"", seen)

    def test_how_it_is_opened(self) -> None:
        """A child inherits the file's descriptor and may use the file protocol only (D43)."""
        opened = self.open(b"a.mp3")
        self.addCleanup(opened.close)
        for whole in (True, False):
            source = self.successResultOf(Deferred.fromCoroutine(opened.input(1, whole=whole)))
            self.assertEqual((source.url, source.protocols), ("file:/dev/fd/3", ("file",)))
        self.assertEqual(list(opened.descriptors), [3])
        self.assertFalse(os.get_inheritable(opened.descriptors[3]))

    def test_close_twice(self) -> None:
        """Closing a source twice is harmless."""
        opened = self.open(b"a.mp3")
        opened.close()
        again = os.open(os.devnull, os.O_RDONLY)
        opened.close()
        os.close(again)

    def test_bytes(self) -> None:
        """A file name may contain any bytes, not only UTF-8 (D15)."""
        for name in (b"\xff\xfe.mp3", b"sp ace\n.mp3", "é.mp3".encode(), b"%2e.mp3", b"-i", b"..."):
            Path(os.fsdecode(os.fsencode(self.root) + b"/" + name)).write_bytes(name)
            self.assertEqual(self.read(name), name)

    def test_dots_inside(self) -> None:
        """A path with ``..`` that stays inside the root is served."""
        for path in (b"in/../a.mp3", b"in/deep/../../a.mp3", b"./a.mp3", b"in/./../a.mp3"):
            self.assertEqual(self.read(path), b"one", path)

    def test_links_inside(self) -> None:
        """Symbolic links to files and folders inside the root are followed, also in chains."""
        (self.root / "link.mp3").symlink_to("in/b.mp3")
        (self.root / "absolute.mp3").symlink_to(self.root / "a.mp3")
        (self.root / "folder").symlink_to("in")
        (self.root / "in" / "up.mp3").symlink_to("../a.mp3")
        (self.root / "chain.mp3").symlink_to("folder/up.mp3")
        # The link leaves the root and leads back into it.
        (self.root / "round").symlink_to(self.place / "back")
        (self.place / "back").symlink_to(self.root / "in")
        for path, data in (
            (b"link.mp3", b"two"),
            (b"absolute.mp3", b"one"),
            (b"folder/b.mp3", b"two"),
            (b"folder/../a.mp3", b"one"),
            (b"chain.mp3", b"one"),
            (b"round/b.mp3", b"two"),
        ):
            self.assertEqual(self.read(path), data, path)

    def test_switched_root(self) -> None:
        """A root that is a symbolic link is resolved on each access; deployments may move it."""
        (self.place / "other").mkdir()
        (self.place / "other" / "a.mp3").write_bytes(b"other")
        current = self.place / "current"
        current.symlink_to("root")
        self.files = LocalSources(str(current))
        self.assertEqual(self.read(b"a.mp3"), b"one")
        current.unlink()
        current.symlink_to("other")
        self.assertEqual(self.read(b"a.mp3"), b"other")
        self.assert_refused(b"in/b.mp3")

    def test_root_of_everything(self) -> None:
        """The root may be ``/``."""
        self.files = LocalSources("/")
        path = os.fsencode(self.root / "a.mp3")
        self.assertEqual(self.read(path.removeprefix(b"/")), b"one")

    def test_folder_that_cannot_be_listed(self) -> None:
        """A folder with execute but without read permission can be traversed."""
        (self.root / "in").chmod(0o711)
        with as_unprivileged_user():
            self.assertEqual(self.read(b"in/b.mp3"), b"two")


class RefusedTests(LocalCase):
    """Paths that are refused, all with the same 404."""

    def test_missing(self) -> None:
        """A missing file is a 404, whether its folder exists or not."""
        self.assert_refused(b"b.mp3", b"in/a.mp3", b"no/b.mp3", b"no/../a.mp3", b"A.MP3")

    def test_climbing(self) -> None:
        """A path that leaves the root, even to return, is a 404 (Local source confinement, 2)."""
        self.assert_refused(
            b"..",
            b"../out/secret.mp3",
            b"in/../../out/secret.mp3",
            b"in/deep/../../../root/a.mp3",
            b"../root/a.mp3",
            b"./../root/a.mp3",
            b"in//../../root/a.mp3",
            b"../rooted/secret.mp3",
        )

    def test_absolute(self) -> None:
        """An absolute path is a 404, even inside the root (Local source confinement, 2)."""
        inside = os.fsencode(self.root / "a.mp3")
        self.assert_refused(inside, b"/" + inside, b"/etc/passwd", b"/a.mp3")

    def test_nul(self) -> None:
        """A path with a NUL byte is a 404."""
        self.assert_refused(b"a.mp3\0", b"\0", b"in\0/b.mp3", b"a.mp3\0.txt")

    def test_never_decoded_again(self) -> None:
        """A path is not percent-decoded a second time (Local source confinement, 2)."""
        self.assert_refused(b"%61.mp3", b"in%2fb.mp3", b"%2e%2e/out/secret.mp3")

    def test_links_outside(self) -> None:
        """Symbolic links to files and folders outside the root are a 404, in chains too."""
        (self.root / "file.mp3").symlink_to(self.place / "out" / "secret.mp3")
        (self.root / "relative.mp3").symlink_to("../out/secret.mp3")
        (self.root / "folder").symlink_to("../out")
        (self.root / "alike").symlink_to("../rooted")
        (self.root / "chain.mp3").symlink_to("in/chain.mp3")
        (self.root / "in" / "chain.mp3").symlink_to("../file.mp3")
        (self.root / "top").symlink_to("/")
        self.assert_refused(
            b"file.mp3",
            b"relative.mp3",
            b"folder/secret.mp3",
            b"alike/secret.mp3",
            b"chain.mp3",
            b"top/etc/passwd",
            # After a link, ``..`` is the parent of the link's target.
            b"folder/../out/secret.mp3",
        )

    def test_links_to_nowhere(self) -> None:
        """Dangling symbolic links and loops of links are a 404."""
        (self.root / "dangling.mp3").symlink_to("gone.mp3")
        (self.root / "self.mp3").symlink_to("self.mp3")
        (self.root / "one.mp3").symlink_to("two.mp3")
        (self.root / "two.mp3").symlink_to("one.mp3")
        (self.root / "loop").symlink_to("in/loop")
        (self.root / "in" / "loop").symlink_to("../loop")
        self.assert_refused(b"dangling.mp3", b"self.mp3", b"one.mp3", b"loop/a.mp3")

    def test_directory(self) -> None:
        """Directories, including the root, are a 404 (Local source confinement, 3)."""
        self.assert_refused(b"in", b"in/", b".", b"./", b"in/..", b"in/deep/../..")

    def test_file_as_directory(self) -> None:
        """A path that uses a file as a directory is a 404."""
        self.assert_refused(b"a.mp3/", b"a.mp3/.", b"a.mp3/x", b"a.mp3/../a.mp3", b"in/b.mp3//")

    def test_fifo(self) -> None:
        """A FIFO is a 404, without a wait for its writer (Local source confinement, 3)."""
        os.mkfifo(self.root / "fifo.mp3")
        (self.root / "link.mp3").symlink_to("fifo.mp3")
        self.assert_refused(b"fifo.mp3", b"link.mp3")

    def test_socket(self) -> None:
        """A socket is a 404 (Local source confinement, 3)."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.fspath(self.root / "socket.mp3"))
            self.assert_refused(b"socket.mp3")

    def test_device(self) -> None:
        """A device is a 404 (Local source confinement, 3)."""
        self.files = LocalSources("/dev")
        self.assert_refused(b"null", b"zero")

    def test_unreadable(self) -> None:
        """Files without read permission, and files in folders without any permission, are a 404."""
        (self.root / "a.mp3").chmod(0)
        (self.root / "in").chmod(0)
        with as_unprivileged_user():
            self.assert_refused(b"a.mp3", b"in/b.mp3")

    def test_denied_is_reported(self) -> None:
        """A missing permission logs a warning, at most once a minute for each source (D56)."""
        (self.root / "a.mp3").chmod(0)
        (self.root / "in").chmod(0)
        log, clock = Log(), Clock()
        self.addCleanup(log.start())
        files = LocalSources(str(self.root), clock.seconds)

        def report(*paths: bytes) -> list[str]:
            log.events.clear()
            with as_unprivileged_user():
                for path in paths:
                    opening = Deferred.fromCoroutine(files.open(LocalSource(path)))
                    self.failureResultOf(opening, NotFound)
            self.assertTrue(all(event["log_level"] is LogLevel.warn for event in log.events))
            return [str(eventAsText(event, includeSystem=False)) for event in log.events]

        first = report(b"a.mp3", b"a.mp3", b"in/b.mp3", b"none.mp3", b"../a.mp3")
        self.assertEqual(2, len(first))
        for name, line in zip(("a.mp3", "in/b.mp3"), first, strict=True):
            self.assertIn(f"the source local://{name} cannot be read: Permission denied;", line)
            self.assertNotIn(str(self.root), line)
        clock.advance(59.9)
        self.assertEqual([], report(b"a.mp3"))
        clock.advance(0.1)
        self.assertEqual(1, len(report(b"a.mp3", b"a.mp3")))

    def test_too_long(self) -> None:
        """A file name or a path that is too long for the system is a 404."""
        self.assert_refused(b"a" * 256, b"in/../" * 900 + b"a.mp3")

    def test_system_errors(self) -> None:
        """Too many open files and a failing disk are a 502, not a 404 (Errors, 8)."""
        for number in (errno.EMFILE, errno.EIO):

            def refuse(*_: object, number: int = number, **__: object) -> int:
                raise OSError(number, os.strerror(number))

            with self.subTest(number=number):
                self.patch(local_module.os, "open", refuse)
                opening = Deferred.fromCoroutine(self.files.open(LocalSource(b"a.mp3")))
                self.failureResultOf(opening, UpstreamUnavailable)

    def test_root_gone(self) -> None:
        """If the root is missing or no directory, every path is a 404."""
        self.files = LocalSources(str(self.place / "gone"))
        self.assert_refused(b"a.mp3", b".")
        self.files = LocalSources(str(self.root / "a.mp3"))
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
        for name, target in (("link", "../out"), ("up", ".."), ("top", "/")):
            if not (self.root / name).is_symlink():
                (self.root / name).symlink_to(target)
        path = b"/".join(components)
        opening = Deferred.fromCoroutine(self.files.open(LocalSource(path)))
        opening.addErrback(lambda failure: failure.trap(NotFound) and None)
        opened = self.successResultOf(opening)
        if opened is not None:
            data = os.pread(opened.descriptors[SOURCE_DESCRIPTOR], 99, 0)
            opened.close()
            self.assertIn(data, (b"one", b"two"), path)
            resolved = os.path.realpath(os.fsencode(self.root) + b"/" + path)
            self.assertTrue(resolved.startswith(os.fsencode(self.root) + b"/"), path)


class SwapTests(LocalCase):
    """Files and folders that change while they are opened or read."""

    def test_written_to(self) -> None:
        """A file that is written to after it was opened counts as changed (D43)."""
        opened = self.successResultOf(
            Deferred.fromCoroutine(self.files.open(LocalSource(b"a.mp3")))
        )

        def unchanged() -> bool:
            return self.successResultOf(Deferred.fromCoroutine(opened.unchanged()))

        self.assertTrue(unchanged())
        (self.root / "b.mp3").write_bytes(b"a neighbour")
        self.assertTrue(unchanged())
        with (self.root / "a.mp3").open("ab") as file:
            file.write(b"more")
        self.assertFalse(unchanged())
        opened.close()

    def between(self, swap: Callable[[], object]) -> None:
        """Call ``swap`` between the check of a path and the opening of its file."""
        resolve = local_module._resolve

        def resolve_and_swap(root: bytes, path: bytes) -> list[bytes]:
            components = resolve(root, path)
            swap()
            return components

        self.patch(local_module, "_resolve", resolve_and_swap)

    def test_folder_swapped_for_a_link(self) -> None:
        """A folder that becomes a symbolic link after the check is not followed (D43)."""
        (self.place / "out" / "b.mp3").write_bytes(b"secret")

        def swap() -> None:
            (self.root / "in").rename(self.place / "away")
            (self.root / "in").symlink_to(self.place / "out")

        self.between(swap)
        self.assert_refused(b"in/b.mp3")

    def test_file_swapped_for_a_link(self) -> None:
        """A file that becomes a symbolic link after the check is not followed (D43)."""

        def swap() -> None:
            (self.root / "a.mp3").unlink()
            (self.root / "a.mp3").symlink_to(self.place / "out" / "secret.mp3")

        self.between(swap)
        self.assert_refused(b"a.mp3")

    def test_file_swapped_for_something_else(self) -> None:
        """A file that becomes a FIFO or a directory after the check is refused without a wait."""
        for make in (os.mkfifo, os.mkdir):
            path = self.root / f"{make.__name__}.mp3"
            path.write_bytes(b"one")

            def swap(path: Path = path, make: Callable[[Path], None] = make) -> None:
                if path.is_file():
                    path.unlink()
                    make(path)

            self.between(swap)
            self.assert_refused(os.fsencode(path.name))

    def test_file_removed(self) -> None:
        """A file that is removed after the check is a 404."""
        self.between((self.root / "a.mp3").unlink)
        self.assert_refused(b"a.mp3")

    def test_path_replaced_later(self) -> None:
        """A child reads the file that was checked, even if its path was replaced later (D43)."""
        opened = self.open(b"a.mp3")
        self.addCleanup(opened.close)
        (self.root / "a.mp3").unlink()
        (self.root / "a.mp3").symlink_to(self.place / "out" / "secret.mp3")
        descriptor = opened.descriptors[SOURCE_DESCRIPTOR]
        with open(f"/dev/fd/{descriptor}", "rb") as as_a_child_opens_it:
            self.assertEqual(as_a_child_opens_it.read(), b"one")
