"""Https sources: requests to the origin, interpretation of responses, and local copies."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, execute
from twisted.internet.error import ConnectionRefusedError

from audioproxy.errors import (
    NotFound,
    Refusal,
    RenderFailed,
    SourceTooLarge,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.grammar.sources import parse_https
from audioproxy.http_client.client import USER_AGENT, HttpClient, Response
from audioproxy.media.inputs import SOURCE_DESCRIPTOR, local_input
from audioproxy.scratch_files import AnonymousFile
from audioproxy.sources.allowlist import Allowlist
from audioproxy.sources.download import Downloads
from audioproxy.sources.https import HttpsSources, OpenHttpsSource
from audioproxy.sources.origin import OriginClient, OriginState, UnusableOrigin
from tests.support.wire import ClientCase, Peer, chunk, reply, reply_without_length

SOURCE = parse_https(b"https://origin.test/a/b?c")
TAGGED = {"ETag": '"1"', "Last-Modified": "then"}
CHUNKED = {**TAGGED, "Transfer-Encoding": "chunked"}
LIMIT = 1000
#: Responses of an origin with a source of 7 bytes, or of 10 bytes.
SAME = reply(200, length=7, headers=TAGGED)
FIRST_BYTE = reply(206, b"x", {**TAGGED, "Content-Range": "bytes 0-0/7"})
IN_RANGE = reply(206, b"0123456", {"Content-Range": "bytes 0-6/7"})
UNSIZED = (reply_without_length(200, b"", CHUNKED), chunk(b"x"))
WHOLE = reply(200, b"0123456789", TAGGED)

#: A source that is longer than what is read of both of its ends.
LONG = bytes(range(250)) * 800


def ranged(first: int, last: int, headers: Mapping[str, str] = TAGGED) -> bytes:
    """Return a response with a range of the long source."""
    lines = {**headers, "Content-Range": f"bytes {first}-{last}/{len(LONG)}"}
    return reply(206, LONG[first : last + 1], lines)


def redirect(location: str) -> bytes:
    """Return a redirect."""
    return reply(302, b"", {"Location": location})


def reset_connection(peer: Peer, _: object) -> None:
    """Close the connection without a response; Twisted retries if the connection was reused."""
    peer.reset()


class PlaintextClient:
    """`HttpClient` wrapper that requests https URLs without TLS."""

    def __init__(self, outbound: HttpClient) -> None:
        self._outbound = outbound

    async def request(self, method: str, url: str, headers: Mapping[str, str]) -> Response:
        assert url.startswith("https://"), url
        return await self._outbound.request(method, "http" + url[5:], headers)


class FakeScratchSpace:
    """Scratch space for local copies.

    :ivar refusal: raised by `create` if set.
    """

    def __init__(self) -> None:
        self.made: list[AnonymousFile] = []
        self._closed = 0
        self.refusal: OSError | None = None

    async def create(self, seconds: float) -> AnonymousFile:
        if self.refusal is not None:
            raise self.refusal
        self.made.append(AnonymousFile(self._close))
        return self.made[-1]

    def _close(self, close: Any) -> None:
        close()
        self._closed += 1

    @property
    def held(self) -> int:
        """The number of open copies."""
        return len(self.made) - self._closed


class OriginCase(ClientCase):
    """One fake origin at a time, with a fake clock."""

    def setUp(self) -> None:
        super().setUp()
        self.space = FakeScratchSpace()
        self.thread_error: OSError | None = None
        client: Any = PlaintextClient(self.client)
        self.origins = HttpsSources(
            OriginClient(client, Allowlist(("origin.test", "*.origin.test")), self.network),
            Downloads(self.space, self.in_thread, LIMIT),
            "/trust.pem",
        )

    def tearDown(self) -> None:
        self.assertEqual(0, self.space.held, "a copy was left")
        super().tearDown()

    def in_thread(self, work: Any) -> Any:
        """Run disk work at once, or raise ``thread_error`` if it is set."""
        if self.thread_error is not None:
            raise self.thread_error
        return execute(work)

    @property
    def recorded_requests(self) -> list[str]:
        """The requests so far, each with its method, target and Range."""
        return [
            " ".join(filter(None, (each.method, each.target, each.headers.get("range"))))
            for each in self.network.requests
        ]

    def opened(self, *responses: Any) -> OpenHttpsSource:
        """Open the source with these responses of the origin."""
        self.network.scripts += responses
        return self.result_of(self.origins.open(SOURCE))

    def refused(self, kind: type[Refusal], *responses: Any) -> None:
        """Assert that opening the source is refused after these responses."""
        self.network.scripts += responses
        self.error_of(self.origins.open(SOURCE), kind)
        self.assertEqual([], self.network.scripts)

    def without_ranges(self) -> OpenHttpsSource:
        """Open a ten-byte source of an origin without ranges, and clear the recorded requests."""
        found = self.opened(reply(200, length=10, headers=TAGGED), reply(200, b"x" * 10))
        self.result_of(found.input(60, whole=False))
        self.network.requests.clear()
        return found

    def fetch(self, found: OpenHttpsSource, *responses: Any, seconds: float = 60) -> Deferred[Any]:
        """Start to fetch the whole source."""
        self.network.scripts += responses
        return self.begin(found.input(seconds, whole=True))


class OpenTests(OriginCase):
    """`HttpsSources.open`: requests, and interpretation of the responses."""

    def test_head(self) -> None:
        """A HEAD response with a length is sufficient; the request accepts no compression."""
        found = self.opened(SAME)
        self.assertEqual(["HEAD /a/b?c"], self.recorded_requests)
        self.assertEqual("identity", self.network.requests[0].headers["accept-encoding"])
        self.assertEqual((7, b'"1" 7', {}), (found.size, found.validator, dict(found.descriptors)))

    def test_no_head(self) -> None:
        """If HEAD is refused or has no length, the service requests the first byte with GET."""
        for status in (403, 405, 501):
            found = self.opened(reply(status), FIRST_BYTE)
            self.assertEqual(["HEAD /a/b?c", "GET /a/b?c bytes=0-0"], self.recorded_requests[-2:])
            self.assertEqual((7, b'"1" 7'), (found.size, found.validator))
        unsized = reply_without_length(200), reply_without_length(200, b"", CHUNKED)
        for head in (reply(200), *unsized):
            self.assertEqual(7, self.opened(head, FIRST_BYTE).size)

    def test_size(self) -> None:
        """The size is that of the whole source, or None if the origin does not send it."""
        whole = reply(200, b"x" * 7)
        for response, size in (
            (whole, 7),
            (reply(206, b"x", {"Content-Range": "bytes 0-0/9"}), 9),
            (reply(206, b"x", {"Content-Range": "bytes 0-0/*"}), None),
            (reply(206, b"x", {"Content-Range": "bytes 0-0/" + "9" * 5000}), None),
            (reply(206, b"x"), None),
            (reply(203, b"x" * 7), 7),
            (UNSIZED, None),
        ):
            self.assertEqual(size, self.opened(reply(405), response).size, response)

    def test_validator(self) -> None:
        """The validator is the ETag, or else Last-Modified, with the size.

        The fingerprint is empty, so probe results are not cached.
        """
        for headers, validator in (
            (TAGGED, b'"1" 7'),
            ({"ETag": 'W/"1"'}, b'W/"1" 7'),
            ({"Last-Modified": "then"}, b"then 7"),
            ({"ETag": '"\xe9"'}, b'"\xe9" 7'),
            ({}, b""),
        ):
            found = self.opened(reply(200, length=7, headers=headers))
            self.assertEqual(validator, found.validator)
            self.assertEqual(b"", found.fingerprint())

    def test_statuses(self) -> None:
        """Each error status is the same refusal for HEAD and for GET."""
        for kind, statuses in (
            (NotFound, "400 401 402 404 406 409 410 411 412 414 418 421 451 499"),
            (UpstreamUnavailable, "408 425 429 500 502 503 504 507 511 599"),
        ):
            for status in map(int, statuses.split()):
                self.refused(kind, reply(status))
                self.refused(kind, reply(405), reply(status))
        for status, kind in ((403, NotFound), (405, NotFound), (501, UpstreamUnavailable)):
            self.refused(kind, reply(status), reply(status))

    def test_no_source(self) -> None:
        """A source whose status has no source body can be opened; reading it is a 415 (D48).

        So is a source with a Content-Encoding that was not requested. HEAD requests only open the
        source, and therefore succeed.
        """
        statuses = (201, 202, 204, 205, 207, 226, 300, 304, 305, 306, 416)
        codings = ("gzip", "br", "GZIP", "identity, gzip", "aws-chunked,gzip")
        for responses in (
            *((reply(status),) for status in statuses),
            *((reply(405), reply(status)) for status in statuses),
            *((reply(200, length=7, headers={"Content-Encoding": it}),) for it in codings),
        ):
            found = self.opened(*responses)
            requests = len(self.recorded_requests)
            for whole in (False, True):
                self.error_of(found.input(60, whole=whole), UndecodableSource)
            self.assertEqual(requests, len(self.recorded_requests))
        for coding in ("identity", "Identity", "aws-chunked", "none", "utf-8", "identity, binary"):
            found = self.opened(reply(200, length=7, headers={"Content-Encoding": coding}))
            self.network.scripts.append(IN_RANGE)
            self.assertTrue(self.result_of(found.input(60, whole=False)).seekable)

    def test_unreachable(self) -> None:
        """An origin that cannot be reached is a 502."""
        self.network.refusal = ConnectionRefusedError()
        self.network.unknown.add("origin.test")
        self.error_of(self.origins.open(SOURCE), UpstreamUnavailable)


class RedirectTests(OriginCase):
    """Redirects, which the service follows itself."""

    def follow(self, *locations: str | None, status: int = 302) -> list[str]:
        """Follow redirects, and return the requests after the first, each as host and target."""
        hops = [reply(status, b"", {"Location": to} if to is not None else {}) for to in locations]
        self.network.scripts += [*hops, reply(200, length=1)]
        self.network.requests.clear()
        found = self.result_of(self.origins.open(SOURCE))
        self.assertEqual(1, found.size)
        return [f"{each.headers['host']}{each.target}" for each in self.network.requests[1:]]

    def test_locations(self) -> None:
        """A Location is resolved against the previous URL, as browsers do."""
        for place, there in (
            ("/x", "origin.test/x"),
            ("x", "origin.test/a/x"),
            ("../x", "origin.test/x"),
            ("?x", "origin.test/a/b?x"),
            ("#x", "origin.test/a/b?c"),
            ("", "origin.test/a/b?c"),
            ("//b.origin.test/x", "b.origin.test/x"),
            ("https://ORIGIN.test.:443/x", "origin.test/x"),
            ("HTTPS://origin.test", "origin.test/"),
            ("https://b.origin.test:8443/x/../y%2f//z", "b.origin.test:8443/x/../y%2f//z"),
            ("/x?u=https://c.test/", "origin.test/x?u=https://c.test/"),
            # Bytes that a URL cannot have are encoded: a space, UTF-8 and Latin-1.
            ("/a b?c d", "origin.test/a%20b?c%20d"),
            ("/\xc3\xa9%C3%A9", "origin.test/%C3%A9%C3%A9"),
            ("https://b.origin.test/\xe9", "b.origin.test/%E9"),
        ):
            for status in (301, 302, 303, 307, 308):
                self.assertEqual([there], self.follow(place, status=status), place)

    def test_semicolon(self) -> None:
        """A semicolon in a Location or in the previous URL is an ordinary character."""
        self.assertEqual(["origin.test/x;"], self.follow("/x;"))
        there = [f"origin.test/{path}" for path in ("x;y", "x;y?a;b;", ";", "z;?c")]
        self.assertEqual(there, self.follow("/x;y", "?a;b;", ";", "./z;?c"))

    def test_invalid_locations(self) -> None:
        """A redirect without Location, or to anything but a valid https URL, is a 404 (D48)."""
        for place in (
            "http://origin.test/", "HTTP://origin.test/", "ftp://origin.test/", "file:///etc/passwd",
            "data:audio/wav,x", "s3://bucket/key", "local://a", "https://me@origin.test/",
            "https://me:secret@origin.test/", "https://origin.test:99999/",
            "https://origin.test:x/", "https://[::1/", "https://a b.test/", "https://\xe9.test/", "https://a..test/",
            "/" + "x" * 2048, "javascript:alert(1)",
        ):  # fmt: skip
            self.refused(NotFound, redirect(place))
        self.refused(NotFound, reply(302))
        self.assertEqual({"origin.test"}, {*self.network.names})

    def test_five(self) -> None:
        """Five redirects are followed; a sixth is a 502, for HEAD and GET alike (D41, D48)."""
        self.assertEqual(5, len(self.follow(*(f"/{n}" for n in range(5)))))
        self.network.requests.clear()
        hop = redirect("/x")
        self.refused(UnusableOrigin, *[hop] * 6)
        self.assertEqual(6, len(self.network.requests))
        self.refused(UnusableOrigin, *[reply(405), hop] * 6)
        self.assertTrue(issubclass(UnusableOrigin, UpstreamUnavailable))

    def test_allowlist(self) -> None:
        """Each redirect target must be on the allowlist; a refused host name is not resolved."""
        for place in ("https://c.test/", "//origin.test.evil.test/", "https://127.0.0.1/"):
            self.refused(NotFound, redirect(place))
            near = redirect("https://b.origin.test/")
            self.refused(NotFound, near, reply(307, b"", {"Location": place}))
        self.assertEqual({"origin.test", "b.origin.test"}, {*self.network.names})


class OriginStateTests(OriginCase):
    """Comparison of two states of a source."""

    def state(self, size: int | None, tag: str = "", modified: str = "") -> OriginState:
        """Return a state of the source."""
        return OriginState(SOURCE, size, tag, modified, None)

    def test_matches(self) -> None:
        """Two states match if ETag or Last-Modified is equal; different sizes never match."""
        for first, second, verdict in (
            ((7, "a", "x"), (7, "a", "x"), True),
            ((7, "a", "x"), (7, "b", "x"), True),
            ((7, "a", "x"), (7, "a", "y"), True),
            ((7, "a", "x"), (7, "", "x"), True),
            ((7, "a", "x"), (None, "a", ""), True),
            ((None, "a", ""), (7, "a", ""), True),
            ((7, "", ""), (7, "", ""), True),
            ((7, "", ""), (7, "a", "x"), True),
            ((None, "", ""), (None, "", ""), True),
            ((7, "a", "x"), (8, "a", "x"), False),
            ((7, "", ""), (8, "", ""), False),
            ((7, "a", "x"), (7, "b", "y"), False),
            ((7, "a", ""), (7, "b", "x"), False),
            ((7, "", "x"), (7, "a", "y"), False),
            ((7, "a", "x"), (7, "", ""), False),
            ((7, "a", ""), (7, "b", ""), False),
            ((7, "", "x"), (7, "", "y"), False),
        ):
            matches = self.state(*first).matches(self.state(*second))
            self.assertIs(verdict, matches, (first, second))

    def test_unchanged(self) -> None:
        """The change check requests the original URL; an unavailable origin counts as unchanged."""
        for responses, verdict in (
            ((SAME,), True),
            ((reply(405), FIRST_BYTE), True),
            ((redirect("/new"), SAME), True),
            ((reply(200, length=8, headers=TAGGED),), False),
            ((reply(200, length=7, headers={"ETag": '"2"'}),), False),
            ((reply(404),), False),
            ((reply(204),), False),
            ((reply(302),), False),
            ((redirect("https://c.test/"),), False),
            ((reply(200, length=7, headers={**TAGGED, "Content-Encoding": "br"}),), False),
            ((redirect("/x"),) * 6, False),
            ((reply(503),), True),
            ((reset_connection, reset_connection), True),
        ):
            found = self.opened(redirect("/old"), SAME)
            self.network.scripts += responses
            self.network.requests.clear()
            self.assertIs(verdict, self.result_of(found.unchanged()), responses)
            self.assertEqual("HEAD /a/b?c", self.recorded_requests[0])

    def test_nothing_to_compare(self) -> None:
        """Without ETag and Last-Modified, the origin is not asked for changes."""
        found = self.opened(reply(200, length=7))
        self.assertTrue(self.result_of(found.unchanged()))
        self.assertEqual(1, len(self.recorded_requests))


class InputTests(OriginCase):
    """`OpenHttpsSource.input`: reading from the origin, or from a local copy."""

    def test_ranges(self) -> None:
        """A source is read in place if one request shows that the origin serves ranges."""
        good = {"Content-Range": "bytes 0-6/7"}
        for response, ranges in (
            (reply(206, b"0123456", good), True),
            # The origin returns only the beginning of a range.
            (reply(206, b"01", {"Content-Range": "bytes 0-1/7"}), True),
            (reply(206, b"0123456", {"Content-Range": "bytes 0-6/8"}), False),
            (reply(206, b"0123456", {"Content-Range": "bytes 0-6/*"}), False),
            (reply(206, b"123456", {"Content-Range": "bytes 1-6/7"}), False),
            (reply(206, b"01234567", {"Content-Range": "bytes 0-7/7"}), False),
            (reply(206, b"0123456", {"Content-Range": "bytes=0-6/7"}), False),
            (reply(206, b"x"), False),
            (reply(200, b"x", {"Accept-Ranges": "bytes", **good}), False),
            (reply(416), False),
            (reply(503), False),
        ):
            found = self.opened(SAME, response)
            for _ in range(2):
                opened = self.result_of(found.input(10, whole=ranges))
                self.assertEqual((SOURCE.url, ranges), (opened.url, opened.seekable), response)
                seekable = opened.options[opened.options.index("-seekable") + 1]
                self.assertEqual("1" if ranges else "0", seekable, response)
                self.assertIn("/trust.pem", opened.options)
                self.assertIn(USER_AGENT, opened.options)
            self.assertEqual(["HEAD /a/b?c", "GET /a/b?c bytes=0-6"], self.recorded_requests[-2:])

    def claimed(self) -> OpenHttpsSource:
        """Open a source whose origin claims to serve ranges, and start its probe."""
        found = self.opened(reply(200, length=7, headers={**TAGGED, "Accept-Ranges": "bytes"}))
        opened = self.result_of(found.input(10, whole=False))
        self.assertEqual((opened.tentative, opened.seekable), (True, True))
        return found

    def test_claimed_ranges(self) -> None:
        """If the origin claims to serve ranges, it is tested while the source is probed."""
        for response, ranges in (
            (reply(206, b"0123456", {"Content-Range": "bytes 0-6/7"}), True),
            (reply(200, b"0123456"), False),
        ):
            found = self.claimed()
            confirming = self.begin(found.input(10, whole=False))
            self.assertNoResult(confirming)
            self.network.peers[-1].send(response)
            self.network.run()
            opened = self.successResultOf(confirming)
            self.assertEqual((opened.tentative, opened.seekable), (False, ranges))
            self.assertEqual(["HEAD /a/b?c", "GET /a/b?c bytes=0-6"], self.recorded_requests[-2:])

    def test_claimed_but_unsized(self) -> None:
        """If the origin then sends a body of unknown length, the source is copied."""
        found = self.claimed()
        confirming = self.begin(found.input(10, whole=False))
        self.network.scripts.append(
            (reply_without_length(200, b"", CHUNKED), chunk(b"0123456"), chunk(b""))
        )
        self.network.peers[-1].send(*UNSIZED)
        self.network.run()
        self.assertEqual(local_input(), self.successResultOf(confirming))
        found.close()

    def test_claimed_and_closed(self) -> None:
        """If a source is closed during the test, the test ends without a trace."""
        found = self.claimed()
        found.close()
        self.network.run()
        self.assertTrue(self.network.peers[-1].closed)
        # A probe that is shared asks again.
        self.network.scripts.append(IN_RANGE)
        self.assertTrue(self.result_of(found.input(10, whole=False)).seekable)

    def test_unsized(self) -> None:
        """A source of unknown length is copied for the probe too, as it may be truncated (D48)."""
        whole = (reply_without_length(200, b"", CHUNKED), chunk(b"0123456"), chunk(b""))
        for at_once, later in (
            ((reply(405), UNSIZED), (whole,)),
            ((SAME,), (UNSIZED, whole)),
            ((reply(405), reply(206, b"x", {"Content-Range": "bytes 0-0/*"})), (whole,)),
        ):
            found = self.opened(*at_once)
            self.network.scripts += later
            for needed in (False, True):
                self.assertEqual(local_input(), self.result_of(found.input(10, whole=needed)))
            self.assertEqual("GET /a/b?c", self.recorded_requests[-1])
            found.close()

    def test_unsized_and_too_large(self) -> None:
        """A source of unknown length past the limit is probed in place (Info endpoint, 4).

        A render of this source is refused.
        """
        found = self.opened(reply(405), UNSIZED)
        large = (reply_without_length(200, b"", CHUNKED), chunk(b"x" * (LIMIT + 1)), chunk(b""))
        self.network.scripts += [large, large]
        # The copy is not tried again for another probe.
        for _ in range(2):
            self.assertFalse(self.result_of(found.input(10, whole=False)).seekable)
        self.assertEqual(0, self.space.held)
        self.error_of(found.input(10, whole=True), SourceTooLarge)

    def test_unsized_and_late(self) -> None:
        """If a copy for the probe takes half of the given time, the source is probed in place."""
        found = self.opened(reply(405), UNSIZED)
        self.network.scripts += [UNSIZED]
        opening = self.begin(found.input(10, whole=False))
        self.network.advance(4.9)
        self.assertNoResult(opening)
        self.network.advance(0.1)
        self.assertFalse(self.successResultOf(opening).seekable)
        self.assertEqual(0, self.space.held)

    def test_closed_while_it_is_fetched(self) -> None:
        """If a source is closed during its copy for a probe, the finished copy is removed."""
        found = self.opened(reply(405), UNSIZED)
        self.network.scripts += [UNSIZED]
        opening = self.begin(found.input(10, whole=False))
        found.close()
        self.network.peers[-1].send(chunk(b""))
        self.network.run()
        self.assertEqual(local_input(), self.successResultOf(opening))
        self.assertEqual((1, 0), (len(self.space.made), self.space.held))

    def test_ranges_that_are_known(self) -> None:
        """An origin that served the first byte as a range is not asked for another range."""
        found = self.opened(reply(405), FIRST_BYTE)
        self.assertTrue(self.result_of(found.input(10, whole=True)).seekable)
        self.assertEqual(2, len(self.recorded_requests))

    def test_no_validator(self) -> None:
        """A source without a validator is probed in place, but copied for a render."""
        found = self.opened(reply(200, length=7))
        self.network.scripts += [IN_RANGE, reply(200, b"0123456")]
        self.assertTrue(self.result_of(found.input(10, whole=False)).seekable)
        self.assertEqual(local_input(), self.result_of(found.input(10, whole=True)))
        self.assertEqual(
            ["HEAD /a/b?c", "GET /a/b?c bytes=0-6", "GET /a/b?c"], self.recorded_requests
        )
        found.close()

    def test_behind_a_redirect(self) -> None:
        """ffmpeg gets the URL at the end of the redirects."""
        away = redirect("https://b.origin.test/x|y")
        found = self.opened(away, SAME, IN_RANGE)
        opened = self.result_of(found.input(10, whole=False))
        self.assertEqual("https://b.origin.test/x%7Cy", opened.url)
        self.assertEqual(["HEAD /x%7Cy", "GET /x%7Cy bytes=0-6"], self.recorded_requests[1:])

    def test_short_lived(self) -> None:
        """Redirects are followed again for a render, since it may have waited in the queue."""
        for place, more in (("/new", ["GET /new bytes=0-6"]), ("/old", [])):
            found = self.opened(redirect("/old"), SAME, IN_RANGE)
            self.result_of(found.input(10, whole=False))
            self.network.requests.clear()
            self.network.scripts += [redirect(place), SAME, *[IN_RANGE] * len(more)]
            opened = self.result_of(found.input(10, whole=True))
            self.assertEqual((f"https://origin.test{place}", True), (opened.url, opened.seekable))
            self.assertEqual(["HEAD /a/b?c", f"HEAD {place}", *more], self.recorded_requests)

    def test_redirect_target_changed(self) -> None:
        """If the redirect target changed since the probe, or is gone, the render is refused."""
        away = redirect("/old")
        for responses, kind in (
            ((away, reply(200, length=8, headers=TAGGED)), RenderFailed),
            ((away, reply(200, length=7, headers={"ETag": '"2"'})), RenderFailed),
            ((away, reply(404)), NotFound),
            ((away, reply(503)), UpstreamUnavailable),
            ((redirect("https://c.test/"),), NotFound),
        ):
            found = self.opened(away, SAME)
            self.network.scripts += responses
            self.error_of(found.input(10, whole=True), kind)
            self.assertEqual([], self.network.scripts)

    def test_copy(self) -> None:
        """A source of an origin without ranges is copied once, and not checked for changes."""
        for response in (
            WHOLE,
            reply(203, b"0123456789", TAGGED),
            (reply_without_length(200, b"", CHUNKED), chunk(b"01234"), chunk(b"56789"), chunk(b"")),
        ):
            found = self.without_ranges()
            for whole in (True, True, False):
                self.network.scripts += [response] * (not self.recorded_requests)
                opened = self.result_of(found.input(60, whole=whole))
                self.assertEqual(local_input(), opened)
            self.assertTrue(self.result_of(found.unchanged()))
            self.assertEqual(["GET /a/b?c"], self.recorded_requests)
            descriptor = found.descriptors[SOURCE_DESCRIPTOR]
            self.assertEqual(b"0123456789", os.pread(descriptor, 99, 0))
            for _ in range(2):
                found.close()
                self.assertEqual({}, dict(found.descriptors))

    def test_until_close(self) -> None:
        """A body that ends with the connection is complete if it has the length that HEAD sent.

        A body of unknown length that ends with the connection, without TLS, is a 502 (D48). A
        probe, too, first fetches the body to its end.
        """

        def close_after(body: bytes) -> Any:
            def speak(peer: Any, _: object) -> None:
                peer.send(reply_without_length(200, body, TAGGED))
                peer.close()

            return speak

        for said, complete in ((b"0123456789", True), (b"01234", False)):
            found = self.without_ranges()
            fetching = self.fetch(found, close_after(said))
            if complete:
                self.successResultOf(fetching)
            else:
                self.exactly(fetching, UpstreamUnavailable)
            found.close()
        # TLS would mark the end of the body; this connection does not use TLS.
        for whole in (False, True):
            found = self.opened(reply(405), close_after(b"0123456789"))
            self.network.requests.clear()
            self.network.scripts.append(close_after(b"0123456789"))
            self.error_of(found.input(60, whole=whole), UpstreamUnavailable)
            self.assertEqual(["GET /a/b?c"], self.recorded_requests)
            found.close()

    def test_refusals(self) -> None:
        """If the response is an error or another source's, the copy fails and is removed."""
        for kind, response in (
            (NotFound, reply(404)),
            (UpstreamUnavailable, reply(503)),
            (UpstreamUnavailable, reply(206, b"x", {**TAGGED, "Content-Range": "bytes 0-0/10"})),
            (UndecodableSource, redirect("/x")),
            (RenderFailed, reply(200, b"0123456789", {"ETag": '"2"'})),
            (RenderFailed, reply(200, b"012345678", TAGGED)),
            (RenderFailed, reply(200, b"x" * 5000, {"ETag": '"2"'})),
            (UndecodableSource, reply(200, b"0123456789", {**TAGGED, "Content-Encoding": "br"})),
        ):
            found = self.without_ranges()
            self.exactly(self.fetch(found, response), kind)
            self.assertEqual(({}, 0), (dict(found.descriptors), self.space.held))
            found.close()

    def test_cut(self) -> None:
        """A copy that is truncated or has another length than announced is a 502 and is removed."""
        for packets in (
            (),
            (reply(200, b"01234", TAGGED, length=10),),
            (reply_without_length(200, chunk(b"01234"), CHUNKED),),
            (reply_without_length(200, b"8\r\n01234", CHUNKED),),
            (reply_without_length(200, chunk(b"x" * 11), CHUNKED),),
            (reply_without_length(200, chunk(b"x" * 9) + chunk(b""), CHUNKED),),
        ):
            found = self.without_ranges()

            def speak(peer: Peer, _: object, said: tuple[bytes, ...] = packets) -> None:
                peer.send(*said)
                peer.close()

            self.exactly(self.fetch(found, *[speak] * (1 if packets else 2)), UpstreamUnavailable)
            self.assertEqual(({}, 0), (dict(found.descriptors), self.space.held))
            found.close()

    def test_too_much(self) -> None:
        """A body of unknown length is copied up to the limit; past it, reading stops with 413.

        If the copy's Content-Length exceeds the limit, no scratch file is created.
        """
        for size in (LIMIT, LIMIT + 1):
            found = self.opened(reply(405), UNSIZED)
            body = (reply_without_length(200, b"", CHUNKED), chunk(b"x" * size), chunk(b""))
            fetching = self.fetch(found, body)
            if size == LIMIT:
                self.successResultOf(fetching)
            else:
                self.assertIn(str(LIMIT), self.exactly(fetching, SourceTooLarge).message)
                self.assertTrue(self.network.peers[-1].aborted)
            found.close()
        made = len(self.space.made)
        found = self.opened(reply(405), UNSIZED)
        fetching = self.fetch(found, reply(200, length=10 * LIMIT, headers=TAGGED))
        self.exactly(fetching, SourceTooLarge)
        self.assertEqual(made, len(self.space.made))

    def test_no_room(self) -> None:
        """If a copy cannot be created or written, the response is 500."""
        full = OSError(errno.ENOSPC, "No space left on device")
        for response, refusal, thread_error in (
            (WHOLE, full, None),
            (reply(200, b"0" * 9, TAGGED, length=10), full, None),
            (WHOLE, None, full),
        ):
            found = self.without_ranges()
            self.space.refusal, self.thread_error = refusal, thread_error
            fetching = self.fetch(found, response)
            self.network.advance(15)
            self.exactly(fetching, RenderFailed)
            self.assertTrue(self.network.peers[-1].aborted or response == WHOLE)
            found.close()


