"""A request of the service's own server: any target is accepted, and bodies are discarded."""

from __future__ import annotations

import io
from typing import Any

from twisted.web.http import datetimeToString
from twisted.web.server import Request

from audioproxy.errors import BadRequest, NotFound, Refusal
from audioproxy.server.sendfile import SendfileBody

# Bytes of a body that are read and discarded: no endpoint uses a body.
_LONGEST_BODY = 64 * 1024


class ProxyRequest(Request):
    """A request that reaches the resource with any target, and whose body is discarded."""

    _body_length = 0
    _sendfile: SendfileBody | None = None

    def gotLength(self, length: int | None) -> None:
        """Provide an empty body, whatever length the request states."""
        self.content = io.BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        """Discard the data of a body, and refuse a body that is too long."""
        # After a refusal, Twisted may still deliver the rest of the same packet.
        if not self.finished:
            self._body_length += len(data)
            if self._body_length > _LONGEST_BODY:
                channel: Any = self.channel
                channel.reject(_refusal_of_body(channel))

    def take_file(self, descriptor: int, offset: int, count: int) -> int | None:
        """Send bytes of a file, as `audioproxy.files.streams.SendfileConsumer` does."""
        channel: Any = self.channel
        if not channel.is_plain_tcp:
            return None
        if self._sendfile is None:
            if not self.startedWriting:
                Request.write(self, b"")
            self._sendfile = SendfileBody(channel, bool(self.chunked))
        taken = self._sendfile.take(descriptor, offset, count)
        self.sentLength += taken or 0
        return taken

    def process(self) -> None:
        """Pass the target ``*`` to the resource too; Twisted itself would respond with 405."""
        if self.path != b"*":
            Request.process(self)
            return
        channel: Any = self.channel
        self.site = channel.site
        Request.setHeader(self, b"date", datetimeToString())
        self.prepath, self.postpath = [], []
        Request.render(self, channel.site.resource)

    def reject(self, refusal: Refusal) -> None:
        """Respond with a refusal, and close the connection."""
        channel: Any = self.channel
        self.clientproto = b"HTTP/1.1"
        Request.setHeader(self, b"connection", b"close")
        Request.setHeader(self, b"date", datetimeToString())
        channel.site.resource.reject(self, refusal)


def _refusal_of_body(channel: Any) -> Refusal:
    """Return the refusal for a body that is too long.

    A method that is not supported gets a 404, with any body (Endpoints).
    """
    return BadRequest() if channel.site.resource.serves(channel.command) else NotFound()
