"""The model of power cuts finds what a store without syncs would lose."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.variants.stored_file import make_trailer
from tests.faults.calls import Change, Changed
from tests.faults.power import Disk, File, Promise, State, check_record
from tests.support.variants import HEADERS, StoredVariant

ONE, OTHER = StoredVariant.of(data=bytes(range(256)) * 40), StoredVariant.of(data=b"replaced")
SHARD, PATH = ONE.key[:2], f"{ONE.key[:2]}/{ONE.key}"
NODE, COMMAND = 1, 2


def change(what: Change, path: str, target: str = "", process: int = NODE) -> Changed:
    return Changed(what, process, 0, path, target)


def written(path: str, data: bytes, offset: int = 0) -> Changed:
    return Changed(Change.WRITTEN, NODE, 0, path, offset=offset, data=data)


def stored(variant: StoredVariant, scratch: str, *, is_first: bool = True) -> list[Changed]:
    """Return the changes by which a node stores a variant."""
    trailer = make_trailer(len(variant.data), HEADERS, variant.record)
    path = f".scratch/1/{scratch}"
    return [
        change(Change.CREATED, path),
        written(path, variant.data),
        written(path, trailer, len(variant.data)),
        change(Change.SYNCED, path),
        *([change(Change.MADE, SHARD), change(Change.SYNCED, "")] if is_first else []),
        change(Change.RENAMED, path, PATH),
        change(Change.SYNCED, SHARD),
    ]


REMOVED = [change(Change.UNLINKED, PATH, process=COMMAND), change(Change.SYNCED, SHARD)]
STARTED = [change(Change.MADE, ".scratch"), change(Change.MADE, ".scratch/1")]


class CheckTests(SynchronousTestCase):
    """`check_record`"""

    def findings(self, changes: Sequence[Changed], *promises: Promise) -> set[str]:
        """Return what is wrong in some states."""
        return set(check_record(changes, promises).findings)

    def without(self, changes: Sequence[Changed], path: str) -> list[Changed]:
        """Return the changes without the syncs of a file or folder."""
        return [
            each
            for each in changes
            if each.change is not Change.SYNCED or not each.path.startswith(path) or not path
        ]

    def test_stored(self) -> None:
        """A variant that is synced, and then its name, is there once its write-back has ended."""
        changes = STARTED + stored(ONE, "a")
        ended = Promise(len(changes), ONE.key, NODE)
        self.assertEqual(set(), self.findings(changes, ended))
        lost = "a variant is lost whose write-back has ended"
        for path, expected in ((".scratch", {"a torn variant is served", lost}), (SHARD, {lost})):
            unsynced = self.without(changes, path)
            ended = Promise(len(unsynced), ONE.key, NODE)
            self.assertEqual(expected, self.findings(unsynced, ended))
        unsynced = [each for each in changes if each != change(Change.SYNCED, "")]
        self.assertEqual({lost}, self.findings(unsynced, Promise(len(unsynced), ONE.key, NODE)))

    def test_replaced(self) -> None:
        """A variant that replaces another one is the one that is there."""
        changes = STARTED + stored(ONE, "a") + stored(OTHER, "b", is_first=False)
        first = Promise(len(STARTED) + len(stored(ONE, "a")), ONE.key, NODE)
        self.assertEqual(set(), self.findings(changes, first, Promise(len(changes), ONE.key)))
        changes.pop()
        self.assertEqual(
            {"a replaced variant is back"},
            self.findings(changes, first, Promise(len(changes), ONE.key)),
        )
        # Another node may have renamed its file since, and not be ready.
        self.assertEqual(set(), self.findings(changes, first, Promise(len(changes), "other")))

    def test_removed(self) -> None:
        """A variant stays away once its removal has ended, until it is stored again."""
        changes = STARTED + stored(ONE, "a") + REMOVED
        ended = Promise(len(changes), None, COMMAND)
        again = changes + stored(ONE, "b", is_first=False)
        for each in (changes, again):
            self.assertEqual(set(), self.findings(each, ended))
        changes.pop()
        ended = Promise(len(changes), None, COMMAND)
        self.assertEqual({"a removed variant is back"}, self.findings(changes, ended))

    def test_ledger(self) -> None:
        """A ledger may state too few bytes after a power cut, but not after a crash."""
        entry = f"{0:>20} {0:>20}\n".encode()
        changes = [change(Change.CREATED, ".usage"), written(".usage", entry), *STARTED]
        self.assertEqual(set(), self.findings(changes))
        changes += stored(ONE, "a")
        finding = "the ledger states too few bytes after a crash"
        self.assertEqual({finding}, self.findings(changes, Promise(len(changes), ONE.key, NODE)))
        size = len(ONE.data) + len(make_trailer(len(ONE.data), HEADERS, ONE.record))
        changes.insert(2, written(".usage", f"{size:>20} {size:>20}\n".encode()))
        self.assertEqual(set(), self.findings(changes, Promise(len(changes), ONE.key, NODE)))


class DiskTests(SynchronousTestCase):
    """`Disk` and `File`"""

    def states(self, changes: Sequence[Changed]) -> list[State]:
        """Return states after all changes."""
        disk = Disk()
        for each in changes:
            disk.apply(each)
        return list(disk.states(Random(1), 20))

    def test_names(self) -> None:
        """Names are there or not, in any combination; what is synced is there."""
        made = [change(Change.MADE, "ab"), change(Change.CREATED, "ab/x")]
        self.assertEqual(
            {(), ("ab",), ("ab", "ab/x")}, {tuple(sorted(each)) for each in self.states(made)}
        )
        made += [change(Change.SYNCED, ""), change(Change.CREATED, "y")]
        self.assertEqual(
            {("ab",), ("ab", "ab/x"), ("ab", "y"), ("ab", "ab/x", "y")},
            {tuple(sorted(each)) for each in self.states(made)},
        )

    def test_rename(self) -> None:
        """A renamed file has its old name, its new one, or both; once one is synced, it is gone."""
        made = [
            *(change(Change.MADE, "ab"), change(Change.CREATED, "x")),
            *(change(Change.SYNCED, ""), change(Change.RENAMED, "x", "ab/y")),
        ]
        self.assertEqual(
            {("ab", "x"), ("ab", "ab/y"), ("ab", "ab/y", "x")},
            {tuple(sorted(each)) for each in self.states(made)},
        )
        made.append(change(Change.SYNCED, ""))
        self.assertEqual({("ab", "ab/y")}, {tuple(sorted(each)) for each in self.states(made)})

    def test_content(self) -> None:
        """A write may be missing or torn by blocks, whose place has zeros in a file that grew."""
        file, random = File(), Random(1)
        file.write(0, b"a" * 4096)
        file.sync()
        file.write(0, b"b" * 12288)
        kept = {
            how: {file.kept(how, random) for _ in range(200)}
            for how in ("none", "all", "zeros", "tail", "first", "torn")
        }
        old, new = b"a" * 4096, b"b" * 12288
        self.assertEqual(
            ({old}, {new}, {old + bytes(8192)}, {old + bytes(4096) + b"b" * 4096}, {old, new}),
            tuple(kept[how] for how in ("none", "all", "zeros", "tail", "first")),
        )
        blocks = {(each[:1], each[4096:4097], each[8192:8193]) for each in kept["torn"]}
        self.assertEqual(8 + 1, len(blocks))
        file.truncate(5)
        first = {file.kept("first", random) for _ in range(200)}
        self.assertEqual({old, new, b"b" * 5}, first)
