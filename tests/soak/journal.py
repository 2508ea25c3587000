"""Journal of a run: the requests, the injected faults, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from tests.soak.records import ExpectedRequest, RequestRecord
from tests.soak.verdicts import problems
from tests.support.http import Malformed, Response
from tests.support.service import Client


@dataclass
class Journal:
    """The requests (without their bodies), the injected faults and the measurements of a run.

    :ivar bodies: right bodies by cache key, to compare with the contents of the store.
    :ivar faults: how many faults of each kind were injected.
    :ivar compared: total size in bytes of the bodies that were compared.
    :ivar disturbed: a counter that rises whenever the store is taken away, returned or cleared.
    :ivar health: response times of ``/health`` under load, in seconds.
    :ivar errors: errors that belong to no record.
    """

    records: list[RequestRecord] = field(default_factory=list)
    running: set[RequestRecord] = field(default_factory=set)
    bodies: dict[str, bytes] = field(default_factory=dict)
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
        self.records.append(record)
        self.running.add(record)
        if request.key is not None:
            self.bodies[request.key] = request.expected.body
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
        if response is not None:
            record.status, record.complete = response.status, response.complete
            record.state = (response["x-audio-proxy"] or b"").decode() or None
            if response.status < 400 and record.request.expected.body:
                self.compared += len(response.body)
        record.problems.extend(problems(record, response))
        return response

    def at(self, node: str) -> Iterable[RequestRecord]:
        """Return the records to one node."""
        return [record for record in self.records if record.node == node]
