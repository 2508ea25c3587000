"""Journal of a run: the requests, and what is known of the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from tests.soak.records import ExpectedRequest, RequestRecord
from tests.soak.verdicts import problems
from tests.support.http import Malformed, Response
from tests.support.service import Client


@dataclass
class Journal:
    """The requests of a run, without the bodies of their responses.

    :ivar bodies: right bodies by cache key, to compare with the contents of the store.
    :ivar disturbed: a counter that rises whenever the store is taken away, returned or cleared.
    :ivar errors: errors that belong to no record.
    """

    records: list[RequestRecord] = field(default_factory=list)
    running: set[RequestRecord] = field(default_factory=set)
    bodies: dict[str, bytes] = field(default_factory=dict)
    disturbed: int = 0
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

    def end(self, record: RequestRecord, client: Client) -> None:
        """Judge a request whose connection has ended or was given up."""
        try:
            self.judge(record, client.response)
        except (Malformed, ValueError) as error:
            self.running.discard(record)
            record.problems.append(f"not a valid HTTP response: {error}")

    def judge(self, record: RequestRecord, response: Response | None) -> None:
        """Judge a request by its response; None stands for no response."""
        self.running.discard(record)
        if response is not None:
            record.status = response.status
            record.state = (response["x-audio-proxy"] or b"").decode() or None
        record.problems.extend(problems(record, response))
