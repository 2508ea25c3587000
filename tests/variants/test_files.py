"""The file store: variants are found complete, with their headers, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred, execute, gatherResults
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase, TestCase

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.threads import thread_per_call
from audioproxy.errors import UpstreamUnavailable
from audioproxy.files.scratch_files import AnonymousFile, ScratchFile
from audioproxy.variants import files as files_module
from audioproxy.variants.files import FileVariantStore, StoredFile
from audioproxy.variants.headers import VariantHeaders
from audioproxy.variants.interfaces import Unwritable
from audioproxy.variants.scratch_folder import NamedFile
from tests.support.consumers import FakeConsumer
from tests.support.processes import open_descriptors
from tests.support.strategies import DETERMINISTIC
from tests.support.threads import FakeThreads

HEADERS = VariantHeaders("audio/mpeg", "public, max-age=31536000, immutable, no-transform")


def key_of(text: str) -> str:
    """Return a cache key."""
    return hashlib.sha256(text.encode()).hexdigest()


KEY = key_of("a")


#: Blocking calls run at once in the same thread.
SYNCHRONOUS_CALLS = BlockingCalls(Clock(), execute)

begin = Deferred.fromCoroutine


def store_in(root: Path) -> FileVariantStore:
    """Return a store that runs blocking calls at once."""
    return FileVariantStore(str(root), SYNCHRONOUS_CALLS, SYNCHRONOUS_CALLS)


def fail(*_: object) -> None:
    """Fail like a system call on a broken disk."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let this process write no byte beyond this offset of a file, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class StoreCase(SynchronousTestCase):
    """A store in its own folder."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        self.root.mkdir()
        self.before = open_descriptors()
        self.store = self.open()

    def open(self) -> FileVariantStore:
        """Open another store on the same folder."""
        store = store_in(self.root)
        self.successResultOf(begin(store.open()))
        self.addCleanup(store.close_now)
        return store

    def commit(
        self,
        data: bytes,
        key: str = KEY,
        headers: VariantHeaders = HEADERS,
        store: FileVariantStore | None = None,
    ) -> None:
        """Store a variant."""
        scratch = self.create(data, store)
        try:
            committing = (store or self.store).commit(key, scratch, len(data), headers)
            self.successResultOf(begin(committing))
        finally:
            scratch.close()

    def create(self, data: bytes = b"", store: FileVariantStore | None = None) -> NamedFile:
        """Return a new scratch file with these bytes."""
        scratch = self.successResultOf(begin((store or self.store).create()))
        os.write(scratch.descriptor, data)
        return scratch

    def lookup(self, key: str = KEY, store: FileVariantStore | None = None) -> StoredFile | None:
        """Look up a variant."""
        return self.successResultOf(begin((store or self.store).lookup(key)))

    def found(self) -> StoredFile:
        """Return the stored variant, which is open until the end of the test."""
        stored = self.lookup()
        assert stored is not None
        self.addCleanup(stored.close)
        return stored

    def read(self, key: str = KEY, store: FileVariantStore | None = None) -> bytes | None:
        """Return all the bytes of a variant, or None."""
        stored = self.lookup(key, store)
        if stored is None:
            return None
        try:
            data = stored.read(0, 1 << 30)
            self.assertEqual(len(data), stored.size)
            return data
        finally:
            stored.close()

    def path(self, key: str = KEY) -> Path:
        """Return the path of a variant's file."""
        return self.root / key[:2] / key

    def files(self) -> list[str]:
        """Return the names of all files below the folder, except locks."""
        found = [path for path in self.root.rglob("*") if path.is_file()]
        return sorted(path.name for path in found if path.suffix != ".lock")


