"""The file store: variants are found complete, with their headers, or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.errors import UpstreamUnavailable
from audioproxy.files.disk_space import DiskSpace
from audioproxy.files.scratch_files import AnonymousFile, ScratchFile
from audioproxy.testing import FakeThreads
from audioproxy.variants import stored_file
from audioproxy.variants.files import FileVariantStore, StoredFile
from audioproxy.variants.interfaces import NoRoom, Unwritable
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.response_headers import VariantHeaders
from audioproxy.variants.scratch_folder import NamedFile
from tests.sources.test_local import as_unprivileged_user
from tests.support.consumers import FakeConsumer
from tests.support.folders import file_size_limit
from tests.support.http import Log
from tests.support.processes import open_descriptors
from tests.support.stores import RECORD
from tests.support.strategies import DETERMINISTIC
from tests.support.transfers import Transfers

#: The headers of a variant, as a trailer has them.
FIELDS = {
    "content_type": "audio/mpeg",
    "cache_control": "public, max-age=31536000, immutable, no-transform",
    "content_disposition": None,
}
HEADERS = VariantHeaders(**FIELDS)


def key_of(text: str) -> str:
    """Return a cache key."""
    return hashlib.sha256(text.encode()).hexdigest()


KEY = key_of("a")


#: Blocking calls run at once in the same thread.
SYNCHRONOUS_CALLS = BlockingCalls(Clock(), execute)

begin = Deferred.fromCoroutine


def store_in(root: Path, max_bytes: int | None = None, **settings: Any) -> FileVariantStore:
    """Return a store that runs blocking calls at once, and whose disk is never slow."""
    calls = SYNCHRONOUS_CALLS
    return FileVariantStore(str(root), calls, calls, Clock().seconds, max_bytes, **settings)


def fail(*_: object) -> None:
    """Fail like a system call on a broken disk."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class StoreCase(SynchronousTestCase):
    """A store in its own folder."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        self.root.mkdir()
        self.before = open_descriptors()
        self.store = self.open()

    def open(self, max_bytes: int | None = None, **settings: Any) -> FileVariantStore:
        """Open another store on the same folder."""
        store = store_in(self.root, max_bytes, **settings)
        self.successResultOf(begin(store.open()))
        self.addCleanup(store.close_now)
        return store

    def commit(self, data: bytes, key: str = KEY, headers: VariantHeaders = HEADERS) -> None:
        """Store a variant."""
        scratch = self.create(data)
        try:
            self.successResultOf(begin(self.store.commit(key, scratch, len(data), headers, RECORD)))
        finally:
            scratch.close()

    def create(self, data: bytes = b"") -> NamedFile:
        """Return a new scratch file with these bytes."""
        scratch = self.successResultOf(begin(self.store.create()))
        os.write(scratch.descriptor, data)
        return scratch

    def lookup(self, key: str = KEY) -> StoredFile | None:
        """Return the stored variant, which is open until the end of the test, or None."""
        stored = self.successResultOf(begin(self.store.lookup(key)))
        if stored is not None:
            self.addCleanup(stored.close)
        return stored

    def found(self) -> StoredFile:
        """Return the stored variant, which is open until the end of the test."""
        stored = self.lookup()
        assert stored is not None
        return stored

    def read(self, key: str = KEY) -> bytes | None:
        """Return all the bytes of a variant, or None; no file stays open."""
        stored = self.lookup(key)
        if stored is None:
            return None
        data = stored.read(0, 1 << 30)
        stored.close()
        self.assertEqual(len(data), stored.size)
        return data

    def path(self, key: str = KEY) -> Path:
        """Return the path of a variant's file."""
        return self.root / key[:2] / key

    def files(self) -> list[str]:
        """Return the names of all files below the folder, except locks."""
        found = [path for path in self.root.rglob("*") if path.is_file()]
        return sorted(path.name for path in found if path.suffix != ".lock")


class RoundTripTests(StoreCase):
    """Variants that are stored and read again."""

    @DETERMINISTIC
    @given(
        data=st.binary(max_size=200),
        disposition=st.none() | st.text(st.characters(min_codepoint=32, max_codepoint=126)),
        start=st.integers(0, 250),
        limit=st.integers(0, 250),
    )
    def test_arbitrary_bytes(
        self, data: bytes, disposition: str | None, start: int, limit: int
    ) -> None:
        """Any bytes and header text are stored; any range of them, and no more, is read again."""
        headers = VariantHeaders(**{**FIELDS, "content_disposition": disposition})
        for _ in range(2):
            self.commit(data, headers=headers)
            self.assertEqual(self.read(), data)
            stored = self.found()
            self.assertEqual(data[start : start + limit], stored.read(start, limit))
            stored.close()
            data = self.path().read_bytes()


