"""Misbehaving clients: they leave, stall, send slowly, or do not speak HTTP."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.soak.good_clients import gather, random_variant
from tests.soak.lines import (
    PATIENCE,
    ClientConnection,
    half_closing,
    leaving,
    pause,
    read_to_end,
    stalling,
    wait_for,
)
from tests.soak.records import ExpectedRequest, ExpectedResponse, RequestRecord
from tests.soak.rig import CAPACITY, LARGE, LONG_RENDER, Rig

_GARBAGE = [
    b"hello there, is this the service?\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon in here\r\n\r\n",
]
_LONG_HEADER = b"X-Long: " + b"x" * 17_000
_GIVE_UP = 20.0


async def leave_early(rig: Rig, chance: Random) -> None:
    """Leave before the response begins, or at its first bytes."""
    behavior = leaving(chance.uniform(0, 0.15), 0, gently=chance.random() < 0.7)
    await rig.request(
        rig.node(chance), random_variant(rig, chance, cold=True), "disconnect", behavior
    )


async def leave_midway(rig: Rig, chance: Random) -> None:
    """Leave in the middle of a response body."""
    request = rig.variant(*LARGE, cold=chance.random() < 0.3)
    size = chance.randrange(len(request.expected.body) // 2)
    behavior = leaving(_GIVE_UP, size, gently=chance.random() < 0.5)
    await rig.request(rig.node(chance), request, "disconnect", behavior)


async def leave_queue(rig: Rig, chance: Random) -> None:
    """Send more requests than there are render slots, and leave while most of them wait."""
    behaviors = [leaving(chance.uniform(0.3, 0.8), 0, gently=True) for _ in range(CAPACITY + 4)]
    await gather(
        *(
            rig.request(rig.a, random_variant(rig, chance, True), "disconnect in the queue", m)
            for m in behaviors
        )
    )


async def stall(rig: Rig, chance: Random) -> None:
    """Stop reading for a while."""
    request = rig.variant(*LARGE, cold=chance.random() < 0.3)
    size = chance.randrange(len(request.expected.body) // 4)
    await rig.request(rig.a, request, "stalled", stalling(size, chance.uniform(0.5, 4)))


async def half_close(rig: Rig, chance: Random) -> None:
    """Half-close the connection soon after the request, if the response has not ended by then."""
    behavior = half_closing(chance.uniform(0, 0.3))
    await rig.request(
        rig.a, random_variant(rig, chance, chance.random() < 0.5), "half-closed", behavior
    )


async def send_headers_in_pieces(rig: Rig, chance: Random) -> None:
    """Send the headers in pieces; one client in three closes before the headers are complete."""
    request = random_variant(rig, chance, cold=False)
    record = rig.journal.begin("a", request, "slow headers")
    connection = await rig.connect(rig.a)
    if connection is None:
        rig.journal.judge(record, None)
        return
    head = request.head(record.request_id)
    if chance.random() < 0.33:
        record.unsent, record.certain = True, False
        record.causes.add("client left")
        head = head[: chance.randrange(len(head) - 2)]
    step = len(head) // 5 + 1
    for at in range(0, len(head), step):
        connection.write(head[at : at + step])
        await pause(chance.uniform(0.05, 0.4))
    if record.unsent:
        connection.close()
    record.hung = not await connection.read()
    rig.journal.end(record, connection)


async def _send(rig: Rig, data: bytes, kind: str) -> RequestRecord:
    """Send bytes that are not a valid request; the response has to be a 400."""
    request = ExpectedRequest(b"", ExpectedResponse(frozenset({400})), "unknown")
    record = rig.journal.begin("a", request, kind)
    connection = await rig.connect(rig.a)
    if connection is None:
        rig.journal.judge(record, None)
        return record
    connection.write(data)
    await read_to_end(connection, record)
    connection.reset()
    # The service generates the request id: it takes nothing from headers that it cannot parse.
    record.logged_as = ""
    response = rig.journal.end(record, connection)
    if response is not None:
        record.logged_as = (response["x-request-id"] or b"").decode()
    return record


async def send_garbage(rig: Rig, chance: Random) -> None:
    """Send bytes that are not a valid HTTP request."""
    await _send(rig, chance.choice(_GARBAGE), "garbage")


async def send_long_header(rig: Rig, chance: Random) -> None:
    """Send a header that is too long."""
    head = random_variant(rig, chance, cold=False).head("long")
    await _send(rig, head[:-2] + _LONG_HEADER + b"\r\n\r\n", "header over 16 KiB")


async def send_body(rig: Rig, chance: Random) -> None:
    """Send a small body with a GET; the service has to discard it and respond normally."""
    request = random_variant(rig, chance, cold=False)
    request = replace(request, headers={b"Content-Length": b"10"})

    async def behave(connection: ClientConnection, record: RequestRecord) -> None:
        connection.write(b"0123456789")
        await read_to_end(connection, record)

    await rig.request(rig.a, request, "small body", behave)


async def send_endless_body(rig: Rig, chance: Random) -> None:
    """Send a body that does not end; the service has to close the connection."""
    request = random_variant(rig, chance, cold=False)
    length = {b"Content-Length": b"999999999999"}
    request = replace(request, endpoint="unknown", headers=length)

    async def behave(connection: ClientConnection, record: RequestRecord) -> None:
        def is_closed() -> bool:
            connection.write(b"x" * 16_384)
            return connection.closed is not None

        if not await wait_for(is_closed, PATIENCE):
            record.problems.append("the service kept reading an endless body")

    await rig.request(rig.a, request, "endless body", behave, {"body without end"})


class LastingClients:
    """Long-lived connections of clients that are idle or stop reading."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._idle: list[ClientConnection] = []

    async def open(self) -> None:
        """Open the idle connections, and reopen those that were closed."""
        self._idle = [connection for connection in self._idle if connection.closed is None]
        missing = self._rig.parameters.idle - len(self._idle)
        for _ in range(missing):
            connection = await self._rig.connect(self._rig.a)
            if connection is not None:
                self._idle.append(connection)

    async def stall(self, seconds: float) -> None:
        """Begin to read two large responses, stop reading for the given time, then abort."""
        kinds = [LARGE, LONG_RENDER]
        await gather(*(self._stall(self._rig.variant(*kind), seconds) for kind in kinds))

    async def _stall(self, request: ExpectedRequest, seconds: float) -> None:
        async def behave(connection: ClientConnection, record: RequestRecord) -> None:
            await connection.wait(lambda: len(connection.received) > 1000)
            connection.pause()
            await pause(seconds)
            record.causes.add("client left")
            connection.reset()
            connection.resume()

        await self._rig.request(self._rig.a, request, "stalled for the whole run", behave)

    async def leave(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        for connection in self._idle:
            await connection.wait(lambda: False, 5)


#: Actions of misbehaving clients, and their relative frequencies.
WEIGHTED_ACTIONS = [
    (leave_early, 3),
    (leave_midway, 2),
    (leave_queue, 0.8),
    (stall, 1),
    (half_close, 1.5),
    (send_headers_in_pieces, 1.5),
    (send_garbage, 1),
    (send_long_header, 1),
    (send_body, 1),
    (send_endless_body, 0.7),
]
