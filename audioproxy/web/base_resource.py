"""What every resource of ours does with a request: one answer, one log line, no stray exception."""

from __future__ import annotations

import re
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from audioproxy.errors import NotFound, Refusal, RenderFailed
from audioproxy.in_flight_counter import InFlightCounter
from audioproxy.log_context import Logger, set_request_id
from audioproxy.streams import ConsumerGone
from audioproxy.web.exchange import Exchange
from audioproxy.web.instrumentation import Instrumentation

# RFC 9112, 3.2.2: a server takes the absolute form of a target too.
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")

_log = Logger()


class BaseResource(Resource):
    """Everything below one address, wherever in a site it is mounted.

    :ivar active: the requests that are being answered.
    """

    isLeaf = True

    def __init__(self, instrumentation: Instrumentation) -> None:
        Resource.__init__(self)
        self.active = InFlightCounter()
        self._instrumentation = instrumentation

    def serves(self, method: bytes) -> bool:
        """Return whether any path answers a method with anything but a 404."""
        return method in (b"GET", b"HEAD") or (
            method == b"OPTIONS" and self._instrumentation.cors.enabled
        )

    async def route(self, exchange: Exchange, path: bytes) -> None:
        """Answer a request.

        :param path: the raw path below the place where the resource is mounted.
        :raises Refusal: for everything that is answered with an error document.
        """
        raise NotImplementedError

    def render(self, request: Any) -> int:
        """Answer any method on any path; Twisted's own answers are 405 and HTML."""
        exchange = self._begin(request)
        answering = Deferred.fromCoroutine(self._answer(exchange, _relative_path(request)))
        exchange.finished.addCallback(lambda _: answering.cancel())
        return NOT_DONE_YET

    def reject(self, request: Any, refusal: Refusal) -> None:
        """Refuse a request that is none, so that there is nothing to route."""
        self._begin(request).refuse(refusal)

    def _begin(self, request: Any) -> Exchange:
        exchange = Exchange(request, self._instrumentation)
        self.active.begin()
        exchange.finished.addCallback(lambda _: self.active.end())
        return exchange

    async def _answer(self, exchange: Exchange, path: bytes) -> None:
        set_request_id(exchange.request_id)
        try:
            await self.route(exchange, path)
        except Refusal as refusal:
            if isinstance(refusal, NotFound) and refusal.reason:
                _log.debug("a 404 is for this reason: {reason}", reason=refusal.reason)
            exchange.refuse(refusal)
        except (CancelledError, ConsumerGone):
            pass  # the client is gone, and the log has its line
        except Exception:
            _log.failure("a request crashed")
            exchange.refuse(RenderFailed("The request failed."))


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
