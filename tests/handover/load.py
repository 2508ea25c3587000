"""Clients of a service at a steady rate, and what they saw.

A request is repeated once, on a new connection, if its connection was closed before any byte of the
response, as HAProxy's ``retry-on`` does. A refused connection is never repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import LoopingCall, deferLater
from twisted.web.client import Agent, HTTPConnectionPool, ResponseNeverReceived, readBody

from tests.support.service import Client, reactor, send

#: Bytes of a download that a slow client reads each second.
SLOW_RATE = 400_000


@dataclass
class Seen:
    """What clients have seen.

    :ivar statuses: the number of responses with each status.
    :ivar repeated: requests that may need a slot, and were closed without a response and repeated.
    :ivar reconnected: the same for all others: a persistent connection was closed while they were
        on their way.
    :ivar failures: everything that no client may see.
    :ivar hits: when each small hit began, and how long it took, in seconds.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    repeated: int = 0
    reconnected: int = 0
    failures: list[str] = field(default_factory=list)
    hits: list[tuple[float, float]] = field(default_factory=list)

    def percentile(self, share: float, begin: float, end: float) -> float:
        """Return the seconds that a share of the small hits between two times did not exceed."""
        times = sorted(taken for began, taken in self.hits if begin <= began < end)
        return times[int(share * (len(times) - 1))]


class Load:
    """Requests that are started in turn at a rate.

    :ivar seen: what the clients have seen.
    """

    def __init__(self, port: int, sign: Callable[[str], bytes]) -> None:
        """Make no request yet.

        :param sign: returns the signed path of a path.
        """
        self.seen = Seen()
        self._port = port
        self._sign = sign
        self._pool = HTTPConnectionPool(reactor, persistent=True)
        self._pool.maxPersistentPerHost = 8
        # It would repeat more than closed requests, and unseen.
        self._pool.retryAutomatically = False
        self._agents = Agent(reactor, pool=self._pool), Agent(reactor)
        self._bodies: dict[str, int] = {}
        self._running: set[Deferred[None]] = set()
        self._loops: list[LoopingCall] = []

    def every(self, seconds: float, request: Callable[[], Awaitable[None]]) -> None:
        """Start a request now and at each interval, whether or not earlier ones have ended."""

        def begin() -> None:
            running: Deferred[None] = Deferred.fromCoroutine(self._reported(request))
            self._running.add(running)
            running.addCallback(lambda _: self._running.discard(running))

        loop = LoopingCall(begin)
        loop.clock = reactor
        loop.start(seconds)
        self._loops.append(loop)

    async def stop(self) -> None:
        """Start no more requests, and wait for those that run."""
        loops, self._loops = self._loops, []
        for loop in loops:
            loop.stop()
        for running in list(self._running):
            await running
        await self._pool.closeCachedConnections()

    async def get(self, path: str, *, renders: bool = False) -> None:
        """Request a path, and compare its body with earlier ones of the same path.

        :param renders: whether the request may need a render slot.
        """
        for agent in self._agents:
            url = b"http://127.0.0.1:%d%s" % (self._port, self._sign(path))
            try:
                response: Any = await agent.request(b"GET", url)
                break
            except (ResponseNeverReceived, ConnectionDone, ConnectionLost):
                if agent is self._agents[-1]:
                    raise
                if renders:
                    self.seen.repeated += 1
                else:
                    self.seen.reconnected += 1
        body = await readBody(response)
        self.seen.statuses[response.code] += 1
        if response.code != 200:
            self.seen.failures.append(f"{response.code} {body[:200]!r}: {path}")
        elif self._bodies.setdefault(path, hash(body)) != hash(body):
            self.seen.failures.append(f"another body: {path}")

    async def hit(self, path: str) -> None:
        """Request a small stored variant, and take its time."""
        began = reactor.seconds()
        await self.get(path)
        self.seen.hits.append((began, reactor.seconds() - began))

    async def download_slowly(self, path: str) -> None:
        """Read a response at `SLOW_RATE`."""
        client: Client = await send(self._port, self._sign(path))
        read = 0
        while client.closed is None:
            if len(client.received) - read > SLOW_RATE // 4:
                read = len(client.received)
                client.pause()
                await deferLater(reactor, 0.25)
                client.resume()
            await deferLater(reactor, 0.01)
        response = await client.end()
        self.seen.statuses[response.status] += 1
        if not response.complete:
            self.seen.failures.append(f"an incomplete body of {len(response.body)}: {path}")

    async def _reported(self, request: Callable[[], Awaitable[None]]) -> None:
        try:
            await request()
        except Exception as error:
            reasons: Iterable[Any] = getattr(error, "reasons", ())
            text = ", ".join(repr(reason.value) for reason in reasons)
            self.seen.failures.append(f"{error!r} {text}")
