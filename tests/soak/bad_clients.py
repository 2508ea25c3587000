"""Misbehaving clients: they leave, stall, send slowly, or do not speak HTTP."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.soak.good_clients import any_short, together
from tests.soak.lines import Line, half_closing, leaving, patient, pause, stalling
from tests.soak.rig import CAPACITY, LARGE, LONG_RENDER, Rig
from tests.soak.visits import Asked, Visit, Wanted

_GARBAGE = [
    b"hello there, is this the service?\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon in here\r\n\r\n",
]
_LONG_HEADER = b"X-Long: " + b"x" * 17_000
_GIVE_UP = 20.0
# Seconds after which the service must have disconnected a client that still sends headers.
_DAWDLE = 80


async def leave_early(rig: Rig, chance: Random) -> None:
    """Leave before the response begins."""
    rig.journal.faults["client: left before the headers"] += 1
    manner = leaving(chance.uniform(0, 0.15), 0, gently=chance.random() < 0.7)
    await rig.attend(rig.node(chance), any_short(rig, chance, cold=True), "leaver", manner)


async def leave_midway(rig: Rig, chance: Random) -> None:
    """Leave in the middle of a response body."""
    rig.journal.faults["client: left in the body"] += 1
    asked = rig.variant(*LARGE, cold=chance.random() < 0.3)
    size = chance.randrange(len(asked.wanted.bodies[0]) // 2)
    manner = leaving(_GIVE_UP, size, gently=chance.random() < 0.5)
    await rig.attend(rig.node(chance), asked, "leaver", manner)


async def leave_queue(rig: Rig, chance: Random) -> None:
    """Send more requests than there are render slots, and leave while most of them wait."""
    rig.journal.faults["client: left the queue"] += 4
    manners = [leaving(chance.uniform(0.3, 0.8), 0, gently=True) for _ in range(CAPACITY + 4)]
    await together(
        *(rig.attend(rig.a, any_short(rig, chance, True), "queue leaver", m) for m in manners)
    )


async def stall(rig: Rig, chance: Random) -> None:
    """Stop reading for a while."""
    rig.journal.faults["client: stalled for a while"] += 1
    asked = rig.variant(*LARGE, cold=chance.random() < 0.3)
    size = chance.randrange(len(asked.wanted.bodies[0]) // 4)
    await rig.attend(rig.a, asked, "staller", stalling(size, chance.uniform(0.5, 4)))


async def half_close(rig: Rig, chance: Random) -> None:
    """Half-close the connection while the response is being sent."""
    rig.journal.faults["client: half-closed"] += 1
    manner = half_closing(chance.uniform(0, 0.3))
    await rig.attend(rig.a, any_short(rig, chance, chance.random() < 0.5), "half-closer", manner)


async def dribble(rig: Rig, chance: Random) -> None:
    """Send the headers in pieces; one client in three closes before the headers are complete."""
    asked = any_short(rig, chance, cold=False)
    visit = rig.journal.begin("a", asked, "dribbler")
    line = await rig.connect(rig.a)
    if line is None:
        rig.journal.judge(visit, None)
        return
    rig.journal.faults["client: slow headers"] += 1
    head = asked.head(visit.request_id)
    if chance.random() < 0.33:
        visit.unsent, visit.certain = True, False
        visit.causes.add("client left")
        head = head[: chance.randrange(len(head) - 2)]
    step = len(head) // 5 + 1
    for at in range(0, len(head), step):
        line.write(head[at : at + step])
        await pause(chance.uniform(0.05, 0.4))
    if visit.unsent:
        line.close()
    visit.hung = not await line.read()
    rig.journal.end(visit, line)


async def _send(rig: Rig, data: bytes, kind: str, manner: Any = patient) -> Visit:
    """Send bytes that are not a valid request; the response has to be a 400."""
    rig.journal.faults[f"client: {kind}"] += 1
    asked = Asked(b"", Wanted(frozenset({400})), "unknown")
    visit = rig.journal.begin("a", asked, kind)
    line = await rig.connect(rig.a)
    if line is None:
        rig.journal.judge(visit, None)
        return visit
    line.write(data)
    await manner(line, visit)
    line.reset()
    # The service generates the request id: it takes nothing from headers that it cannot parse.
    visit.logged_as = ""
    response = rig.journal.end(visit, line)
    if response is not None:
        visit.logged_as = (response["x-request-id"] or b"").decode()
    return visit


async def garble(rig: Rig, chance: Random) -> None:
    """Send bytes that are not HTTP."""
    await _send(rig, chance.choice(_GARBAGE), "garbage")


async def overload(rig: Rig, chance: Random) -> None:
    """Send a header that is too long."""
    head = any_short(rig, chance, cold=False).head("long")
    await _send(rig, head[:-2] + _LONG_HEADER + b"\r\n\r\n", "header over 16 KiB")


async def give_body(rig: Rig, chance: Random) -> None:
    """Send a small body with a GET; the service has to discard it and respond normally."""
    rig.journal.faults["client: small body"] += 1
    asked = any_short(rig, chance, cold=False)

    async def behave(line: Line, visit: Visit) -> None:
        line.write(b"0123456789")
        await patient(line, visit)

    asked = Asked(asked.target, asked.wanted, headers={b"Content-Length": b"10"}, key=asked.key)
    await rig.attend(rig.a, asked, "small body", behave)


async def give_endless_body(rig: Rig, chance: Random) -> None:
    """Send a body that does not end; the service has to close the connection within seconds."""
    rig.journal.faults["client: endless body"] += 1
    asked = any_short(rig, chance, cold=False)
    length = {b"Content-Length": b"999999999999"}
    asked = Asked(asked.target, asked.wanted, "unknown", headers=length, key=asked.key)

    async def behave(line: Line, visit: Visit) -> None:
        for _ in range(100):
            line.write(b"x" * 16_384)
            await pause(0.02)
            if line.closed is not None:
                return
        rig.journal.flag(visit, "the service kept reading an endless body")

    await rig.attend(rig.a, asked, "endless body", behave, {"body without end"})


class Squatters:
    """Clients that stay until the end of the run: idle ones, and ones that stop reading."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._idle: list[Line] = []

    async def settle(self) -> None:
        """Open the idle connections, and reopen those that were closed."""
        self._idle = [line for line in self._idle if line.closed is None]
        missing = self._rig.terms.idle - len(self._idle)
        for _ in range(missing):
            line = await self._rig.connect(self._rig.a)
            if line is not None:
                self._idle.append(line)
        self._rig.journal.faults["client: idle connection"] += missing

    async def stall(self, seconds: float) -> None:
        """Begin to read two large responses, stop reading for the given time, then abort."""
        kinds = [LARGE, LONG_RENDER]
        await together(*(self._stall(self._rig.variant(*kind), seconds) for kind in kinds))

    async def _stall(self, asked: Asked, seconds: float) -> None:
        async def behave(line: Line, visit: Visit) -> None:
            await line.wait(lambda: len(line.received) > 1000)
            line.pause()
            await pause(seconds)
            visit.causes.add("client left")
            line.reset()
            line.resume()

        self._rig.journal.faults["client: stalled for ever"] += 1
        await self._rig.attend(self._rig.a, asked, "stalled for ever", behave)

    async def dawdle(self) -> None:
        """Send headers for more than a minute; the service has to close the connection."""
        self._rig.journal.faults["client: more than a minute for its headers"] += 1
        line = await self._rig.connect(self._rig.a)
        if line is None:
            return
        line.write(b"GET /health HTTP/1.1\r\n")
        for _ in range(_DAWDLE):
            line.write(b"x-more: more\r\n")
            if line.closed is None:
                await pause(1)
        if line.closed is None:
            self._rig.journal.remarks.append(f"{_DAWDLE} s of headers did not end the connection")
            line.reset()

    async def leave(self) -> None:
        """Close the idle connections."""
        for line in self._idle:
            line.close()
        for line in self._idle:
            await line.wait(lambda: False, 5)


#: Actions of misbehaving clients, and their relative frequencies.
MANNERS = [
    (leave_early, 3),
    (leave_midway, 2),
    (leave_queue, 0.8),
    (stall, 1),
    (half_close, 1.5),
    (dribble, 1.5),
    (garble, 1),
    (overload, 1),
    (give_body, 1),
    (give_endless_body, 0.7),
]
