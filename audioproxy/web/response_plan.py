"""The response to a request, planned as one value by pure functions.

`audioproxy.web.exchange` sends a plan, counts it and logs it. The ordinary path and the fast path
use the same plans, and differ only in how they write bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from twisted.web.http import datetimeToString

from audioproxy.errors import RangeNotSatisfiable, Refusal
from audioproxy.grammar.request import VariantRequest, clamp
from audioproxy.variants.response_headers import CACHE_CONTROL, VariantHeaders
from audioproxy.web.conditions import Conditions, matches, range_applies, read_range

_HIT = "HIT"
# Shared caches must not keep the stream of a render, which has no length and no ranges, in place of
# the stored variant (D62). nginx reads the first of these headers, Varnish, Squid and some CDNs the
# second, and CDNs the third (RFC 9213). Clients ignore all of them.
_NOT_FOR_SHARED_CACHES = {
    b"x-accel-expires": b"0",
    b"surrogate-control": b"no-store",
    b"cdn-cache-control": b"no-store",
}
_MAX_AGE = re.compile(r"max-age=(\d+)")


class ResponsePlan(NamedTuple):
    """One response.

    :ivar headers: names in lower case, in the order in which they are sent, after the headers that
        every response has.
    :ivar body: a body in memory; None where the body comes from elsewhere, or there is none.
    :ivar byte_range: the offset of the first byte of a stored variant, and that after the last one.
    :ivar cache_state: the value of X-Audio-Proxy.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes | None = None
    byte_range: tuple[int, int] | None = None
    cache_state: str | None = None
    error_code: str | None = None


class Stored(NamedTuple):
    """A variant in the store.

    :ivar presign: returns a URL of the variant with a lifetime in seconds, and the headers that
        the response to it should have; None in proxy mode (AP_SERVE_MODE).
    :ivar presign_ttl: the longest lifetime of the URL, in seconds.
    :ivar stored: Unix seconds at which it was stored, or None.
    """

    size: int
    presign: Callable[[int, VariantHeaders], str] | None = None
    presign_ttl: int = 0
    stored: int | None = None


def plan_not_modified(
    request: VariantRequest,
    conditions: Conditions,
    now: float,
    cache_tag: tuple[str, str] | None = None,
) -> ResponsePlan | None:
    """Return the 304 for a client that has the variant; None where the variant must be found."""
    if not matches(conditions.if_none_match, request.tag):
        return None
    cache_control = _cache_control(CACHE_CONTROL, request.exp, now)
    return _plan_not_modified(request.tag, cache_control, cache_tag)


def plan_response(
    request: VariantRequest,
    conditions: Conditions,
    now: float,
    found: Stored | Literal["MISS", "COALESCED"],
    *,
    has_store: bool = True,
    cache_tag: tuple[str, str] | None = None,
) -> ResponsePlan:
    """Return the response to a request for a variant.

    :param now: Unix seconds at which the response begins. A render may wait for its slot, and the
        time until ``exp`` shrinks.
    :param found: the stored variant, or the cache state of a render, whose output is the body.
    """
    headers = VariantHeaders.of(request.options)
    if not isinstance(found, Stored):
        fields = _variant_headers(request.tag, found, headers, request.exp, now, cache_tag)
        if has_store:
            fields |= _NOT_FOR_SHARED_CACHES
        return ResponsePlan(200, tuple(fields.items()), cache_state=found)
    is_get = conditions.method == b"GET"
    # A date after that of the response must not be stated (RFC 9110, 8.8.2.1): the clock of the
    # node that stored the variant may be ahead.
    stored = found.stored if found.stored is not None and 0 <= found.stored <= now else None
    if is_get and conditions.range is None and found.presign is None and request.exp is None:
        return _plan_whole(request.tag, headers, found.size, stored, cache_tag)
    fields = _variant_headers(request.tag, _HIT, headers, request.exp, now, cache_tag)
    # A presigned URL cannot live zero seconds, so the last second of ``exp`` is served as in proxy
    # mode (D14).
    seconds = clamp(found.presign_ttl, request.exp, now)
    if found.presign is not None and seconds:
        limited = headers._replace(cache_control=fields[b"cache-control"].decode("ascii"))
        fields[b"cache-control"] = b"no-store"
        if not is_get:
            fields[b"content-length"] = b"%d" % found.size
        fields[b"location"] = found.presign(seconds, limited).encode("ascii")
        fields.setdefault(b"content-length", b"0")
        return ResponsePlan(302, tuple(fields.items()), cache_state=_HIT)
    last_modified = None
    if stored is not None:
        last_modified = fields[b"last-modified"] = _format_date(stored)
    byte_range = None
    if is_get and range_applies(conditions.if_range, request.tag, last_modified):
        try:
            byte_range = read_range(conditions.range, found.size)
        except RangeNotSatisfiable as refusal:
            return plan_refusal(refusal)
    start, stop = byte_range or (0, found.size)
    fields[b"content-length"] = b"%d" % (stop - start)
    if byte_range is not None:
        fields[b"content-range"] = b"bytes %d-%d/%d" % (start, stop - 1, found.size)
    return ResponsePlan(
        206 if byte_range else 200,
        tuple(fields.items()),
        byte_range=(start, stop) if is_get else None,
        cache_state=_HIT,
    )