class ReadTests(OriginCase):
    """`OpenHttpsSource.read`"""

    def readable(self) -> OpenHttpsSource:
        """Open a seven-byte source of an origin with ranges."""
        found = self.opened(SAME, IN_RANGE)
        self.result_of(found.input(10, whole=True))
        return found

    def test_ranges(self) -> None:
        """A range is requested, again where the origin returns only its beginning (D57)."""
        found = self.readable()
        for parts in (("1-3",), ("1-2", "3-3"), ("1-1", "2-2", "3-3")):
            self.network.requests.clear()
            for part in parts:
                first, last = map(int, part.split("-"))
                headers = {**TAGGED, "Content-Range": f"bytes {part}/7"}
                self.network.scripts.append(reply(206, b"0123456"[first : last + 1], headers))
            self.assertEqual(self.result_of(found.read(1, 3)), b"123")
            asked = [f"GET /a/b?c bytes={part[0]}-3" for part in parts]
            self.assertEqual(asked, self.recorded_requests)

    def test_failures(self) -> None:
        """Another range, no range, another version or a cut body is a failed source."""
        for refusal, response in (
            (
                UpstreamUnavailable,
                reply(206, b"01", {**TAGGED, "Content-Range": "bytes 0-1/7"}),
            ),
            (
                UpstreamUnavailable,
                reply(206, b"1234", {**TAGGED, "Content-Range": "bytes 1-4/7"}),
            ),
            (
                UpstreamUnavailable,
                reply(206, b"", {**TAGGED, "Content-Range": "bytes 1-3/7"}),
            ),
            (
                UpstreamUnavailable,
                reply(206, b"12345", {**TAGGED, "Content-Range": "bytes 1-3/7"}),
            ),
            (UpstreamUnavailable, reply(200, b"0123456", TAGGED)),
            (UpstreamUnavailable, reply(503)),
            (NotFound, reply(404)),
            (RenderFailed, reply(206, b"123", {"ETag": '"new"', "Content-Range": "bytes 1-3/8"})),
        ):
            found = self.readable()
            self.network.scripts.append(response)
            self.error_of(found.read(1, 3), refusal)

    def test_short_ranges(self) -> None:
        """An origin that returns a byte at a time does not hold a render."""
        found = self.readable()
        for first in range(8):
            headers = {**TAGGED, "Content-Range": f"bytes {first}-{first}/7"}
            self.network.scripts.append(reply(206, b"x", headers))
        self.error_of(found.read(0, 9), UpstreamUnavailable)

    def long(self, *responses: Any) -> OpenHttpsSource:
        """Open a source of 200 000 bytes and probe it, with further responses of the origin."""
        found = self.opened(reply(200, length=200_000, headers=TAGGED))
        self.network.scripts += [ranged(200_000 - 65_536, 199_999), *responses]
        self.result_of(found.input(10, whole=False))
        return found

    def test_both_ends(self) -> None:
        """The test for ranges reads the end, and the start is read during the probe.

        Neither is requested again.
        """
        found = self.long(ranged(0, 65_535))
        both = ["GET /a/b?c bytes=134464-199999", "GET /a/b?c bytes=0-65535"]
        self.assertEqual(both, self.recorded_requests[1:])
        for offset, count in ((0, 9), (65_000, 536), (134_464, 65_536), (199_999, 1)):
            expected = LONG[offset : offset + count]
            self.assertEqual(expected, self.result_of(found.read(offset, count)), offset)
        self.assertEqual(both, self.recorded_requests[1:])
        self.network.scripts.append(ranged(65_000, 65_999))
        self.assertEqual(LONG[65_000:66_000], self.result_of(found.read(65_000, 1000)))

    def test_ends_that_fail(self) -> None:
        """Bytes that could not be read during the probe are requested when they are needed."""
        other = {"ETag": '"new"', "Last-Modified": "now"}
        for failed in (reply(503), ranged(1, 65_535), ranged(0, 65_535, other)):
            found = self.long(failed)
            self.network.scripts.append(ranged(0, 8))
            self.assertEqual(LONG[:9], self.result_of(found.read(0, 9)))

    def test_closed_early(self) -> None:
        """The request for the start ends when the source is closed."""
        found = self.long()
        found.close()
        self.network.run()
        self.assertTrue(self.network.peers[-1].closed)

    def test_copy(self) -> None:
        """A copy is read without a request, and has the size of the file."""
        found = self.without_ranges()
        self.successResultOf(self.fetch(found, WHOLE))
        self.network.requests.clear()
        self.assertEqual((self.result_of(found.read(3, 4)), found.size), (b"3456", 10))
        self.assertEqual([], self.recorded_requests)
        self.thread_error = OSError(11, "no thread")
        self.error_of(found.read(3, 4), RenderFailed)
        self.thread_error = None
        found.close()


