"""The nodes' own time limits, which requests reach on a loaded machine without any fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.soak.records import LIMIT_AT_LOAD, RequestRecord
from tests.soak.verdicts import error_code
from tests.support.http import Response

# Seconds for which a node refuses to repeat a render that took too long.
_REMEMBERED = 60


@dataclass(frozen=True)
class TimeLimits:
    """Time limits of the nodes, in seconds.

    :ivar render: AP_RENDER_TIMEOUT.
    :ivar probe: AP_PROBE_TIMEOUT.
    """

    render: float
    probe: float

    def explain(
        self, record: RequestRecord, response: Response, records: Sequence[RequestRecord]
    ) -> bool:
        """Return whether a response failed because a limit had passed.

        Requests share a render of one variant, and a probe of one source. A request that joined one
        of them late fails early, so the limit counts from the first request that may share it.

        :param records: every record of the run.
        """
        is_error = response.status == 504 and response.complete
        code = error_code(response) if is_error else None
        if code == "probe_timeout":
            source = _source(record)
            sharing = [other for other in records if _source(other) == source]
            return record.ended - _first(record, sharing) >= self.probe
        if code != "render_timeout" and not _is_broken_render(response):
            return False
        sharing = [other for other in records if other.request.target == record.request.target]
        if is_error and _is_repeated(record, sharing):
            return True
        if response["x-audio-proxy"] == b"MISS":
            sharing = []
        return record.ended - _first(record, sharing) >= self.render


def _is_broken_render(response: Response) -> bool:
    # A render and a probe that end before the response begins give an error document.
    state = response["x-audio-proxy"]
    return response.status == 200 and not response.complete and state in (b"MISS", b"COALESCED")


def _is_repeated(record: RequestRecord, sharing: Sequence[RequestRecord]) -> bool:
    """Return whether a render of the variant has just ended by its deadline (D73)."""
    return any(
        other is not record
        and other.node == record.node
        and other.causes & {LIMIT_AT_LOAD, "child stopped"}
        and record.began - _REMEMBERED <= other.ended <= record.ended
        for other in sharing
    )


def _source(record: RequestRecord) -> bytes:
    return record.request.target.partition(b"/plain/")[2]


def _first(record: RequestRecord, sharing: Sequence[RequestRecord]) -> float:
    """Return when the first request began that may share the work of a request.

    A render continues without the client that started it. Work that ended in a complete response
    is over.
    """
    others = [other for other in sharing if other.node == record.node and other is not record]
    done = max((other.began for other in others if _is_rendered(other)), default=0.0)
    begins = [
        other.began
        for other in others
        if other.began > done and (other.ended >= record.began or "client left" in other.causes)
    ]
    return min([record.began, *begins])


def _is_rendered(record: RequestRecord) -> bool:
    """Return whether a request got all of a new variant, or of an info document."""
    success = record.status == 200 and record.complete and record.state != "HIT"
    return success and record.request.method == b"GET"
