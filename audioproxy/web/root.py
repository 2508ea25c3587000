"""The resource of the main listener: routes a request by its raw path."""

from __future__ import annotations

from audioproxy.errors import Expired, NotFound
from audioproxy.grammar.request import InfoRequest, SigningKeys, VariantRequest, read_request
from audioproxy.grammar.segments import is_info, split_signature
from audioproxy.process.readiness import Readiness
from audioproxy.process.slots import Slots
from audioproxy.web.resource import BaseResource
from audioproxy.web.exchange import Exchange
from audioproxy.web.health import respond_health, respond_ready
from audioproxy.web.info import InfoHandler
from audioproxy.web.instrumentation import Instrumentation
from audioproxy.web.variant import VariantHandler
from audioproxy.web.verified_path_cache import VerifiedPathCache


class AudioProxyResource(BaseResource):
    """Resource that serves variants, info documents, health and readiness.

    :ivar verified_paths: the requests of paths that were verified lately.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        keys: SigningKeys,
        variants: VariantHandler,
        infos: InfoHandler,
        slots: Slots,
        readiness: Readiness,
    ) -> None:
        """Create the resource from the handlers of its endpoints.

        :param slots: the render slots; readiness reports the depth of their queue.
        """
        BaseResource.__init__(self, instrumentation)
        self.verified_paths = VerifiedPathCache()
        self._keys = keys
        self._variants = variants
        self._infos = infos
        self._slots = slots
        self._readiness = readiness

    async def route(self, exchange: Exchange, path: bytes) -> None:
        """Respond to a request, or refuse it; see `BaseResource`."""
        method = exchange.method
        if not self.serves(method):
            raise NotFound("a method that is not served")
        if method == b"OPTIONS":
            exchange.endpoint = "preflight"
            requested = exchange.header(b"access-control-request-headers")
            exchange.set_headers(self._instrumentation.cors.preflight(requested))
            exchange.respond(204)
        elif path == b"/health":
            exchange.endpoint = "health"
            respond_health(exchange)
        elif path == b"/ready":
            exchange.endpoint = "ready"
            respond_ready(exchange, self._readiness, lambda: self._slots.depth)
        else:
            await self._respond_signed(exchange, path)

    async def _respond_signed(self, exchange: Exchange, path: bytes) -> None:
        request = self._read(exchange, path)
        if isinstance(request, InfoRequest):
            await self._infos.respond(exchange, request)
        else:
            exchange.set_log_subject(request.source.canonical, request.canonical)
            await self._variants.respond(exchange, request)

    def _read(self, exchange: Exchange, path: bytes) -> VariantRequest | InfoRequest:
        """Parse and verify a path, and set the endpoint class for the log.

        :raises Refusal: where the path is refused.
        """
        now = self._variants.now()
        cached = self.verified_paths.find(path)
        if cached is not None:
            exchange.endpoint = "render"
            if cached.is_expired(now):
                raise Expired
            return cached
        signed_path = split_signature(path)
        # /hls/ is reserved for a later version (Versioning, 3).
        if signed_path is None or signed_path.signature == b"hls":
            raise NotFound("no such route")
        exchange.endpoint = "info" if is_info(signed_path.signed) else "render"
        request = read_request(signed_path, self._keys, now)
        if isinstance(request, VariantRequest):
            self.verified_paths.add(path, request)
        return request