class TrailerTests(StoreCase):
    """What follows the bytes of a variant in its file."""

    def test_fields(self) -> None:
        """The trailer has the headers, with the file name of ``dl`` (D10), and the record (D58)."""
        longest = f"attachment; filename=\"{'_' * 255}\"; filename*=UTF-8''{'%C3' * 255}"
        for disposition in ("attachment; filename*=UTF-8''%C3%A9", longest):
            headers = {**FIELDS, "content_disposition": disposition}
            self.commit(b"abc", headers=VariantHeaders(**headers))
            self.assertEqual(3, self.found().size)
            fields = json.loads(self.path().read_bytes().removeprefix(b"abc")[:-16])
            self.assertLessEqual(headers.items(), fields.items())
            digest = hashlib.sha256(b"abc").hexdigest()
            self.assertEqual(replace(RECORD, sha256=digest), VariantRecord.read(fields))

    def test_stored(self) -> None:
        """The time in the record is that of the variant, not the times of its file (D58)."""
        for data in (b"abc", bytes(70_000)):
            self.commit(data)
            for seconds in (0, RECORD.stored + 9):
                os.utime(self.path(), (seconds, seconds))
                self.assertEqual(RECORD.stored, self.found().stored)

    def test_other_versions(self) -> None:
        """Variants of other versions are served: without a record, or with further fields (D58)."""
        damaged = {"sha256": "b" * 64, "stored": "soon"}
        for others, stored in (
            ({}, None),
            ({"later": [1], **RECORD.texts(), "sha256": "b" * 64}, RECORD.stored),
            ({**RECORD.texts(), **damaged}, None),
        ):
            fields = {"size": 3, **FIELDS, **others}
            data = json.dumps(fields).encode()
            footer = struct.pack(">II8s", len(data), zlib.crc32(data), b"APVARNT1")
            self.commit(b"xyz")
            self.path().write_bytes(b"abc" + data + footer)
            self.assertEqual(b"abc", self.read())
            self.assertEqual(stored, self.found().stored)


class PlaceTests(StoreCase):
    """Files and folders of the store."""

    def test_shards(self) -> None:
        """A variant is in a folder of its first two digits (D5); scratch files are apart (D46)."""
        other = KEY[:2] + key_of("b")[2:]
        self.assertIsNone(self.lookup())
        scratch = self.create()
        self.assertEqual(".scratch", Path(str(scratch.path)).relative_to(self.root).parts[0])
        scratch.close()
        self.commit(b"abc")
        self.assertIsNone(self.lookup(other))
        self.assertTrue(self.path().is_file())
        self.assertEqual(self.files(), [KEY])
        self.commit(b"xyz", other)
        self.assertEqual((self.read(), self.read(other)), (b"abc", b"xyz"))
        mask = os.umask(0)
        os.umask(mask)
        self.assertEqual(stat.S_IMODE(self.path().stat().st_mode), 0o666 & ~mask)

    def test_two_stores(self) -> None:
        """Nodes share a folder (Running several nodes, 2), which may be moved while they stop."""
        other = self.open()
        self.commit(b"abc")
        self.store.close_now()
        self.store = other
        self.assertEqual(self.read(), b"abc")
        other.close_now()
        self.assertEqual(self.files(), [KEY])
        self.root = self.root.rename(self.root.with_name(self.root.name + "-moved"))
        self.store = self.open()
        self.assertEqual(self.read(), b"abc")


