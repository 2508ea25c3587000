"""A request of the service's own server: any target is accepted, and bodies are discarded.

The functions are rules of RFC 9112 for headers, which Twisted 26.10 does not apply. Another server
in front may find the host or the end of a request by other rules. So a request that is not plainly
valid is refused, and never interpreted.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address

from twisted.python.failure import Failure
from twisted.web.http import datetimeToString
from twisted.web.http_headers import Headers
from twisted.web.server import Request

from audioproxy._twisted import count_unsent
from audioproxy.errors import BadRequest, NotFound, Refusal
from audioproxy.server.sendfile import SendfileRequest

# Bytes of a body that are read and discarded: no endpoint uses a body.
_LONGEST_BODY = 64 * 1024
# A host and possibly a port (RFC 9112, 3.2; RFC 3986, 3.2.2). A name may be empty, and may have any
# characters of RFC 3986 except the comma, with which a server may have joined two values.
_HOST = re.compile(
    rb"(?:(?:[\w.~!$&'()*+;=-]|%[0-9A-Fa-f]{2})*"
    rb"|\[(?P<ipv6>[0-9A-Fa-f:.]+)\]"
    rb"|\[[vV][0-9A-Fa-f]+\.[\w.~!$&'()*+,;=:-]+\])"
    rb"(?::[0-9]*)?"
)


class ProxyRequest(SendfileRequest):
    """A request that reaches the resource with any target, and whose body is discarded."""

    _body_length = 0

    def gotLength(self, length: int | None) -> None:
        """Provide an empty body, whatever length the request states."""
        self.content = io.BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        """Discard the data of a body, and refuse a body that is too long."""
        # After a refusal, Twisted may still deliver the rest of the same packet.
        if not self.finished:
            self._body_length += len(data)
            if self._body_length > _LONGEST_BODY:
                # A method that is not supported gets a 404, with any body (Design rules, 1).
                is_served = self.channel.site.resource.serves(self.channel.command)
                self.channel.reject(BadRequest() if is_served else NotFound())

    def process(self) -> None:
        """Pass the target ``*`` to the resource too; Twisted itself would respond with 405."""
        if self.path != b"*":
            Request.process(self)
            return
        self.site = self.channel.site
        Request.setHeader(self, b"date", datetimeToString())
        self.prepath, self.postpath = [], []
        Request.render(self, self.site.resource)

    def connectionLost(self, reason: Failure) -> None:
        """Subtract what was written to the transport and never sent.

        That is the end of what was written, with the framing of its chunks. So the number may be
        too small, by some bytes for each chunk that waits.
        """
        self.sentLength = max(0, self.sentLength - count_unsent(self.channel.transport))
        Request.connectionLost(self, reason)

    def reject(self, refusal: Refusal) -> None:
        self.clientproto = b"HTTP/1.1"
        Request.setHeader(self, b"connection", b"close")
        Request.setHeader(self, b"date", datetimeToString())
        self.channel.site.resource.reject(self, refusal)


# Most clients send the same Host. The cache takes half a megabyte at most.
@lru_cache(32)
def is_host(value: bytes) -> bool:
    match = _HOST.fullmatch(value)
    if match is None:
        return False
    address = match["ipv6"]
    if address is not None:
        try:
            IPv6Address(address.decode("ascii"))
        except AddressValueError:
            return False
    return True


def has_valid_host(version: bytes, headers: Headers) -> bool:
    """Return whether a request has exactly one valid Host; HTTP/1.0 needs none (3.2)."""
    values = headers.getRawHeaders(b"host", [])
    return is_host(values[0]) if len(values) == 1 else not values and version == b"HTTP/1.0"


def has_valid_encoding(version: bytes, headers: Headers) -> bool:
    """Return whether a request has no Transfer-Encoding, or just ``chunked`` (6.1).

    HTTP/1.0 has no encodings. Twisted would ignore ``identity``, which RFC 9112 no longer has.
    """
    values = headers.getRawHeaders(b"transfer-encoding", [])
    return not values or (
        version == b"HTTP/1.1" and [value.lower() for value in values] == [b"chunked"]
    )


def connection_options(lines: Iterable[bytes]) -> set[bytes]:
    """Return the options in all lines of a Connection header, in lower case (9.1; 9.6)."""
    options = {option.strip(b" \t").lower() for line in lines for option in line.split(b",")}
    return options - {b""}