class RoundTripTests(StoreCase):
    """Variants that are stored and read again."""

    def test_nothing(self) -> None:
        """A lookup of a variant that was not stored returns None."""
        self.assertIsNone(self.lookup())
        self.commit(b"abc", key_of("b"))
        self.assertIsNone(self.lookup())

    def test_headers(self) -> None:
        """A lookup returns a variant's size and headers, with the file name of ``dl`` (D10)."""
        longest = f"attachment; filename=\"{'_' * 255}\"; filename*=UTF-8''{'%C3' * 255}"
        for disposition in ("attachment; filename*=UTF-8''%C3%A9", longest):
            headers = HEADERS._replace(content_disposition=disposition)
            self.commit(b"abc", headers=headers)
            stored = self.found()
            self.assertEqual((stored.size, stored.headers), (3, headers))

    def test_reads(self) -> None:
        """Any range of a variant can be read, and no byte after the variant's end."""
        self.commit(b"0123456789")
        stored = self.found()
        for start, limit, data in (
            (0, 4, b"0123"),
            (4, 4, b"4567"),
            (8, 4, b"89"),
            (10, 4, b""),
            (99, 4, b""),
            (0, 999, b"0123456789"),
            (3, 0, b""),
        ):
            self.assertEqual(stored.read(start, limit), data, (start, limit))

    def test_close_twice(self) -> None:
        """Closing a variant twice is harmless."""
        self.commit(b"abc")
        before = open_descriptors()
        stored = self.found()
        stored.close()
        stored.close()
        self.assertEqual(open_descriptors(), before)

    @DETERMINISTIC
    @given(
        data=st.binary(max_size=200),
        disposition=st.none() | st.text(st.characters(min_codepoint=32, max_codepoint=126)),
    )
    def test_arbitrary_bytes(self, data: bytes, disposition: str | None) -> None:
        """Any bytes, including none, and any printable header text are stored and read again."""
        headers = HEADERS._replace(content_disposition=disposition)
        self.commit(data, headers=headers)
        self.assertEqual(self.read(), data)
        stored = self.lookup()
        assert stored is not None
        self.assertEqual(stored.headers, headers)
        stored.close()

    def test_variant_of_a_variant(self) -> None:
        """A variant whose bytes look like a stored file is stored like any other."""
        self.commit(b"abc")
        inner = self.path().read_bytes()
        self.commit(inner)
        self.assertEqual(self.read(), inner)


class PlaceTests(StoreCase):
    """Files and folders of the store."""

    def test_shards(self) -> None:
        """A variant is a file named by its key, in a folder of the key's first two digits (D5).

        Its permissions follow the umask, so that another node can read the file.
        """
        other = KEY[:2] + key_of("b")[2:]
        self.commit(b"abc")
        self.assertTrue(self.path().is_file())
        self.assertEqual(self.files(), [KEY])
        self.commit(b"xyz", other)
        self.assertEqual((self.read(), self.read(other)), (b"abc", b"xyz"))
        mask = os.umask(0)
        os.umask(mask)
        self.assertEqual(stat.S_IMODE(self.path().stat().st_mode), 0o666 & ~mask)

    def test_hidden_scratch(self) -> None:
        """Scratch files are in a hidden folder of the store, so that a commit is a rename (D46)."""
        scratch = self.create()
        assert scratch.path is not None
        self.assertEqual(Path(scratch.path).relative_to(self.root).parts[0], ".scratch")
        self.assertEqual(os.stat(scratch.path).st_dev, self.root.stat().st_dev)
        scratch.close()

    def test_restart(self) -> None:
        """After a restart, the store has the variants and no scratch files.

        Its folder may have been moved.
        """
        self.commit(b"abc")
        self.store.close_now()
        self.assertEqual(self.files(), [KEY])
        moved = self.root.with_name(self.root.name + "-moved")
        self.root.rename(moved)
        self.root = moved
        self.assertEqual(self.read(store=self.open()), b"abc")

    def test_two_stores(self) -> None:
        """Nodes that share a folder share its variants (Running several nodes, 2)."""
        other = self.open()
        self.commit(b"abc", store=other)
        self.assertEqual(self.read(), b"abc")
        other.close_now()
        self.commit(b"xyz", key_of("b"))
        self.assertEqual(self.read(key_of("b")), b"xyz")


