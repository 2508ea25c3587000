"""The access log lines of node A, compared with the requests that were sent."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.soak.records import RequestRecord

_LINE = re.compile(
    r"\S+ request_id=(?P<id>\S+) \[\w+\] (?P<endpoint>\w+) (?P<status>\d+)"
    r"(?: [a-z_]+)?(?: opts=\S*)?(?: src=\S*)?(?: cache=\w+)? \d+ bytes in \d+ms"
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


def entries(log: str) -> list[Entry]:
    """Return the access log lines of a log."""
    found = filter(None, map(_LINE.fullmatch, log.splitlines()))
    return [Entry(match["id"], match["endpoint"], int(match["status"])) for match in found]


def alarms(log: str) -> list[str]:
    """Return the lines that a correct service never logs, whatever its clients and children do."""
    return [line for line in log.splitlines() if _ALARMING.search(line)]


def mismatches(records: list[RequestRecord], logged: list[Entry]) -> Iterator[str]:
    """Yield the differences between log and records.

    A request that certainly arrived has exactly one line. Requests of `QUIET` endpoints may have
    any number of lines.
    """
    lines = defaultdict(list)
    for entry in logged:
        lines[entry.request_id].append(entry)
    for record in records:
        own = lines.pop(record.request_id, [])
        if record.request.endpoint in QUIET:
            continue
        if not record.certain <= len(own) <= 1:
            yield f"{len(own)} log lines for {record}"
        for entry in own:
            if entry.endpoint != record.request.endpoint:
                yield f"logged as {entry.endpoint}: {record}"
            if record.status is not None and entry.status != record.status:
                yield f"logged with status {entry.status} instead of {record.status}: {record}"
    for name in lines:
        yield f"a log line for a request that was never sent, {name}"
