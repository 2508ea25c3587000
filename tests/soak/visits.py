"""One request of a run: what was asked, what may come back, and what excuses anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Error = tuple[int, str]


@dataclass(frozen=True)
class Wanted:
    """The answers that are right without an excuse.

    :ivar bodies: each of them whole; empty where any will do.
    :ivar documents: what JSON bodies have to say.
    :ivar code: of the error document, where one is wanted.
    :ivar stretch: what the request's Range covers, where it has one.
    :ivar looks_up: a GET that gets as far as the store.
    :ivar etag: of every answer that is no error.
    """

    statuses: frozenset[int]
    bodies: tuple[bytes, ...] = ()
    document: Mapping[str, object] | None = None
    code: str | None = None
    content_type: str | None = None
    stretch: tuple[int, int] | None = None
    looks_up: bool = False
    etag: str | None = None


@dataclass(frozen=True)
class Asked:
    """A request: its target, how it is spelled, and what is wanted of the answer."""

    target: bytes
    wanted: Wanted
    endpoint: str = "render"
    method: bytes = b"GET"
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    key: str | None = None

    def head(self, request_id: str, last: bool = True) -> bytes:
        """Return the request as it goes over the wire.

        :param last: nothing follows on the connection.
        """
        lines = [b"%s %s HTTP/1.1" % (self.method, self.target), b"Host: localhost"]
        lines += [b"Connection: close"] if last else []
        lines += [b"x-request-id: " + request_id.encode()]
        lines += [name + b": " + value for name, value in self.headers.items()]
        return b"\r\n".join([*lines, b"", b""])


@dataclass(frozen=True)
class Excuse:
    """What a cause may do to an answer.

    :ivar errors: that it may put in the place of the answer.
    :ivar cuts: it may break an answer off.
    :ivar mixes: what was sent until then may be of no reference.
    :ivar silences: there may be no answer at all.
    """

    errors: frozenset[Error] = frozenset()
    cuts: bool = False
    mixes: bool = False
    silences: bool = False


_FAILED = frozenset({(500, "render_failed"), (500, "probe_failed")})
_LATE = frozenset({(504, "render_timeout"), (504, "probe_timeout")})

#: What may happen to a request, by the name that the report has for it.
EXCUSES = {
    "client left": Excuse(cuts=True, silences=True),
    "child killed": Excuse(_FAILED, cuts=True),
    "child stopped": Excuse(_LATE, cuts=True),
    "source changed": Excuse(_FAILED, cuts=True, mixes=True),
    "store full": Excuse(frozenset({(500, "render_failed")}), cuts=True),
    "node killed": Excuse(cuts=True, silences=True),
    # A stream that had begun by the time of the signal has no such excuse.
    "node drained": Excuse(frozenset({(500, "render_failed")}), cuts=True, silences=True),
    "body without end": Excuse(frozenset({(400, "bad_request")})),
}


@dataclass(eq=False)
class Visit:
    """One request to one node, and what became of it.

    :ivar causes: names of excuses; shared by all who wait for one render.
    :ivar certain: the node has read all of the headers, and so has a line for it.
    :ivar unsent: the headers never were complete.
    :ivar begun: a successful answer had begun to arrive.
    :ivar logged_as: the id in the log, where it is not the client's.
    """

    request_id: str
    node: str
    kind: str
    asked: Asked
    causes: set[str]
    certain: bool = True
    unsent: bool = False
    begun: bool = False
    hung: bool = False
    logged_as: str | None = None
    status: int | None = None
    error: str | None = None
    state: str | None = None
    size: int = 0
    complete: bool = False
    complaints: list[str] = field(default_factory=list)

    def excuses(self) -> list[Excuse]:
        """Return what may have happened to it."""
        return [EXCUSES[cause] for cause in sorted(self.causes)]

    def __str__(self) -> str:
        because = f" ({', '.join(sorted(self.causes))})" if self.causes else ""
        target = self.asked.target.decode("latin-1")
        return f"{self.kind} at {self.node}, {self.request_id}{because}, {target[44:140]}"