class ReadSmallTests(StoreCase):
    """`FileVariantStore.read_small`"""

    def test_small(self) -> None:
        """A small variant is read at once with its headers, and no file stays open."""
        before = open_descriptors()
        for data in (b"", b"abc", bytes(60_000)):
            self.commit(data)
            self.read()
            self.assertEqual(self.store.read_small(KEY), (HEADERS, data))
        self.assertEqual(open_descriptors(), before)

    def test_none(self) -> None:
        """`read_small` returns None for a missing variant, a folder and a FIFO, also at once.

        The place may have had a variant a moment ago.
        """
        self.commit(b"abc")
        self.read()
        self.path().unlink()
        self.assertIsNone(self.store.read_small(KEY))
        self.path().mkdir()
        self.assertIsNone(self.store.read_small(KEY))
        self.path().rmdir()
        os.mkfifo(self.path())
        self.assertIsNone(self.store.read_small(KEY))
        self.assertIsNone(self.lookup())

    def test_size(self) -> None:
        """`read_small` returns None for a large variant, even if its bytes contain a footer."""
        self.commit(b"abc")
        small = self.path().read_bytes()
        for length in (65_535, 65_536, 70_000):
            self.commit((small.rjust(65_536, b"-") + bytes(length))[:length])
            self.assertEqual(self.found().size, length)
            self.assertIsNone(self.store.read_small(KEY))


class DamageTests(StoreCase):
    """Damaged files, which are not variants."""

    DATA = bytes(range(40))

    def setUp(self) -> None:
        super().setUp()
        headers = HEADERS._replace(content_disposition='attachment; filename="a.mp3"')
        self.commit(self.DATA, headers=headers)
        self.whole = self.path().read_bytes()
        self.headers = headers

    def verdict(self, content: bytes) -> bool:
        """Return whether a file is accepted; assert that an accepted file is the stored variant."""
        self.path().write_bytes(content)
        stored = self.lookup()
        found = self.store.read_small(KEY)
        self.assertEqual(stored is None, found is None)
        if stored is None:
            return False
        self.assertEqual(found, (self.headers, self.DATA))
        self.assertEqual((stored.headers, stored.read(0, 999)), (self.headers, self.DATA))
        stored.close()
        return True

    def test_truncated(self) -> None:
        """A file that was truncated at any length is not a variant (D40)."""
        self.assertTrue(self.verdict(self.whole))
        for length in reversed(range(len(self.whole))):
            os.truncate(self.path(), length)
            self.assertEqual((self.lookup(), self.store.read_small(KEY)), (None, None), length)

    def test_flipped(self) -> None:
        """A file with any changed byte after the variant's own bytes is not a variant."""
        self.assertTrue(self.verdict(self.whole))
        with open(self.path(), "r+b", buffering=0) as file:
            for at in range(len(self.DATA), len(self.whole)):
                for change in (1, 0x20, 0x80, 0xFF):
                    os.pwrite(file.fileno(), bytes([self.whole[at] ^ change]), at)
                    found = self.lookup(), self.store.read_small(KEY)
                    self.assertEqual(found, (None, None), (at, change))
                os.pwrite(file.fileno(), self.whole[at : at + 1], at)
        self.assertTrue(self.verdict(self.path().read_bytes()))

    def test_longer(self) -> None:
        """A file with additional bytes at its start, in its middle or at its end is no variant."""
        cut = len(self.DATA)
        for content in (
            self.whole + b"\0",
            b"\0" + self.whole,
            self.whole[:cut] + b"\0" + self.whole[cut:],
            self.whole + self.whole,
        ):
            self.assertFalse(self.verdict(content))

    def test_zeros(self) -> None:
        """A file of zeros, as a crash may leave it, is not a variant (D40)."""
        for length in (1, 15, 16, 100, 10_000, len(self.whole)):
            self.assertFalse(self.verdict(bytes(length)), length)

    @DETERMINISTIC
    @given(st.binary(max_size=100), st.binary(max_size=40))
    def test_arbitrary_bytes(self, start: bytes, end: bytes) -> None:
        """A lookup of a file with arbitrary content does not raise an exception."""
        self.verdict(start + self.whole[-16:])
        self.assertFalse(self.verdict(start + end))

    def test_record_of_another_kind(self) -> None:
        """A file whose record is not a JSON object with valid header values is not a variant."""
        for record in (
            b"",
            b"[]",
            b"{",
            b"{}",
            b'{"size":40}',
            b'{"size":40,"colour":"red"}',
            b'{"size":40,"content_type":["a"],"cache_control":"b"}',
            b'{"size":40,"content_type":null,"cache_control":"b"}',
            b'{"size":40,"content_type":"a\\r\\nX: b","cache_control":"b"}',
            b'{"size":40,"content_type":"\\u00e9","cache_control":"b"}',
        ):
            footer = struct.pack(">II8s", len(record), zlib.crc32(record), self.whole[-8:])
            self.assertFalse(self.verdict(self.DATA + record + footer), record)

    def test_replaced_after_damage(self) -> None:
        """The next commit replaces a damaged file, and no file stays open."""
        self.assertFalse(self.verdict(b"damaged"))
        before = open_descriptors()
        self.commit(b"abc")
        self.assertIsNone(self.lookup(key_of("b")))
        self.assertEqual((self.read(), open_descriptors()), (b"abc", before))


