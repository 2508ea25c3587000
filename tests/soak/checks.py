"""Checks at the end of a run, each with its figures and problems."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.threads import thread_per_call
from audioproxy.variants.files import FileVariantStore
from tests.soak.counters import QUIET, Entry, alarms, families, mismatches
from tests.soak.journal import Journal
from tests.soak.nodes import Metrics, Node
from tests.support.service import reactor, resident_bytes

#: Bytes by which the memory of a node may grow after warm-up.
MEMORY_BOUND = 48 * 1024 * 1024


@dataclass
class Check:
    """Result of one check.

    :ivar figures: a short summary of what was measured.
    :ivar problems: the errors found; the run fails if there are any.
    """

    name: str
    figures: str = ""
    problems: list[str] = field(default_factory=list)


def check_answers(journal: Journal) -> Check:
    """Check that every response is right, or has a cause that explains its failure."""
    wrong = [f"{what}: {record}" for record in journal.records for what in record.problems]
    excused = sum(bool(record.causes) for record in journal.records)
    figures = (
        f"{len(journal.records)} requests, {journal.compared / 1e6:.1f} MB compared,"
        f" {excused} requests allowed to fail"
    )
    return Check("responses", figures, wrong)


def check_errors(journal: Journal) -> Check:
    """Check that there are no errors that belong to no single request."""
    return Check("other errors", f"{len(journal.errors)} errors", list(journal.errors))


def check_log(journal: Journal, nodes: Iterable[Node], logged: list[Entry]) -> Check:
    """Check that each request to node A has one log line, and that no log contains errors."""
    wrong = list(mismatches(list(journal.at("a")), logged))
    for node in nodes:
        for text in (node.log, node.said):
            wrong += [f"node {node.name} logged: {line[:300]}" for line in alarms(text)]
    return Check("log", f"{len(logged)} access log lines of node A", wrong)


@dataclass(frozen=True)
class Level:
    """Resources of an idle node."""

    descriptors: Counter[str]
    memory: int

    @classmethod
    def of(cls, node: Node) -> Level:
        """Measure the resources of a node."""
        return cls(node.descriptors(), resident_bytes(node.pid))


def check_leaks(node: Node, before: Level, after: Level, peak: int) -> Check:
    """Check that the load left no descriptors, child processes or temporary files behind.

    The same descriptors have to be open as before the load. Memory may grow by `MEMORY_BOUND`.
    """
    more, fewer = after.descriptors - before.descriptors, before.descriptors - after.descriptors
    growth = after.memory - before.memory
    wrong = []
    if more or fewer:
        wrong.append(f"open descriptors: {dict(more)} more, {dict(fewer)} fewer than before")
    if not node.has_only_servers():
        found = node.all_children()
        wrong.append(f"its children are not two fork servers with a spare child each: {found}")
    if growth > MEMORY_BOUND:
        wrong.append(f"{growth / 1e6:.0f} MB more memory than after warm-up")
    if left := os.listdir(node.temporary):
        wrong.append(f"{len(left)} files are left in TMPDIR")
    figures = (
        f"{after.descriptors.total()} descriptors ({before.descriptors.total()} before, {peak} at"
        f" most), {after.memory / 1e6:.0f} MB ({before.memory / 1e6:.0f} MB before, may grow by"
        f" {MEMORY_BOUND / 1e6:.0f} MB)"
    )
    return Check("leaks", figures, wrong)


def check_scratch(store: Path) -> Check:
    """Check that no render left a scratch file in the store."""
    left = [path for path in (store / ".scratch").rglob("*") if path.is_file()]
    left = [path for path in left if path.suffix != ".lock"]
    return Check("scratch", f"{len(left)} files", [f"left behind: {path.name}" for path in left])


def check_counters(journal: Journal, node: Node, metrics: Metrics, logged: list[Entry]) -> Check:
    """Check that the counters of node A agree with the requests and with the log."""
    check = Check("counters")
    idle = "renders_running render_slots_held render_queue_depth render_low_queue_depth"
    for gauge in idle.split():
        if metrics.sum(gauge):
            check.problems.append(f"{gauge} is {metrics.sum(gauge):g} on an idle node")
    _add_requests(check, journal, node, metrics, logged)
    _add_lookups(check, journal, metrics, logged)
    _add_renders(check, metrics, logged)
    failures = metrics.sum("variant_store_write_failures_total")
    if failures and not journal.disturbed:
        check.problems.append(f"{failures:g} writes failed in an undisturbed store")
    rejections = metrics.sum("render_queue_rejections_total")
    busy = sum(entry.status == 429 for entry in logged)
    if rejections > busy:
        check.problems.append(f"{rejections:g} rejections, but {busy} responses with 429")
    check.figures = (
        f"{metrics.sum('http_requests_total'):g} requests,"
        f" {metrics.sum('renders_total'):g} renders,"
        f" {metrics.sum('cache_lookups_total'):g} lookups, {rejections:g} rejections, {failures:g}"
        " failed writes"
    )
    return check


def _add_requests(
    check: Check, journal: Journal, node: Node, metrics: Metrics, logged: list[Entry]
) -> None:
    expected = Counter(families([entry for entry in logged if entry.endpoint not in QUIET]))
    for record in journal.at(node.name):
        if record.request.endpoint in QUIET and record.status is not None:
            expected[record.request.endpoint, f"{record.status // 100}xx"] += 1
    found: Counter[tuple[str, str]] = Counter()
    for labels, value in metrics.each("http_requests_total").items():
        named = dict(labels)
        found[named["endpoint"], named["status"]] += int(value)
    # The metrics may already include the request that read them.
    scraped = found.pop(("metrics", "2xx"), 0)
    if scraped not in (node.scraped - 1, node.scraped):
        check.problems.append(f"{scraped} requests for metrics counted, {node.scraped} made")
    for where in sorted(expected.keys() | found.keys()):
        if expected[where] != found[where]:
            check.problems.append(
                f"http_requests_total {where} is {found[where]}, expected {expected[where]}"
            )


def _add_lookups(check: Check, journal: Journal, metrics: Metrics, logged: list[Entry]) -> None:
    records = {record.request_id: record for record in journal.records}
    unsure = reached = hits = 0
    for entry in logged:
        record = records.get(entry.request_id)
        if (
            record is None
            or record.request.method != b"GET"
            or not record.request.expected.reads_store
        ):
            continue
        # Neither a 304 nor a request whose body is too long (400) gets as far as the store.
        if entry.status in (304, 400):
            continue
        reached += 1
        # A client that left (499) may have left before the store lookup was done.
        unsure += entry.status == 499
        hits += (entry.cache == "HIT" and entry.status != 499) or entry.status == 416
    total = metrics.sum("cache_lookups_total")
    if not reached - unsure <= total <= reached:
        check.problems.append(
            f"{total:g} lookups counted; {reached} expected, {unsure} of them uncertain"
        )
    counted = metrics.sum("cache_lookups_total", outcome="hit")
    if not hits <= counted <= hits + unsure:
        check.problems.append(f"{counted:g} hits counted; the log has {hits}")


def _add_renders(check: Check, metrics: Metrics, logged: list[Entry]) -> None:
    renders = metrics.each("renders_total")
    timed = metrics.each("render_duration_seconds_count")
    if {k: v for k, v in renders.items() if v} != {k: v for k, v in timed.items() if v}:
        check.problems.append("the histogram and the counter of renders differ")
    misses = [entry for entry in logged if entry.cache == "MISS" and entry.endpoint == "render"]
    unseen = sum(entry.status == 499 for entry in logged)
    well = sum(entry.code is None and entry.status == 200 for entry in misses)
    found = metrics.sum("renders_total", outcome="success")
    if not found <= well + unseen:
        check.problems.append(
            f"{found:g} renders succeeded, for {well} responses and {unseen} clients that left"
        )
    if metrics.sum("renders_total") > metrics.sum("cache_lookups_total", outcome="miss"):
        check.problems.append("more renders than misses")


async def check_store(journal: Journal, store: Path) -> Check:
    """Check that every variant that the store returns is complete and right."""
    calls = BlockingCalls(reactor, thread_per_call(reactor))
    variants = FileVariantStore(str(store), calls, calls)
    wrong, good, refused = [], 0, 0
    for path in sorted(store.glob("[0-9a-f][0-9a-f]/*")):
        stored = await variants.lookup(path.name)
        if stored is None:
            refused += 1
            continue
        body = stored.read(0, stored.size)
        stored.close()
        if path.name not in journal.bodies:
            wrong.append(f"a variant that was never requested, {path.name}")
        elif body != journal.bodies[path.name]:
            wrong.append(f"a wrong variant of {len(body)} bytes, {path.name}")
        else:
            good += 1
    return Check("store", f"{good} variants right, {refused} files not readable", wrong)


def check_end(store: Path, codes: dict[str, int | None]) -> Check:
    """Check that all nodes exit with status 0 and leave the scratch folder empty."""
    wrong = [f"node {name} had the exit status {code}" for name, code in codes.items() if code != 0]
    scratch = store / ".scratch"
    left = os.listdir(scratch) if scratch.exists() else []
    if left:
        wrong.append(f"{len(left)} entries are left in the scratch folder")
    return Check("end", f"exit statuses {list(codes.values())}", wrong)
