"""Well-behaved clients and their requests: hits, misses, joins, ranges, documents, mistakes."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import replace
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, gatherResults

from audioproxy import __version__
from tests.soak.lines import leaving, patient
from tests.soak.rig import LONG_RENDER, Rig
from tests.soak.sounds import FILM, MISSING, NOISE, SPEECH, STUMP, TONE
from tests.soak.visits import Asked, Visit, Wanted
from tests.support.http import Malformed, read_response
from tests.support.service import signed

HEALTH = Asked(
    b"/health",
    Wanted(frozenset({200}), document={"status": "ok", "version": __version__}),
    "health",
)
READY = Asked(b"/ready", Wanted(frozenset({200, 503})), "ready")


async def together(*tasks: Awaitable[Any]) -> list[Any]:
    """Run coroutines concurrently and return their results."""
    running = [Deferred.fromCoroutine(task) for task in tasks]  # type: ignore[arg-type]
    try:
        found: list[Any] = await gatherResults(running, consumeErrors=True)
    except Exception as error:
        raise getattr(error, "subFailure", error).value from error
    return found


def status_only(asked: Asked, *statuses: int, code: str | None = None, **changes: Any) -> Asked:
    """Return a copy of a request that expects other statuses."""
    wanted = replace(asked.wanted, statuses=frozenset(statuses), code=code)
    return replace(asked, wanted=wanted, **changes)


def refused(rest: str, status: int, code: str, endpoint: str = "render") -> Asked:
    """Return a signed GET that the service refuses."""
    return Asked(signed(rest), Wanted(frozenset({status}), code=code), endpoint)


def any_short(rig: Rig, chance: Random, cold: bool) -> Asked:
    """Return a GET of some variant of a short source."""
    return rig.variant(*chance.choice(rig.terms.short), cold=cold)


async def hit(rig: Rig, chance: Random) -> None:
    """Request a variant that is most likely stored."""
    await rig.attend(rig.node(chance), any_short(rig, chance, cold=False), "hit or miss")


async def miss(rig: Rig, chance: Random) -> None:
    """Request a variant that was never requested before."""
    await rig.attend(rig.node(chance), any_short(rig, chance, cold=True), "miss")


async def join(rig: Rig, chance: Random) -> None:
    """Request one long variant repeatedly while it is rendered, and just after."""
    node = rig.a
    asked = rig.variant(*LONG_RENDER)
    size = len(asked.wanted.bodies[0])
    disturbed = rig.journal.disturbed

    def joining(*later: int) -> Any:
        async def behave(line: Any, visit: Visit) -> None:
            if later:
                await line.wait(lambda: len(line.received) > later[0])
                follow = rig.attend(node, asked, "join", joining(*later[1:]))
                await together(follow, patient(line, visit))
            else:
                await patient(line, visit)

        return behave

    first = len(rig.journal.visits)
    await together(
        rig.attend(node, asked, "join", joining(0, size // 2, size - 1)),
        rig.attend(node, asked, "join"),
        rig.attend(node, asked, "join", leaving(3, chance.randrange(size), gently=True)),
    )
    ours = [visit for visit in rig.journal.visits[first:] if visit.asked is asked]
    misses = [visit for visit in ours if visit.state == "MISS"]
    busy = any(visit.status == 429 for visit in ours)
    if len(misses) > 1 and not busy and disturbed == rig.journal.disturbed:
        rig.journal.flag(misses[-1], "one cache key was rendered twice at the same time")


async def crowd(rig: Rig, chance: Random) -> None:
    """Send five requests for one short variant at once."""
    node, asked = rig.node(chance), any_short(rig, chance, cold=True)
    await together(*(rig.attend(node, asked, "crowd") for _ in range(5)))


async def ranged(rig: Rig, chance: Random) -> None:
    """Request a range of a variant that is most likely stored."""
    asked = any_short(rig, chance, cold=False)
    size = len(asked.wanted.bodies[0])
    start = chance.randrange(size)
    stop = chance.randrange(start, size) + 1
    spelled, stretch = chance.choice(
        [
            (b"bytes=%d-%d" % (start, stop - 1), (start, stop)),
            (b"bytes=%d-" % start, (start, size)),
            (b"bytes=-%d" % stop, (size - stop, size)),
            (b"bytes=%d-" % size, None),
        ]
    )
    wanted = replace(asked.wanted, statuses=frozenset({200, 206 if stretch else 416}))
    wanted = replace(wanted, stretch=stretch)
    asked = replace(asked, wanted=wanted, headers={b"Range": spelled})
    await rig.attend(rig.node(chance), asked, "range")


async def head(rig: Rig, chance: Random) -> None:
    """Send a HEAD request."""
    asked = any_short(rig, chance, cold=chance.random() < 0.3)
    await rig.attend(rig.node(chance), replace(asked, method=b"HEAD"), "HEAD")


async def conditional(rig: Rig, chance: Random) -> None:
    """Send a conditional request whose If-None-Match contains the right ETag."""
    asked = any_short(rig, chance, cold=chance.random() < 0.3)
    tag = (asked.wanted.etag or "").encode()
    asked = status_only(asked, 304, headers={b"If-None-Match": b'"other", ' + tag})
    await rig.attend(rig.node(chance), asked, "304")


async def info(rig: Rig, chance: Random) -> None:
    """Request the info document of a source."""
    await rig.attend(rig.node(chance), rig.info(chance.choice([TONE, SPEECH])), "info")


async def state(rig: Rig, chance: Random) -> None:
    """Request ``/health`` and ``/ready``."""
    for asked in (HEALTH, READY):
        await rig.attend(rig.node(chance), asked, asked.endpoint)


def mistakes(rig: Rig) -> list[tuple[str, Asked]]:
    """Return requests that the service refuses, each with a name for its mistake."""
    nowhere = Asked(b"/nowhere", Wanted(frozenset({404}), code="not_found"), "unknown")
    forged = b"/" + b"A" * 43 + b"/f:mp3/plain/local://" + TONE.encode()
    past = int(time.time()) - 10
    late = refused(f"/f:mp3/t:100/plain/local://{TONE}", 422, "invalid_options")
    info_of_noise = f"/info/plain/local://{NOISE}"
    return [
        ("missing source", _lookup(f"/f:mp3/plain/local://{MISSING}", 404, "not_found")),
        ("no audio at all", _lookup(f"/f:mp3/plain/local://{NOISE}", 415, "undecodable_source")),
        ("broken header", _lookup(f"/f:ogg/plain/local://{STUMP}", 415, "undecodable_source")),
        ("video source", _lookup(f"/f:mp3/plain/local://{FILM}", 415, "video_source")),
        ("info of video", refused(f"/info/plain/local://{FILM}", 415, "video_source", "info")),
        ("info of noise", refused(info_of_noise, 415, "undecodable_source", "info")),
        ("bad signature", Asked(forged, Wanted(frozenset({401}), code="invalid_signature"))),
        ("bad option", refused(f"/f:mp3/q:99/plain/local://{TONE}", 422, "invalid_options")),
        ("expired", refused(f"/f:mp3/exp:{past}/plain/local://{TONE}", 410, "expired")),
        ("t past the end", replace(late, wanted=replace(late.wanted, looks_up=True))),
        ("no such route", nowhere),
        ("unknown method", replace(nowhere, target=signed(f"/f:mp3/plain/local://{TONE}"),
                                   method=b"PUT")),
    ]  # fmt: skip


def _lookup(rest: str, status: int, code: str) -> Asked:
    asked = refused(rest, status, code)
    return replace(asked, wanted=replace(asked.wanted, looks_up=True))


async def mistake(rig: Rig, chance: Random) -> None:
    """Send a request that the service refuses."""
    name, asked = chance.choice(mistakes(rig))
    rig.journal.faults[f"input: {name}"] += 1
    await rig.attend(rig.node(chance), asked, f"refused: {name}")


async def pipeline(rig: Rig, chance: Random) -> None:
    """Send several requests at once on one connection, and read the responses in order."""
    asks = [any_short(rig, chance, cold=False) for _ in range(2)]
    asks += [
        rig.info(TONE),
        HEALTH,
        dict(mistakes(rig))["bad option"],
        any_short(rig, chance, True),
    ]
    chance.shuffle(asks)
    rig.journal.faults["client: pipelined requests"] += len(asks)
    line = await rig.connect(rig.a)
    visits = [rig.journal.begin("a", asked, "pipelined") for asked in asks]
    if line is not None:
        last = visits[-1]
        line.write(b"".join(v.asked.head(v.request_id, last=v is last) for v in visits))
        last.hung = not await line.read()
        line.reset()
    data = bytes(line.received) if line is not None else b""
    for visit in visits:
        try:
            response = read_response(data, visit.asked.method)
        except (Malformed, ValueError) as error:
            rig.journal.flag(visit, f"not a valid HTTP response: {error}")
            response = None
        data = response.rest if response is not None else b""
        rig.journal.judge(visit, response)


#: Actions of well-behaved clients, and their relative frequencies.
MANNERS = [
    (hit, 12),
    (miss, 8),
    (join, 1.5),
    (crowd, 1.5),
    (ranged, 8),
    (head, 4),
    (conditional, 4),
    (info, 4),
    (state, 3),
    (mistake, 6),
    (pipeline, 1.5),
]
