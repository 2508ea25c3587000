"""Responses without a wait, for the requests of the commonest form: the fast path.

Most requests of a busy node are one packet, of a common form, for a URL that was verified lately,
and what they ask for is a small file, or nothing since it has not changed. This module parses such
a packet and writes the whole response at once. It decides nothing: the URL is read by
`audioproxy.grammar.request`, and what is answered by `audioproxy.web.response_plan`, as on the
ordinary path, whose bytes it repeats. Every other request is left to that path, which would answer
all requests without this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus

from twisted.web.http import datetimeToString
from twisted.web.server import version

from audioproxy.grammar.request import VariantRequest
from audioproxy.variants.interfaces import SmallVariantReader
from audioproxy.web.access_log import AccessLogEntry
from audioproxy.web.exchange import choose_request_id
from audioproxy.web.instrumentation import Instrumentation
from audioproxy.web.response_plan import Conditions, Lookup, Outcome, ResponsePlan, plan_response
from audioproxy.web.variant import VariantHandler
from audioproxy.web.verified_path_cache import VerifiedPathCache

# A whole request of the commonest form, of printable ASCII, without a line that goes on in the
# next (RFC 9112, 3 and 5). Names are tokens.
_REQUEST = re.compile(
    rb"GET (/[!-~]+) HTTP/1\.1\r\n((?:[!#$%&'*+.^`|~\w-]+:[ -~\t]*\r\n){0,64})\r\n"
)
_LONGEST = 8192
# The headers that a response depends on; each at most once.
_RELEVANT = {b"if-none-match", b"if-range", b"range", b"x-request-id"}
# Requests with one of these are left alone: they have a body, or change the connection.
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
_UNCONDITIONAL = Conditions(b"GET")
_CACHE_STATES = {"": b"", "HIT": b"X-Audio-Proxy: HIT\r\n"}
# How Twisted spells what is no word with capitals at each part.
_SPELLINGS = {b"etag": b"ETag"}


class FastPath:
    """Answers one request, or leaves it alone."""

    def __init__(
        self,
        verified_paths: VerifiedPathCache,
        variants: VariantHandler,
        small_variants: SmallVariantReader | None,
        instrumentation: Instrumentation,
    ) -> None:
        """Take what the ordinary path works with.

        :param small_variants: None where a lookup in the store takes a wait.
        """
        self._find = verified_paths.find
        self._small_variants = small_variants
        # Looked up once: this path is taken some ten thousand times a second.
        self._now = variants.now
        self._presign_ttl = variants.presign_ttl
        self._seconds = instrumentation.seconds
        self._metrics = instrumentation.metrics
        self._access_log = instrumentation.access_log
        self._server = b"Server: %s\r\n" % version
        self._cors = _spell(instrumentation.cors.headers())
        self._dated = (0, b"")

    def answer(self, packet: bytes) -> bytes | None:
        """Return the whole response to a request, or None to leave it to the ordinary path.

        :param packet: all that has come since the last request.
        """
        if len(packet) > _LONGEST or (match := _REQUEST.fullmatch(packet)) is None:
            return None
        path, lines = match.groups()
        request = self._find(path)
        headers = None if request is None else _read_headers(lines)
        if request is None or headers is None:
            return None
        since, now = self._seconds(), self._now()
        planned = self._plan(request, headers, now)
        if planned is None:
            return None
        plan, body = planned
        request_id = choose_request_id(headers.get(b"x-request-id", b""))
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
                _spell(plan.headers),
                b"\r\n",
                body,
            )
        )

    def _plan(
        self, request: VariantRequest, headers: dict[bytes, bytes], now: float
    ) -> tuple[ResponsePlan, bytes] | None:
        """Return what a request is answered with; None where that takes more than a small file."""
        if request.is_expired(now):
            return None
        conditions = _UNCONDITIONAL
        if headers:
            get = headers.get
            conditions = Conditions(b"GET", get(b"if-none-match"), get(b"if-range"), get(b"range"))
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
        start, stop = plan.part
        return plan, data[start:stop]

    def _date(self, now: float) -> bytes:
        second = int(now)
        if second != self._dated[0]:
            self._dated = (second, b"Date: %s\r\n" % datetimeToString(second))
        return self._dated[1]


def _read_headers(lines: bytes) -> dict[bytes, bytes] | None:
    """Return the headers that matter; None where one of them makes the request uncommon."""
    relevant: dict[bytes, bytes] = {}
    for line in lines.split(b"\r\n"):
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in _RELEVANT:
            if name in relevant:
                return None
            relevant[name] = value.strip(b" \t")
        elif name in _EXCLUDING and (name, value.strip().lower()) != (b"connection", b"keep-alive"):
            return None
    return relevant


def _spell(headers: Mapping[bytes, bytes]) -> bytes:
    return _spell_lines(*headers.items())


# Few variants are requested most of the time, and their headers are the same each time.
@lru_cache(4096)
def _spell_lines(*headers: tuple[bytes, bytes]) -> bytes:
    return b"".join(
        b"%s: %s\r\n" % (_SPELLINGS.get(name) or name.title(), value) for name, value in headers
    )
