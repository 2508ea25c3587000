"""Answers that need no wait, for requests that need no second look: the fast path.

Most requests of a busy node are one packet, of a common form, for a URL that was verified lately,
and what they ask for is a small file, or nothing since it has not changed. Those are answered from
here with what the ordinary path would send, byte for byte, at a fifth of its price. Whatever is
different in the least is left to the ordinary path, which is whole without this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from twisted.web.http import datetimeToString
from twisted.web.server import version

from audioproxy.errors import RangeNotSatisfiable
from audioproxy.variants.interfaces import SmallVariantReader, VariantHeaders
from audioproxy.web.access_log import AccessLog, AccessLogEntry
from audioproxy.web.conditions import matches, range_applies
from audioproxy.web.cors import Cors
from audioproxy.web.exchange import choose_id
from audioproxy.web.ranges import read_range
from audioproxy.web.variant import VariantHandler, size_headers
from audioproxy.web.verified_paths import CACHE_CONTROL, Asked, VerifiedPathCache

if TYPE_CHECKING:
    from audioproxy.metrics import Metrics

# A whole request of the commonest form, of printable ASCII, without a line that goes on in the
# next (RFC 9112, 3 and 5). Names are tokens.
_REQUEST = re.compile(
    rb"GET (/[!-~]+) HTTP/1\.1\r\n((?:[!#$%&'*+.^`|~\w-]+:[ -~\t]*\r\n){0,64})\r\n"
)
_LONGEST = 8192
# What an answer depends on; each once.
_HEEDED = {b"if-none-match", b"if-range", b"range", b"x-request-id"}
# What makes a request another than it looks: it goes on, or asks for something of the connection.
_FOREIGN = {
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
# How Twisted spells what is no word with capitals at each part.
_SPELLINGS = {b"etag": b"ETag"}


class FastPath:
    """Answers one request, or leaves it alone."""

    def __init__(
        self,
        known: VerifiedPathCache,
        variants: VariantHandler,
        small_variants: SmallVariantReader | None,
        cors: Cors,
        seconds: Callable[[], float],
        metrics: Metrics,
        access_log: AccessLog,
    ) -> None:
        """Take what the ordinary path works with.

        :param small_variants: None where a look at the store takes a wait.
        :param seconds: a clock for durations.
        """
        self._find = known.find
        self._variants = variants
        self._small_variants = small_variants
        self._seconds = seconds
        self._metrics = metrics
        self._access_log = access_log
        self._server = b"Server: %s\r\n" % version
        self._cors = _spell(cors.headers())
        self._dated = (0, b"")
        # There are few: one for each format, and one for each name that a download has.
        self._permanent = lru_cache(1024)(partial(self._until, exp=None))

    def answer(self, packet: bytes) -> bytes | None:
        """Return the whole response to a request, or None for the ordinary path to see to it.

        :param packet: all that has come since the last request.
        """
        if len(packet) > _LONGEST or (request := _REQUEST.fullmatch(packet)) is None:
            return None
        path, lines = request.groups()
        asked = self._find(path)
        now = self._variants.now()
        if asked is None or asked.is_over(now):
            return None
        since = self._seconds()
        heeded = _read_headers(lines)
        if heeded is None:
            return None
        found = self._find_answer(asked, heeded)
        if found is None:
            return None
        status, headers, body, cache = found
        request_id = choose_id(heeded.get(b"x-request-id", b""))
        self._metrics.request_ended("render", status)
        self._access_log(
            AccessLogEntry(
                request_id.decode("ascii"),
                "render",
                status,
                None,
                asked.canonical,
                asked.order.source.canonical,
                cache,
                len(body),
                round((self._seconds() - since) * 1000),
            )
        )
        return b"".join(
            (
                _STATUS_LINES[status],
                self._server,
                self._date(now),
                b"X-Request-Id: ",
                request_id,
                b"\r\n",
                self._cors,
                b"ETag: ",
                asked.tag,
                b"\r\n",
                headers,
                b"\r\n",
                body,
            )
        )

    def _find_answer(
        self, asked: Asked, heeded: dict[bytes, bytes]
    ) -> tuple[int, bytes, bytes, str | None] | None:
        if matches(heeded.get(b"if-none-match"), asked.tag):
            cache_control = self._variants.clamped(CACHE_CONTROL, asked.exp)
            return 304, b"Cache-Control: %s\r\n" % cache_control, b"", None
        found = (
            None
            if self._small_variants is None
            else self._small_variants.read_small(asked.order.key)
        )
        if found is None:
            return None
        headers, body = found
        size, part = len(body), None
        if b"range" in heeded and range_applies(heeded.get(b"if-range"), asked.tag):
            try:
                part = read_range(heeded[b"range"], size)
            except RangeNotSatisfiable:
                return None
        self._metrics.hit(asked.order.options.f)
        lines = b"X-Audio-Proxy: HIT\r\n%sAccept-Ranges: bytes\r\n%s" % (
            self._permanent(headers) if asked.exp is None else self._until(headers, asked.exp),
            _spell(size_headers(part, size)),
        )
        if part is None:
            return 200, lines, body, "HIT"
        return 206, lines, body[part[0] : part[1]], "HIT"

    def _until(self, headers: VariantHeaders, exp: int | None) -> bytes:
        return _spell(self._variants.headers(headers, exp))

    def _date(self, now: float) -> bytes:
        second = int(now)
        if second != self._dated[0]:
            self._dated = (second, b"Date: %s\r\n" % datetimeToString(second))
        return self._dated[1]


def _read_headers(lines: bytes) -> dict[bytes, bytes] | None:
    """Return the headers that matter; None where one of them makes the request uncommon."""
    heeded: dict[bytes, bytes] = {}
    for line in lines.split(b"\r\n"):
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in _HEEDED:
            if name in heeded:
                return None
            heeded[name] = value.strip(b" \t")
        elif name in _FOREIGN and (name, value.strip().lower()) != (b"connection", b"keep-alive"):
            return None
    return heeded


def _spell(headers: dict[bytes, bytes]) -> bytes:
    return b"".join(
        b"%s: %s\r\n" % (_SPELLINGS.get(name) or name.title(), value)
        for name, value in headers.items()
    )