class DeadlineTests(OriginCase):
    """Deadlines of requests to the origin."""

    def test_body(self) -> None:
        """A copy ends with TimeoutError when the given time is over."""
        found = self.without_ranges()
        fetching = self.fetch(found, reply(200, length=10, headers=TAGGED), seconds=9)
        for _ in range(8):
            self.network.advance(1)
            self.network.peers[-1].send(b"x")
        self.network.run()
        self.assertNoResult(fetching)
        self.network.advance(1)
        self.exactly(fetching, TimeoutError)
        self.assertEqual((True, 0), (self.network.peers[-1].aborted, self.space.held))

    def test_stall(self) -> None:
        """A copy without progress for thirty seconds is a 502."""
        found = self.without_ranges()
        fetching = self.fetch(found, reply(200, length=10, headers=TAGGED), seconds=90)
        self.network.advance(29.9)
        self.assertNoResult(fetching)
        self.network.advance(0.1)
        self.exactly(fetching, UpstreamUnavailable)

    def test_in_time(self) -> None:
        """A finished copy leaves no timer behind."""
        found = self.without_ranges()
        self.successResultOf(self.fetch(found, WHOLE, seconds=9))
        self.network.advance(9)
        self.assertEqual(1, self.space.held)
        found.close()

    def test_silence(self) -> None:
        """A request without a response ends with TimeoutError when the given time is over.

        If no time is left, it ends at once.
        """
        for whole, seconds in ((False, 5), (True, 5), (True, -1)):
            if whole and seconds > 0:
                found = self.without_ranges()
            else:
                found = self.opened(reply(200, length=10, headers=TAGGED))
            asking = self.begin(found.input(seconds, whole=whole))
            self.network.advance(max(0, seconds))
            self.exactly(asking, TimeoutError)
            self.assertTrue(self.network.peers[-1].closed or seconds < 0)

    def test_both(self) -> None:
        """The range check and the copy after it share the given time."""
        found = self.opened(reply(200, length=10, headers=TAGGED))
        fetching = self.begin(found.input(5, whole=True))
        self.network.advance(4)
        self.network.scripts.append(reply(200, length=10, headers=TAGGED))
        self.network.peers[-1].send(reply(416))
        self.network.advance(0.9)
        self.assertNoResult(fetching)
        self.network.advance(0.1)
        self.exactly(fetching, TimeoutError)
        self.assertEqual(("GET /a/b?c", 0), (self.recorded_requests[-1], self.space.held))

    def test_stalling_everywhere(self) -> None:
        """Each request of a lookup may take fifteen seconds."""
        for responses in ((), (reply(405),)):
            self.network.scripts += responses
            asking = self.begin(self.origins.open(SOURCE))
            self.network.advance(15)
            self.exactly(asking, UpstreamUnavailable)

    def test_slow_everywhere(self) -> None:
        """All requests of a lookup, redirects included, may take thirty seconds together."""
        asking = self.begin(self.origins.open(SOURCE))
        for hop in range(2):
            self.network.advance(14)
            self.network.peers[-1].send(reply(302, b"", {"Location": f"/{hop}"}))
        self.network.advance(1.9)
        self.assertNoResult(asking)
        self.network.advance(0.1)
        self.exactly(asking, UpstreamUnavailable)
        self.assertEqual(["HEAD /a/b?c", "HEAD /0", "HEAD /1"], self.recorded_requests)
        self.assertTrue(self.network.peers[-1].closed)


class CancelledTests(OriginCase):
    """Cancelled lookups and copies."""

    def test_cancelled_open(self) -> None:
        """A cancelled lookup aborts its request."""
        asking = self.begin(self.origins.open(SOURCE))
        asking.cancel()
        self.network.run()
        self.exactly(asking, CancelledError)
        self.assertTrue(self.network.peers[-1].closed)

    def test_fetching(self) -> None:
        """A cancelled copy aborts its request, before or during the body, and is removed."""
        for responses in ((), (reply(200, b"01234", TAGGED, length=10),)):
            found = self.without_ranges()
            fetching = self.fetch(found, *responses)
            self.assertNoResult(fetching)
            fetching.cancel()
            self.network.run()
            self.exactly(fetching, CancelledError)
            self.assertTrue(self.network.peers[-1].closed)
            self.assertEqual(({}, 0), (dict(found.descriptors), self.space.held))
            found.close()