def plan_refusal(refusal: Refusal) -> ResponsePlan:
    plan = plan_json(refusal.status, refusal.headers(), refusal.document())
    return plan._replace(error_code=refusal.code)


def plan_json(status: int, headers: Mapping[bytes, bytes], document: object) -> ResponsePlan:
    body = json.dumps(document).encode("ascii")
    return plan_body(status, {**headers, b"content-type": b"application/json"}, body)


def plan_body(status: int, headers: Mapping[bytes, bytes], body: bytes) -> ResponsePlan:
    fields = {**headers, b"content-length": b"%d" % len(body)}
    return ResponsePlan(status, tuple(fields.items()), body)


# Clients that have a variant request it repeatedly.
@lru_cache(4096)
def _plan_not_modified(
    tag: bytes, cache_control: bytes, cache_tag: tuple[str, str] | None
) -> ResponsePlan:
    fields = {b"etag": tag, b"cache-control": cache_control, **_tag_header(cache_tag)}
    return ResponsePlan(304, tuple(fields.items()))


# Most requests are for whole variants, by URLs without ``exp``. Few variants have many requests.
@lru_cache(4096)
def _plan_whole(
    tag: bytes,
    headers: VariantHeaders,
    size: int,
    stored: int | None,
    cache_tag: tuple[str, str] | None,
) -> ResponsePlan:
    fields = _variant_headers(tag, _HIT, headers, None, 0, cache_tag)
    if stored is not None:
        fields[b"last-modified"] = _format_date(stored)
    fields[b"content-length"] = b"%d" % size
    return ResponsePlan(200, tuple(fields.items()), byte_range=(0, size), cache_state=_HIT)


def _variant_headers(
    tag: bytes,
    cache_state: str,
    headers: VariantHeaders,
    exp: int | None,
    now: float,
    cache_tag: tuple[str, str] | None,
) -> dict[bytes, bytes]:
    fields = {
        b"etag": tag,
        b"x-audio-proxy": cache_state.encode("ascii"),
        b"content-type": headers.content_type.encode("ascii"),
        b"cache-control": _cache_control(headers.cache_control, exp, now),
    }
    if headers.content_disposition:
        fields[b"content-disposition"] = headers.content_disposition.encode("ascii")
    if cache_state == _HIT:
        fields[b"accept-ranges"] = b"bytes"
    return fields | _tag_header(cache_tag)


def _tag_header(cache_tag: tuple[str, str] | None) -> dict[bytes, bytes]:
    return {} if cache_tag is None else {cache_tag[0].encode("ascii"): cache_tag[1].encode("ascii")}


# Players send many requests for ranges of few variants.
@lru_cache(4096)
def _format_date(second: int) -> bytes:
    """Return a time as Last-Modified states it (IMF-fixdate of RFC 9110, 5.6.7)."""
    return bytes(datetimeToString(second))


def _cache_control(value: str, exp: int | None, now: float) -> bytes:
    if exp is None:
        return value.encode("ascii")
    return _MAX_AGE.sub(lambda match: f"max-age={clamp(int(match[1]), exp, now)}", value).encode(
        "ascii"
    )
