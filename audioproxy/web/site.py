"""The service's own HTTP server: what the resource cannot see from inside a site."""

from __future__ import annotations

import io
from typing import Any

from twisted.web.http import datetimeToString
from twisted.web.server import Request, Site


class _Discard(io.BytesIO):
    """Where request bodies go, which nothing here has a use for."""

    def write(self, data: Any) -> int:
        """Take note of the length alone."""
        return len(data)


class ProxyRequest(Request):
    """A request that reaches the resource whatever its target is."""

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
    """A site that keeps no bodies and no access log of Twisted's: we write our own lines."""

    requestFactory = ProxyRequest

    def __init__(self, resource: Any) -> None:
        Site.__init__(self, resource, parsePOSTFormSubmission=False)

    def getContentFile(self, length: int | None) -> _Discard:
        """Return a sink for a request body."""
        return _Discard()

    def log(self, request: Any) -> None:
        """Leave the line to the resource."""
