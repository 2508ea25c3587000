"""The renders on this node: one for each cache key, shared by all clients that request it."""

from __future__ import annotations

from contextlib import suppress

from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.shared_result import InFlightCounter, SharedResult
from audioproxy.errors import Stopping
from audioproxy.grammar.request import VariantRequest
from audioproxy.observe.log_context import Logger
from audioproxy.render.render import HAS_SLOT, Render, RenderContext, State
from audioproxy.render.subscribers import Subscription

# Seconds for which a stored render can still be joined (D37).
_LINGER = 1.0

# Seconds after the time limit of the drain, for children to die and write-backs to end.
_CANCEL_TIMEOUT = 5.0

_log = Logger()


class RenderRegistry:
    def __init__(self, context: RenderContext) -> None:
        self._context = context
        self._joinable: dict[str, Render] = {}
        self._alive: set[Render] = set()
        self._in_flight = InFlightCounter()
        self._draining: SharedResult[None] = SharedResult()

    def join(self, request: VariantRequest, *, is_low: bool = False) -> Subscription:
        """Join the render of a request's key, or start it.

        :param is_low: a render that only such requests have joined lets others go first (D65).
        :raises Stopping: where there is no render to join, and the service stops.
        """
        found = self._joinable.get(request.key)
        render = found or self._create(request)
        subscription = render.subscribe(started=found is None)
        if not is_low:
            render.lift()
        if found is None:
            Deferred.fromCoroutine(self._run(request.key, render))
        return subscription

    def open(self) -> None:
        self._draining = SharedResult()

    def count(self) -> tuple[int, int]:
        states = [render.state for render in self._alive]
        return sum(state in HAS_SLOT for state in states), states.count(State.FINISHED)

    async def drain(self, deadline: Deadline) -> None:
        """Start no more renders, and wait until every one with a slot is over and stored (D39).

        Renders without a slot are stopped at once, and all others at the deadline. The wait ends a
        few seconds later, even if some of them have not ended.
        """
        self._draining.fire(None)
        for render in list(self._alive):
            if not render.has_slot:
                render.stop()
        await self._in_flight.wait_until_idle(deadline)
        renders, write_backs = self.count()
        if renders or write_backs:
            _log.warn(
                "the time of the stop is over; renders that end now: {renders}, write-backs that"
                " have {seconds:.0f} s left: {write_backs}",
                renders=renders,
                write_backs=write_backs,
                seconds=_CANCEL_TIMEOUT,
            )
        for render in list(self._alive):
            render.stop()
        await self._in_flight.wait_until_idle(Deadline(self._context.clock, _CANCEL_TIMEOUT))

    def _create(self, request: VariantRequest) -> Render:
        if self._draining.fired:
            raise Stopping
        render = Render(self._context, request, lambda: self._unregister(request.key, render))
        self._joinable[request.key] = render
        self._alive.add(render)
        self._in_flight.begin()
        return render

    async def _run(self, key: str, render: Render) -> None:
        try:
            if await render.start():
                await self._linger()
        finally:
            self._unregister(key, render)
            render.close()
            self._alive.discard(render)
            self._in_flight.end()

    async def _linger(self) -> None:
        """Keep a stored render joinable a little longer, unless the service stops (D37).

        A request may look the variant up just before the write-back ends, and join just after it.

        So this node stores a key at most once in a second, and the Last-Modified of a variant,
        which has whole seconds, is that of no other one (a strong validator by RFC 9110, 8.8.2.2).
        """
        with suppress(TimeoutError):
            await Deadline(self._context.clock, _LINGER).limit(self._draining.wait())

    def _unregister(self, key: str, render: Render) -> None:
        if self._joinable.get(key) is render:
            del self._joinable[key]
