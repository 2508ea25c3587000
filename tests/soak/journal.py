"""Journal of a run: the requests, the injected faults, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from time import monotonic

from tests.soak.limits import TimeLimits
from tests.soak.records import LIMIT_AT_LOAD, ExpectedRequest, RequestRecord
from tests.soak.verdicts import problems
from tests.support.http import Malformed, Response
from tests.support.service import Client


@dataclass
class Journal:
    """Record of the records (without their bodies), the injected faults and the measurements.

    :ivar limits: the time limits of the nodes.
    :ivar bodies: right bodies by cache key, to compare with the contents of the store.
    :ivar faults: how many faults of each kind were injected.
    :ivar compared: total size in bytes of the bodies that were compared.
    :ivar disturbed: a counter that rises whenever the store is taken away, returned or cleared.
    :ivar health: response times of ``/health`` under load, in seconds.
    :ivar errors: errors that belong to no record.
    """

    limits: TimeLimits
    records: list[RequestRecord] = field(default_factory=list)
    running: set[RequestRecord] = field(default_factory=set)
    bodies: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    disturbed: int = 0
    health: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def begin(
        self, node: str, request: ExpectedRequest, kind: str, causes: set[str] | None = None
    ) -> RequestRecord:
        """Add and return the record of a request that is about to be sent."""
        name = f"{node}.{next(self._numbers)}"
        record = RequestRecord(name, node, kind, request, causes if causes is not None else set())
        record.began = monotonic()
        self.records.append(record)
        self.running.add(record)
        if request.key is not None:
            self.bodies[request.key] = request.expected.bodies
        return record

    def end(self, record: RequestRecord, client: Client) -> Response | None:
        """Judge a request whose connection has ended or was given up."""
        try:
            response = client.response
        except (Malformed, ValueError) as error:
            self.running.discard(record)
            record.problems.append(f"not a valid HTTP response: {error}")
            return None
        return self.judge(record, response)

    def judge(self, record: RequestRecord, response: Response | None) -> Response | None:
        """Judge a request by its response; None stands for no response."""
        self.running.discard(record)
        record.ended = monotonic()
        if response is not None:
            record.status, record.complete = response.status, response.complete
            record.state = (response["x-audio-proxy"] or b"").decode() or None
            if response.status < 400 and record.request.expected.bodies:
                self.compared += len(response.body)
        record.problems.extend(self._problems(record, response))
        return response

    def _problems(self, record: RequestRecord, response: Response | None) -> list[str]:
        # A 429 names at most the seconds after which a place in the queue is given up.
        longest_wait = int(self.limits.render)
        found = list(problems(record, response, longest_wait))
        if response is None or not found:
            return found
        if self.limits.explain(record, response, self.records):
            # The records of an attack share one set, but not this cause.
            record.causes = record.causes | {LIMIT_AT_LOAD}
            return list(problems(record, response, longest_wait))
        return found

    def at(self, node: str) -> Iterable[RequestRecord]:
        """Return the records to one node."""
        return [record for record in self.records if record.node == node]
