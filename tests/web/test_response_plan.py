"""The response plan of a variant request, which the fast path and the ordinary path share."""

from __future__ import annotations

from typing import Any, Literal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import RangeNotSatisfiable
from audioproxy.grammar.request import VariantRequest, parse_request
from audioproxy.variants.response_headers import CACHE_CONTROL, VariantHeaders
from audioproxy.web.conditions import Conditions
from audioproxy.web.response_plan import (
    ResponsePlan,
    Stored,
    plan_not_modified,
    plan_refusal,
    plan_response,
)

NOW = 1_800_000_000
GET, HEAD, RANGE = b"GET", b"HEAD", b"bytes=0-1"
STORED = Stored(100)
URL = "https://store.example/"
IN_BUCKET = Stored(100, lambda seconds, headers: f"{URL}{seconds}", 300)
PATH = b"/plain/local://a"


def request(path: bytes = PATH) -> VariantRequest:
    """Return a request for a variant."""
    parsed = parse_request(path, None)
    assert isinstance(parsed, VariantRequest)
    return parsed


_RENDERS: tuple[Literal["MISS", "COALESCED"], ...] = ("MISS", "COALESCED")


def _dates(plan: ResponsePlan) -> list[tuple[bytes, bytes]]:
    return [each for each in plan.headers if each[0] == b"last-modified"]


def dated(found: Stored, age: int = 60) -> Stored:
    """Return a variant that was stored some seconds ago."""
    return Stored(*found[:3], NOW - age)


def plan(
    found: Stored | Literal["MISS", "COALESCED"], method: bytes = GET, **more: Any
) -> ResponsePlan:
    """Return the plan for a request with some headers."""
    return plan_response(request(), Conditions(method, **more), NOW, found)


