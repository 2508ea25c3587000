"""Which renders run on this node: one for each cache key, shared by all who ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from audioproxy.errors import QueueFull
from audioproxy.in_flight import Tally
from audioproxy.render.context import Order, RenderContext
from audioproxy.render.output import RenderOutput
from audioproxy.render.render import Job

# Seconds for a child to die, or a write-back to end, after the time to drain is over.
_LAST_WAIT = 5.0

# Seconds after which another node, or this one after its restart, may be asked.
_COME_BACK = 1


@dataclass(frozen=True, slots=True)
class Subscription:
    """One client's place at a render.

    :ivar started: the render began with this client; others joined it.
    :ivar backlog: fires when there are bytes, or fails with the refusal.
    """

    job: Job
    started: bool
    backlog: Deferred[RenderOutput]

    def leave(self) -> None:
        """Give the place up, when everything was read or the client is gone."""
        self.job.unsubscribe()


class RenderRegistry:
    """The table of running renders."""

    def __init__(self, workshop: RenderContext) -> None:
        self._workshop = workshop
        self._joinable: dict[str, Job] = {}
        self._alive: set[Job] = set()
        self._tally = Tally()
        self._draining = False

    def find(self, key: str) -> Subscription | None:
        """Join the render of ``key``, where one runs."""
        job = self._joinable.get(key)
        return None if job is None else Subscription(job, started=False, backlog=job.subscribe())

    @contextmanager
    def admission(self) -> Iterator[bool]:
        """Let a request in, which may begin a render within the block.

        True is for one that came before a drain. Its lookup in the store may take until after the
        drain has begun, which waits for it then.
        """
        if self._draining:
            yield False
            return
        self._tally.begin()
        try:
            yield True
        finally:
            self._tally.end()

    def join(self, order: Order, admitted: bool) -> Subscription:
        """Join the render of an order's key, or start it.

        :param admitted: what `admission` said.
        :raises QueueFull: for one that is not running, where the request was not admitted.
        """
        seat = self.find(order.key)
        if seat is not None:
            return seat
        if not admitted:
            raise QueueFull(_COME_BACK)
        job = Job(self._workshop, order, lambda: self._retire(order.key, job))
        self._joinable[order.key] = job
        self._alive.add(job)
        self._tally.begin()
        backlog = job.subscribe()
        job.start().addCallback(lambda _: self._ended(job))
        if self._draining:
            job.skip_linger()
        return Subscription(job, started=True, backlog=backlog)

    async def drain(self, clock: IReactorTime, seconds: float) -> None:
        """Wait until every render has ended and is stored (D39).

        Those that still run after ``seconds`` are ended; what does not even end is left alone
        a few seconds later.
        """
        self._draining = True
        for job in list(self._alive):
            job.skip_linger()
        await self._tally.wait(clock, seconds)
        for job in list(self._alive):
            job.cancel()
        await self._tally.wait(clock, _LAST_WAIT)

    def _retire(self, key: str, job: Job) -> None:
        if self._joinable.get(key) is job:
            del self._joinable[key]

    def _ended(self, job: Job) -> None:
        self._alive.discard(job)
        self._tally.end()