class BoundTests(StoreCase):
    """Stores with and without AP_VARIANT_STORE_MAX_BYTES (D59)"""

    def test_no_room(self) -> None:
        """A variant without room is not stored; the bound counts whole files."""
        self.commit(bytes(500))
        size = self.path().stat().st_size
        shutil.rmtree(self.path().parent)
        self.store = self.open(2 * size)
        outcomes: list[NoRoom | None] = []
        self.store.on_commit = outcomes.append
        self.commit(bytes(500))
        self.commit(bytes(500), key_of("b"))
        self.assertEqual(([None, None], 2 * size), (outcomes, self.store.usage.size))
        scratch = self.create(b"x")
        committing = begin(self.store.commit(key_of("c"), scratch, 1, HEADERS, RECORD))
        self.assertEqual([None, None, self.failureResultOf(committing, NoRoom).value], outcomes)
        scratch.close()
        self.assertEqual(sorted([".usage", KEY, key_of("b")]), self.files())

    def test_unusable_ledger(self) -> None:
        """A ledger that cannot be changed is refused at boot, with a bound and without one."""
        (self.root / ".usage").mkdir()
        for max_bytes in (None, 10_000):
            store = store_in(self.root, max_bytes)
            self.addCleanup(store.close_now)
            self.assertIn("usage", str(self.failureResultOf(begin(store.open()), Unwritable).value))

    def test_uses(self) -> None:
        """With a bound, the access time of a variant is that of its use, to within an hour."""
        self.store = self.open(10_000)
        used, small, unused = KEY, key_of("b"), key_of("c")
        for key in (used, small, unused):
            self.commit(b"abc", key)
        self.read(small)
        self.store.record_uses(0)
        for now, last, expected in ((5599, 2000, 2000), (5600, 2000, 5600), (9199, 5600, 5600)):
            self.read(used)
            self.store.read_small(small)
            for key in (used, small, unused):
                # The system may have changed it already.
                os.utime(self.path(key), (last, 2000))
            self.store.record_uses(now)
            for key, time in ((used, expected), (small, expected), (unused, last)):
                status = self.path(key).stat()
                self.assertEqual((time, 2000), (status.st_atime, status.st_mtime), (now, key))
        self.read(small)
        self.path(small).unlink()
        self.store.record_uses(99_999)
        self.assertEqual(5600, self.path(used).stat().st_atime)


class ReadSmallTests(StoreCase):
    """`FileVariantStore.read_small`"""

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
        headers = {**FIELDS, "content_disposition": 'attachment; filename="a.mp3"'}
        self.commit(self.DATA, headers=VariantHeaders(**headers))
        self.whole = self.path().read_bytes()

    def verdict(self, content: bytes) -> bool:
        """Return whether a file is accepted; assert that an accepted file is the stored variant."""
        self.path().write_bytes(content)
        stored, found = self.lookup(), self.store.read_small(KEY)
        if stored is None:
            self.assertIsNone(found, content)
            return False
        self.assertEqual(found, (RECORD.stored, self.DATA))
        self.assertEqual((stored.stored, stored.read(0, 999)), found)
        stored.close()
        return True

    def test_damaged(self) -> None:
        """A file that was truncated, or changed after the variant's bytes, is no variant (D40)."""
        whole, cut = self.whole, len(self.DATA)
        contents = [
            whole,
            *(whole[:length] for length in range(len(whole))),
            *(
                whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :]
                for at in range(cut, len(whole))
                for change in (1, 0x20, 0x80, 0xFF)
            ),
            whole + b"\0",
            b"\0" + whole,
            whole[:cut] + b"\0" + whole[cut:],
            whole + whole,
            *(bytes(length) for length in (1, 15, 16, 100, 10_000, len(whole))),
        ]
        for record in (b"", b"[]", b"{", b"{}", b'{"size":"all"}', b'{"size":39}', b'{"bytes":40}'):
            footer = struct.pack(">II8s", len(record), zlib.crc32(record), whole[-8:])
            contents.append(self.DATA + record + footer)
        self.assertEqual([whole], [content for content in contents if self.verdict(content)])
        before = open_descriptors()
        self.commit(b"abc")
        self.assertEqual((self.read(), open_descriptors()), (b"abc", before))


