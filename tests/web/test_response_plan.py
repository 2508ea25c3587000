"""The response plan of a variant request, which the fast path and the ordinary path share."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.request import VariantRequest, parse_request
from audioproxy.variants.headers import CACHE_CONTROL, VariantHeaders
from audioproxy.web.response_plan import (
    Conditions,
    Lookup,
    Outcome,
    ResponsePlan,
    miss_headers,
    plan_response,
)

NOW = 1_800_000_000
GET, HEAD = b"GET", b"HEAD"
HEADERS = VariantHeaders("audio/mpeg", CACHE_CONTROL, "attachment")
HIT = Lookup(100, HEADERS)
TYPE = (b"content-type", b"audio/mpeg")
LONG_CACHE_CONTROL = (b"cache-control", CACHE_CONTROL.encode())


def request(path: bytes = b"/plain/local://a") -> VariantRequest:
    """Return a request for a variant."""
    parsed = parse_request(path, None)
    assert isinstance(parsed, VariantRequest)
    return parsed


class PlanTests(SynchronousTestCase):
    """`plan_response`"""

    def plan(
        self,
        lookup: Lookup | None,
        method: bytes = GET,
        path: bytes = b"/plain/local://a",
        **more: Any,
    ) -> ResponsePlan:
        """Return the plan for a request with some headers."""
        return plan_response(request(path), Conditions(method, **more), NOW, lookup)

    def test_not_modified(self) -> None:
        """A matching entity tag is a 304 without a store lookup (Conditional requests)."""
        for method in (GET, HEAD):
            plan = self.plan(None, method, if_none_match=b'"x", W/' + request().tag)
            self.assertEqual((Outcome.NOT_MODIFIED, 304), (plan.outcome, plan.status))
            self.assertEqual([LONG_CACHE_CONTROL], list(plan.headers.items()))

    def test_lookup_and_miss(self) -> None:
        """Without a matching tag, the store is asked; a miss is rendered, for HEAD only headers."""
        for tag in (None, b'"x"', b"*"):
            self.assertIs(Outcome.LOOK_UP, self.plan(None, if_none_match=tag).outcome)
        self.assertIs(Outcome.RENDER, self.plan(Lookup()).outcome)
        self.assertIs(Outcome.MISS, self.plan(Lookup(), HEAD).outcome)

    def test_hit(self) -> None:
        """A stored variant is sent completely, with its stored headers."""
        for method in (GET, HEAD):
            plan = self.plan(HIT, method)
            self.assertEqual(
                (Outcome.HIT, 200, (0, 100)), (plan.outcome, plan.status, plan.byte_range)
            )
            self.assertEqual(
                [
                    TYPE,
                    LONG_CACHE_CONTROL,
                    (b"content-disposition", b"attachment"),
                    (b"accept-ranges", b"bytes"),
                    (b"content-length", b"100"),
                ],
                list(plan.headers.items()),
            )

    def test_range(self) -> None:
        """A range of a GET is sent if If-Range is absent or the tag; past the end, it is a 416."""
        for condition in (None, request().tag):
            plan = self.plan(HIT, range=b"bytes=10-19", if_range=condition)
            self.assertEqual((206, (10, 20)), (plan.status, plan.byte_range))
            self.assertEqual(b"bytes 10-19/100", plan.headers[b"content-range"])
            self.assertEqual(b"10", plan.headers[b"content-length"])
        for plan in (
            self.plan(HIT, range=b"bytes=10-19", if_range=b'"other"'),
            self.plan(HIT, HEAD, range=b"bytes=10-19"),
        ):
            self.assertEqual((200, (0, 100)), (plan.status, plan.byte_range))
        plan = self.plan(HIT, range=b"bytes=100-")
        self.assertEqual((Outcome.UNSATISFIABLE, 416), (plan.outcome, plan.status))

    def test_redirect(self) -> None:
        """In redirect mode a HIT is a 302 with ``no-store``, even with Range."""
        lookup = Lookup(100, HEADERS, 300)
        plan = self.plan(lookup, range=b"bytes=0-1")
        self.assertEqual(
            (Outcome.REDIRECT, 302, 300), (plan.outcome, plan.status, plan.redirect_seconds)
        )
        self.assertEqual(b"no-store", plan.headers[b"cache-control"])
        self.assertNotIn(b"content-length", plan.headers)
        self.assertEqual(b"100", self.plan(lookup, HEAD).headers[b"content-length"])

    def test_expiry(self) -> None:
        """``exp`` limits max-age and the lifetime of a presigned URL (D14)."""
        path = b"/exp:%d/plain/local://a" % (NOW + 60)
        plan = self.plan(Lookup(100, HEADERS, 300), path=path)
        self.assertEqual(60, plan.redirect_seconds)
        for headers in (
            self.plan(HIT, path=path).headers,
            self.plan(None, path=path, if_none_match=request().tag).headers,
            miss_headers(request(path), NOW),
        ):
            self.assertEqual(
                b"public, max-age=60, immutable, no-transform", headers[b"cache-control"]
            )

    def test_last_second(self) -> None:
        """In the last second of ``exp``, redirect mode sends the variant itself (D14)."""
        plan = self.plan(Lookup(100, HEADERS, 300), path=b"/exp:%d/plain/local://a" % NOW)
        self.assertIs(Outcome.HIT, plan.outcome)
