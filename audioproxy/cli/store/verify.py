"""``audioproxy store verify``: compare the bytes of variants with their digests."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from typing import Any

from audioproxy.cli.arguments import size
from audioproxy.cli.exit_status import FAILURE, UsageError
from audioproxy.cli.output import format_bytes, format_count
from audioproxy.cli.store.command import OpenStore, StoreCommand, add_common_arguments
from audioproxy.concurrency.workers import for_each
from audioproxy.variants.catalog import CatalogError, Entry, Finding, Pace, Verdict

DESCRIPTION = """\
Read every variant, and compare its bytes with the SHA-256 that was stored with it. A variant that
was stored without one is counted as unknown; its file is only checked to be complete. A variant
that is removed or replaced meanwhile is no failure.

examples:
  audioproxy store verify
  audioproxy store verify --pace 20M --delete
  audioproxy store verify --json | jq .broken

The exit status is 1 if a variant is broken, even with --delete, or cannot be read. A variant that
cannot be read is never removed: the disk or the network may have failed.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--pace",
        type=size,
        metavar="SIZE",
        help="bytes to read in a second, such as 20M (powers of 1000); without it, as fast as"
        " possible",
    )
    text = "remove broken variants, so that they render again"
    parser.add_argument("--delete", action="store_true", help=text)
    add_common_arguments(parser)


class Verification(StoreCommand):
    """Reads variants, and removes broken ones with ``--delete``."""

    def __init__(self, arguments: Namespace) -> None:
        if arguments.pace == 0:
            raise UsageError("--pace: at least one byte in a second is required")
        super().__init__(arguments)
        self._counts = Counter[Verdict]()
        self._bytes = 0
        self._broken: list[Finding] = []
        self._removed: set[str] = set()

    @property
    def removes(self) -> bool:
        return bool(self.arguments.delete)

    async def work(self, store: OpenStore) -> None:
        pace = Pace(self.arguments.pace)

        def on_removed(entry: Entry) -> None:
            self._removed.add(entry.key)

        async def check(entry: Entry) -> None:
            try:
                finding = await store.catalog.check(entry, pace)
            except (CatalogError, OSError) as error:
                self.fail(entry, error)
            else:
                self._add(finding)
                if finding.verdict is Verdict.BROKEN and self.arguments.delete:
                    found = [finding.entry]
                    await store.catalog.remove(found, on_removed, self.fail, unchanged=True)
            store.bar.update()

        async for page in store.pages(counted=False):
            await for_each(page.entries, check, store.concurrency)

    def _add(self, finding: Finding) -> None:
        self._counts[finding.verdict] += 1
        self._bytes += finding.entry.size
        if finding.verdict is Verdict.BROKEN:
            self._broken.append(finding)
            self.out.line(f"broken: {finding.entry.key}: {finding.reason}")

    @property
    def status(self) -> int:
        return FAILURE if self._broken else super().status

    def values(self) -> dict[str, Any]:
        keys = {finding.entry.key: finding.reason for finding in self._broken}
        broken = [
            {"key": key, "reason": reason, "removed": key in self._removed}
            for key, reason in keys.items()
        ]
        counts = {each.name.lower(): self._counts[each] for each in Verdict}
        return {**counts, "bytes": self._bytes, "broken": broken}

    def lines(self) -> Iterator[str]:
        total = format_count(self._counts.total(), "variant")
        yield f"verified: {total}, {format_bytes(self._bytes)}"
        yield from (f"{self._counts[each]} {each.value}" for each in Verdict if self._counts[each])
        if self._removed:
            yield f"removed: {format_count(len(self._removed), 'broken variant')}"


execute = Verification.execute
