"""The Twisted resources: one response and one log line for each request, routed by its raw path."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any

from cachetools import LRUCache
from twisted.internet.defer import CancelledError, Deferred
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from audioproxy import __version__
from audioproxy.concurrency.shared_result import InFlightCounter
from audioproxy.concurrency.slots import Slots
from audioproxy.errors import Expired, NotFound, Refusal, RenderFailed
from audioproxy.files.streams import ConsumerGone
from audioproxy.grammar.request import InfoRequest, SigningKeys, VariantRequest, parse_request
from audioproxy.grammar.segments import is_info, split_signature
from audioproxy.observe.log_context import Logger, set_request_id
from audioproxy.render.readiness import Readiness
from audioproxy.web.exchange import Exchange, Instrumentation
from audioproxy.web.info import InfoHandler
from audioproxy.web.response_plan import ResponsePlan, plan_json
from audioproxy.web.variant import VariantHandler

# A server must accept a target in absolute form too (RFC 9112, 3.2.2).
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
# Verified paths in the cache, and the most bytes of one. A cache full of long paths takes some ten
# megabytes.
_MOST_PATHS = 4096
_LONGEST_PATH = 1024
_NO_STORE = {b"cache-control": b"no-store"}

_log = Logger()


class BaseResource(Resource, ABC):
    isLeaf = True

    def __init__(self, instrumentation: Instrumentation) -> None:
        Resource.__init__(self)
        self.active = InFlightCounter()
        self._exchanges: set[Exchange] = set()
        self._instrumentation = instrumentation

    def render(self, request: Any) -> int:
        """Respond to any method on any path; Twisted itself would respond with 405 and HTML."""
        exchange = self._begin(request)
        responding = Deferred.fromCoroutine(self._respond(exchange, _relative_path(request)))

        def cancel(_: None) -> None:
            # After a complete response, the coroutine is about to end by itself.
            if exchange.disconnected:
                responding.cancel()

        exchange.finished.addCallback(cancel)
        return NOT_DONE_YET

    def reject(self, request: Any, refusal: Refusal) -> None:
        self._begin(request).refuse(refusal)

    def abandon(self) -> None:
        for exchange in self._exchanges:
            exchange.abandoned = True

    def serves(self, method: bytes) -> bool:
        """Return whether a method is supported on any path; all others return 404."""
        return method in (b"GET", b"HEAD") or (
            method == b"OPTIONS" and self._instrumentation.cors.enabled
        )

    def _begin(self, request: Any) -> Exchange:
        exchange = Exchange(request, self._instrumentation)
        self.active.begin()
        self._exchanges.add(exchange)
        exchange.finished.addCallback(lambda _: self._end(exchange))
        return exchange

    def _end(self, exchange: Exchange) -> None:
        self._exchanges.remove(exchange)
        self.active.end()

    async def _respond(self, exchange: Exchange, path: bytes) -> None:
        set_request_id(exchange.request_id)
        try:
            await self.route(exchange, path)
        except Refusal as refusal:
            exchange.refuse(refusal)
        except (CancelledError, ConsumerGone):
            pass  # the client has disconnected, and the request is logged
        except Exception:
            _log.failure("a request crashed")
            exchange.refuse(RenderFailed("The request failed."))

    @abstractmethod
    async def route(self, exchange: Exchange, path: bytes) -> None:
        """Respond to a request by its raw path below the place where the resource is mounted."""


class AudioProxyResource(BaseResource):
    """Resource of the main listener: variants, info documents, health and readiness.

    :ivar verified_paths: the requests of the paths that were verified last, each with the result of
        `SigningKeys.verify`. The key is the whole path with its signature, so a path that differs
        in one byte is verified again.
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
        BaseResource.__init__(self, instrumentation)
        self.verified_paths: LRUCache[bytes, tuple[VariantRequest, int | None]]
        self.verified_paths = LRUCache(_MOST_PATHS)
        self._keys = keys
        self._variants = variants
        self._infos = infos
        self._slots = slots
        self._readiness = readiness

    async def route(self, exchange: Exchange, path: bytes) -> None:
        method = exchange.method
        if not self.serves(method):
            raise NotFound("a method that is not served")
        if method == b"OPTIONS":
            exchange.endpoint = "preflight"
            requested = exchange.header(b"access-control-request-headers")
            headers = self._instrumentation.cors.preflight(requested)
            exchange.respond(ResponsePlan(204, tuple(headers.items())))
        elif path == b"/health":
            exchange.endpoint = "health"
            # The process is alive, whatever the load (D23).
            document = {"status": "ok", "version": __version__}
            exchange.respond(plan_json(200, _NO_STORE, document))
        elif path == b"/ready":
            exchange.endpoint = "ready"
            exchange.respond(self._plan_ready())
        else:
            request = exchange.subject = self._read(exchange, path)
            if isinstance(request, InfoRequest):
                await self._infos.respond(exchange, request)
            else:
                await self._variants.respond(exchange, request)

    def _plan_ready(self) -> ResponsePlan:
        ready = self._readiness.ready
        document = {
            "status": "ready" if ready else "not_ready",
            "queued": self._slots.depth,
            "threshold": self._readiness.threshold,
        }
        return plan_json(200 if ready else 503, _NO_STORE, document)

    def _read(self, exchange: Exchange, path: bytes) -> VariantRequest | InfoRequest:
        """Parse and verify a path, and set the endpoint class for the log."""
        now = self._variants.now()
        cached = self.verified_paths.get(path)
        if cached is not None:
            exchange.endpoint = "render"
            request, exchange.pair = cached
            if request.is_expired(now):
                raise Expired
            return request
        signed_path = split_signature(path)
        # /hls/ is reserved for a later version (Versioning, 3).
        if signed_path is None or signed_path.signature == b"hls":
            raise NotFound("no such route")
        exchange.endpoint = "info" if is_info(signed_path.signed) else "render"
        exchange.pair = self._keys.verify(signed_path)
        parsed = parse_request(signed_path.signed, now)
        if isinstance(parsed, VariantRequest) and len(path) <= _LONGEST_PATH:
            # A request does not depend on the time or the store, so it never becomes wrong.
            self.verified_paths[path] = parsed, exchange.pair
        return parsed


def _relative_path(request: Any) -> bytes:
    """Return the raw path below the place where the resource is mounted.

    ``postpath`` is not used: it is unquoted, and the signature covers the bytes as they were sent.
    """
    path: bytes = request.path
    if not path.startswith(b"/") and (match := _ABSOLUTE.match(path)):
        path = path[match.end() :]
    if not path.startswith(b"/"):
        return b""
    mounted = len(request.prepath) + 1
    parts = path.split(b"/", mounted)
    return b"/" + parts[mounted] if len(parts) > mounted else b""
