"""The Markdown report of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.soak.run import Outcome

_MOST = 20


def write_report(outcome: Outcome) -> str:
    """Return the report."""
    journal, parameters = outcome.rig.journal, outcome.rig.parameters
    records = journal.records
    cut = sum(record.status is not None and not record.complete for record in records)
    health = sorted(journal.health) or [0.0]
    lines = [
        f"# Fault run: {'passed' if outcome.good else 'FAILED'}",
        "",
        f"{outcome.seconds:.0f} seconds of load with seed {parameters.seed} by {parameters.clients}"
        f" clients and {parameters.idle} idle connections:"
        f" {len(records)} requests, {len(records) / max(1, outcome.seconds):.1f} a second,"
        f" {journal.compared / 1e6:.1f} MB of bodies compared byte by byte,"
        f" {sum(journal.faults.values())} faults, {cut} responses that were broken off."
        f" The slowest response of /health under load took {health[-1] * 1000:.0f} ms,"
        f" the median one {health[len(health) // 2] * 1000:.0f} ms"
        " (the client's own delays included).",
        "",
        "| Check | Result | Figures |",
        "|---|---|---|",
        *(
            f"| {check.name} | {len(check.problems) or 'good'} | {check.figures} |"
            for check in outcome.checks
        ),
        "",
        *_complaints(outcome),
        *_table("Fault", journal.faults.items()),
        *_table("Kind of request", Counter(record.kind for record in records).items()),
        *_table("Status", Counter(record.status or "none" for record in records).items()),
        *_table("X-Audio-Proxy", Counter(record.state or "none" for record in records).items()),
    ]
    return "\n".join(lines)


def _complaints(outcome: Outcome) -> list[str]:
    lines = []
    for check in outcome.checks:
        if check.problems:
            lines += [f"## {check.name}", ""]
            lines += [f"- {problem}" for problem in check.problems[:_MOST]]
            if len(check.problems) > _MOST:
                lines.append(f"- and {len(check.problems) - _MOST} more")
            lines.append("")
    return lines


def _table(head: str, rows: Iterable[tuple[object, int]]) -> list[str]:
    ordered = sorted((str(name), count) for name, count in rows)
    return [f"| {head} | Times |", "|---|---|", *(f"| {n} | {c} |" for n, c in ordered), ""]
