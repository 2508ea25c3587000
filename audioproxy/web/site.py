"""The service's own HTTP server: what the resource cannot see from inside a site."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from twisted.web.http import datetimeToString
from twisted.web.server import Request, Site

from audioproxy.web.exchange import abort

# Bytes of a body that are read past without a word: nothing here has a use for one.
_LONGEST_BODY = 64 * 1024


class _Discard(io.BytesIO):
    """Where a request body goes, until there is too much of it."""

    def __init__(self, abort: Callable[[], object]) -> None:
        super().__init__()
        self._left = _LONGEST_BODY
        self._abort = abort

    def write(self, data: Any) -> int:
        """Take note of the length alone."""
        self._left -= len(data)
        if self._left < 0:
            self._abort()
        return len(data)


class ProxyRequest(Request):
    """A request that reaches the resource whatever its target is."""

    def gotLength(self, length: int | None) -> None:
        """Keep nothing of a body, and end the connection of one that has no end."""
        channel: Any = self.channel
        self.content = _Discard(lambda: abort(channel))

    def process(self) -> None:
        """Hand ``*`` to the resource too, which Twisted would answer with 405 itself."""
        if self.path != b"*":
            Request.process(self)
            return
        channel: Any = self.channel
        self.site = channel.site
        Request.setHeader(self, b"date", datetimeToString())
        self.prepath, self.postpath = [], []
        Request.render(self, channel.site.resource)


class ProxySite(Site):
    """A site without an access log of Twisted's: we write our own lines."""

    requestFactory = ProxyRequest
    noisy = False

    def __init__(self, resource: Any) -> None:
        Site.__init__(self, resource, parsePOSTFormSubmission=False)

    def log(self, request: Any) -> None:
        """Leave the line to the resource."""
