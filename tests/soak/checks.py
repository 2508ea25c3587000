"""Checks at the end of a run, each of which yields what is wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.soak.access_log import alarms, entries, mismatches
from tests.soak.journal import Journal
from tests.soak.nodes import Metrics, Node
from tests.support.service import resident_bytes
from tests.variants.test_files import store_in

#: Bytes by which the memory of a node may grow after warm-up.
MEMORY_BOUND = 48 * 1024 * 1024

#: Gauges that are 0 on an idle node.
_IDLE = "renders_running render_slots_held render_queue_depth render_low_queue_depth"


def check_answers(journal: Journal) -> Iterator[str]:
    """Check that every response is right, or has a cause that explains its failure."""
    for record in journal.records:
        yield from (f"{what}: {record}" for what in record.problems)
    yield from journal.errors


def check_logs(journal: Journal, nodes: Sequence[Node]) -> Iterator[str]:
    """Check that each request to node A has one log line, and that no log contains errors."""
    records = [record for record in journal.records if record.node == "a"]
    yield from mismatches(records, entries(nodes[0].log))
    for node in nodes:
        for line in alarms(node.log + node.said):
            yield f"node {node.name} logged: {line[:300]}"


@dataclass(frozen=True)
class Level:
    """Resources of an idle node."""

    descriptors: Counter[str]
    memory: int

    @classmethod
    def of(cls, node: Node) -> Level:
        """Measure the resources of a node."""
        return cls(node.descriptors(), resident_bytes(node.pid))


def check_leaks(node: Node, before: Level, after: Level) -> Iterator[str]:
    """Check that the load left no descriptors, child processes or temporary files behind.

    The same descriptors have to be open as before the load. Memory may grow by `MEMORY_BOUND`.
    """
    more, fewer = after.descriptors - before.descriptors, before.descriptors - after.descriptors
    if more or fewer:
        yield f"open descriptors: {dict(more)} more, {dict(fewer)} fewer than before"
    if not node.has_only_servers():
        found = node.all_children()
        yield f"its children are not two fork servers with a spare child each: {found}"
    if (growth := after.memory - before.memory) > MEMORY_BOUND:
        yield f"{growth / 1e6:.0f} MB more memory than after warm-up"
    if left := os.listdir(node.temporary):
        yield f"{len(left)} files are left in TMPDIR"


def check_scratch(store: Path) -> Iterator[str]:
    """Check that no render left a scratch file in the store."""
    for path in (store / ".scratch").rglob("*"):
        if path.is_file() and path.suffix != ".lock":
            yield f"a scratch file is left behind: {path.name}"


def check_metrics(journal: Journal, node: Node, metrics: Metrics) -> Iterator[str]:
    """Check that the metrics of node A agree with its log, and with each other."""
    for gauge in _IDLE.split():
        if metrics.sum(gauge):
            yield f"{gauge} is {metrics.sum(gauge):g} on an idle node"
    renders = [entry for entry in entries(node.log) if entry.endpoint == "render"]
    refused = sum(entry.status == 429 for entry in renders)
    counted = metrics.sum("http_requests_total", endpoint="render")
    if counted != len(renders):
        yield f"{counted:g} requests of variants counted, {len(renders)} logged"
    if (rejected := metrics.sum("render_queue_rejections_total")) > refused:
        yield f"{rejected:g} rejections, but {refused} responses with 429"
    if (ended := metrics.sum("renders_total")) != metrics.sum("render_duration_seconds_count"):
        yield "the histogram and the counter of renders differ"
    if ended > metrics.sum("cache_lookups_total", outcome="miss"):
        yield "more renders than misses"
    failures = metrics.sum("variant_store_write_failures_total")
    if failures and not journal.disturbed:
        yield f"{failures:g} writes failed in an undisturbed store"


async def check_store(journal: Journal, store: Path) -> list[str]:
    """Check that every variant that the store returns is complete and right."""
    variants, wrong = store_in(store), []
    for path in sorted(store.glob("[0-9a-f][0-9a-f]/*")):
        stored = await variants.lookup(path.name)
        if stored is None:
            continue
        body = stored.read(0, stored.size)
        stored.close()
        if body != journal.bodies.get(path.name):
            wrong.append(f"a wrong or unknown variant of {len(body)} bytes, {path.name}")
    return wrong


def check_end(store: Path, codes: dict[str, int | None]) -> Iterator[str]:
    """Check that all nodes exit with status 0 and leave the scratch folder empty."""
    for name, code in codes.items():
        if code != 0:
            yield f"node {name} had the exit status {code}"
    scratch = store / ".scratch"
    if left := os.listdir(scratch) if scratch.exists() else []:
        yield f"{len(left)} entries are left in the scratch folder"
