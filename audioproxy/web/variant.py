"""A rendered variant, from its signed path to its bytes, in the contract's order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from audioproxy.errors import Expired, SourceTooLarge
from audioproxy.grammar.expiry import clamp, expired
from audioproxy.grammar.keys import cache_key, etag
from audioproxy.grammar.options import Options
from audioproxy.grammar.reading import read_expiry, read_options
from audioproxy.grammar.segments import Target
from audioproxy.grammar.sources import Source, read_source
from audioproxy.render.job import Order
from audioproxy.render.table import Renders, Seat
from audioproxy.storage.feed import Feed
from audioproxy.storage.interfaces import (
    SourceStore,
    StoredVariant,
    VariantHeaders,
    VariantStore,
)
from audioproxy.web.conditions import matches, range_applies
from audioproxy.web.exchange import Exchange
from audioproxy.web.ranges import read_range

if TYPE_CHECKING:
    from audioproxy.metrics import Metrics

_CACHE_CONTROL = "public, max-age=31536000, immutable, no-transform"
_MAX_AGE = re.compile(r"max-age=(\d+)")


@dataclass(frozen=True, slots=True)
class Variants:
    """Answers GET and HEAD for variants.

    :ivar store: None where nothing is stored.
    :ivar now: Unix time in seconds.
    :ivar max_source: bytes; larger sources are refused.
    :ivar presign_ttl: seconds that the URL of a redirect lives; None where none is given, since
        stored variants are served from here (AP_SERVE_MODE).
    """

    metrics: Metrics
    renders: Renders
    sources: SourceStore
    store: VariantStore | None
    now: Callable[[], float]
    max_source: int
    presign_ttl: int | None = None

    async def answer(self, exchange: Exchange, target: Target) -> None:
        """Answer a request whose signature is verified.

        :raises Refusal: for everything that is not answered with the variant.
        """
        exp = self._check_expiry(target)
        options, source = _read(exchange, target)
        order = Order(
            cache_key(options.canonical(), source.canonical),
            options,
            source,
            VariantHeaders(options.content_type, _CACHE_CONTROL, _disposition(options)),
        )
        exchange.set_headers({b"etag": etag(order.key)})
        if matches(exchange.header(b"if-none-match"), etag(order.key)):
            exchange.set_headers({b"cache-control": self._clamped(_CACHE_CONTROL, exp)})
            exchange.respond(304)
            return
        seat: Seat | None = None
        with self.renders.admission() as admitted:
            stored = await self.store.lookup(order.key) if self.store is not None else None
            if stored is None and exchange.method == b"GET":
                seat = self.renders.join(order, admitted)
        if stored is not None:
            if exchange.method == b"GET":
                self.metrics.hit(options.f)
            await self._answer_hit(exchange, order, stored, exp)
        elif seat is not None:
            await self._answer_render(exchange, order, seat, exp)
        else:
            await self._answer_head_of_miss(exchange, order, exp)

    def _check_expiry(self, target: Target) -> int | None:
        exp = read_expiry(target.options)
        if expired(exp, self.now()):
            raise Expired
        return exp

    async def _answer_hit(
        self, exchange: Exchange, order: Order, stored: StoredVariant, exp: int | None
    ) -> None:
        try:
            exchange.set_cache_state("HIT")
            exchange.set_headers(self._headers(stored.headers, exp))
            exchange.set_headers({b"accept-ranges": b"bytes"})
            location = self._presign(stored, exp)
            if location is not None:
                self._redirect(exchange, stored, location)
            elif exchange.method == b"HEAD":
                exchange.set_headers({b"content-length": b"%d" % stored.size})
                exchange.respond(200)
            else:
                await self._send(exchange, order, stored)
        finally:
            stored.close()

    def _presign(self, stored: StoredVariant, exp: int | None) -> str | None:
        """Return where to redirect to; None where the bytes go out from here.

        No URL lives zero seconds, so the last second of ``exp`` is served from here (D14).
        """
        if self.presign_ttl is None:
            return None
        seconds = clamp(self.presign_ttl, exp, self.now())
        return stored.presign(seconds) if seconds else None

    def _redirect(self, exchange: Exchange, stored: StoredVariant, location: str) -> None:
        exchange.set_headers({b"location": location.encode("ascii"), b"cache-control": b"no-store"})
        if exchange.method == b"HEAD":
            exchange.set_headers({b"content-length": b"%d" % stored.size})
            exchange.respond(302)
        else:
            exchange.respond(302, b"")

    async def _send(self, exchange: Exchange, order: Order, stored: StoredVariant) -> None:
        asked = None
        if range_applies(exchange.header(b"if-range"), etag(order.key)):
            asked = read_range(exchange.header(b"range"), stored.size)
        start, stop = asked or (0, stored.size)
        flow = await stored.stretch(start, stop)
        exchange.set_headers({b"content-length": b"%d" % (stop - start)})
        if asked is not None:
            content_range = b"bytes %d-%d/%d" % (start, stop - 1, stored.size)
            exchange.set_headers({b"content-range": content_range})
        await exchange.stream(206 if asked else 200, flow)

    async def _answer_head_of_miss(self, exchange: Exchange, order: Order, exp: int | None) -> None:
        source = await self.sources.open(order.source)
        size = source.size
        source.close()
        SourceTooLarge.check(size, self.max_source)
        exchange.set_cache_state("MISS")
        exchange.set_headers(self._headers(order.headers, exp))
        exchange.respond(200)

    async def _answer_render(
        self, exchange: Exchange, order: Order, seat: Seat, exp: int | None
    ) -> None:
        count = self.metrics.miss if seat.started else self.metrics.coalesced
        count(order.options.f)
        try:
            backlog = await seat.backlog
            exchange.set_cache_state("MISS" if seat.started else "COALESCED")
            exchange.set_headers(self._headers(order.headers, exp))
            await exchange.stream(200, Feed(backlog))
        finally:
            seat.leave()

    def _headers(self, headers: VariantHeaders, exp: int | None) -> dict[bytes, bytes]:
        disposition = headers.content_disposition
        return {
            b"content-type": headers.content_type.encode("ascii"),
            b"cache-control": self._clamped(headers.cache_control, exp),
            **({b"content-disposition": disposition.encode("ascii")} if disposition else {}),
        }

    def _clamped(self, cache_control: str, exp: int | None) -> bytes:
        """Shorten a max-age to what is left until ``exp``; what is stored keeps its own."""
        return _MAX_AGE.sub(
            lambda match: f"max-age={clamp(int(match[1]), exp, self.now())}", cache_control
        ).encode("ascii")


def _read(exchange: Exchange, target: Target) -> tuple[Options, Source]:
    options, _ = read_options(target.options)
    exchange.about_options(options.canonical())
    source = read_source(target.form, target.source)
    exchange.about_source(source.canonical)
    return options, source


def _disposition(options: Options) -> str | None:
    """Return the Content-Disposition that ``dl`` asks for (D10, RFC 6266)."""
    if options.dl is None:
        return None
    plain = "".join(c if " " <= c <= "~" and c not in '"%' else "_" for c in options.dl)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(options.dl, safe='')}"
