"""The fast path: responses to the most common requests, without a wait.

Most requests of a busy node have three properties. They arrive as one packet of a common form.
Their URL was verified lately. Their response is a small file, or a 304. This module parses such a
packet and returns the whole response at once. It makes no decisions of its own:
`audioproxy.grammar.request` parses the URL, and `audioproxy.web.response_plan` decides the
response. The ordinary path uses the same functions, and its responses have the same bytes. All
other requests are left to the ordinary path, which could handle every request without this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus

from twisted.web.http import datetimeToString
from twisted.web.server import version

from audioproxy.grammar.request import VariantRequest
from audioproxy.observe.access_log import AccessLogEntry
from audioproxy.server.request_headers import is_host
from audioproxy.variants.files import FileVariantStore
from audioproxy.web.exchange import choose_request_id
from audioproxy.web.instrumentation import Instrumentation
from audioproxy.web.response_plan import Conditions, Lookup, Outcome, ResponsePlan, plan_response
from audioproxy.web.variant import VariantHandler
from audioproxy.web.verified_path_cache import VerifiedPathCache

# The most common form of a whole request: printable ASCII, header names that are tokens, and no
# header line that continues on the next line (RFC 9112, 3 and 5).
_REQUEST_LINE = re.compile(rb"GET (/[!-~]+) HTTP/1\.1\r\n")
_HEADERS = re.compile(rb"((?:[!#$%&'*+.^`|~\w-]+:[ -~\t]*\r\n){0,64})\r\n")
_LONGEST = 8192
# Host, and the headers that a response depends on. Each may occur at most once.
_RELEVANT = {b"host", b"if-none-match", b"if-range", b"range", b"x-request-id"}
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
_STATUS_LINES = {
    status: b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode("ascii"))
    for status in (200, 206, 304)
}
_CACHE_STATES = {"": b"", "HIT": b"X-Audio-Proxy: HIT\r\n"}
# Header names that Twisted does not spell with a capital at each part.
_HEADER_NAMES = {b"etag": b"ETag"}


class FastPath:
    """Responds to one request, or leaves it to the ordinary path."""

    def __init__(
        self,
        verified_paths: VerifiedPathCache,
        variants: VariantHandler,
        small_variants: FileVariantStore | None,
        instrumentation: Instrumentation,
    ) -> None:
        """Use the objects of the ordinary path.

        :param small_variants: None where a lookup in the store has to wait.
        """
        self._find = verified_paths.find
        self._small_variants = small_variants
        # Looked up once: `respond` runs some ten thousand times a second.
        self._now = variants.now
        self._presign_ttl = variants.presign_ttl
        self._seconds = instrumentation.seconds
        self._metrics = instrumentation.metrics
        self._access_log = instrumentation.access_log
        self._server = b"Server: %s\r\n" % version
        self._cors = _format_headers(instrumentation.cors.headers())
        self._dated = (0, b"")

    def respond(self, packet: bytes) -> bytes | None:
        """Return the whole response to a request, or None to leave it to the ordinary path.

        :param packet: all bytes that were received since the last request.
        """
        if len(packet) > _LONGEST or (match := _REQUEST_LINE.match(packet)) is None:
            return None
        request = self._find(match[1])
        headers = None if request is None else _read_headers(packet[match.end() :])
        if request is None or headers is None:
            return None
        conditions, client_id = headers
        since, now = self._seconds(), self._now()
        planned = self._plan(request, conditions, now)
        if planned is None:
            return None
        plan, body = planned
        request_id = choose_request_id(client_id)
        if plan.outcome is Outcome.HIT:
            self._metrics.hit(request.options.f)
        self._metrics.request_ended("render", plan.status)
        self._access_log(
            AccessLogEntry(
                request_id.decode("ascii"),
                "render",
                plan.status,
                None,
                request.canonical,
                request.source.canonical,
                plan.cache_state or None,
                len(body),
                round((self._seconds() - since) * 1000),
            )
        )
        return b"".join(
            (
                _STATUS_LINES[plan.status],
                self._server,
                self._date(now),
                b"X-Request-Id: ",
                request_id,
                b"\r\n",
                self._cors,
                b"ETag: ",
                request.tag,
                b"\r\n",
                _CACHE_STATES[plan.cache_state],
                _format_headers(plan.headers),
                b"\r\n",
                body,
            )
        )

    def _plan(
        self, request: VariantRequest, conditions: Conditions, now: float
    ) -> tuple[ResponsePlan, bytes] | None:
        """Return the plan and body of a response; None where it takes more than a small file."""
        if request.is_expired(now):
            return None
        plan = plan_response(request, conditions, now)
        if plan.outcome is Outcome.NOT_MODIFIED:
            return plan, b""
        found = self._small_variants and self._small_variants.read_small(request.key)
        if not found:
            return None
        stored_headers, data = found
        lookup = Lookup(len(data), stored_headers, self._presign_ttl)
        plan = plan_response(request, conditions, now, lookup)
        if plan.outcome is not Outcome.HIT:
            return None
        start, stop = plan.byte_range
        return plan, data[start:stop]

    def _date(self, now: float) -> bytes:
        second = int(now)
        if second != self._dated[0]:
            self._dated = (second, b"Date: %s\r\n" % datetimeToString(second))
        return self._dated[1]


# Most clients send the same headers with each request. The cache takes two megabytes at most.
@lru_cache(256)
def _read_headers(block: bytes) -> tuple[Conditions, bytes] | None:
    """Parse the headers of a request, with the empty line after them.

    :returns: what the response depends on, and the client's own request id; None where the request
        is uncommon.
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
    return conditions, get(b"x-request-id", b"")


def _format_headers(headers: Mapping[bytes, bytes]) -> bytes:
    return _format_lines(*headers.items())


# Most requests are for few variants, and the headers of a variant are the same each time.
@lru_cache(4096)
def _format_lines(*headers: tuple[bytes, bytes]) -> bytes:
    return b"".join(
        b"%s: %s\r\n" % (_HEADER_NAMES.get(name) or name.title(), value) for name, value in headers
    )