class IrregularTests(StoreCase):
    """Names that do not lead to a readable regular file, which are not variants."""

    def setUp(self) -> None:
        super().setUp()
        self.path().parent.mkdir()

    def make(self, kind: str) -> None:
        """Put something in the place of the variant."""
        path = self.path()
        if kind == "folder":
            path.mkdir()
        elif kind in ("FIFO", "socket"):
            os.mknod(path, {"FIFO": stat.S_IFIFO, "socket": stat.S_IFSOCK}[kind] | 0o600)
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "dangling":
            path.symlink_to(path.with_name("nothing"))
        elif kind == "shard":
            path.parent.rmdir()
            path.parent.write_bytes(b"")
        else:
            path.symlink_to(kind)

    def remove(self) -> None:
        """Remove it, so that the place of the variant is free."""
        path = self.path()
        if path.parent.is_file():
            path.parent.unlink()
            path.parent.mkdir()
        elif path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()

    def assert_miss(self, kind: object) -> None:
        """Assert that neither kind of lookup finds a variant, and that no file stays open."""
        before = open_descriptors()
        self.assertEqual((self.lookup(), self.store.read_small(KEY)), (None, None), kind)
        self.assertEqual(open_descriptors(), before)

    def test_left_alone(self) -> None:
        """A folder, a FIFO or a socket is a miss at once, and a commit leaves it where it is.

        The error says what is in the way, and where. A file in place of the shard is the same.
        """
        for kind, said in (
            ("folder", f"a folder is in the place of the file: '{self.path()}'"),
            ("FIFO", f"a FIFO is in the place of the file: '{self.path()}'"),
            ("socket", f"a socket is in the place of the file: '{self.path()}'"),
            ("shard", f"Not a directory: '{self.path()}'"),
        ):
            self.make(kind)
            self.assert_miss(kind)
            scratch = self.create(b"abc")
            committing = begin(self.store.commit(KEY, scratch, 3, HEADERS))
            self.assertIn(said, str(self.failureResultOf(committing, OSError).value))
            scratch.close()
            self.assert_miss(kind)
            self.remove()
            self.commit(b"abc")
            self.assertEqual(self.read(), b"abc")
            self.remove()

    def test_links(self) -> None:
        """A link is what it leads to, and the next commit replaces a link to anything else."""
        self.commit(b"abc", key_of("b"))
        self.make(str(self.path(key_of("b"))))
        self.assertEqual(self.read(), b"abc")
        self.remove()
        for kind in ("dangling", "loop", "/dev/null", "/dev/zero", "/dev/tty", "/", "/etc/passwd"):
            self.make(kind)
            self.assert_miss(kind)
            self.commit(b"xyz")
            self.assertEqual(self.read(), b"xyz")
            self.remove()

    def test_denied(self) -> None:
        """A variant that this process may not read is a miss, which the next commit replaces."""
        self.commit(b"abc")
        for number in (errno.EACCES, errno.EPERM):

            def deny(path: str, *_: object, number: int = number) -> int:
                raise OSError(number, os.strerror(number), path)

            patched = self.patch(os, "open", deny)
            self.assertIsNone(self.lookup())
            patched.restore()
        self.commit(b"xyz")
        self.assertEqual(self.read(), b"xyz")


