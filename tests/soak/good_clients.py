"""Well-behaved clients and their requests: hits, misses, joins, ranges, documents."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, gatherResults

import audioproxy
from tests.soak.lines import leaving, read_to_end
from tests.soak.records import ExpectedRequest, ExpectedResponse, RequestRecord
from tests.soak.rig import LONG_RENDER, Rig
from tests.soak.sounds import SPEECH, TONE

HEALTH = ExpectedRequest(
    b"/health",
    ExpectedResponse(
        frozenset({200}), document={"status": "ok", "version": audioproxy.__version__}
    ),
    "health",
)
READY = ExpectedRequest(b"/ready", ExpectedResponse(frozenset({200, 503})), "ready")


async def gather(*tasks: Awaitable[Any]) -> list[Any]:
    """Run coroutines concurrently and return their results."""
    running = [Deferred.fromCoroutine(task) for task in tasks]  # type: ignore[arg-type]
    try:
        found: list[Any] = await gatherResults(running, consumeErrors=True)
    except Exception as error:
        raise getattr(error, "subFailure", error).value from error
    return found


def status_only(
    request: ExpectedRequest, *statuses: int, code: str | None = None, **changes: Any
) -> ExpectedRequest:
    """Return a copy of a request that expects other statuses."""
    expected = replace(request.expected, statuses=frozenset(statuses), code=code)
    return replace(request, expected=expected, **changes)


def random_variant(rig: Rig, chance: Random, cold: bool) -> ExpectedRequest:
    """Return a GET of some variant of a short source."""
    return rig.variant(*chance.choice(rig.parameters.short), cold=cold)


async def hit(rig: Rig, chance: Random) -> None:
    """Request a variant that is most likely stored."""
    await rig.request(rig.node(chance), random_variant(rig, chance, cold=False), "hit or miss")


async def miss(rig: Rig, chance: Random) -> None:
    """Request a variant that was never requested before."""
    await rig.request(rig.node(chance), random_variant(rig, chance, cold=True), "miss")


async def join(rig: Rig, chance: Random) -> None:
    """Request one long variant repeatedly while it is rendered, and just after."""
    node = rig.a
    request = rig.variant(*LONG_RENDER)
    size = len(request.expected.body)
    disturbed = rig.journal.disturbed

    def joining(*later: int) -> Any:
        async def behave(connection: Any, record: RequestRecord) -> None:
            if later:
                await connection.wait(lambda: len(connection.received) > later[0])
                follow = rig.request(node, request, "join", joining(*later[1:]))
                await gather(follow, read_to_end(connection, record))
            else:
                await read_to_end(connection, record)

        return behave

    first = len(rig.journal.records)
    await gather(
        rig.request(node, request, "join", joining(0, size // 2, size - 1)),
        rig.request(node, request, "join"),
        rig.request(node, request, "join", leaving(3, chance.randrange(size), gently=True)),
    )
    ours = [record for record in rig.journal.records[first:] if record.request is request]
    misses = [record for record in ours if record.state == "MISS"]
    failed = any(record.status == 429 for record in ours)
    if len(misses) > 1 and not failed and disturbed == rig.journal.disturbed:
        misses[-1].problems.append("one cache key was rendered twice at the same time")


async def burst(rig: Rig, chance: Random) -> None:
    """Send five requests for one short variant at once."""
    node, request = rig.node(chance), random_variant(rig, chance, cold=True)
    await gather(*(rig.request(node, request, "burst") for _ in range(5)))


def with_range(request: ExpectedRequest, chance: Random) -> ExpectedRequest:
    """Return a copy of a request for a variant that requests some range of it."""
    size = len(request.expected.body)
    start = chance.randrange(size)
    stop = chance.randrange(start, size) + 1
    spelled, byte_range = chance.choice(
        [
            (b"bytes=%d-%d" % (start, stop - 1), (start, stop)),
            (b"bytes=%d-" % start, (start, size)),
            (b"bytes=-%d" % stop, (size - stop, size)),
            (b"bytes=%d-" % size, None),
        ]
    )
    expected = replace(request.expected, statuses=frozenset({200, 206 if byte_range else 416}))
    expected = replace(expected, byte_range=byte_range)
    return replace(request, expected=expected, headers={"range": spelled})


def conditional_on(request: ExpectedRequest, _chance: Random) -> ExpectedRequest:
    """Return a copy of a request for a variant whose If-None-Match has the right ETag."""
    tag = (request.expected.etag or "").encode()
    return status_only(request, 304, headers={"if_none_match": b'"other", ' + tag})


async def ranged(rig: Rig, chance: Random) -> None:
    """Request a range of a variant that is most likely stored."""
    request = with_range(random_variant(rig, chance, cold=False), chance)
    await rig.request(rig.node(chance), request, "range")


async def head(rig: Rig, chance: Random) -> None:
    """Send a HEAD request."""
    request = random_variant(rig, chance, cold=chance.random() < 0.3)
    await rig.request(rig.node(chance), replace(request, method=b"HEAD"), "HEAD")


async def conditional(rig: Rig, chance: Random) -> None:
    """Send a conditional request."""
    request = conditional_on(random_variant(rig, chance, cold=chance.random() < 0.3), chance)
    await rig.request(rig.node(chance), request, "304")


async def keep_alive(rig: Rig, chance: Random) -> None:
    """Send requests one by one on a connection that stays open.

    The fast path serves such requests, if they are for a small stored variant or return 304.
    """
    connection = await rig.connect(rig.a)
    if connection is None:
        return
    plain = rig.variant(*rig.parameters.short[0], cold=False)
    requests = [plain, plain, conditional_on(plain, chance), with_range(plain, chance), plain]
    for request in requests:
        record = rig.journal.begin("a", request, "keep-alive")
        connection.start_next()
        connection.write(request.head(record.request_id, last=False))

        def is_complete() -> bool:
            response = connection.response
            return response is not None and response.complete

        record.hung = not await connection.wait(is_complete)
        rig.journal.end(record, connection)
        if connection.closed is not None:
            return
    connection.reset()


async def info(rig: Rig, chance: Random) -> None:
    """Request the info document of a source."""
    await rig.request(rig.node(chance), rig.info(chance.choice([TONE, SPEECH])), "info")


async def state(rig: Rig, chance: Random) -> None:
    """Request ``/health`` and ``/ready``."""
    for request in (HEALTH, READY):
        await rig.request(rig.node(chance), request, request.endpoint)


#: Actions of well-behaved clients, and their relative frequencies.
WEIGHTED_ACTIONS = [
    (hit, 12),
    (miss, 8),
    (join, 1.5),
    (burst, 1.5),
    (ranged, 8),
    (head, 4),
    (conditional, 4),
    (keep_alive, 4),
    (info, 4),
    (state, 3),
]
