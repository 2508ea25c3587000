"""Verdict on one response: every byte has to be right, and every failure needs a cause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

from tests.soak.records import EXCUSED_ERRORS, SILENT, RequestRecord
from tests.support.http import Malformed, Response

#: AP_RENDER_TIMEOUT of all nodes, which no render may reach: the longest valid Retry-After.
RENDER_TIMEOUT = 300
_STATES = (b"MISS", b"COALESCED", b"HIT")


def problems(record: RequestRecord, response: Response | None) -> Iterator[str]:
    """Yield the problems of a response.

    :param response: the part that arrived; None if the headers did not arrive completely.
    """
    if record.hung:
        yield "the response did not end within the deadline"
    if response is None:
        if record.causes.isdisjoint(SILENT):
            yield "no response, without a cause"
        return
    expected = record.request.expected
    echo = response["x-request-id"] or b""
    if echo != record.request_id.encode():
        yield f"the request id in the response is {echo!r}"
    if response["cache-control"] is None:
        yield "no Cache-Control"
    if not response.complete and not record.causes:
        yield f"a {response.status} was broken off after {len(response.body)} bytes without a cause"
    if response.status == 429:
        yield from _busy(response)
    elif response.status not in expected.statuses:
        yield from _unwanted(record, response)
    elif record.request.endpoint == "ready":
        return
    elif response.status >= 400:
        yield from _document_of(response, expected.code)
    elif record.request.endpoint == "render":
        yield from _variant(record, response)
    elif response.complete and expected.document is not None and record.request.method == b"GET":
        yield from _document(record, response)


def _busy(response: Response) -> Iterator[str]:
    yield from _document_of(response, "queue_full")
    after = response["retry-after"] or b""
    if not after.isdigit() or not 1 <= int(after) <= RENDER_TIMEOUT:
        yield f"a 429 with Retry-After {after!r}"


def _unwanted(record: RequestRecord, response: Response) -> Iterator[str]:
    code = error_code(response)
    if not any((response.status, code) in EXCUSED_ERRORS[cause] for cause in record.causes):
        yield f"an unexpected {response.status} {code or ''}".rstrip()


def error_code(response: Response) -> str | None:
    """Return the code in the error document of a response; None if the body is no such document."""
    with suppress(Malformed, ValueError):
        return response.error
    return None


def _document_of(response: Response, code: str | None) -> Iterator[str]:
    # A response to HEAD has no document.
    if response.body or response["content-length"] in (None, b"0"):
        found = error_code(response)
        if response.complete and (found is None or code not in (None, found)):
            yield f"a {response.status} whose document says {found!r}"


def _document(record: RequestRecord, response: Response) -> Iterator[str]:
    try:
        document = json.loads(response.body)
    except ValueError:
        document = None
    if document != record.request.expected.document:
        yield f"a wrong document, {response.body[:200]!r}"


def _variant(record: RequestRecord, response: Response) -> Iterator[str]:
    expected = record.request.expected
    if expected.etag is not None and response["etag"] != expected.etag.encode():
        yield f"the ETag is {response['etag']!r}"
    if response.status == 304:
        return
    if response["content-type"] != (expected.content_type or "").encode():
        yield f"the Content-Type is {response['content-type']!r}"
    state = response["x-audio-proxy"]
    if state not in _STATES:
        yield f"X-Audio-Proxy is {state!r}"
    if record.request.method == b"HEAD":
        if state == b"HIT" and response["content-length"] != b"%d" % len(expected.body):
            yield f"HEAD says Content-Length {response['content-length']!r}"
        return
    right = expected.body
    if response.status == 206:
        assert expected.byte_range is not None
        start, stop = expected.byte_range
        if response["content-range"] != b"bytes %d-%d/%d" % (start, stop - 1, len(right)):
            yield f"Content-Range is {response['content-range']!r}"
        right = right[start:stop]
    body = response.body
    if body != right[: len(body)] or (response.complete and len(body) != len(right)):
        differ = (at for at, (a, b) in enumerate(zip(body, right, strict=False)) if a != b)
        same = next(differ, min(len(body), len(right)))
        how = "a complete body" if response.complete else "the beginning of a body"
        yield f"{how} of {len(body)} bytes is wrong from byte {same} on, of {len(right)}"
