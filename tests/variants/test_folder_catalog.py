"""The catalog of a folder store: nothing but variants is listed, read or removed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, execute
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.testing import FakeThreads
from audioproxy.variants.catalog import CatalogBusy, Entry, NotSynced, Pace, Verdict
from audioproxy.variants.folder_catalog import FolderCatalog, exclusive_prune
from tests.sources.test_local import as_unprivileged_user
from tests.support.folders import short_folder
from tests.support.processes import open_descriptors
from tests.support.variants import StoredVariant, neighbors

ONE, TWO = StoredVariant.of(), StoredVariant.of(options="f:opus")


class CatalogCase(SynchronousTestCase):
    """A folder with two variants."""

    def setUp(self) -> None:
        self.root = short_folder(self)
        self.root.chmod(0o755)
        self.paths = {each.key: each.write(self.root, used=1_700_000_000) for each in (ONE, TWO)}
        self.sleeps: list[float] = []
        self.synced: list[str] = []
        self.catalog = FolderCatalog(
            str(self.root), execute, 3, self.sleeps.append, self.synced.append
        )
        self.failed: list[tuple[Entry, Exception]] = []
        self.before = open_descriptors()

    def tearDown(self) -> None:
        self.assertEqual(self.before, open_descriptors())

    def result_of(self, work: Any) -> Any:
        """Return the result of a coroutine."""
        return self.successResultOf(Deferred.fromCoroutine(work))

    def fail_with(self, entry: Entry, error: Exception) -> None:
        """Record the failure of one variant."""
        self.failed.append((entry, error))

    def entries(self) -> dict[str, Entry]:
        """Return all listed variants."""

        async def list_all() -> list[Entry]:
            return [entry async for page in self.catalog.pages() for entry in page.entries]

        return {entry.key: entry for entry in self.result_of(list_all())}

    def remove(self, *entries: Entry, unchanged: bool = False) -> list[str]:
        """Return the keys of the variants that are removed."""
        removed: list[Entry] = []
        work = self.catalog.remove(entries, removed.append, self.fail_with, unchanged=unchanged)
        self.result_of(work)
        return [entry.key for entry in removed]

    def files(self) -> set[Path]:
        """Return the paths of everything in the folder and beside it."""
        return set(self.root.rglob("*"))


class FolderCatalogTests(CatalogCase):
    """`FolderCatalog`"""

    def test_names(self) -> None:
        """Only regular files that are named by a key, in its folder, are listed and removed."""
        for name in neighbors(ONE.key):
            path = self.root / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"a master")
        odd = {kind: f"{ONE.key[:63]}{kind}" for kind in "0123" if not ONE.key.endswith(kind)}
        folder, link, *_ = odd.values()
        (self.root / folder[:2] / folder).mkdir()
        (self.root / link[:2] / link).symlink_to(self.root / "master.wav")
        # A folder of another place under the name of a shard, and a file in place of a shard.
        shards = (f"{number:02x}" for number in range(256))
        led, taken = [each for each in shards if not (self.root / each).exists()][:2]
        outside = short_folder(self)
        (outside / f"{led:0<64}").write_bytes(b"a master")
        (self.root / led).symlink_to(outside)
        (self.root / taken).write_bytes(b"a master")
        others = self.files() - set(self.paths.values())
        wrong = [f"{led:0<64}", f"{taken:0<64}", folder, link, "0" * 64]

        entries = self.entries()
        self.assertEqual({ONE.key, TWO.key}, set(entries))
        size = self.paths[ONE.key].stat().st_size
        found = entries[ONE.key]
        self.assertEqual(
            (size, 1_700_000_000, 1_700_000_000), (found.size, found.stored, found.used)
        )
        self.assertEqual(found, self.result_of(self.catalog.find(ONE.key)))
        for key in wrong:
            self.assertIsNone(self.result_of(self.catalog.find(key)), key)
        self.assertEqual([], self.remove(*(Entry(key, 0, 0) for key in wrong)))
        self.assertEqual([ONE.key, TWO.key], self.remove(entries[ONE.key], entries[TWO.key]))
        self.assertEqual(others, self.files())
        self.assertTrue((outside / f"{led:0<64}").exists())
        self.assertEqual([], self.failed)

    def test_pages(self) -> None:
        """Each folder of variants is a page; a listing of a store that is gone has none."""

        async def covered() -> list[float]:
            return [page.covered async for page in self.catalog.pages()]

        self.assertEqual([0.5, 1.0], self.result_of(covered()))
        self.root.rename(f"{self.root}.old")
        self.assertEqual([], self.result_of(covered()))
        Path(f"{self.root}.old").rename(self.root)

    def test_flush_fails(self) -> None:
        """One folder that fails keeps no other one from being synced; one that is gone is fine."""
        error: OSError = OSError(errno.EIO, "Input/output error")

        def sync(path: str) -> None:
            self.synced.append(path)
            raise error

        catalog = FolderCatalog(str(self.root), execute, 1, sync=sync)
        for expected in (NotSynced, None):
            for key in (ONE.key, TWO.key):
                self.result_of(catalog.find(key))
            flushing = Deferred.fromCoroutine(catalog.flush())
            if expected is None:
                self.successResultOf(flushing)
            else:
                self.failureResultOf(flushing, expected)
            error = FileNotFoundError()
        self.assertEqual(4, len(self.synced))

    def test_records(self) -> None:
        """Each record is read, which is not a use; a variant may have none, or be gone."""
        entries = self.entries()
        damaged, gone = StoredVariant.of(data=b"x"), StoredVariant.of(options="f:wav")
        for each in (damaged, gone):
            each.write(self.root)
        listed = [*entries.values(), Entry("0" * 64, 0, 0)]
        path = self.paths[TWO.key]
        path.write_bytes(path.read_bytes()[:-1])
        found = self.result_of(self.catalog.read_records(listed, self.fail_with))
        self.assertEqual(
            {ONE.key: damaged.record, TWO.key: None}, {entry.key: record for entry, record in found}
        )

    def test_unreadable(self) -> None:
        """A variant without the right to read or remove it is a failure of this one alone."""
        self.paths[ONE.key].chmod(0)
        entries = self.entries()
        with as_unprivileged_user():
            found = self.result_of(
                self.catalog.read_records(list(entries.values()), self.fail_with)
            )
            self.assertEqual([TWO.record], [record for _, record in found])
            self.assertEqual([], self.remove(entries[TWO.key]))
        failed = [(entry.key, type(error)) for entry, error in self.failed]
        self.assertEqual([(ONE.key, PermissionError), (TWO.key, PermissionError)], failed)

    def verdict(self, change: Callable[[Path], object]) -> tuple[Verdict, str]:
        """Return what is found after a change of a variant's file, which is listed before."""
        ONE.write(self.root)
        entry = self.entries()[ONE.key]
        change(self.paths[ONE.key])
        finding = self.result_of(self.catalog.check(entry, Pace(None)))
        return finding.verdict, finding.reason

    def test_checked(self) -> None:
        """A damaged byte is found, wherever it is; a file that was replaced is not judged."""

        def flip(place: int) -> Callable[[Path], object]:
            def change(path: Path) -> None:
                data, times = bytearray(path.read_bytes()), path.stat()
                data[place] ^= 1
                with path.open("r+b") as file:
                    file.write(data)
                # A failing disk changes no time.
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

            return change

        good, gone = (Verdict.GOOD, ""), (Verdict.GONE, "")
        self.assertEqual(good, self.verdict(lambda path: None))
        self.assertEqual(gone, self.verdict(Path.unlink))
        self.assertEqual(gone, self.verdict(lambda path: path.write_bytes(b"")))
        body = (Verdict.BROKEN, "its bytes do not match their digest")
        trailer = (Verdict.BROKEN, "its trailer is incomplete or damaged")
        length = self.paths[ONE.key].stat().st_size
        for place in range(length):
            expected = body if place < len(ONE.data) else trailer
            self.assertEqual(expected, self.verdict(flip(place)), place)
        for cut in (0, 5, length - 1):
            self.paths[ONE.key].write_bytes(ONE.write(self.root).read_bytes()[:cut])
            entry = self.entries()[ONE.key]
            finding = self.result_of(self.catalog.check(entry, Pace(None)))
            self.assertEqual(trailer, (finding.verdict, finding.reason))

    def test_pace(self) -> None:
        """Several reads share the bytes of each second."""
        now = [100.0]
        pace = Pace(4, lambda: now[0])
        entries = self.entries()
        for key, seconds in ((ONE.key, 2.5), (TWO.key, 5.0)):
            self.result_of(self.catalog.check(entries[key], pace))
            self.assertEqual(seconds, self.sleeps[-1])
        now[0] += 60
        self.assertEqual(1.0, pace.spend(4))

    def test_replaced(self) -> None:
        """A variant that was replaced since its listing is removed, unless it must be the same."""
        for unchanged, removed in ((True, []), (False, [ONE.key])):
            entry = self.entries()[ONE.key]
            self.paths[ONE.key].unlink()
            ONE.write(self.root)
            self.assertEqual(removed, self.remove(entry, unchanged=unchanged))
        self.assertEqual([], self.remove(entry))

    def test_cancelled(self) -> None:
        """A cancelled removal ends once its thread, which removes nothing more, has ended."""
        threads = FakeThreads()
        catalog = FolderCatalog(str(self.root), threads.in_thread, 1)
        entries = list(self.entries().values())
        removing = Deferred.fromCoroutine(catalog.remove(entries, self.fail, self.fail))
        removing.cancel()
        self.assertNoResult(removing)
        threads.run()
        self.failureResultOf(removing, CancelledError)
        self.assertEqual({ONE.key, TWO.key}, set(self.entries()))


class ExclusivePruneTests(CatalogCase):
    """`exclusive_prune`"""

    def test_one(self) -> None:
        """One process at a time prunes a folder, and the next one may be of the folder's owner."""
        with exclusive_prune(str(self.root)):
            self.assertRaises(CatalogBusy, exclusive_prune(str(self.root)).__enter__)
        with exclusive_prune(str(self.root)):
            owners = [path.stat().st_uid for path in (self.root, self.root / ".prune")]
        self.assertEqual(owners[0], owners[1])

    def test_link(self) -> None:
        """A link in the place of the lock gives no other file to the folder's owner."""
        other = self.root / "other"
        other.touch()
        if os.geteuid() == 0:
            os.chown(self.root, 65_534, -1)
        owner = other.stat().st_uid
        for link in (os.symlink, os.link):
            link(other, self.root / ".prune")
            with contextlib.suppress(OSError), exclusive_prune(str(self.root)):
                pass
            self.assertEqual(owner, other.stat().st_uid)
            (self.root / ".prune").unlink()