class IrregularTests(StoreCase):
    """Names that do not lead to a readable regular file, which are not variants.

    There was one a moment ago, so that `FileVariantStore.read_small` looks at the name.
    """

    def setUp(self) -> None:
        super().setUp()
        self.commit(b"abc")
        self.read()
        self.path().unlink()
        self.assert_miss("nothing")

    def remove(self) -> None:
        """Remove what is in the place of the variant, or of its shard."""
        shard = self.path().parent
        if shard.is_dir():
            shutil.rmtree(shard)
        else:
            shard.unlink()
        shard.mkdir()

    def assert_miss(self, kind: object) -> None:
        """Assert that neither kind of lookup finds a variant, and that no file stays open."""
        before = open_descriptors()
        self.assertEqual((self.lookup(), self.store.read_small(KEY)), (None, None), kind)
        self.assertEqual(open_descriptors(), before)

    def test_left_alone(self) -> None:
        """A folder, a FIFO or a socket is a miss at once, and a commit leaves it where it is."""
        path = self.path()

        def replace_shard() -> None:
            path.parent.rmdir()
            path.parent.write_bytes(b"")

        rows: dict[str, Callable[[], object]] = {
            f"a folder is in the place of the file: '{path}'": path.mkdir,
            f"a FIFO is in the place of the file: '{path}'": lambda: os.mkfifo(path),
            f"a socket is in the place of the file: '{path}'": (
                lambda: os.mknod(path, stat.S_IFSOCK | 0o600)
            ),
            f"Not a directory: '{path}'": replace_shard,
        }
        for said, put_in_the_way in rows.items():
            put_in_the_way()
            self.assert_miss(said)
            scratch = self.create(b"abc")
            committing = begin(self.store.commit(KEY, scratch, 3, HEADERS, RECORD))
            self.assertIn(said, str(self.failureResultOf(committing, OSError).value))
            scratch.close()
            self.assert_miss(said)
            self.remove()
            self.commit(b"abc")
            self.assertEqual(self.read(), b"abc")
            self.remove()

    def test_links(self) -> None:
        """A link is what it leads to, and the next commit replaces a link to anything else."""
        path, other = self.path(), self.path(key_of("b"))
        self.commit(b"abc", key_of("b"))
        path.symlink_to(other)
        self.assertEqual(self.read(), b"abc")
        self.remove()
        devices = [
            Path(name) for name in ("/dev/null", "/dev/zero", "/dev/tty", "/", "/etc/passwd")
        ]
        for end in (path.with_name("nothing"), path, *devices):
            path.symlink_to(end)
            self.assert_miss(end)
            self.commit(b"xyz")
            self.assertEqual(self.read(), b"xyz")
            self.remove()

    def test_denied(self) -> None:
        """A variant that this process may not read is a miss, which the next commit replaces."""
        self.commit(b"abc")
        self.path().chmod(0)
        with as_unprivileged_user():
            self.assertIsNone(self.lookup())
        self.commit(b"xyz")
        self.assertEqual(self.read(), b"xyz")


