"""The fast path: responses to the most common requests, without a wait.

Most requests of a busy node arrive as one packet of a common form, their URL was verified lately,
and their response is a small file, or a 304. This module parses such a packet and returns the whole
response at once. It makes no decisions of its own, and writes no header, count or log entry:
`audioproxy.web.variant` plans the response, and `audioproxy.web.exchange` completes and formats it.
All other requests are left to the ordinary path, whose responses have the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from audioproxy.grammar.request import VariantRequest
from audioproxy.server.request import is_host
from audioproxy.web.conditions import Conditions
from audioproxy.web.exchange import Instrumentation
from audioproxy.web.request_id import find_request_id, new_request_id
from audioproxy.web.variant import VariantHandler

# The most common form of a whole request: printable ASCII, header names that are tokens, and no
# header line that continues on the next line (RFC 9112, 3 and 5).
_REQUEST_LINE = re.compile(rb"GET (/[!-~]+) HTTP/1\.1\r\n")
_HEADERS = re.compile(rb"((?:[!#$%&'*+.^`|~\w-]+:[ -~\t]*\r\n){0,64})\r\n")
_LONGEST = 8192
# Host, and the headers that a response depends on. Each may occur at most once.
_RELEVANT = {
    *(b"host", b"if-none-match", b"if-range", b"range"),
    *(b"x-request-id", b"traceparent"),
}
# Requests with one of these headers go to the ordinary path: they have a body, or change the
# connection.
_EXCLUDING = {
    b"connection",
    b"content-length",
    b"expect",
    b"http2-settings",
    b"transfer-encoding",
    b"upgrade",
}


class FastPath:
    def __init__(
        self,
        verified_paths: Mapping[bytes, tuple[VariantRequest, int | None]],
        variants: VariantHandler,
        instrumentation: Instrumentation,
    ) -> None:
        # Looked up once: `respond` runs some ten thousand times a second.
        self._find = verified_paths.get
        self._now = variants.now
        self._plan = variants.plan_at_once
        self._seconds = instrumentation.seconds
        self._complete = instrumentation.complete
        self._format = instrumentation.format_response

    def respond(self, packet: bytes) -> bytes | None:
        """Return the whole response to a packet, or None to leave it to the ordinary path."""
        if len(packet) > _LONGEST or (match := _REQUEST_LINE.match(packet)) is None:
            return None
        found = self._find(match[1])
        headers = None if found is None else _read_headers(packet[match.end() :])
        if found is None or headers is None:
            return None
        request, pair = found
        conditions, client_id = headers
        since, now = self._seconds(), self._now()
        planned = self._plan(request, conditions, now)
        if planned is None:
            return None
        plan, body = planned
        request_id = client_id or new_request_id()
        text_id = request_id.decode("ascii")
        self._complete(plan, "render", text_id, request, pair, len(body), since, at_once=True)
        return self._format(plan, request_id, now, body)


# Most clients send the same headers with each request. The cache takes two megabytes at most.
@lru_cache(256)
def _read_headers(block: bytes) -> tuple[Conditions, bytes] | None:
    """Parse the headers of a request, with the empty line after them.

    :returns: what the response depends on, and the client's own request id or ``b""``; None where
        the request is uncommon.
    """
    match = _HEADERS.fullmatch(block)
    if match is None:
        return None
    relevant: dict[bytes, bytes] = {}
    for line in match[1].split(b"\r\n"):
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in _RELEVANT:
            if name in relevant:
                return None
            relevant[name] = value.strip(b" \t")
        elif name in _EXCLUDING and (name, value.strip().lower()) != (b"connection", b"keep-alive"):
            return None
    get = relevant.get
    host = get(b"host")
    if host is None or not is_host(host):
        return None
    conditions = Conditions(b"GET", get(b"if-none-match"), get(b"if-range"), get(b"range"))
    return conditions, find_request_id(get(b"x-request-id", b""), get(b"traceparent", b""))
