"""The resource of the main listener: routes a request by its raw path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from audioproxy.errors import Expired, InvalidSignature, NotFound
from audioproxy.grammar.expiry import expired
from audioproxy.grammar.parser import read_expiry
from audioproxy.grammar.segments import SignedPath, Target, split_signature, split_target
from audioproxy.grammar.signature import verify
from audioproxy.grammar.signature_diagnosis import diagnose_signature
from audioproxy.process.readiness import Readiness
from audioproxy.process.slots import Slots
from audioproxy.web.access_log import AccessLog, log_request
from audioproxy.web.base_resource import BaseResource
from audioproxy.web.cors import Cors
from audioproxy.web.exchange import Exchange
from audioproxy.web.info import InfoHandler
from audioproxy.web.status import answer_health, answer_ready
from audioproxy.web.variant import VariantHandler
from audioproxy.web.verified_paths import Asked, VerifiedPathCache, read_asked

if TYPE_CHECKING:
    from audioproxy.metrics import Metrics

_INSECURE = b"insecure"


@dataclass(frozen=True, slots=True)
class Signer:
    """Who may ask: holders of a key, and, where that is allowed, everybody.

    :ivar key: None where only the insecure word signs.
    """

    key: bytes | None
    salt: bytes | None
    allow_insecure: bool = False

    def check(self, path: SignedPath) -> None:
        """Verify the signature of a path.

        :raises InvalidSignature: where it does not match. The holder of the key is told of a slip.
        """
        if path.signature == _INSECURE:
            if self.allow_insecure:
                return
            raise InvalidSignature(
                "The word insecure is no signature here; sign the path, or set AP_ALLOW_INSECURE"
                " for trying things out."
            )
        if self.key is None or self.salt is None:
            raise InvalidSignature("No signature can match, since AP_KEY is not set.")
        if not verify(self.key, self.salt, path.signed, path.signature):
            slip = diagnose_signature(self.key, self.salt, path.signed, path.signature)
            raise InvalidSignature(slip and f"The signature does not match: {slip}.")


class AudioProxyResource(BaseResource):
    """Variants, info documents, health and readiness.

    :ivar known: what was asked for lately.
    """

    def __init__(
        self,
        signer: Signer,
        cors: Cors,
        variants: VariantHandler,
        infos: InfoHandler,
        slots: Slots,
        readiness: Readiness,
        seconds: Callable[[], float],
        metrics: Metrics,
        access_log: AccessLog = log_request,
    ) -> None:
        """Mount the parts.

        :param slots: of renders; its queue is what readiness reports.
        :param seconds: a clock for durations.
        :param access_log: takes the record of each request.
        """
        BaseResource.__init__(self, seconds, metrics, cors, access_log)
        self.known = VerifiedPathCache()
        self._signer = signer
        self._variants = variants
        self._infos = infos
        self._slots = slots
        self._readiness = readiness

    async def route(self, exchange: Exchange, path: bytes) -> None:
        """Answer a request, or refuse it; see `BaseResource`."""
        method = exchange.method
        if not self.serves(method):
            raise NotFound("a method that is not served")
        if method == b"OPTIONS":
            exchange.endpoint = "preflight"
            requested = exchange.header(b"access-control-request-headers")
            exchange.set_headers(self._cors.preflight(requested))
            exchange.respond(204)
        elif path == b"/health":
            exchange.endpoint = "health"
            answer_health(exchange)
        elif path == b"/ready":
            exchange.endpoint = "ready"
            answer_ready(exchange, self._readiness, lambda: self._slots.depth)
        else:
            await self._answer_signed(exchange, path)

    async def _answer_signed(self, exchange: Exchange, path: bytes) -> None:
        asked = self.known.find(path)
        if asked is not None:
            exchange.endpoint = "render"
            if asked.is_over(self._variants.now()):
                raise Expired
            asked.describe(exchange)
        else:
            target = self._verify(exchange, path)
            if target.info:
                await self._infos.answer(exchange, target)
                return
            asked = self._read(exchange, path, target)
        await self._variants.answer(exchange, asked)

    def _verify(self, exchange: Exchange, path: bytes) -> Target:
        signed = split_signature(path)
        # /hls/ is reserved for a later version (contract: Versioning).
        if signed is None or signed.signature == b"hls":
            raise NotFound("no such route")
        exchange.endpoint = "info" if signed.signed.startswith(b"/info/") else "render"
        self._signer.check(signed)
        target = split_target(signed.signed)
        if target is None:
            raise NotFound("no source in the path")
        return target

    def _read(self, exchange: Exchange, path: bytes, target: Target) -> Asked:
        # An expired URL is told so whatever else is wrong with it.
        if expired(read_expiry(target.options), self._variants.now()):
            raise Expired
        asked = read_asked(exchange, target)
        self.known.keep(path, asked)
        return asked
