"""``audioproxy store prune``: remove old variants, the least recently used first."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from audioproxy.cli.arguments import duration, size
from audioproxy.cli.exit_status import UsageError
from audioproxy.cli.store.command import OpenStore, StoreCommand, add_common_arguments
from audioproxy.cli.store.variant_rows import amount_text
from audioproxy.variants.folder_catalog import exclusive_prune
from audioproxy.variants.prune import Limits, Pruned, prune
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


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--max-bytes",
        type=size,
        metavar="SIZE",
        help="bytes in the store, such as 1000000, 500M, 20G or 2T (powers of 1000)",
    )
    add("--older-than", type=duration, metavar="TIME", help="since the storing, such as 12h or 90d")
    add(
        "--unused-for", type=duration, metavar="TIME", help="since the last use, such as 12h or 90d"
    )
    add("-n", "--dry-run", action="store_true", help="remove nothing")
    add_common_arguments(parser)


class Prune(StoreCommand):
    def __init__(self, arguments: Namespace) -> None:
        ages = (arguments.older_than, arguments.unused_for)
        if (arguments.max_bytes, *ages) == (None, None, None):
            raise UsageError("one of --max-bytes, --older-than and --unused-for is required")
        super().__init__(arguments)
        now = time.time()
        oldest = (float("-inf") if age is None else now - age for age in ages)
        self._limits = Limits(arguments.max_bytes, *oldest)
        self.pruned = Pruned()

    @property
    def removes(self) -> bool:
        return not self.arguments.dry_run

    async def work(self, store: OpenStore) -> None:
        remove = partial(self.remove, store, on_removed=self.pruned.removed.add)
        lock: AbstractContextManager[EndCount] = nullcontext(lambda total: None)
        place = store.config.variant_store
        if place is None or place.path is None:
            if self.arguments.unused_for is not None:
                raise UsageError("--unused-for: a bucket does not record when a variant was used")
        elif not self.arguments.dry_run:
            lock = exclusive_prune(place.path)
        with lock as end_count:
            await prune(store.pages, remove, self._limits, self.pruned, end_count)

    def values(self) -> dict[str, Any]:
        return {"dry_run": self.arguments.dry_run, **self.pruned.values}

    def lines(self) -> Iterator[str]:
        verb = "would be removed" if self.arguments.dry_run else "removed"
        yield f"{verb}: {amount_text(self.pruned.removed)}"
        remaining = self.pruned.remaining
        yield f"remaining: {'unknown' if remaining is None else amount_text(remaining)}"


execute = Prune.execute
