"""A rendered variant, from its signed path to its bytes, in the contract's order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from audioproxy.errors import SourceTooLarge
from audioproxy.grammar.expiry import clamp
from audioproxy.render.context import Order
from audioproxy.render.registry import RenderRegistry, Subscription
from audioproxy.sources.interfaces import SourceStore
from audioproxy.streams import FileProducer
from audioproxy.variants.interfaces import StoredVariant, VariantHeaders, VariantStore
from audioproxy.web.conditions import matches, range_applies
from audioproxy.web.exchange import Exchange
from audioproxy.web.ranges import read_range
from audioproxy.web.verified_paths import CACHE_CONTROL, Asked

if TYPE_CHECKING:
    from audioproxy.metrics import Metrics

_MAX_AGE = re.compile(r"max-age=(\d+)")


@dataclass(frozen=True, slots=True)
class VariantHandler:
    """Answers GET and HEAD for variants.

    :ivar store: None where nothing is stored.
    :ivar now: Unix time in seconds.
    :ivar max_source: bytes; larger sources are refused.
    :ivar presign_ttl: seconds that the URL of a redirect lives; None where none is given, since
        stored variants are served from here (AP_SERVE_MODE).
    """

    metrics: Metrics
    renders: RenderRegistry
    sources: SourceStore
    store: VariantStore | None
    now: Callable[[], float]
    max_source: int
    presign_ttl: int | None = None

    async def answer(self, exchange: Exchange, asked: Asked) -> None:
        """Answer a request whose signature is verified and whose time is not over.

        :raises Refusal: for everything that is not answered with the variant.
        """
        order, exp = asked.order, asked.exp
        exchange.set_headers({b"etag": asked.tag})
        if matches(exchange.header(b"if-none-match"), asked.tag):
            exchange.set_headers({b"cache-control": self.clamped(CACHE_CONTROL, exp)})
            exchange.respond(304)
            return
        seat: Subscription | None = None
        with self.renders.admission() as admitted:
            stored = await self.store.lookup(order.key) if self.store is not None else None
            if stored is None and exchange.method == b"GET":
                seat = self.renders.join(order, admitted)
        if stored is not None:
            if exchange.method == b"GET":
                self.metrics.hit(order.options.f)
            await self._answer_hit(exchange, asked, stored)
        elif seat is not None:
            await self._answer_render(exchange, order, seat, exp)
        else:
            await self._answer_head_of_miss(exchange, order, exp)

    async def _answer_hit(self, exchange: Exchange, asked: Asked, stored: StoredVariant) -> None:
        try:
            exchange.set_cache_state("HIT")
            exchange.set_headers(self.headers(stored.headers, asked.exp))
            exchange.set_headers({b"accept-ranges": b"bytes"})
            location = self._presign(stored, asked.exp)
            if location is not None:
                self._redirect(exchange, stored, location)
            elif exchange.method == b"HEAD":
                exchange.set_headers({b"content-length": b"%d" % stored.size})
                exchange.respond(200)
            else:
                await self._send(exchange, asked.tag, stored)
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

    async def _send(self, exchange: Exchange, tag: bytes, stored: StoredVariant) -> None:
        part = None
        if range_applies(exchange.header(b"if-range"), tag):
            part = read_range(exchange.header(b"range"), stored.size)
        start, stop = part or (0, stored.size)
        flow = await stored.open_range(start, stop)
        exchange.set_headers(size_headers(part, stored.size))
        await exchange.stream(206 if part else 200, flow)

    async def _answer_head_of_miss(self, exchange: Exchange, order: Order, exp: int | None) -> None:
        source = await self.sources.open(order.source)
        size = source.size
        source.close()
        SourceTooLarge.check(size, self.max_source)
        exchange.set_cache_state("MISS")
        exchange.set_headers(self.headers(order.headers, exp))
        exchange.respond(200)

    async def _answer_render(
        self, exchange: Exchange, order: Order, seat: Subscription, exp: int | None
    ) -> None:
        count = self.metrics.miss if seat.started else self.metrics.coalesced
        count(order.options.f)
        try:
            backlog = await seat.backlog
            exchange.set_cache_state("MISS" if seat.started else "COALESCED")
            exchange.set_headers(self.headers(order.headers, exp))
            await exchange.stream(200, FileProducer(backlog, descriptor=backlog.descriptor))
        finally:
            seat.leave()

    def headers(self, headers: VariantHeaders, exp: int | None) -> dict[bytes, bytes]:
        """Return what a variant was stored with, or will be, as headers for a URL until ``exp``."""
        disposition = headers.content_disposition
        return {
            b"content-type": headers.content_type.encode("ascii"),
            b"cache-control": self.clamped(headers.cache_control, exp),
            **({b"content-disposition": disposition.encode("ascii")} if disposition else {}),
        }

    def clamped(self, cache_control: str, exp: int | None) -> bytes:
        """Shorten a max-age to what is left until ``exp``; what is stored keeps its own."""
        if exp is None:
            return cache_control.encode("ascii")
        return _MAX_AGE.sub(
            lambda match: f"max-age={clamp(int(match[1]), exp, self.now())}", cache_control
        ).encode("ascii")


def size_headers(part: tuple[int, int] | None, size: int) -> dict[bytes, bytes]:
    """Return the headers that say how long a body is.

    :param part: its first offset and the one behind its last, where it is a range.
    :param size: of the variant, in bytes.
    """
    if part is None:
        return {b"content-length": b"%d" % size}
    start, stop = part
    return {
        b"content-length": b"%d" % (stop - start),
        b"content-range": b"bytes %d-%d/%d" % (start, stop - 1, size),
    }
