"""Pruning: what is selected, what remains, and the child process of a service."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, execute
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.variants.catalog import Entry
from audioproxy.variants.folder_catalog import FolderCatalog, exclusive_prune
from audioproxy.variants.prune import (
    BUSY,
    LeastRecentlyUsed,
    Limits,
    Pruned,
    main,
    prune,
    read_summary,
)
from audioproxy.variants.usage import StoreUsage
from tests.support.folders import short_folder
from tests.support.strategies import DETERMINISTIC
from tests.support.variants import StoredVariant

NOW = 1_800_000_000


class PruneTests(SynchronousTestCase):
    """`prune` of a folder"""

    def setUp(self) -> None:
        self.store = short_folder(self) / "store"
        self.store.mkdir()
        (self.store / ".usage").touch()
        self.variants = [StoredVariant.of(f"local://{number:02}") for number in range(20)]
        for age, variant in enumerate(self.variants):
            path = variant.write(self.store, used=NOW - age)
        self.size = path.stat().st_size

    def stored(self) -> set[str]:
        """Return the keys of all variants."""
        return {path.name for path in self.store.glob("??/*")}

    def prune(self, limits: Limits) -> Pruned:
        """Prune the store."""
        pruned, catalog = Pruned(), FolderCatalog(str(self.store), execute, 2)

        async def remove(entries: Sequence[Entry]) -> None:
            await catalog.remove(entries, pruned.removed.add, lambda *error: self.fail(str(error)))

        with exclusive_prune(str(self.store)) as end_count:
            work = prune(catalog.pages, remove, limits, pruned, end_count)
            self.successResultOf(Deferred.fromCoroutine(work))
        return pruned

    def test_limits(self) -> None:
        """The least recently used variants go, and no more than needed; the old ones go first."""
        size = self.size
        for limits, kept in (
            (Limits(20 * size), 20),
            (Limits(20 * size, stored_after=NOW - 16), 17),
            (Limits(9 * size - 1), 8),
            (Limits(used_after=NOW - 3), 4),
            (Limits(0), 0),
        ):
            remaining = self.prune(limits).remaining
            assert remaining is not None
            self.assertEqual(remaining.bytes, StoreUsage(str(self.store)).read())
            self.assertEqual({each.key for each in self.variants[:kept]}, self.stored())
            self.assertEqual(kept, remaining.variants)

    def run_child(self) -> tuple[int, str, str]:
        """Run the child process of a service in this one; return its status and its output."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(str(self.store), str(5 * self.size))
        return status, out.getvalue(), err.getvalue()

    def test_child(self) -> None:
        """A child prunes to a number of bytes, and its summary says what it has done."""
        status, out, _ = self.run_child()
        self.assertEqual((0, 5), (status, len(self.stored())))
        self.assertEqual((15, 5 * self.size), read_summary(out.encode()))
        self.assertEqual((0, None), read_summary(b""))
        with exclusive_prune(str(self.store)):
            self.assertEqual((BUSY, "", ""), self.run_child())
        self.store.rename(f"{self.store}.old")
        status, out, error = self.run_child()
        self.assertEqual((1, (0, None)), (status, read_summary(out.encode())))
        self.assertRegex(error, r"\Aaudioproxy: the store: .*No such file.*\n\Z")

    def test_not_synced(self) -> None:
        """A child whose folders cannot be synced warns, and has pruned the store."""

        def fail(descriptor: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        self.patch(os, "fsync", fail)
        status, out, error = self.run_child()
        self.assertEqual((0, (15, 5 * self.size)), (status, read_summary(out.encode())))
        warning = "audioproxy: the store: a power cut may restore variants that were removed: "
        self.assertEqual(f"{warning}[Errno 5] Input/output error\n", error)

    @DETERMINISTIC
    @given(
        uses=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=20),
        least=st.integers(1, 60),
    )
    def test_selection(self, uses: list[tuple[int, int]], least: int) -> None:
        """The selection is that of sorting all variants."""
        entries = [Entry(f"{n:02}", size, 0, 1000 * used) for n, (used, size) in enumerate(uses)]
        selection, expected, total = LeastRecentlyUsed(), [], 0
        for entry in entries:
            selection.count(entry)
        selection.select(least)
        for entry in sorted(entries, key=lambda entry: (-entry.last_use, entry.key), reverse=True):
            if total < least:
                expected.append(entry.key)
                total += entry.size
        found = [entry.key for entry in entries if selection.takes(entry)]
        found += [entry.key for batch in selection.rest() for entry in batch]
        self.assertEqual(sorted(expected), sorted(found))
