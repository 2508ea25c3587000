"""A power cut after each change of a store: what a file system may have kept, and what it means.

The model is that of POSIX, which ALICE and lazyfs use too. What was synced is on the disk: a file
by fsync(2) of it, a name by fsync(2) of its folder. Of everything else, any part may be there:

- A write may be missing, or be there by some of its blocks. Where a file has grown, a missing block
  has zeros.
- A name may be the old or the new one, whatever other names are; but a rename loses no file.

`Disk` follows a record of changes, and yields such states. `check_state` puts one into a folder,
and opens it as a store.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.variants.catalog import KEY, Pace, Verdict
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.folder_catalog import FolderCatalog
from audioproxy.variants.prune import main as prune_child
from audioproxy.variants.response_headers import VariantHeaders
from tests.faults.calls import Change, Changed
from tests.support.stores import RECORD

_BLOCK = 4096
_NAMING = {Change.CREATED, Change.RENAMED, Change.LINKED, Change.UNLINKED}
_SCRATCH = ".scratch"
_NEW_KEY = "00" * 32

#: The paths of a state, with the bytes of each file, and None for a folder.
State: TypeAlias = Mapping[str, bytes | None]


class File:
    """A file: the bytes that are on the disk, and the writes since then.

    :ivar now: the bytes that processes read.
    """

    def __init__(self) -> None:
        self.now = bytearray()
        self._synced = b""
        # Of each write its offset and bytes; of each change of the size that and no bytes.
        self._pending: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes) -> None:
        self._pending.append((offset, data))
        _apply(self.now, offset, data)

    def truncate(self, size: int) -> None:
        self._pending.append((size, None))
        _apply(self.now, size, None)

    def sync(self) -> None:
        self._synced = bytes(self.now)
        self._pending.clear()

    def kept(self, how: str, random: Random) -> bytes:
        """Return what a power cut may leave: ``none`` or ``all`` of the writes, or others.

        With ``zeros``, new blocks are missing, and with ``tail`` all blocks but the last one. With
        ``first``, the first writes are there. With ``torn``, each block is there by chance.
        """
        if how == "none" or not self._pending:
            return self._synced
        if how == "all":
            return bytes(self.now)
        if how in ("zeros", "tail"):
            size = len(self.now)
            start = size if how == "zeros" else max(0, size - 1) // _BLOCK * _BLOCK
            return self._synced[:start].ljust(start, b"\0") + self.now[start:]
        content = bytearray(self._synced)
        for offset, data in self._pending[: random.randint(0, len(self._pending))]:
            if how == "first" or data is None:
                _apply(content, offset, data)
                continue
            before = bytes(content)
            _apply(content, offset, data)
            for start in range(offset - offset % _BLOCK, offset + len(data), _BLOCK):
                if random.random() < 0.5:
                    block = slice(start, min(start + _BLOCK, len(content)))
                    content[block] = before[block].ljust(block.stop - start, b"\0")
        return bytes(content)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    size = offset if data is None else offset + len(data)
    if data is None:
        del content[size:]
    content.extend(bytes(max(0, size - len(content))))
    if data is not None:
        content[offset:size] = data


class Folder:
    """A folder: what each name has been since the folder was synced, each with a serial number."""

    def __init__(self, *, is_scratch: bool = False) -> None:
        self.names: dict[str, list[tuple[int, Node]]] = {}
        self.is_scratch = is_scratch

    def now(self, name: str) -> Node:
        versions = self.names.get(name)
        return versions[-1][1] if versions else None

    def set(self, name: str, serial: int, node: Node) -> None:
        self.names.setdefault(name, [(0, None)]).append((serial, node))

    def sync(self, name: str) -> None:
        del self.names[name][:-1]


Node: TypeAlias = File | Folder | None
#: A name in a folder.
Slot: TypeAlias = tuple[Folder, str]


@dataclass(frozen=True, slots=True)
class _Rename:
    serial: int
    old: Slot
    new: Slot


class Disk:
    """A file system that follows a record of changes."""

    def __init__(self) -> None:
        self.root = Folder()
        self._folders = [self.root]
        self._renames: list[_Rename] = []
        self._serial = 0

    def apply(self, changed: Changed) -> None:
        self._serial += 1
        folder, name = self._place(changed.path)
        node = self.root if not changed.path else folder and folder.now(name)
        match changed.change:
            case Change.SYNCED:
                self._sync(node)
            case Change.WRITTEN if isinstance(node, File):
                node.write(changed.offset, changed.data)
            case Change.CONTENT if isinstance(node, File) and node.now != changed.data:
                node.write(0, changed.data)
                node.truncate(len(changed.data))
            case Change.TRUNCATED if isinstance(node, File):
                node.truncate(changed.offset)
            case Change.CREATED | Change.MADE if folder is not None:
                made: Node = File()
                if changed.change is Change.MADE:
                    made = Folder(is_scratch=folder.is_scratch or changed.path == _SCRATCH)
                    self._folders.append(made)
                folder.set(name, self._serial, made)
            case Change.UNLINKED | Change.REMOVED if folder is not None:
                folder.set(name, self._serial, None)
            case Change.RENAMED if folder is not None:
                target, new_name = self._place(changed.target)
                assert target is not None, changed
                target.set(new_name, self._serial, node)
                folder.set(name, self._serial, None)
                slots = (folder, name), (target, new_name)
                self._renames.append(_Rename(self._serial, *slots))

    def find(self, path: str) -> Node:
        """Return what has a path now."""
        folder, name = self._place(path)
        return folder and folder.now(name)

    def _place(self, path: str) -> tuple[Folder | None, str]:
        """Return the folder of a path, if it is there now, and the name in it."""
        folder: Node = self.root
        *above, name = path.split("/")
        for each in above:
            folder = folder.now(each) if isinstance(folder, Folder) else None
        return folder if isinstance(folder, Folder) else None, name

    def _sync(self, node: Node) -> None:
        if isinstance(node, File):
            node.sync()
        elif isinstance(node, Folder):
            for name in list(node.names):
                node.sync(name)
            # A rename whose old name is gone for good has its new name.
            for rename in [each for each in self._renames if node in (each.old[0], each.new[0])]:
                folder, name = rename.new
                versions = folder.names[name]
                folder.names[name] = [
                    each for each in versions if each[0] >= rename.serial
                ] or versions
                self._renames.remove(rename)

    def states(self, random: Random, most: int) -> Iterator[State]:
        """Yield states that a power cut may leave now: the simplest, and some others.

        The first one is what processes see, which a crash of all of them leaves, too. The second
        one lacks the last change of each name.

        :param most: of those with one name that is an exception, and of those by chance.
        """
        pending = [
            (folder, name, versions)
            for folder in self._folders
            for name, versions in folder.names.items()
            if len(versions) > 1
        ]
        newest = {(folder, name): versions[-1][0] for folder, name, versions in pending}
        oldest = {(folder, name): versions[0][0] for folder, name, versions in pending}
        before = {(folder, name): versions[-2][0] for folder, name, versions in pending}
        for chosen in (newest, before, oldest):
            yield self._state(chosen, "all", random)
        for how in ("none", "zeros", "tail", "first", "torn"):
            yield self._state(newest, how, random)
        # Which scratch files are there is of little interest.
        others = [each for each in pending if not each[0].is_scratch]
        scratch = [each for each in pending if each[0].is_scratch]
        singles = random.sample(others, min(most, len(others)))
        for folder, name, versions in [*singles, *random.sample(scratch, min(1, len(scratch)))]:
            slot = folder, name
            for rest, serial in ((newest, random.choice(versions[:-1])[0]), (oldest, newest[slot])):
                yield self._state({**rest, slot: serial}, random.choice(("all", "none")), random)
        for _ in range(most if pending else 0):
            chosen = {(folder, name): random.choice(each)[0] for folder, name, each in pending}
            yield self._state(chosen, "torn", random)

    def _state(self, chosen: dict[Slot, int], how: str, random: Random) -> State:
        chosen = dict(chosen)
        for rename in reversed(self._renames):
            # Not the old name without the new one: the file would be lost.
            if chosen.get(rename.old, 0) >= rename.serial > chosen.get(rename.new, rename.serial):
                folder, name = rename.old
                before = [each for each, _ in folder.names[name] if each < rename.serial]
                chosen[rename.old] = before[-1]
        state: dict[str, bytes | None] = {}
        self._add(self.root, "", chosen, how, random, state)
        return state

    def _add(
        self,
        folder: Folder,
        path: str,
        chosen: Mapping[Slot, int],
        how: str,
        random: Random,
        state: dict[str, bytes | None],
    ) -> None:
        for name, versions in folder.names.items():
            serial = chosen.get((folder, name), versions[-1][0])
            node = next(node for each, node in versions if each == serial)
            if isinstance(node, Folder):
                state[path + name] = None
                self._add(node, f"{path}{name}/", chosen, how, random, state)
            elif node is not None:
                # What scratch files have is never read.
                kept = "none" if path.startswith(_SCRATCH) else how
                state[path + name] = node.kept(kept, random)


# What has to be there


@dataclass(frozen=True, slots=True)
class Promise:
    """What is true from one place in a record on.

    :ivar since: the number of changes that were recorded when the node or the command said so.
    :ivar stored: the key of the variant whose write-back has ended; None if removals have.
    :ivar process: the number of the process that has made the changes; None for any.
    """

    since: int
    stored: str | None = None
    process: int | None = None


@dataclass(frozen=True, slots=True)
class _Version:
    """What a key has from one change on: a file, or None."""

    number: int
    process: int
    data: bytes | None

    def keeps(self, promise: Promise, key: str) -> bool:
        """Return whether a promise is about this change."""
        return (
            self.number <= promise.since
            and promise.process in (None, self.process)
            and promise.stored == (None if self.data is None else key)
        )


class History:
    """Each variant of a record, when it was stored and removed, and what was promised."""

    def __init__(self, changes: Sequence[Changed], promises: Sequence[Promise]) -> None:
        self._versions: dict[str, list[_Version]] = defaultdict(list)
        self._promises = promises
        disk = Disk()
        for number, changed in enumerate(changes, 1):
            disk.apply(changed)
            for path in (changed.path, changed.target):
                if is_variant(path) and changed.change in _NAMING:
                    node = disk.find(path)
                    data = bytes(node.now) if isinstance(node, File) else None
                    version = _Version(number, changed.process, data)
                    self._versions[path[3:]].append(version)

    @property
    def keys(self) -> set[str]:
        return set(self._versions)

    def allowed(self, key: str, prefix: int) -> set[bytes | None]:
        """Return what a power cut after so many changes may leave under a key; None for nothing.

        That is what the key had when the last promise was made, and what it was changed to since.
        """
        versions = [each for each in self._versions[key] if each.number <= prefix]
        made = [each for each in self._promises if each.since <= prefix]
        kept = [
            place
            for place, version in enumerate(versions)
            if any(version.keeps(promise, key) for promise in made)
        ]
        allowed = {each.data for each in versions[kept[-1] if kept else 0 :]}
        return allowed if kept else allowed | {None}


def is_variant(path: str) -> bool:
    return path[2:3] == "/" and KEY.fullmatch(path[3:]) is not None and path[:2] == path[3:5]


# What a store makes of it

#: Blocking calls run at once in the same thread.
CALLS = BlockingCalls(Clock(), execute)


def result_of(work: Any) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    outcome: list[Any] = []
    Deferred.fromCoroutine(work).addBoth(outcome.append)
    if hasattr(outcome[0], "raiseException"):
        outcome[0].raiseException()
    return outcome[0]


def check_state(
    root: Path, state: State, allowed: Mapping[str, set[bytes | None]], *, is_crash: bool = False
) -> list[str]:
    """Put a state into a folder, open it as a store, and return what is wrong.

    :param allowed: of each key, the whole files that it may have, and None if it may have none.
    :param is_crash: no change is lost, as after a crash of all processes.
    """
    for path, data in state.items():
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)
    store = FileVariantStore(str(root), CALLS, CALLS, Clock().seconds, 10**9)
    try:
        result_of(store.open())
    except Exception as error:
        return [f"the store does not open: {error}"]
    try:
        if is_crash and (store.usage.read() or 0) < _total(root) and store.usage.size is not None:
            return ["the ledger states too few bytes after a crash"]
        return [*_check_variants(root, store, allowed), *_check_upkeep(root, store)]
    finally:
        store.close_now()


def _check_variants(
    root: Path, store: FileVariantStore, allowed: Mapping[str, set[bytes | None]]
) -> Iterator[str]:
    catalog = FolderCatalog(str(root), execute, 1)
    for key, files in allowed.items():
        found = result_of(store.lookup(key))
        if found is None:
            if None not in files:
                yield "a variant is lost whose write-back has ended"
            continue
        data = found.read(0, found.size)
        found.close()
        entry = result_of(catalog.find(key))
        if result_of(catalog.check(entry, Pace(None))).verdict is not Verdict.GOOD:
            yield "a torn variant is served"
        elif files == {None}:
            yield "a removed variant is back"
        elif (root / key[:2] / key).read_bytes() not in files:
            yield "a replaced variant is back"
        if store.read_small(key) not in (None, (found.stored, data)):
            yield "a second lookup finds other bytes"


def _check_upkeep(root: Path, store: FileVariantStore) -> Iterator[str]:
    left = [path for path in (root / _SCRATCH).iterdir() if path.suffix != ".lock"]
    if len(left) != 1 or list(left[0].iterdir()):
        yield "scratch files are left after the start"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = prune_child(str(root), str(10**9))
    total = _total(root)
    if status or store.usage.read() != total:
        yield f"the ledger states {store.usage.size} bytes of {total} after a count ({status})"
    scratch = result_of(store.create())
    os.write(scratch.descriptor, b"new")
    result_of(store.commit(_NEW_KEY, scratch, 3, VariantHeaders("audio/mpeg", "no-store"), RECORD))
    if (found := result_of(store.lookup(_NEW_KEY))) is None:
        yield "a new variant is not stored"
    else:
        found.close()


def _total(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("??/*"))


@dataclass(slots=True)
class Report:
    """What the states of a record were, and what is wrong in how many of them."""

    prefixes: int = 0
    states: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    #: Of each finding, the first prefix and the change at its end.
    first: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.prefixes} prefixes, {self.states} states"]
        for what, number in self.findings.items():
            lines.append(f"{number} times: {what}; first after {self.first[what]}")
        return "\n".join(lines)


def check_record(
    changes: Sequence[Changed],
    promises: Sequence[Promise],
    *,
    seed: int = 1,
    most: int = 6,
    share: int = 1,
) -> Report:
    """Check the states after each change of a record.

    :param most: states of each kind of exceptions after one change.
    :param share: check the first two states, and of the others one of so many, by chance.
    """
    random, report, seen = Random(seed), Report(), set[int]()
    history, disk = History(changes, promises), Disk()
    with tempfile.TemporaryDirectory(prefix="power-", dir=_memory()) as place:
        for prefix, changed in enumerate(changes, 1):
            disk.apply(changed)
            report.prefixes += 1
            allowed = {key: history.allowed(key, prefix) for key in history.keys}
            rules = hash(frozenset((key, frozenset(files)) for key, files in allowed.items()))
            for number, state in enumerate(disk.states(random, most)):
                known = hash((rules, not number, frozenset(state.items())))
                if known in seen or (number > 1 and random.randrange(share)):
                    continue
                seen.add(known)
                report.states += 1
                root = Path(place, "store")
                root.mkdir()
                for finding in set(check_state(root, state, allowed, is_crash=not number)):
                    report.findings[finding] += 1
                    where = f"change {prefix}: {changed.change.name} {changed.path}"
                    report.first.setdefault(finding, where)
                shutil.rmtree(root)
    return report


def _memory() -> str | None:
    """Return a folder in memory, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
