"""``audioproxy store prune``: remove old variants, the least recently used first."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from heapq import heappop, heappush
from typing import Any

from audioproxy.cli.arguments import duration, size
from audioproxy.cli.exit_status import UsageError
from audioproxy.cli.progress import progress_bar
from audioproxy.cli.store.session import (
    Amount,
    Outcome,
    StoreSession,
    add_common_arguments,
    run_command,
)
from audioproxy.variants.catalog import Entry
from audioproxy.variants.folder_catalog import exclusive_prune
from audioproxy.variants.usage import EndCount

DESCRIPTION = """\
Remove variants until none is older than the given times, and all of them together have at most the
given bytes. Those that were least recently used go first. They are rendered again when a client
requests them.

The last use is the access time of the file. A bucket does not record uses: --max-bytes removes what
was stored first there, and --unused-for is refused. One process at a time prunes a folder.

examples:
  audioproxy store prune --max-bytes 500G
  audioproxy store prune --unused-for 90d --dry-run
  audioproxy store prune --older-than 365d --max-bytes 2T --json
"""

# Variants that are removed between two updates of the progress bar.
_BATCH = 256


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--max-bytes",
        type=size,
        metavar="SIZE",
        help="bytes in the store, such as 1000000, 500M, 20G or 2T (powers of 1000)",
    )
    parser.add_argument(
        "--older-than", type=duration, metavar="TIME", help="since the storing, such as 12h or 90d"
    )
    parser.add_argument(
        "--unused-for", type=duration, metavar="TIME", help="since the last use, such as 12h or 90d"
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="remove nothing")
    add_common_arguments(parser)


class PruneOutcome(Outcome):
    """What was removed so far, and what remains.

    :ivar listed: the variants that were found.
    :ivar is_listed: whether these are all variants of the store.
    """

    def __init__(self, as_json: bool, bar: Any, dry_run: bool) -> None:
        super().__init__(as_json, bar)
        self.removed = Amount()
        self.listed = Amount()
        self.is_listed = False
        self._dry_run = dry_run

    def values(self) -> dict[str, Any]:
        """Return the values of the JSON object."""
        return {
            "dry_run": self._dry_run,
            "removed": self.removed.values,
            "remaining": self._remaining.values if self.is_listed else None,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        yield f"{'would be removed' if self._dry_run else 'removed'}: {self.removed}"
        yield f"remaining: {self._remaining if self.is_listed else 'unknown'}"

    @property
    def _remaining(self) -> Amount:
        variants = self.listed.variants - self.removed.variants
        return Amount(variants, self.listed.bytes - self.removed.bytes)


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    limits = (arguments.max_bytes, arguments.older_than, arguments.unused_for)
    if limits == (None, None, None):
        raise UsageError("one of --max-bytes, --older-than and --unused-for is required")
    bar = progress_bar("variants", arguments.quiet)
    outcome = PruneOutcome(arguments.json, bar, arguments.dry_run)
    is_old = age_limit(time.time(), arguments.older_than, arguments.unused_for)

    async def work(session: StoreSession) -> None:
        lock: AbstractContextManager[EndCount] = nullcontext(lambda total: None)
        store = session.config.variant_store
        if store is None or store.path is None:
            if arguments.unused_for is not None:
                raise UsageError("--unused-for: a bucket does not record when a variant was used")
        elif not arguments.dry_run:
            lock = exclusive_prune(store.path)
        with lock as end_count:
            await prune(session, outcome, is_old, arguments.max_bytes, arguments.dry_run, end_count)

    return run_command(arguments, environment, outcome, bar, work)


def age_limit(
    now: float, older_than: float | None, unused_for: float | None
) -> Callable[[Entry], bool]:
    """Return a function that returns whether a variant is too old.

    :param now: Unix seconds.
    :param older_than: seconds since the storing, or None for no limit.
    :param unused_for: seconds since the last use, or None for no limit.
    """

    def is_old(entry: Entry) -> bool:
        if older_than is not None and now - entry.stored > older_than:
            return True
        return unused_for is not None and now - entry.last_use > unused_for

    return is_old


async def prune(
    session: StoreSession,
    outcome: PruneOutcome,
    is_old: Callable[[Entry], bool],
    max_bytes: int | None,
    dry_run: bool,
    end_count: EndCount,
) -> None:
    """Remove what is too old, and then what exceeds the bytes.

    The store is listed twice where it exceeds them: the first time to count.

    :param end_count: called with the bytes that the first listing has found and left.
    """

    async def remove(entries: Sequence[Entry]) -> None:
        if dry_run:
            for entry in entries:
                outcome.removed.add(entry)
        else:
            await session.catalog.remove(entries, outcome.removed.add, outcome.fail)

    selection = LeastRecentlyUsed()
    async for page in session.pages():
        for entry in page.entries:
            outcome.listed.add(entry)
            if not is_old(entry):
                selection.count(entry)
        await remove([entry for entry in page.entries if is_old(entry)])
        session.bar.update(len(page.entries))
    outcome.is_listed = True
    total = outcome.listed.bytes - outcome.removed.bytes
    end_count(total)
    excess = total - (max_bytes or 0)
    if max_bytes is None or excess <= 0:
        return
    selection.select(excess)
    session.bar.reset()
    async for page in session.pages():
        left = [entry for entry in page.entries if not is_old(entry)]
        await remove([entry for entry in left if selection.takes(entry)])
        session.bar.update(len(page.entries))
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
