"""The info document of a source: open, check the condition, probe (Request handling order, 6)."""

from __future__ import annotations

from dataclasses import dataclass

from audioproxy.errors import ProbeFailed
from audioproxy.grammar.cache_key import etag, info_key, source_identity
from audioproxy.grammar.request import InfoRequest
from audioproxy.process.prober import Prober
from audioproxy.sources.interfaces import SourceStore
from audioproxy.web.conditions import matches
from audioproxy.web.exchange import Exchange

_CACHE_CONTROL = b"public, max-age=3600"
# Without a validator, no client can revalidate the document.
_CACHE_CONTROL_UNVALIDATED = b"public, max-age=60"


@dataclass(frozen=True, slots=True)
class InfoHandler:
    """Responds to GET and HEAD of info documents."""

    sources: SourceStore
    prober: Prober

    async def respond(self, exchange: Exchange, request: InfoRequest) -> None:
        """Respond to a request whose signature is verified.

        :raises Refusal: for every response that is not the document.
        """
        source = request.source
        exchange.set_log_subject(source.canonical)
        opened = await self.sources.open(source)
        try:
            identity = source_identity(source.canonical, opened.validator)
            if opened.validator:
                tag = etag(info_key(identity))
                exchange.set_headers({b"etag": tag, b"cache-control": _CACHE_CONTROL})
                if matches(exchange.header(b"if-none-match"), tag):
                    exchange.respond(304)
                    return
            else:
                exchange.set_headers({b"cache-control": _CACHE_CONTROL_UNVALIDATED})
            if exchange.method == b"HEAD":
                exchange.set_headers({b"content-type": b"application/json"})
                exchange.respond(200)
                return
            probe = await self.prober.probe(identity, opened)
            if not await opened.unchanged():
                self.prober.forget(identity)
                raise ProbeFailed("The source changed while it was probed.")
            exchange.respond_json(200, probe.description.document(opened.size))
        finally:
            opened.close()