class CommitTests(StoreCase):
    """`FileVariantStore.commit`"""

    def refuse(self, scratch: ScratchFile, kind: type[Exception] = OSError) -> None:
        """Assert that a commit of three bytes raises this exception, and close the file."""
        self.failureResultOf(begin(self.store.commit(KEY, scratch, 3, HEADERS, RECORD)), kind)
        scratch.close()

    def test_failed(self) -> None:
        """A commit that fails leaves no file, but the variant that was stored before (D35)."""
        shard = self.root / KEY[:2]
        shard.write_bytes(b"in the way")
        self.refuse(self.create(b"abc"))
        shard.unlink()
        self.assertEqual((self.lookup(), self.files()), (None, []))
        # An output that lacks its end.
        self.refuse(self.create(b"ab"))
        for before in (None, b"before"):
            if before is not None:
                self.commit(before)
            for room in (3, 4, 20):
                scratch = self.create(b"abc")
                with file_size_limit(room):
                    self.refuse(scratch)
            self.assertEqual((self.read(), self.files()), (before, [KEY] if before else []))

    def test_synced(self) -> None:
        """A write-back ends when its folder is synced, and once the name of that folder (D80)."""
        synced: list[str] = []
        self.store = self.open(sync=synced.append)
        shard, root, other = str(self.path().parent), str(self.root), KEY[:2] + key_of("b")[2:]
        for key, expected in ((KEY, [shard, root]), (other, [shard]), (KEY, [shard, root])):
            self.commit(b"abc", key)
            self.assertEqual(expected, synced)
            synced.clear()
            if key == other:
                # The store is emptied.
                shutil.rmtree(shard)

    def test_unsynced(self) -> None:
        """A variant whose folders cannot be synced is stored all the same, with a warning."""
        log = Log(self)
        for failing in (str(self.path().parent), str(self.root)):
            self.store = self.open(sync=lambda path, failing=failing: path == failing and fail())
            self.commit(failing.encode())
            said = ["a power cut may undo a write-back: Input/output error"]
            self.assertEqual(said, log.texts)
            self.assertEqual(failing.encode(), self.read())
            log.events.clear()

    def test_unusable_ledger(self) -> None:
        """Without a bound, a ledger that fails is removed with a warning; the variant is stored."""
        log = Log(self)
        (self.root / ".usage").symlink_to("elsewhere")
        self.commit(b"abc")
        self.assertEqual((b"abc", [KEY]), (self.read(), self.files()))
        (said,) = log.texts
        self.assertRegex(said, r"\Athe store's ledger failed, and was removed: .+: .*/\.usage\Z")

    def test_nearly_full(self) -> None:
        """A disk that is almost full gives no scratch file, although an empty file would fit."""
        for total, free, fits in (
            (1 << 40, 64 << 20, True),
            (1 << 40, (64 << 20) - 1, False),
            # On a small disk, it is enough that a twentieth of the disk is free.
            (1 << 20, (1 << 20) // 20, True),
            (1 << 20, (1 << 20) // 20 - 1, False),
            (1 << 20, 0, False),
        ):
            disk = DiskSpace(free, total)
            self.store = self.open(measure=lambda _, disk=disk: disk)
            if fits:
                self.create().close()
            else:
                error = self.failureResultOf(begin(self.store.create()), OSError).value
                self.assertEqual(errno.ENOSPC, error.errno)
        self.assertEqual(self.files(), [])

    def test_unusable_scratch(self) -> None:
        """A scratch file that is closed, or of another store, cannot be committed."""
        closed = self.create()
        closed.close()
        self.refuse(closed)
        self.refuse(AnonymousFile(), TypeError)
        self.assertIsNone(self.lookup())
        before = open_descriptors()
        scratch = self.create(b"abc")
        self.successResultOf(begin(self.store.commit(KEY, scratch, 3, HEADERS, RECORD)))
        self.refuse(scratch)
        self.assertEqual((self.read(), self.files()), (b"abc", [KEY]))
        self.assertEqual(open_descriptors(), before)


class FailureTests(StoreCase):
    """Stores that fail during a lookup."""

    def test_broken_disk(self) -> None:
        """A disk that fails to open or to read a file is a 502, not a miss (Errors, 8)."""
        self.commit(b"abc")
        Transfers(self).failures["pread"] = [errno.EIO]
        before = open_descriptors()
        # A name of the second length cannot be opened.
        for key in (KEY, KEY * 9):
            self.failureResultOf(begin(self.store.lookup(key)), UpstreamUnavailable)
            self.assertEqual(open_descriptors(), before)


class SlowDiskTests(StoreCase):
    """Lookups on a disk that may block, which run in threads."""

    def setUp(self) -> None:
        super().setUp()
        self.clock, self.threads = Clock(), FakeThreads()
        self.read_takes = self.waited = 0.0
        reads = BlockingCalls(self.clock, self.threads.in_thread)
        self.slow = FileVariantStore(str(self.root), SYNCHRONOUS_CALLS, reads, self.seconds)
        self.commit(b"abc")
        self.before = open_descriptors()
        self.addCleanup(self.assert_nothing_left)

    def assert_nothing_left(self) -> None:
        """Assert that no call, no timer and no open file is left."""
        self.assertEqual((self.threads.waiting, self.clock.getDelayedCalls()), (0, []))
        self.assertEqual(open_descriptors(), self.before)

    def load(self, key: str = KEY, threads: int = 1) -> StoredFile | None:
        """Return the result of a lookup that needs a number of threads."""
        looking = begin(self.slow.lookup(key))
        self.assertEqual(self.threads.waiting, threads)
        self.threads.run()
        return self.successResultOf(looking)

    def assert_found(self, size: int = 3, threads: int = 1) -> StoredFile:
        """Look the variant up, and assert that it is found with a number of threads."""
        found = self.load(threads=threads)
        assert found is not None
        self.addCleanup(found.close)
        self.assertEqual(found.size, size)
        if size == 3:
            self.assertEqual(found.read(0, 9), b"abc")
            found.close()
        return found

    def seconds(self) -> float:
        """Return the time, which passes during each read."""
        self.waited += self.read_takes
        return self.clock.seconds() + self.waited

    def test_first(self) -> None:
        """The first lookup of a variant runs in a thread, and so does that of a missing one."""
        for _ in range(2):
            self.assertIsNone(self.slow.read_small(KEY))
            self.assert_found()
            for _ in range(3):
                self.clock.advance(59)
                self.assertEqual(self.slow.read_small(KEY), (RECORD.stored, b"abc"))
                self.clock.advance(59)
                self.assert_found(threads=0)
            self.clock.advance(60)
        self.assertIsNone(self.load(key_of("b")))

    def test_large(self) -> None:
        """The bytes of a large variant are read in a thread before they are sent."""
        data = os.urandom(1_500_000)
        self.commit(data)
        for threads in (1, 0):
            found = self.assert_found(len(data), threads)
            consumer = FakeConsumer()
            stream = self.successResultOf(begin(found.open_range(1, len(data))))
            sending = stream.send(consumer)
            self.assertEqual(self.threads.waiting, threads)
            self.assertEqual(not consumer.data, bool(threads))
            self.threads.run()
            self.successResultOf(sending)
            self.assertEqual(bytes(consumer.data), data[1:])
            found.close()

    def test_truncated_meanwhile(self) -> None:
        """A small file that becomes shorter during its lookup has not all of its bytes."""
        found = StoredFile(os.open(self.path(), os.O_RDONLY), self.path().stat().st_size + 1)
        with patch.object(stored_file, "open_variant", lambda _: found):
            self.assertIsNone(stored_file.load_variant(str(self.path())))

    def test_slow(self) -> None:
        """A variant whose file takes long to open is looked up in a thread each time."""
        for read in (lambda: self.slow.read_small(KEY), lambda: self.assert_found(threads=0)):
            self.assert_found()
            self.read_takes = 0.2
            read()
            for _ in range(3):
                self.assertIsNone(self.slow.read_small(KEY))
                self.assert_found()
            self.read_takes = 0.0

    def test_hung(self) -> None:
        """A disk that does not respond within ten seconds is a 502; a late file is closed."""
        for data in (b"abc", bytes(100_000)):
            self.commit(data)
            looking = begin(self.slow.lookup(KEY))
            self.clock.advance(9.9)
            self.assertNoResult(looking)
            self.clock.advance(0.1)
            self.failureResultOf(looking, UpstreamUnavailable)
            self.failureResultOf(begin(self.slow.lookup(KEY)), UpstreamUnavailable)
            self.threads.run()
            self.assert_found(len(data)).close()
            self.clock.advance(60)


class OpenTests(SynchronousTestCase):
    """`FileVariantStore.open` and `FileVariantStore.check_writable`"""

    def setUp(self) -> None:
        self.path = Path(self.mktemp()).absolute()

    def assert_refused(self) -> None:
        """Assert that a store cannot be opened, and that the check reports the same."""
        before = open_descriptors()
        store = store_in(self.path)
        self.failureResultOf(begin(store.open()), Unwritable)
        store.close_now()
        error = self.failureResultOf(begin(store_in(self.path).check_writable()), Unwritable).value
        self.assertRegex(str(error), r"\Anot writable \(.+\); a directory that ")
        self.assertEqual(open_descriptors(), before)

    def check_writable(self) -> None:
        """Assert that the store can be used, and that nothing is left of the check."""
        before, files = open_descriptors(), sorted(self.path.rglob("*"))
        self.successResultOf(begin(store_in(self.path).check_writable()))
        self.assertEqual((open_descriptors(), sorted(self.path.rglob("*"))), (before, files))

    def test_no_store(self) -> None:
        """A missing store fails at boot, and is not created (Deployment configuration)."""
        self.assert_refused()
        self.assertFalse(self.path.exists())
        self.path.write_bytes(b"")
        self.assert_refused()
        self.path.unlink()
        self.path.mkdir()
        (self.path / ".scratch").write_bytes(b"")
        self.assert_refused()

    def test_probe_file(self) -> None:
        """A store that accepts no bytes fails at boot (Deployment configuration)."""
        (self.path / ".scratch").mkdir(parents=True)
        with file_size_limit(0):
            self.assert_refused()
        self.assertEqual(os.listdir(self.path / ".scratch"), [])
        store = store_in(self.path)
        self.successResultOf(begin(store.open()))
        left = [each for each in self.path.rglob("*") if each.is_file()]
        self.assertEqual([each.suffix for each in left], [".lock"])
        # The check leaves the files of a running service unchanged.
        self.check_writable()
        store.close_now()
        self.assertEqual(os.listdir(self.path / ".scratch"), [])

    def test_check(self) -> None:
        """`check_writable` leaves no file behind, and reports a lack of disk space.

        If root runs `check_writable`, a file left behind would belong to root, and the
        service could not write to it.
        """
        self.path.mkdir()
        self.check_writable()
        full = store_in(self.path, measure=lambda _: DiskSpace(0, 1 << 30))
        checking = begin(full.check_writable())
        error = self.failureResultOf(checking, Unwritable).value
        self.assertRegex(str(error), "No space left .+; disk space for variants is")
        self.assertEqual(os.listdir(self.path), [])
