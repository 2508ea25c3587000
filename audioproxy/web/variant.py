"""Responses to requests for variants: from the store, from a render, or as a redirect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from audioproxy.errors import RangeNotSatisfiable, UpstreamUnavailable
from audioproxy.files.streams import FileProducer
from audioproxy.grammar.request import VariantRequest
from audioproxy.observe.log_context import Logger
from audioproxy.render.job import Preparer
from audioproxy.render.registry import RenderRegistry, Subscription
from audioproxy.variants.interfaces import StoredVariant, VariantChanged, VariantStore
from audioproxy.web.exchange import Exchange
from audioproxy.web.response_plan import Conditions, Lookup, Outcome, miss_headers, plan_response

if TYPE_CHECKING:
    from audioproxy.observe.metrics import Metrics

_log = Logger()


@dataclass(frozen=True, slots=True)
class VariantHandler:
    """Responds to GET and HEAD of variants.

    :ivar store: None where nothing is stored.
    :ivar now: Unix time in seconds.
    :ivar presign_ttl: lifetime in seconds of a redirect's presigned URL; None in proxy mode
        (AP_SERVE_MODE).
    :ivar presign: returns the presigned URL of a variant from its cache key and its lifetime; None
        in proxy mode.
    """

    metrics: Metrics
    renders: RenderRegistry
    preparer: Preparer
    store: VariantStore | None
    now: Callable[[], float]
    presign_ttl: int | None = None
    presign: Callable[[str, int], str] | None = None

    async def respond(self, exchange: Exchange, request: VariantRequest) -> None:
        """Respond to a request whose signature is verified and that has not expired.

        :raises Refusal: for every response that is an error document.
        """
        conditions = exchange.conditions
        exchange.set_headers({b"etag": request.tag})
        plan = plan_response(request, conditions, self.now())
        if plan.outcome is Outcome.NOT_MODIFIED:
            exchange.set_headers(plan.headers)
            exchange.respond(plan.status)
            return
        try:
            await self._respond_variant(exchange, request, conditions)
        except VariantChanged:
            try:
                await self._respond_variant(exchange, request, conditions, is_counted=True)
            except VariantChanged as error:
                _log.warn("a stored variant cannot be read: {error}", error=error)
                raise UpstreamUnavailable from error

    async def _respond_variant(
        self,
        exchange: Exchange,
        request: VariantRequest,
        conditions: Conditions,
        *,
        is_counted: bool = False,
    ) -> None:
        """Look the variant up and respond.

        :param is_counted: this is not the first lookup of the request.
        :raises VariantChanged: if the variant was replaced after the lookup; nothing is sent then.
        """
        subscription: Subscription | None = None
        with self.renders.admission() as admitted:
            stored = await self.store.lookup(request.key) if self.store is not None else None
            if stored is None:
                plan = plan_response(request, conditions, self.now(), Lookup())
                if plan.outcome is Outcome.RENDER:
                    subscription = self.renders.join(request, admitted)
        if exchange.method == b"GET" and not is_counted:
            self._count(request, stored, subscription)
        if stored is not None:
            await self._respond_stored(exchange, request, stored, conditions)
        elif subscription is not None:
            await self._respond_render(exchange, request, subscription)
        else:
            await self._respond_head_of_miss(exchange, request)

    def _count(
        self,
        request: VariantRequest,
        stored: StoredVariant | None,
        subscription: Subscription | None,
    ) -> None:
        if stored is not None:
            self.metrics.hit(request.options.f)
        elif subscription is not None:
            count = self.metrics.miss if subscription.started else self.metrics.coalesced
            count(request.options.f)

    async def _respond_stored(
        self,
        exchange: Exchange,
        request: VariantRequest,
        stored: StoredVariant,
        conditions: Conditions,
    ) -> None:
        try:
            lookup = Lookup(stored.size, stored.headers, self.presign_ttl)
            plan = plan_response(request, conditions, self.now(), lookup)
            if plan.outcome is Outcome.UNSATISFIABLE:
                raise RangeNotSatisfiable(stored.size)
            exchange.set_cache_state(plan.cache_state)
            if plan.outcome is Outcome.REDIRECT:
                assert self.presign is not None
                location = self.presign(request.key, plan.redirect_seconds)
                exchange.set_headers({**plan.headers, b"location": location.encode("ascii")})
                exchange.respond(plan.status, None if exchange.method == b"HEAD" else b"")
            elif exchange.method == b"HEAD":
                exchange.set_headers(plan.headers)
                exchange.respond(plan.status)
            else:
                stream = await stored.open_range(*plan.byte_range)
                exchange.set_headers(plan.headers)
                await exchange.stream(plan.status, stream)
        finally:
            stored.close()

    async def _respond_head_of_miss(self, exchange: Exchange, request: VariantRequest) -> None:
        source = await self.preparer.open(request.source)
        source.close()
        exchange.set_cache_state("MISS")
        exchange.set_headers(miss_headers(request, self.now()))
        exchange.respond(200)

    async def _respond_render(
        self, exchange: Exchange, request: VariantRequest, subscription: Subscription
    ) -> None:
        try:
            output = await subscription.output
            exchange.set_cache_state("MISS" if subscription.started else "COALESCED")
            exchange.set_headers(miss_headers(request, self.now()))
            await exchange.stream(200, FileProducer(output, descriptor=output.descriptor))
        finally:
            subscription.leave()
