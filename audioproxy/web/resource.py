"""The base of all resources: one response and one log line for each request, even after a crash."""

from __future__ import annotations

import re
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from audioproxy.concurrency.in_flight_counter import InFlightCounter
from audioproxy.errors import NotFound, Refusal, RenderFailed
from audioproxy.files.streams import ConsumerGone
from audioproxy.observe.log_context import Logger, set_request_id
from audioproxy.web.exchange import Exchange
from audioproxy.web.instrumentation import Instrumentation

# A server must accept a target in absolute form too (RFC 9112, 3.2.2).
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")

_log = Logger()


class BaseResource(Resource):
    """Resource for every path below the one that it is mounted at.

    :ivar active: counts the requests that are in progress.
    """

    isLeaf = True

    def __init__(self, instrumentation: Instrumentation) -> None:
        Resource.__init__(self)
        self.active = InFlightCounter()
        self._instrumentation = instrumentation

    def serves(self, method: bytes) -> bool:
        """Return whether a method is supported on any path; all others return 404."""
        return method in (b"GET", b"HEAD") or (
            method == b"OPTIONS" and self._instrumentation.cors.enabled
        )

    async def route(self, exchange: Exchange, path: bytes) -> None:
        """Respond to a request.

        :param path: the raw path below the place where the resource is mounted.
        :raises Refusal: for every response that is an error document.
        """
        raise NotImplementedError

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
        """Refuse bytes that are not a valid request, and so have no route."""
        self._begin(request).refuse(refusal)

    def _begin(self, request: Any) -> Exchange:
        exchange = Exchange(request, self._instrumentation)
        self.active.begin()
        exchange.finished.addCallback(lambda _: self.active.end())
        return exchange

    async def _respond(self, exchange: Exchange, path: bytes) -> None:
        set_request_id(exchange.request_id)
        try:
            await self.route(exchange, path)
        except Refusal as refusal:
            if isinstance(refusal, NotFound) and refusal.reason:
                _log.debug("the reason for a 404: {reason}", reason=refusal.reason)
            exchange.refuse(refusal)
        except (CancelledError, ConsumerGone):
            pass  # the client has disconnected, and the request is logged
        except Exception:
            _log.failure("a request crashed")
            exchange.refuse(RenderFailed("The request failed."))


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
