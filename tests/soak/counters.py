"""The access log lines of node A, compared with the requests that were sent."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.soak.visits import Visit

_LINE = re.compile(
    r"\S+ request_id=(?P<id>\S+) \[(?P<level>\w+)\] (?P<endpoint>\w+) (?P<status>\d+)"
    r"(?: (?P<code>[a-z_]+))?(?: opts=\S*)?(?: src=\S*)?(?: cache=(?P<cache>\w+))?"
    r" \d+ bytes in \d+ms"
)
#: Endpoints whose requests are logged at debug level only.
QUIET = frozenset({"health", "ready", "metrics"})

_ALARMING = re.compile(r"Traceback|crashed|Unhandled|\[error\]|\[critical\]")


@dataclass(frozen=True)
class Entry:
    """One request in the access log."""

    request_id: str
    endpoint: str
    status: int
    code: str | None
    cache: str | None


def entries(log: str) -> list[Entry]:
    """Return the access log lines of a log."""
    found = []
    for line in log.splitlines():
        match = _LINE.fullmatch(line)
        if match:
            code, cache = match["code"], match["cache"]
            found.append(Entry(match["id"], match["endpoint"], int(match["status"]), code, cache))
    return found


def alarms(log: str) -> list[str]:
    """Return the lines that a correct service never logs, whatever its clients and children do."""
    return [line for line in log.splitlines() if _ALARMING.search(line)]


def mismatches(visits: list[Visit], logged: list[Entry]) -> Iterator[str]:
    """Yield the differences between log and visits.

    A request that certainly arrived has exactly one line, and a request without complete headers
    has none. Requests of `QUIET` endpoints may have any number of lines.
    """
    lines = defaultdict(list)
    for entry in logged:
        lines[entry.request_id].append(entry)
    for visit in visits:
        name = visit.logged_as if visit.logged_as is not None else visit.request_id
        own = lines.pop(name, [])
        if visit.request.endpoint in QUIET:
            continue
        least = 1 if visit.certain and not visit.unsent else 0
        most = 0 if visit.unsent else 1
        if not least <= len(own) <= most:
            yield f"{len(own)} log lines for {visit}"
        for entry in own:
            if entry.endpoint != visit.request.endpoint:
                yield f"logged as {entry.endpoint}: {visit}"
            if visit.status is not None and entry.status != visit.status:
                yield f"logged with status {entry.status} instead of {visit.status}: {visit}"
    for name in lines:
        yield f"a log line for a request that was never sent, {name}"


def families(logged: list[Entry]) -> Counter[tuple[str, str]]:
    """Count entries as the metrics do, by endpoint and class of the status."""
    return Counter((entry.endpoint, f"{entry.status // 100}xx") for entry in logged)
