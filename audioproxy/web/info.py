"""The info document of a source: open, check the condition, probe (Request handling order, 6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from audioproxy.errors import ProbeFailed
from audioproxy.grammar.cache_key import etag, info_key
from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.grammar.request import InfoRequest
from audioproxy.grammar.sources import Source
from audioproxy.process.prober import Prober
from audioproxy.sources.anew import use_source
from audioproxy.sources.interfaces import OpenSource, SourceStore
from audioproxy.web.conditions import matches
from audioproxy.web.exchange import Exchange
from audioproxy.web.response_plan import ResponsePlan, plan_json

_CACHE_CONTROL = b"public, max-age=3600"
# Without a validator, no client can revalidate the document.
_CACHE_CONTROL_UNVALIDATED = b"public, max-age=60"


@dataclass(frozen=True, slots=True)
class InfoHandler:
    sources: SourceStore
    prober: Prober
    cache_tag: CacheTagHeader | None = None

    async def respond(self, exchange: Exchange, request: InfoRequest) -> None:
        is_read = exchange.method != b"HEAD" and exchange.conditions.if_none_match is None

        async def plan(opened: OpenSource, _: bool) -> ResponsePlan:
            try:
                return await self._plan(exchange, request.source, opened)
            finally:
                opened.close()

        opening = partial(self.sources.open, request.source, reads=is_read)
        exchange.respond(await use_source(opening, plan))

    async def _plan(self, exchange: Exchange, source: Source, opened: OpenSource) -> ResponsePlan:
        tag, headers = b"", {b"cache-control": _CACHE_CONTROL_UNVALIDATED}
        if opened.validator:
            tag = etag(info_key(source.canonical, opened.validator))
            headers = {b"etag": tag, b"cache-control": _CACHE_CONTROL}
        if self.cache_tag is not None:
            name, text = self.cache_tag.line(source.canonical)
            headers[name.encode("ascii")] = text.encode("ascii")
        if tag and matches(exchange.conditions.if_none_match, tag):
            return ResponsePlan(304, tuple(headers.items()))
        if exchange.method == b"HEAD":
            headers[b"content-type"] = b"application/json"
            return ResponsePlan(200, tuple(headers.items()))
        probe = await self.prober.describe(opened)
        if not await opened.unchanged():
            self.prober.forget(opened.identity)
            raise ProbeFailed("The source changed while it was probed.")
        return plan_json(200, headers, probe.description.document(opened.size))
