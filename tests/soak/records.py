"""Requests of a run, their expected responses, and causes that excuse other responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.http import write_request

Error = tuple[int, str]


@dataclass(frozen=True)
class ExpectedResponse:
    """Expected response of a request that no fault affects.

    :ivar body: the right complete body of a variant; empty if no variant is expected.
    :ivar document: the right JSON body.
    :ivar code: the error code of a refusal.
    :ivar byte_range: the requested bytes as (start, stop); None if no satisfiable range is
        requested.
    :ivar etag: ETag of every response that is not an error.
    """

    statuses: frozenset[int]
    body: bytes = b""
    document: Mapping[str, object] | None = None
    code: str | None = None
    content_type: str | None = None
    byte_range: tuple[int, int] | None = None
    etag: str | None = None


@dataclass(frozen=True)
class ExpectedRequest:
    """Request: its target, method and headers, and the expected response."""

    target: bytes
    expected: ExpectedResponse
    endpoint: str = "render"
    method: bytes = b"GET"
    headers: Mapping[str, bytes] = field(default_factory=dict)
    key: str | None = None

    def head(self, request_id: str, last: bool = True) -> bytes:
        """Return the request line and headers as sent.

        :param last: whether this is the last request on the connection.
        """
        own = {"x_request_id": request_id.encode(), **({"connection": b"close"} if last else {})}
        return write_request(self.target, self.method, **own, **self.headers)


_FAILED = frozenset({(500, "render_failed"), (500, "probe_failed")})

#: The errors that may replace the expected response, by their cause: the name of a fault that was
#: injected on purpose. Each of these faults may break a response off, too.
EXCUSED_ERRORS: Mapping[str, frozenset[Error]] = {
    "client left": frozenset(),
    "child killed": _FAILED,
    "bucket away": _FAILED | {(502, "upstream_unavailable")},
    "node killed": frozenset(),
    # The cause is set only for responses that had not begun when SIGTERM was sent.
    "node drained": frozenset(),
}
#: The causes with which there may be no response at all.
SILENT = frozenset({"client left", "node killed", "node drained"})


@dataclass(eq=False)
class RequestRecord:
    """One request to one node, and its outcome.

    :ivar kind: what kind of request this is, for the report.
    :ivar causes: names in `EXCUSED_ERRORS`; one set for all records that an attack affects.
    :ivar certain: whether the node certainly read the headers, and therefore logs the request.
    :ivar begun: whether a successful response has begun to arrive.
    :ivar hung: whether the response did not end within the deadline.
    """

    request_id: str
    node: str
    kind: str
    request: ExpectedRequest
    causes: set[str]
    certain: bool = True
    begun: bool = False
    hung: bool = False
    status: int | None = None
    state: str | None = None
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        because = f" ({', '.join(sorted(self.causes))})" if self.causes else ""
        target = self.request.target.decode("latin-1")
        return f"{self.kind} at {self.node}, {self.request_id}{because}, {target[44:140]}"
