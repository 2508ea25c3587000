"""Misbehaving clients: they leave or stall."""

from __future__ import annotations

from random import Random

from tests.soak.good_clients import gather, random_variant
from tests.soak.lines import ClientConnection, leaving, pause, stalling
from tests.soak.records import ExpectedRequest, RequestRecord
from tests.soak.rig import CAPACITY, LARGE, LONG_RENDER, Rig

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
WEIGHTED_ACTIONS = [(leave_early, 3), (leave_midway, 2), (leave_queue, 0.8), (stall, 1)]