class PlanTests(SynchronousTestCase):
    """What depends on time, and what a store is told; `tests.web.test_variant` has the rest."""

    def test_last_modified(self) -> None:
        """A HIT has the time in its record as Last-Modified: whole, in part and on HEAD.

        So does the last second of ``exp`` in redirect mode, which is no redirect. 302, 304, 416,
        MISS and COALESCED have none, and neither has a variant without a record (D58).
        """
        date = (b"last-modified", b"Fri, 15 Jan 2027 07:59:00 GMT")
        last = request(b"/exp:%d" % NOW + PATH)
        for stored, expected in ((dated(STORED), [date]), (STORED, [])):
            in_bucket = Stored(*IN_BUCKET[:3], stored.stored)
            for path, found in ((request(), stored), (last, stored), (last, in_bucket)):
                for method, value in ((GET, None), (GET, RANGE), (HEAD, None), (HEAD, RANGE)):
                    hit = plan_response(path, Conditions(method, None, None, value), NOW, found)
                    self.assertIn(hit.status, (200, 206))
                    self.assertEqual(expected, _dates(hit))
        not_modified = plan_not_modified(request(), Conditions(GET, request().tag), NOW)
        assert not_modified is not None
        others = [
            not_modified,
            plan(dated(STORED), range=b"bytes=100-"),
            *(plan(dated(IN_BUCKET), method) for method in (GET, HEAD)),
            *(plan(state, method) for state in _RENDERS for method in (GET, HEAD)),
        ]
        self.assertEqual([304, 416, 302, 302, 200, 200, 200, 200], [each.status for each in others])
        self.assertEqual([], [each for each in others if _dates(each)])

    def test_last_modified_of_other_clocks(self) -> None:
        """A time after that of the response is not stated (RFC 9110, 8.8.2.1).

        The clock of the node that stored the variant may be ahead, and a record may state any
        integer.
        """
        for seconds, stated in (
            *((0, True), (NOW, True), (NOW + 1, False), (-1, False)),
            *((10**30, False), (-(10**30), False)),
        ):
            found = Stored(100, stored=seconds)
            for value in (None, RANGE):
                hit = plan(found, range=value)
                self.assertEqual(stated, bool(_dates(hit)), seconds)
        later = plan_response(request(), Conditions(GET), NOW + 1, dated(STORED, -1))
        self.assertEqual([(b"last-modified", b"Fri, 15 Jan 2027 08:00:01 GMT")], _dates(later))

    def test_if_range_date(self) -> None:
        """If-Range with a date is a 206 only if it is the Last-Modified of this response.

        With any other date, the whole variant is sent, as to a client that has a part of another
        one: of a replaced source, or of another build of ffmpeg (D58). So it is if the variant has
        no Last-Modified, or now has another one.
        """
        ((_, date),) = _dates(plan(dated(STORED)))
        for found, condition, status in (
            (dated(STORED), date, 206),
            (dated(STORED), request().tag, 206),
            (dated(STORED, 59), date, 200),
            (dated(STORED, 61), date, 200),
            (STORED, date, 200),
            (dated(STORED, -1), b"Fri, 15 Jan 2027 08:00:01 GMT", 200),
        ):
            sent = plan(found, range=b"bytes=10-19", if_range=condition)
            byte_range = (10, 20) if status == 206 else (0, 100)
            self.assertEqual((status, byte_range), (sent.status, sent.byte_range), condition)
        head = plan(dated(STORED), HEAD, range=b"bytes=10-19", if_range=date)
        self.assertEqual((200, None), (head.status, head.byte_range))
        past = plan(dated(STORED), range=b"bytes=100-", if_range=date)
        self.assertEqual(plan_refusal(RangeNotSatisfiable(100)), past)
        redirect = plan(dated(IN_BUCKET), range=b"bytes=10-19", if_range=date)
        self.assertEqual(302, redirect.status)

    def test_headers_of_the_store(self) -> None:
        """A presigned URL names the headers of the variant, whose max-age ``exp`` limits."""
        named: list[VariantHeaders] = []

        def presign(seconds: int, headers: VariantHeaders) -> str:
            named.append(headers)
            return URL

        for path, age in (
            (b"/dl:a.ogg/f:ogg", 31536000),
            (b"/dl:a.ogg/exp:%d/f:ogg" % (NOW + 9), 9),
        ):
            plan_response(request(path + PATH), Conditions(GET), NOW, Stored(100, presign, 300))
            own = VariantHeaders.of(request(path + PATH).options)
            cache_control = f"public, max-age={age}, immutable, no-transform"
            expected = VariantHeaders(own.content_type, cache_control, own.content_disposition)
            # A store keeps them without this limit.
            self.assertEqual(CACHE_CONTROL, own.cache_control)
            self.assertEqual(expected, named.pop())
            self.assertIn("a.ogg", own.content_disposition or "")

    def test_expiry(self) -> None:
        """``exp`` limits max-age and the lifetime of a presigned URL, in whole seconds (D14).

        In the last second of ``exp``, redirect mode sends the variant itself.
        """
        for passed, left, age, lifetime in (
            *((0, 1, 1, 1), (0, 60, 60, 60), (0, 299, 299, 299), (0, 300, 300, 300)),
            *((0, 301, 301, 300), (0, 10**9, 31536000, 300), (0.9, 10, 10, 10)),
            *((0, 0, 0, 0), (0.999, 0, 0, 0)),
        ):
            path, now = b"/exp:%d/plain/local://a" % (NOW + left), NOW + passed
            states: tuple[Any, ...] = (STORED, "MISS", "COALESCED")
            plans = [
                plan_response(request(path), Conditions(method), now, found)
                for found in states
                for method in (GET, HEAD)
            ]
            plans.append(
                plan_response(request(path), Conditions(GET, None, None, RANGE), now, STORED)
            )
            not_modified = plan_not_modified(request(path), Conditions(GET, request().tag), now)
            assert not_modified is not None
            self.assertEqual(
                {b"public, max-age=%d, immutable, no-transform" % age},
                {dict(each.headers)[b"cache-control"] for each in (*plans, not_modified)},
            )
            for method, value in ((GET, RANGE), (GET, None), (HEAD, None)):
                asked = Conditions(method, None, None, value)
                found = plan_response(request(path), asked, now, IN_BUCKET)
                if lifetime:
                    location = b"https://store.example/%d" % lifetime
                    self.assertEqual(
                        (302, location), (found.status, dict(found.headers)[b"location"])
                    )
                else:
                    self.assertEqual(plan_response(request(path), asked, now, STORED), found)
