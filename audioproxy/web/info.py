"""The info document of a source: open, check the condition, probe (Request handling order, 6)."""

from __future__ import annotations

from dataclasses import dataclass

from audioproxy.errors import ProbeFailed
from audioproxy.grammar.cache_key import etag, info_key
from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.grammar.request import InfoRequest
from audioproxy.process.prober import Prober
from audioproxy.sources.interfaces import SourceStore
from audioproxy.web.conditions import matches
from audioproxy.web.exchange import Exchange
from audioproxy.web.response_plan import ResponsePlan, plan_json

_CACHE_CONTROL = b"public, max-age=3600"
# Without a validator, no client can revalidate the document.
_CACHE_CONTROL_UNVALIDATED = b"public, max-age=60"


@dataclass(frozen=True, slots=True)
class InfoHandler:
    """Responds to GET and HEAD of info documents.

    :ivar cache_tag: the header with the tag of the source, or None.
    """

    sources: SourceStore
    prober: Prober
    cache_tag: CacheTagHeader | None = None

    async def respond(self, exchange: Exchange, request: InfoRequest) -> None:
        """Respond to a request whose signature is verified.

        :raises Refusal: for every response that is not the document.
        """
        source = request.source
        opened = await self.sources.open(source, reads=exchange.method != b"HEAD")
        try:
            tag, headers = b"", {b"cache-control": _CACHE_CONTROL_UNVALIDATED}
            if opened.validator:
                tag = etag(info_key(source.canonical, opened.validator))
                headers = {b"etag": tag, b"cache-control": _CACHE_CONTROL}
            if self.cache_tag is not None:
                headers.update(self.cache_tag.lines(source.canonical))
            if tag and matches(exchange.conditions.if_none_match, tag):
                exchange.respond(ResponsePlan(304, tuple(headers.items())))
                return
            if exchange.method == b"HEAD":
                headers[b"content-type"] = b"application/json"
                exchange.respond(ResponsePlan(200, tuple(headers.items())))
                return
            probe = await self.prober.describe(opened)
            if not await opened.unchanged():
                self.prober.forget(opened.identity)
                raise ProbeFailed("The source changed while it was probed.")
            exchange.respond(plan_json(200, headers, probe.description.document(opened.size)))
        finally:
            opened.close()
