"""Journal of a run: the requests, the injected faults, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from tests.soak.verdicts import problems
from tests.soak.visits import ExpectedRequest, Visit
from tests.support.http import Malformed, Response
from tests.support.service import Client


@dataclass
class Journal:
    """Record of the visits (without their bodies), the injected faults and the measurements.

    :ivar longest_wait: the largest valid Retry-After, in seconds.
    :ivar bodies: right bodies by cache key, to compare with the contents of the store.
    :ivar faults: how many faults of each kind were injected.
    :ivar compared: total size in bytes of the bodies that were compared.
    :ivar disturbed: a counter that rises whenever the store is taken away, returned or cleared.
    :ivar health: response times of ``/health`` under load, in seconds.
    :ivar remarks: errors that belong to no visit.
    """

    longest_wait: int
    visits: list[Visit] = field(default_factory=list)
    running: set[Visit] = field(default_factory=set)
    bodies: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    disturbed: int = 0
    health: list[float] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def begin(
        self, node: str, request: ExpectedRequest, kind: str, causes: set[str] | None = None
    ) -> Visit:
        """Add and return the visit of a request that is about to be sent."""
        name = f"{node}.{next(self._numbers)}"
        visit = Visit(name, node, kind, request, causes if causes is not None else set())
        self.visits.append(visit)
        self.running.add(visit)
        if request.key is not None:
            self.bodies[request.key] = request.expected.bodies
        return visit

    def end(self, visit: Visit, client: Client) -> Response | None:
        """Judge a request whose connection has ended or was given up."""
        try:
            response = client.response
        except (Malformed, ValueError) as error:
            self.running.discard(visit)
            visit.problems.append(f"not a valid HTTP response: {error}")
            return None
        return self.judge(visit, response)

    def judge(self, visit: Visit, response: Response | None) -> Response | None:
        """Judge a request by its response; None stands for no response."""
        self.running.discard(visit)
        if response is not None:
            visit.status, visit.complete = response.status, response.complete
            visit.size = len(response.body)
            visit.state = (response["x-audio-proxy"] or b"").decode() or None
            if response.status < 400 and visit.request.expected.bodies:
                self.compared += visit.size
        visit.problems.extend(problems(visit, response, self.longest_wait))
        return response

    def flag(self, visit: Visit, what: str) -> None:
        """Add a problem that the response alone does not reveal."""
        visit.problems.append(what)

    def at(self, node: str) -> Iterable[Visit]:
        """Return the visits to one node."""
        return [visit for visit in self.visits if visit.node == node]
