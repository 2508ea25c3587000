"""The ledger of a folder store: it never states fewer bytes than there are."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.variants.interfaces import NoRoom
from audioproxy.variants.usage import LedgerFault, StoreUsage
from tests.support.folders import file_size_limit
from tests.support.strategies import DETERMINISTIC

SHARDS = ("0a", "0b", "0c")
KEYS = [f"{shard}/{shard}-{number}" for shard in SHARDS for number in range(2)]
BOUND = 10

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ("add", "add", "remove", "begin", "step", "step", "end", "fault", "ensure")
        ),
        st.sampled_from(KEYS),
        st.integers(1, 6),
    ),
    max_size=25,
)


class UsageCase(SynchronousTestCase):
    """A folder that has no ledger yet."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        self.scratches = count()
        for folder in (".scratch", *SHARDS):
            (self.root / folder).mkdir(parents=True)

    def usage(self, max_bytes: int | None = None) -> StoreUsage:
        """Return the usage as one node sees it."""
        return StoreUsage(str(self.root), max_bytes)

    def write(self, ledger: bytes) -> None:
        """Write the ledger."""
        (self.root / ".usage").write_bytes(ledger)

    def add(
        self, key: str, size: int, max_bytes: int | None = None, limit: int = 1000
    ) -> LedgerFault | None:
        """Store a variant, where no file can be written to beyond a limit."""
        scratch = self.root / ".scratch" / str(next(self.scratches))
        scratch.write_bytes(bytes(size))
        with file_size_limit(limit):
            return self.usage(max_bytes).add(str(scratch), str(self.root / key))

    def remove(self, key: str) -> None:
        """Remove a variant, if there is one."""
        path = self.root / key
        with contextlib.suppress(FileNotFoundError), self.usage().removal() as subtract:
            size = path.stat().st_size
            path.unlink()
            subtract(size)

    def total(self, shard: str = "??") -> int:
        """Return the bytes of the variants."""
        return sum(path.stat().st_size for path in self.root.glob(f"{shard}/*"))

    def count(self) -> None:
        """Count the variants."""
        with self.usage().count() as end_count:
            end_count(self.total())