class CommitTests(StoreCase):
    """`FileVariantStore.commit`"""

    def refuse(self, scratch: ScratchFile, kind: type[Exception] = OSError) -> None:
        """Assert that a commit of three bytes raises this exception, and close the file."""
        self.failureResultOf(begin(self.store.commit(KEY, scratch, 3, HEADERS)), kind)
        scratch.close()

    def test_replaced_while_read(self) -> None:
        """An open variant stays readable when its file is replaced or removed."""
        self.commit(b"abc")
        stored = self.found()
        self.commit(b"abcdef")
        self.assertEqual((stored.read(0, 9), self.read()), (b"abc", b"abcdef"))
        self.path().unlink()
        self.assertEqual(stored.read(1, 9), b"bc")
        self.assertIsNone(self.read())

    def test_scratch_closed_afterwards(self) -> None:
        """Closing a committed scratch file does not remove the variant."""
        before = open_descriptors()
        self.commit(b"abc")
        self.assertEqual((self.files(), open_descriptors()), ([KEY], before))

    def test_failed_rename(self) -> None:
        """If the rename fails, the commit leaves no variant and no file (D35)."""
        (self.root / KEY[:2]).write_bytes(b"in the way")
        self.refuse(self.create(b"abc"))
        (self.root / KEY[:2]).unlink()
        self.assertIsNone(self.lookup())
        self.assertEqual(self.files(), [])

    def test_nearly_full(self) -> None:
        """A disk that is almost full gives no scratch file, although an empty file would fit."""
        real = os.statvfs(self.root)
        for total, free, fits in (
            (1 << 40, 64 << 20, True),
            (1 << 40, (64 << 20) - 1, False),
            # On a small disk, it is enough that a twentieth of the disk is free.
            (1 << 20, (1 << 20) // 20, True),
            (1 << 20, (1 << 20) // 20 - 1, False),
            (1 << 20, 0, False),
        ):
            disk = os.statvfs_result((1, 1, total, free, free, *real[5:]))
            self.patch(os, "statvfs", lambda path, disk=disk: disk)
            if fits:
                self.create().close()
            else:
                error = self.failureResultOf(begin(self.store.create()), OSError).value
                self.assertEqual(errno.ENOSPC, error.errno)
        self.assertEqual(self.files(), [])

    def test_disk_full(self) -> None:
        """If the disk is full at the end of a commit, no variant and no file are left (D35)."""
        for room in (3, 4, 20):
            scratch = self.create(b"abc")
            with file_size_limit(room):
                self.refuse(scratch)
            self.assertEqual(self.files(), [], room)

    def test_failure_spares_what_is_there(self) -> None:
        """A commit that fails keeps the variant that was stored before."""
        self.commit(b"before")
        self.patch(os, "fsync", fail)
        self.refuse(self.create(b"abc"))
        self.assertEqual(self.read(), b"before")

    def test_unusable_scratch(self) -> None:
        """A scratch file that is closed, or of another store, cannot be committed."""
        closed = self.create()
        closed.close()
        self.refuse(closed)
        self.refuse(AnonymousFile(), TypeError)
        self.assertIsNone(self.lookup())

    def test_committed_twice(self) -> None:
        """A scratch file can be committed only once."""
        scratch = self.create(b"abc")
        self.successResultOf(begin(self.store.commit(KEY, scratch, 3, HEADERS)))
        self.refuse(scratch)
        self.assertEqual(self.read(), b"abc")


class FailureTests(StoreCase):
    """Stores that fail during a lookup."""

    def assert_unavailable(self) -> None:
        """Assert that a lookup is a 502 and leaves no file open."""
        before = open_descriptors()
        self.failureResultOf(begin(self.store.lookup(KEY)), UpstreamUnavailable)
        self.assertEqual(open_descriptors(), before)

    def test_broken_disk(self) -> None:
        """A disk that fails to open or to read a file is a 502, not a miss (Errors, 8)."""
        self.commit(b"abc")
        for call in ("open", "pread"):
            patched = self.patch(os, call, fail)
            self.assert_unavailable()
            patched.restore()

    def test_folder_gone(self) -> None:
        """A store whose folder was removed has no variants and cannot be opened again."""
        self.store.close_now()
        (self.root / ".scratch").rmdir()
        self.root.rmdir()
        self.assertIsNone(self.lookup())
        self.failureResultOf(begin(self.store.open()), Unwritable)
        self.assertFalse(self.root.exists())


class SlowDiskTests(StoreCase):
    """Lookups on a disk that may block, which run in threads."""

    def setUp(self) -> None:
        super().setUp()
        self.clock, self.threads = Clock(), FakeThreads()
        reads = BlockingCalls(self.clock, self.threads.in_thread)
        self.slow = FileVariantStore(str(self.root), SYNCHRONOUS_CALLS, reads, self.clock.seconds)
        self.commit(b"abc")
        self.before = open_descriptors()
        self.addCleanup(self.assert_nothing_left)

    def assert_nothing_left(self) -> None:
        """Assert that no call, no timer and no open file is left."""
        self.assertEqual((self.threads.waiting, self.clock.getDelayedCalls()), (0, []))
        self.assertEqual(open_descriptors(), self.before)

    def start(self) -> Deferred[StoredFile | None]:
        """Start a lookup."""
        return begin(self.slow.lookup(KEY))

    def assert_found(self, looking: Deferred[StoredFile | None]) -> None:
        """Assert that a lookup has found the variant."""
        found = self.successResultOf(looking)
        assert found is not None
        self.assertEqual((found.read(0, 9), found.headers), (b"abc", HEADERS))
        found.close()

    def disk_takes(self, seconds: float) -> None:
        """Make each opening of a file take this long."""
        real = os.open

        def open_slowly(*words: Any) -> int:
            self.clock.advance(seconds)
            return real(*words)

        self.patch(os, "open", open_slowly)

    def test_first(self) -> None:
        """The first lookup of a variant runs in a thread, and so does that of a missing one.

        Until then, `read_small` reads nothing. Afterwards, both read at once for a minute.
        """
        for _ in range(2):
            self.assertIsNone(self.slow.read_small(KEY))
            looking = self.start()
            self.assertEqual(self.threads.waiting, 1)
            self.threads.run()
            self.assert_found(looking)
            for _ in range(3):
                self.clock.advance(59)
                self.assertEqual(self.slow.read_small(KEY), (HEADERS, b"abc"))
                self.clock.advance(59)
                self.assert_found(self.start())
            self.clock.advance(60)
        missing = begin(self.slow.lookup(key_of("b")))
        self.assertEqual(self.threads.waiting, 1)
        self.threads.run()
        self.assertIsNone(self.successResultOf(missing))

    def test_no_disk_access_later(self) -> None:
        """Reading a small variant that a thread has looked up does not access the disk."""
        looking = self.start()
        self.threads.run()
        for call in ("open", "pread", "close"):
            self.patch(os, call, fail)
        self.assert_found(looking)

    def test_large(self) -> None:
        """The bytes of a large variant are read in a thread before they are sent.

        A variant that was just read is sent without a thread.
        """
        data = os.urandom(1_500_000)
        self.commit(data)
        for threads in (1, 0):
            looking = self.start()
            self.threads.run()
            found = self.successResultOf(looking)
            assert found is not None
            consumer = FakeConsumer()
            stream = self.successResultOf(begin(found.open_range(1, len(data))))
            sending = stream.send(consumer)
            self.assertEqual(self.threads.waiting, threads)
            self.assertEqual(not consumer.data, bool(threads))
            self.threads.run()
            self.successResultOf(sending)
            self.assertEqual(bytes(consumer.data), data[1:])
            found.close()

    def test_large_on_a_disk_that_hangs(self) -> None:
        """If the bytes of a variant cannot be read within ten seconds, its stream fails."""
        self.commit(bytes(100_000))
        looking = self.start()
        self.threads.run()
        found = self.successResultOf(looking)
        assert found is not None
        sending = self.successResultOf(begin(found.open_range(0, 9))).send(FakeConsumer())
        self.clock.advance(10)
        self.failureResultOf(sending, TimeoutError)
        found.close()
        self.threads.run()

    def test_truncated_meanwhile(self) -> None:
        """A small file that becomes shorter during its lookup is not a variant."""
        real = os.pread
        self.patch(os, "pread", lambda fd, size, at: real(fd, size, at)[: size if at else 2])
        self.commit(bytes(9000), key_of("b"))
        looking = begin(self.slow.lookup(key_of("b")))
        self.threads.run()
        self.assertIsNone(self.successResultOf(looking))

    def test_slow(self) -> None:
        """A variant whose file takes long to open is looked up in a thread each time."""
        self.disk_takes(0.2)
        for _ in range(3):
            self.assertIsNone(self.slow.read_small(KEY))
            looking = self.start()
            self.assertNoResult(looking)
            self.threads.run()
            self.assert_found(looking)

    def test_becomes_slow(self) -> None:
        """A disk that becomes slow delays the reactor thread once."""
        for read in (lambda: self.slow.read_small(KEY), lambda: self.assert_found(self.start())):
            looking = self.start()
            self.threads.run()
            self.assert_found(looking)
            self.disk_takes(0.2)
            read()
            before = self.clock.seconds()
            self.assertIsNone(self.slow.read_small(KEY))
            looking = self.start()
            self.assertEqual((self.threads.waiting, self.clock.seconds()), (1, before))
            self.threads.run()
            self.assert_found(looking)
            self.disk_takes(-0.2)

    def test_hung(self) -> None:
        """A disk that does not respond within ten seconds is a 502; a late file is closed."""
        for data in (b"abc", bytes(100_000)):
            self.commit(data)
            looking = self.start()
            self.clock.advance(9.9)
            self.assertNoResult(looking)
            self.clock.advance(0.1)
            self.failureResultOf(looking, UpstreamUnavailable)
            self.failureResultOf(self.start(), UpstreamUnavailable)
            self.threads.run()
            looking = self.start()
            self.threads.run()
            found = self.successResultOf(looking)
            assert found is not None
            self.assertEqual(found.size, len(data))
            found.close()
            self.clock.advance(60)


class OpenTests(SynchronousTestCase):
    """`FileVariantStore.open`"""

    def setUp(self) -> None:
        self.path = Path(self.mktemp())

    def assert_refused(self) -> None:
        """Assert that a store cannot be opened."""
        before = open_descriptors()
        store = store_in(self.path)
        self.failureResultOf(begin(store.open()), Unwritable)
        store.close_now()
        self.assertEqual(open_descriptors(), before)

    def test_no_store(self) -> None:
        """A missing store fails at boot, and is not created (Deployment configuration).

        A store whose path is a file fails too.
        """
        self.assert_refused()
        self.assertFalse(self.path.exists())
        self.path.write_bytes(b"")
        self.assert_refused()

    def test_scratch_in_the_way(self) -> None:
        """A store in which no scratch folder can be created fails at boot."""
        self.path.mkdir()
        (self.path / ".scratch").write_bytes(b"")
        self.assert_refused()

    def test_probe_file(self) -> None:
        """A store that accepts no bytes fails at boot (Deployment configuration).

        The file that tests whether a store is writable is removed.
        """
        self.path.mkdir()
        with file_size_limit(0):
            self.assert_refused()
        self.assertEqual(os.listdir(self.path / ".scratch"), [])
        store = store_in(self.path)
        self.successResultOf(begin(store.open()))
        left = [each for each in self.path.rglob("*") if each.is_file()]
        self.assertEqual([each.suffix for each in left], [".lock"])
        store.close_now()
        self.assertEqual(os.listdir(self.path / ".scratch"), [])


class CheckWritableTests(SynchronousTestCase):
    """`FileVariantStore.check_writable`"""

    def setUp(self) -> None:
        self.path = Path(self.mktemp()).absolute()

    def check_writable(self, reason: str | None = None) -> None:
        """Assert that the store can be used, or cannot for a reason that matches."""
        before = open_descriptors()
        checking = begin(store_in(self.path).check_writable())
        if reason is None:
            self.successResultOf(checking)
        else:
            error = self.failureResultOf(checking, Unwritable).value
            self.assertRegex(str(error), reason)
        self.assertEqual(open_descriptors(), before)

    def test_good(self) -> None:
        """`check_writable` leaves no file behind.

        If root runs `check_writable`, a file left behind would belong to root, and the
        service could not write to it.
        """
        self.path.mkdir()
        self.check_writable()
        self.assertEqual(os.listdir(self.path), [])

    def test_beside_a_service(self) -> None:
        """`check_writable` leaves the files of a running service unchanged."""
        self.path.mkdir()
        running = store_in(self.path)
        self.successResultOf(begin(running.open()))
        self.addCleanup(running.close_now)
        before = sorted(self.path.rglob("*"))
        self.check_writable()
        self.assertEqual(sorted(self.path.rglob("*")), before)

    def test_unusable(self) -> None:
        """`check_writable` reports a missing store as at boot, and a lack of disk space."""
        self.check_writable(r"\Anot writable \(.+\); a directory that ")
        self.path.mkdir()
        self.patch(files_module, "_RESERVE", 10**18)
        self.patch(files_module, "_RESERVE_FRACTION", 1)
        self.check_writable("No space left .+; disk space for variants is")
        self.assertEqual(os.listdir(self.path), [])


class ThreadTests(TestCase):
    """Commits in real threads."""

    async def test_one_key(self) -> None:
        """Concurrent commits of one key, from two stores, leave one complete variant."""
        root = self.mktemp()
        os.mkdir(root)
        stores = []
        calls = BlockingCalls(reactor, thread_per_call(reactor))
        for _ in range(2):
            stores.append(FileVariantStore(root, calls, calls))
            await stores[-1].open()
            self.addCleanup(stores[-1].close_now)

        async def commit(number: int) -> None:
            store = stores[number % 2]
            scratch = await store.create()
            data = bytes([number]) * (1000 + number)
            os.write(scratch.descriptor, data)
            await store.commit(KEY, scratch, len(data), HEADERS)
            scratch.close()
            stored = await stores[0].lookup(KEY)
            assert stored is not None
            found = stored.read(0, 9999)
            self.assertEqual(found, found[:1] * (1000 + found[0]))
            stored.close()

        await gatherResults([begin(commit(number)) for number in range(20)])
