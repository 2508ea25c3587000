"""The Markdown report of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable

import audioproxy
import twisted
from tests.soak.run import Outcome
from tests.support.service import PATIENCE

_MOST = 20


def write_report(outcome: Outcome) -> str:
    """Return the report."""
    rig, journal = outcome.rig, outcome.rig.journal
    records = journal.records
    kinds = Counter(record.kind for record in records)
    responses = Counter(str(record.status or "none") for record in records)
    states = Counter(record.state for record in records if record.state)
    cut = sum(record.status is not None and not record.complete for record in records)
    health = sorted(journal.health) or [0.0]
    lines = [
        f"# Fault run: {'passed' if outcome.good else 'FAILED'}",
        "",
        f"{outcome.seconds:.0f} seconds of load with seed {rig.parameters.seed}:"
        f" {len(records)} requests, {len(records) / max(1, outcome.seconds):.1f} a second,"
        f" {journal.compared / 1e6:.1f} MB of bodies compared byte by byte,"
        f" {sum(journal.faults.values())} faults."
        f" The slowest response of /health under load took {health[-1] * 1000:.0f} ms,"
        f" the median one {health[len(health) // 2] * 1000:.0f} ms"
        " (the client's own delays included).",
        "",
        "## End checks",
        "",
        "| Check | Result | Figures |",
        "|---|---|---|",
        *(
            f"| {check.name} | {len(check.problems) or 'good'} | {check.figures} |"
            for check in outcome.checks
        ),
        "",
        *_complaints(outcome),
        "## Faults",
        "",
        *_table(("Fault", "Times"), journal.faults.items()),
        "## Load",
        "",
        *_table(("Kind of request", "Requests"), kinds.items()),
        *_table(("Status", "Responses"), responses.items()),
        *_table(("X-Audio-Proxy", "Responses"), states.items()),
        f"{cut} responses were broken off. Each has a known cause, or makes a check above fail.",
        "",
        "## Conditions",
        "",
        *_table(("Condition", "Value"), _conditions(outcome)),
    ]
    return "\n".join(lines)


def _complaints(outcome: Outcome) -> list[str]:
    lines = []
    for check in outcome.checks:
        if check.problems:
            lines += [f"### {check.name}", ""]
            lines += [f"- {problem}" for problem in check.problems[:_MOST]]
            if len(check.problems) > _MOST:
                lines.append(f"- and {len(check.problems) - _MOST} more")
            lines.append("")
    return lines


def _table(head: tuple[str, str], rows: Iterable[tuple[object, object]]) -> list[str]:
    ordered = sorted((str(name), str(value)) for name, value in rows)
    return [
        f"| {head[0]} | {head[1]} |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in ordered),
        "",
    ]


def _conditions(outcome: Outcome) -> list[tuple[str, str]]:
    parameters = outcome.rig.parameters
    ffmpeg = subprocess.run(
        ["ffmpeg", "-version"], capture_output=True, check=True, timeout=PATIENCE
    )
    return [
        ("audioproxy", audioproxy.__version__),
        ("Twisted", twisted.__version__),
        ("Python", platform.python_version()),
        ("ffmpeg", ffmpeg.stdout.decode().split()[2]),
        ("CPUs", str(os.cpu_count())),
        ("clients", f"{parameters.clients}, and {parameters.idle} idle connections"),
        ("seed", str(parameters.seed)),
    ]