class LedgerTests(UsageCase):
    """Single calls"""

    def test_before_the_first_count(self) -> None:
        """Nothing is stored before the usage is known, which takes a count."""
        for ledger in (None, b"", b"12", b"-1 5\n", b"unknown 7\n", b"1 2\n3 4\n", bytes(64)):
            self.setUp()
            if ledger is not None:
                self.write(ledger)
            usage = self.usage(BOUND)
            self.assertRaises(NoRoom, self.add, KEYS[0], 1, BOUND)
            usage.ensure()
            self.assertEqual((None, None), (usage.read(), usage.size), ledger)
            self.assertRaises(NoRoom, self.add, KEYS[0], 1, BOUND)
            with usage.count() as end_count:
                self.add(KEYS[0], 3)
                end_count(10)
            self.assertEqual(13, usage.read())

    def test_empty_store(self) -> None:
        """A store without a folder of variants needs no count."""
        for shard in SHARDS:
            (self.root / shard).rmdir()
        usage = self.usage(BOUND)
        usage.ensure()
        self.assertEqual((0, 0), (usage.read(), usage.size))

    def test_bound(self) -> None:
        """The bound may be reached, and is never passed; a replaced variant makes room."""
        self.usage(BOUND).ensure()
        self.count()
        for key, size, has_room in (
            (KEYS[0], 11, False),
            (KEYS[0], 4, True),
            (KEYS[1], 6, True),
            (KEYS[2], 1, False),
            (KEYS[0], 3, True),
            (KEYS[2], 1, True),
            (KEYS[2], 2, False),
        ):
            if has_room:
                self.add(key, size, BOUND)
            else:
                self.assertRaises(NoRoom, self.add, key, size, BOUND)
            self.assertEqual(self.total(), self.usage().read())

    def test_removed_ledger(self) -> None:
        """A count of a ledger that was removed or emptied meanwhile has no result."""
        self.write(b"5 7\n")
        with self.usage().count() as end_count:
            (self.root / ".usage").unlink()
            end_count(9)
            self.usage(BOUND).ensure()
            self.add(KEYS[0], 8)
            end_count(9)
        self.assertIsNone(self.usage().read())
        self.write(b"5 7\n")
        with self.usage().count() as end_count:
            self.write(b"")
            self.add(KEYS[0], 3)
            end_count(9)
        self.assertIsNone(self.usage().read())

    def test_link(self) -> None:
        """A link in the place of a variant, which no count includes, is replaced as nothing."""
        self.write(b"5 7\n")
        (self.root / KEYS[0]).symlink_to("elsewhere")
        self.add(KEYS[0], 3)
        self.assertEqual(8, self.usage().read())

    def test_link_to_another_file(self) -> None:
        """A link in the place of the ledger is an error, and the file that it names is kept."""
        other = self.root / "other"
        other.write_bytes(b"bytes")
        (self.root / ".usage").symlink_to(other)
        self.assertRaises(OSError, self.usage().count().__enter__)
        self.assertEqual(b"bytes", other.read_bytes())

    def test_failure(self) -> None:
        """A variant that cannot be renamed is not added."""
        self.write(b"5 7\n")
        (self.root / KEYS[0]).mkdir()
        self.assertRaises(OSError, self.add, KEYS[0], 3)
        self.assertEqual(5, self.usage().read())

    def test_fault(self) -> None:
        """A variant of a node without a bound is stored even if the ledger cannot be changed."""

        def replace() -> None:
            (self.root / ".usage").unlink()
            (self.root / ".usage").symlink_to("elsewhere")

        for change, limit in ((replace, 1000), (lambda: None, 0)):
            self.setUp()
            self.write(b"5 7\n")
            change()
            self.assertRaises(LedgerFault, self.add, KEYS[0], 3, BOUND, limit)
            self.assertEqual(0, self.total())
            self.assertIsInstance(self.add(KEYS[0], 3, None, limit), LedgerFault)
            self.assertEqual(3, self.total())
            self.usage(BOUND).ensure()
            self.assertIsNone(self.usage().read())

    def test_removal_after_fault(self) -> None:
        """A variant is removed even if the ledger fails, which then states too many bytes."""
        self.add(KEYS[0], 3)
        (self.root / ".usage").symlink_to("elsewhere")
        self.remove(KEYS[0])
        self.assertEqual(0, self.total())

    def test_count_after_fault(self) -> None:
        """A count between the removal of the ledger and the name of the variant does not remain."""
        rename = os.rename

        def count_and_rename(old: str, new: str) -> None:
            self.usage(BOUND).ensure()
            self.count()
            rename(old, new)

        (self.root / ".usage").symlink_to("elsewhere")
        self.patch(os, "rename", count_and_rename)
        self.assertIsInstance(self.add(KEYS[0], 3), LedgerFault)
        self.usage(BOUND).ensure()
        self.assertIsNone(self.usage().read())

    def test_removed_before_it_is_locked(self) -> None:
        """A ledger that is removed while a node waits for its lock is not used."""
        self.write(b"5 7\n")
        lock, ledgers = fcntl.flock, iter((b"6 7\n",))

        def replace_and_lock(descriptor: int, operation: int) -> None:
            for ledger in ledgers:
                (self.root / ".usage").unlink()
                self.write(ledger)
            lock(descriptor, operation)

        with patch.object(fcntl, "flock", replace_and_lock):
            self.add(KEYS[0], 3, BOUND)
        self.assertEqual(9, self.usage().read())

    def test_removed_while_it_is_locked(self) -> None:
        """A count that begins before a variant has its name, by another ledger, does not remain."""
        self.write(b"5 7\n")
        rename = os.rename

        def count_and_rename(old: str, new: str) -> None:
            (self.root / ".usage").unlink()
            self.usage(BOUND).ensure()
            self.count()
            rename(old, new)

        with patch.object(os, "rename", count_and_rename):
            self.add(KEYS[0], 3, BOUND)
        self.usage(BOUND).ensure()
        self.assertIsNone(self.usage().read())

    def test_own_fault(self) -> None:
        """A node that may not read the ledger, or has no descriptor for it, leaves it to others."""
        self.write(b"5 7\n")
        for number in (errno.EACCES, errno.EMFILE):
            with patch.object(os, "open", side_effect=OSError(number, "refused")):
                self.assertRaises(LedgerFault, self.usage().add, "scratch", "variant")
            self.assertEqual(5, self.usage().read())

    def test_no_bound(self) -> None:
        """Without a bound, everything is stored, and no ledger is created."""
        self.add(KEYS[0], 4)
        self.count()
        self.remove(KEYS[0])
        self.assertEqual((None, False), (self.usage().read(), (self.root / ".usage").exists()))


class InterleavingTests(UsageCase):
    """Nodes and commands on one folder; `tests.faults.test_power_live` has those that are killed"""

    @settings(DETERMINISTIC, max_examples=300)
    @given(ACTIONS)
    def test_never_too_few(self, actions: list[Any]) -> None:
        """However commits, removals and counts overlap, no byte is missing; a count is exact."""
        self.setUp()
        self.usage(BOUND).ensure()
        end_count, total, shards = None, 0, list[str]()
        counts = contextlib.ExitStack()
        self.addCleanup(counts.close)
        for action, key, size in actions:
            with contextlib.suppress(NoRoom):
                match action:
                    case "add":
                        self.add(key, size, BOUND if size % 2 else None)
                    case "fault":
                        self.add(key, size, None, limit=0)
                    case "ensure":
                        self.usage(BOUND).ensure()
                    case "remove":
                        self.remove(key)
                    case "begin":
                        end_count = counts.enter_context(self.usage().count())
                        total, shards = 0, list(SHARDS)
                    case "step" if shards:
                        total += self.total(shards.pop())
                    case "end" if not shards and end_count is not None:
                        end_count(total)
            known = self.usage().read()
            if known is not None:
                self.assertLessEqual(self.total(), known, action)
        self.usage(BOUND).ensure()
        self.count()
        self.assertEqual(self.total(), self.usage().read())
