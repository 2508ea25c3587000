"""Pruning: remove the least recently used variants until a store is within its limits.

The command ``audioproxy store prune`` calls `prune`. A service with a bound runs this module as a
child process: ``python -P -m audioproxy.variants.prune FOLDER BYTES`` prunes a folder to a number
of bytes, and prints a summary of one line.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, execute

from audioproxy.variants.catalog import Amount, CatalogBusy, CatalogError, Entry, NotSynced, Page
from audioproxy.variants.folder_catalog import FolderCatalog, exclusive_prune
from audioproxy.variants.usage import EndCount

T = TypeVar("T")

#: The exit status of the child if another process prunes the folder.
BUSY = os.EX_TEMPFAIL

# Variants that are removed at a time.
_BATCH = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """What may remain in a store.

    :ivar max_bytes: of all variants together.
    :ivar stored_after: Unix seconds; variants that were stored before are too old.
    :ivar used_after: the same for the last use.
    """

    max_bytes: int | None = None
    stored_after: float = float("-inf")
    used_after: float = float("-inf")

    def is_old(self, entry: Entry) -> bool:
        """Return whether a variant is too old."""
        return entry.stored < self.stored_after or entry.last_use < self.used_after


@dataclass(slots=True)
class Pruned:
    """What a prune has done so far.

    :ivar listed: the variants that were found.
    :ivar is_listed: whether these are all variants of the store.
    """

    removed: Amount = field(default_factory=Amount)
    listed: Amount = field(default_factory=Amount)
    is_listed: bool = False

    @property
    def remaining(self) -> Amount | None:
        """The variants that remain; None while unknown."""
        if not self.is_listed:
            return None
        variants = self.listed.variants - self.removed.variants
        return Amount(variants, self.listed.bytes - self.removed.bytes)

    @property
    def values(self) -> dict[str, Any]:
        """The numbers by their names in JSON."""
        remaining = self.remaining
        return {"removed": asdict(self.removed), "remaining": remaining and asdict(remaining)}


async def prune(
    pages: Callable[[], AsyncIterator[Page]],
    remove: Callable[[Sequence[Entry]], Awaitable[None]],
    limits: Limits,
    pruned: Pruned,
    end_count: EndCount = lambda total: None,
) -> None:
    """Remove what is too old, and then what exceeds the bytes.

    The store is listed twice where it exceeds them: the first time to count.

    :param pages: lists all variants.
    :param remove: removes variants, and adds them to `Pruned.removed`.
    :param end_count: called with the bytes that the first listing has found and left.
    """
    selection = LeastRecentlyUsed()
    async for page in pages():
        for entry in page.entries:
            pruned.listed.add(entry)
            if not limits.is_old(entry):
                selection.count(entry)
        await remove([entry for entry in page.entries if limits.is_old(entry)])
    pruned.is_listed = True
    total = pruned.listed.bytes - pruned.removed.bytes
    end_count(total)
    if limits.max_bytes is None or total <= limits.max_bytes:
        return
    selection.select(total - limits.max_bytes)
    async for page in pages():
        left = [entry for entry in page.entries if not limits.is_old(entry)]
        await remove([entry for entry in left if selection.takes(entry)])
    for batch in selection.rest():
        await remove(batch)


class LeastRecentlyUsed:
    """Selects the least recently used of all variants, which together have at least some bytes.

    The first listing gives the bytes that were last used in each hour, and with them the hour up to
    which variants have to go. Of that hour alone, the variants that have to go are kept in memory.
    """

    def __init__(self) -> None:
        self._bytes_by_hour = Counter[int]()
        self._last_hour = 0
        # Of the last hour: the bytes that have to go, those that are selected, and their variants,
        # the most recently used one first.
        self._least = 0
        self._bytes = 0
        self._heap: list[tuple[float, bytes, int]] = []

    def count(self, entry: Entry) -> None:
        """Count a variant of the first listing."""
        self._bytes_by_hour[_hour(entry)] += entry.size

    def select(self, least: int) -> None:
        """Select variants that together have at least some bytes."""
        for hour in sorted(self._bytes_by_hour):
            self._last_hour, self._least = hour, least
            least -= self._bytes_by_hour[hour]
            if least <= 0:
                return

    def takes(self, entry: Entry) -> bool:
        """Return whether a variant of the second listing is selected before its end."""
        if _hour(entry) == self._last_hour:
            heappush(self._heap, (-entry.last_use, bytes.fromhex(entry.key), entry.size))
            self._bytes += entry.size
            while self._heap and self._bytes - self._heap[0][2] >= self._least:
                self._bytes -= heappop(self._heap)[2]
        return _hour(entry) < self._last_hour

    def rest(self) -> Iterator[list[Entry]]:
        """Yield the other selected variants, the least recently used first.

        Only their keys and bytes are known.
        """
        self._heap.sort(reverse=True)
        for start in range(0, len(self._heap), _BATCH):
            part = self._heap[start : start + _BATCH]
            yield [Entry(key.hex(), size, stored=0) for _, key, size in part]


def _hour(entry: Entry) -> int:
    return int(entry.last_use // 3600)


def prune_command(folder: str, max_bytes: int) -> list[str]:
    """Return the command of a child that prunes a folder."""
    # With -P, the working directory is no place of modules.
    return [sys.executable, "-P", "-m", __name__, folder, str(max_bytes)]


def read_summary(stdout: bytes) -> tuple[int, int | None]:
    """Return the variants that a child has removed, and the bytes that remain, if it knows them.

    A child that was killed prints nothing.
    """
    if not stdout:
        return 0, None
    values = json.loads(stdout)
    remaining = values["remaining"]
    return values["removed"]["variants"], remaining and remaining["bytes"]


def main(folder: str, max_bytes: str) -> int:
    """Prune a folder, print a summary, and return the exit status."""
    pruned = Pruned()
    failures = 0

    def warn(entry: Entry | None, error: Exception) -> None:
        place = "the store" if entry is None else entry.key
        print(f"audioproxy: {place}: {error}", file=sys.stderr)

    def fail(entry: Entry | None, error: Exception) -> None:
        nonlocal failures
        failures += 1
        warn(entry, error)

    # The child has nothing else to do, so it needs no thread, and no reactor.
    catalog = FolderCatalog(folder, _run_at_once, 1)
    try:
        with exclusive_prune(folder) as end_count:
            _run(
                prune(
                    catalog.pages,
                    lambda entries: catalog.remove(entries, pruned.removed.add, fail),
                    Limits(int(max_bytes)),
                    pruned,
                    end_count,
                )
            )
    except CatalogBusy:
        return BUSY
    except (CatalogError, OSError) as error:
        fail(None, error)
    try:
        _run(catalog.flush())
    except NotSynced as error:
        # The store is within its bound nevertheless.
        warn(None, error)
    print(json.dumps(pruned.values))
    return 1 if failures else 0


def _run_at_once(work: Callable[[], T]) -> Deferred[T]:
    return execute(work)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    with suppress(StopIteration):
        work.send(None)
        raise AssertionError("the work waits")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
