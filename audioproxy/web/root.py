"""The resource: routes a request by its raw path and turns refusals into answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from audioproxy.errors import InvalidSignature, NotFound, Refusal, RenderFailed
from audioproxy.grammar.segments import SignedPath, split_signature, split_target
from audioproxy.grammar.signature import verify
from audioproxy.process.readiness import Readiness
from audioproxy.process.slots import Slots
from audioproxy.render.feed import ConsumerGone
from audioproxy.render.tally import Tally
from audioproxy.web.cors import Cors
from audioproxy.web.exchange import Exchange
from audioproxy.web.info import Infos
from audioproxy.web.status import answer_health, answer_ready
from audioproxy.web.variant import Variants

_INSECURE = b"insecure"
# RFC 9112, 3.2.2: a server takes the absolute form of a target too.
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")

_log = Logger()


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

        :raises InvalidSignature: where it does not match.
        """
        if self.allow_insecure and path.signature == _INSECURE:
            return
        if self.key is None or self.salt is None:
            raise InvalidSignature
        if not verify(self.key, self.salt, path.signed, path.signature):
            raise InvalidSignature


class AudioProxyResource(Resource):
    """Everything below one address, wherever in a site it is mounted.

    :ivar active: a tally of the requests that are being answered.
    """

    isLeaf = True

    def __init__(
        self,
        signer: Signer,
        cors: Cors,
        variants: Variants,
        infos: Infos,
        slots: Slots,
        readiness: Readiness,
        seconds: Callable[[], float],
    ) -> None:
        """Mount the parts.

        :param slots: of renders; its queue is what readiness reports.
        :param seconds: a clock for durations.
        """
        Resource.__init__(self)
        self.active = Tally()
        self._signer = signer
        self._cors = cors
        self._variants = variants
        self._infos = infos
        self._slots = slots
        self._readiness = readiness
        self._seconds = seconds

    def render(self, request: Any) -> int:
        """Answer any method on any path; Twisted's own answers are 405 and HTML."""
        exchange = Exchange(request, self._seconds, self._cors)
        self.active.begin()
        answering = Deferred.fromCoroutine(self._answer(exchange, _relative_path(request)))

        def end(_: object) -> None:
            self.active.end()
            answering.cancel()

        exchange.finished.addCallback(end)
        return NOT_DONE_YET

    async def _answer(self, exchange: Exchange, path: bytes) -> None:
        try:
            await self._route(exchange, path)
        except Refusal as refusal:
            exchange.refuse(refusal)
        except (CancelledError, ConsumerGone):
            pass  # the client is gone, and the log has its line
        except Exception:
            _log.failure("a request crashed")
            exchange.refuse(RenderFailed("The request failed."))

    async def _route(self, exchange: Exchange, path: bytes) -> None:
        method = exchange.method
        if method == b"OPTIONS" and self._cors.enabled:
            exchange.endpoint = "preflight"
            requested = exchange.header(b"access-control-request-headers")
            exchange.set_headers(self._cors.preflight(requested))
            exchange.respond(204)
        elif method not in (b"GET", b"HEAD"):
            raise NotFound("a method other than GET and HEAD")
        elif path == b"/health":
            exchange.endpoint = "health"
            answer_health(exchange)
        elif path == b"/ready":
            exchange.endpoint = "ready"
            answer_ready(exchange, self._readiness, lambda: self._slots.depth)
        else:
            await self._answer_signed(exchange, path)

    async def _answer_signed(self, exchange: Exchange, path: bytes) -> None:
        signed = split_signature(path)
        # /hls/ is reserved for a later version (contract: Versioning).
        if signed is None or signed.signature == b"hls":
            raise NotFound("no such route")
        exchange.endpoint = "info" if signed.signed.startswith(b"/info/") else "render"
        self._signer.check(signed)
        target = split_target(signed.signed)
        if target is None:
            raise NotFound("no source in the path")
        answering = self._infos if target.info else self._variants
        await answering.answer(exchange, target)


def _relative_path(request: Any) -> bytes:
    """Return the raw path below the place where the resource is mounted.

    ``postpath`` would not do: it is unquoted, and the signature covers the bytes as they came.
    """
    path: bytes = request.path
    if not path.startswith(b"/") and (match := _ABSOLUTE.match(path)):
        path = path[match.end() :]
    if not path.startswith(b"/"):
        return b""
    mounted = len(request.prepath) + 1
    parts = path.split(b"/", mounted)
    return b"/" + parts[mounted] if len(parts) > mounted else b""
