"""Responses to requests for variants: from the store, from a render, or as a redirect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from audioproxy.errors import UpstreamUnavailable
from audioproxy.files.streams import FileProducer
from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.grammar.request import VariantRequest
from audioproxy.observe.log_context import Logger
from audioproxy.render.job import Preparer
from audioproxy.render.registry import RenderRegistry
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.interfaces import VariantChanged, VariantStore
from audioproxy.variants.response_headers import VariantHeaders
from audioproxy.web.conditions import Conditions
from audioproxy.web.exchange import Exchange
from audioproxy.web.response_plan import ResponsePlan, Stored, plan_not_modified, plan_response

if TYPE_CHECKING:
    from audioproxy.observe.metrics import Metrics

# The request header with which operators' tools let listeners go first (D65).
_LANE = b"x-audio-proxy-lane"

_log = Logger()


@dataclass(frozen=True, slots=True)
class VariantHandler:
    metrics: Metrics
    renders: RenderRegistry
    preparer: Preparer
    store: VariantStore | None
    now: Callable[[], float]
    presign_ttl: int | None = None
    presign: Callable[[str, int, VariantHeaders], str] | None = None
    small_variants: FileVariantStore | None = None
    cache_tag: CacheTagHeader | None = None

    async def respond(self, exchange: Exchange, request: VariantRequest) -> None:
        tag = self._find_tag(request)
        not_modified = plan_not_modified(request, exchange.conditions, self.now(), tag)
        if not_modified is not None:
            exchange.respond(not_modified)
            return
        try:
            await self._find_and_respond(exchange, request, tag)
        except VariantChanged:
            try:
                await self._find_and_respond(exchange, request, tag, is_counted=True)
            except VariantChanged as error:
                _log.warn("a stored variant cannot be read: {error}", error=error)
                raise UpstreamUnavailable from error

    async def _find_and_respond(
        self,
        exchange: Exchange,
        request: VariantRequest,
        tag: tuple[str, str] | None,
        *,
        is_counted: bool = False,
    ) -> None:
        """Look the variant up, or join its render; ``is_counted`` on the second attempt.

        :raises VariantChanged: if the variant was replaced or removed after the lookup; nothing is
            sent then.
        """
        conditions = exchange.conditions
        is_get = conditions.method == b"GET"
        subscription = None
        stored = await self.store.lookup(request.key) if self.store is not None else None
        if stored is None and is_get:
            lane = exchange.header(_LANE) or b""
            subscription = self.renders.join(request, is_low=lane.lower() == b"low")

        if stored is not None:
            if is_get and not is_counted:
                self.metrics.hit(request.options.f)
            try:
                presign = None if self.presign is None else partial(self.presign, request.key)
                found = Stored(stored.size, presign, self.presign_ttl or 0, stored.stored)
                plan = self._plan(request, conditions, found, tag)
                if plan.byte_range is None:
                    exchange.respond(plan)
                else:
                    # It is logged even if the client disconnects while the variant is opened.
                    exchange.plan = plan
                    await exchange.stream(plan, await stored.open_range(*plan.byte_range))
            finally:
                stored.close()

        elif subscription is not None:
            if not is_counted:
                count = self.metrics.miss if subscription.started else self.metrics.coalesced
                count(request.options.f)
            try:
                output = await subscription.output
                plan = self._plan(
                    request, conditions, "MISS" if subscription.started else "COALESCED", tag
                )
                await exchange.stream(plan, FileProducer(output))
            finally:
                subscription.leave()

        else:
            # HEAD of a variant that is not stored: only a source that exists has one.
            source = await self.preparer.open(request.source, reads=False)
            source.close()
            exchange.respond(self._plan(request, conditions, "MISS", tag))

    def _plan(
        self,
        request: VariantRequest,
        conditions: Conditions,
        found: Stored | Literal["MISS", "COALESCED"],
        tag: tuple[str, str] | None,
    ) -> ResponsePlan:
        return plan_response(
            request,
            conditions,
            self.now(),
            found,
            has_store=self.store is not None,
            cache_tag=tag,
        )

    def _find_tag(self, request: VariantRequest) -> tuple[str, str] | None:
        return None if self.cache_tag is None else self.cache_tag.line(request.source.canonical)

    def plan_at_once(
        self, request: VariantRequest, conditions: Conditions, now: float
    ) -> tuple[ResponsePlan, bytes] | None:
        """Return the response to a GET, and its body, for `audioproxy.server.fast_path`.

        :returns: None where a response takes more than a small file.
        """
        if request.is_expired(now):
            return None
        tag = self._find_tag(request)
        not_modified = plan_not_modified(request, conditions, now, tag)
        if not_modified is not None:
            return not_modified, b""
        found = self.small_variants and self.small_variants.read_small(request.key)
        if not found:
            return None
        stored_at, data = found
        self.metrics.hit(request.options.f)
        stored = Stored(len(data), stored=stored_at)
        plan = plan_response(request, conditions, now, stored, cache_tag=tag)
        if plan.byte_range is None:
            return plan, plan.body or b""
        start, stop = plan.byte_range
        return plan, data[start:stop]
