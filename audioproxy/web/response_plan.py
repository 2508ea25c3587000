"""The response to a request for a variant, decided in one pure function.

Both the ordinary path and the fast path call it. They differ only in how they write bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from audioproxy.errors import RangeNotSatisfiable
from audioproxy.grammar.expiry import clamp
from audioproxy.grammar.request import VariantRequest
from audioproxy.variants.headers import CACHE_CONTROL, VariantHeaders
from audioproxy.web.conditions import matches, range_applies
from audioproxy.web.ranges import length_headers, read_range

_FROM_STORE = "HIT"
_RANGES = {b"accept-ranges": b"bytes"}

_MAX_AGE = re.compile(r"max-age=(\d+)")


class Conditions(NamedTuple):
    """The method and the headers of a request that determine its response, besides the URL."""

    method: bytes
    if_none_match: bytes | None = None
    if_range: bytes | None = None
    range: bytes | None = None


class Outcome(Enum):
    """The kind of a response."""

    NOT_MODIFIED = "304"
    LOOK_UP = "depends on what the store has"
    HIT = "all bytes of the stored variant, a range of them, or its headers alone"
    UNSATISFIABLE = "416: the stored variant has no byte of the range"
    REDIRECT = "a redirect to the store"
    RENDER = "the output of a render, with `miss_headers`"
    MISS = "`miss_headers` alone, if the source exists"


class ResponsePlan(NamedTuple):
    """The plan of one response.

    :ivar headers: of the response, besides ETag, X-Audio-Proxy and the headers of every response.
    :ivar byte_range: for a HIT, the offset of the first byte to send and the offset after the last
        one.
    :ivar redirect_seconds: lifetime of the presigned URL of a redirect.
    :ivar cache_state: the value of X-Audio-Proxy; empty where the response has none.
    """

    outcome: Outcome
    status: int = 200
    headers: Mapping[bytes, bytes] = MappingProxyType({})
    byte_range: tuple[int, int] = (0, 0)
    redirect_seconds: int = 0
    cache_state: str = ""


class Lookup(NamedTuple):
    """The result of a lookup in the variant store.

    :ivar size: bytes of the stored variant; None where there is none.
    :ivar headers: of the stored variant.
    :ivar presign_ttl: lifetime in seconds of a redirect's presigned URL; None in proxy mode
        (AP_SERVE_MODE).
    """

    size: int | None = None
    headers: VariantHeaders | None = None
    presign_ttl: int | None = None


def plan_response(
    request: VariantRequest, conditions: Conditions, now: float, lookup: Lookup | None = None
) -> ResponsePlan:
    """Return the plan of the response to a request.

    :param now: Unix seconds.
    :param lookup: None before the lookup in the store; then the outcome may be `Outcome.LOOK_UP`.
    """
    if lookup is None:
        if not matches(conditions.if_none_match, request.tag):
            return _LOOK_UP
        return _NOT_MODIFIED if request.exp is None else _plan_not_modified(request.exp, now)
    if lookup.size is None or lookup.headers is None:
        return _RENDER if conditions.method == b"GET" else _MISS
    if lookup.presign_ttl is None and conditions.range is None and request.exp is None:
        return _plan_whole(lookup.headers, lookup.size)
    headers = _stored_headers(lookup.headers, request.exp, now)
    if lookup.presign_ttl is not None:
        # A presigned URL cannot live zero seconds, so the last second of ``exp`` is served as in
        # proxy mode (D14).
        seconds = clamp(lookup.presign_ttl, request.exp, now)
        if seconds:
            return _plan_redirect(conditions, lookup.size, headers, seconds)
    return _plan_hit(request, conditions, lookup.size, headers)


def _plan_not_modified(exp: int | None, now: float) -> ResponsePlan:
    headers = {b"cache-control": _cache_control(CACHE_CONTROL, exp, now)}
    return ResponsePlan(Outcome.NOT_MODIFIED, 304, headers)


def _plan_redirect(
    conditions: Conditions, size: int, headers: dict[bytes, bytes], seconds: int
) -> ResponsePlan:
    headers[b"cache-control"] = b"no-store"
    if conditions.method == b"HEAD":
        headers[b"content-length"] = b"%d" % size
    return ResponsePlan(
        Outcome.REDIRECT, 302, headers, redirect_seconds=seconds, cache_state=_FROM_STORE
    )


def _plan_hit(
    request: VariantRequest, conditions: Conditions, size: int, headers: dict[bytes, bytes]
) -> ResponsePlan:
    byte_range = None
    has_range = conditions.range is not None and conditions.method == b"GET"
    if has_range and range_applies(conditions.if_range, request.tag):
        try:
            byte_range = read_range(conditions.range, size)
        except RangeNotSatisfiable:
            return ResponsePlan(Outcome.UNSATISFIABLE, RangeNotSatisfiable.status)
    headers.update(length_headers(byte_range, size))
    status = 206 if byte_range else 200
    return ResponsePlan(Outcome.HIT, status, headers, byte_range or (0, size), 0, _FROM_STORE)


def miss_headers(request: VariantRequest, now: float) -> dict[bytes, bytes]:
    """Return the headers of a variant that is not stored, for a response that begins at ``now``.

    They are not part of the plan: a render may wait for its slot, and the remaining lifetime
    shrinks.
    """
    return _variant_headers(VariantHeaders.of(request.options), request.exp, now)


# Most requests are for whole variants, by URLs without ``exp``. Few variants have many requests.
@lru_cache(4096)
def _plan_whole(headers: VariantHeaders, size: int) -> ResponsePlan:
    fields = _stored_headers(headers, None, 0) | length_headers(None, size)
    return ResponsePlan(
        Outcome.HIT, 200, MappingProxyType(fields), (0, size), cache_state=_FROM_STORE
    )


def _stored_headers(headers: VariantHeaders, exp: int | None, now: float) -> dict[bytes, bytes]:
    return _variant_headers(headers, exp, now) | _RANGES


def _variant_headers(headers: VariantHeaders, exp: int | None, now: float) -> dict[bytes, bytes]:
    """Return the headers of a variant, for a URL that expires at ``exp``."""
    disposition = headers.content_disposition
    return {
        b"content-type": headers.content_type.encode("ascii"),
        b"cache-control": _cache_control(headers.cache_control, exp, now),
        **({b"content-disposition": disposition.encode("ascii")} if disposition else {}),
    }


def _cache_control(value: str, exp: int | None, now: float) -> bytes:
    """Limit the max-age to the time until ``exp``; the stored value does not change."""
    if exp is None:
        return value.encode("ascii")
    return _MAX_AGE.sub(lambda match: f"max-age={clamp(int(match[1]), exp, now)}", value).encode(
        "ascii"
    )


# The plans that do not depend on the request.
_LOOK_UP = ResponsePlan(Outcome.LOOK_UP)
_RENDER = ResponsePlan(Outcome.RENDER)
_MISS = ResponsePlan(Outcome.MISS)
_NOT_MODIFIED = _plan_not_modified(None, 0)
