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
from audioproxy.files.scratch_files import AnonymousFile
from audioproxy.grammar.sources import parse_https
from audioproxy.http_client.client import USER_AGENT, HttpClient, Response
from audioproxy.media.command.inputs import SOURCE_DESCRIPTOR, Input, local_input
from audioproxy.sources.https import HttpsSources, OpenHttpsSource
from audioproxy.sources.https_origin import OriginClient, OriginState, UnusableOrigin
from tests.support.wire import ClientCase, Peer, chunk, reply, reply_without_length

SOURCE = parse_https(b"https://origin.test/a/b?c")
TAGGED = {"ETag": '"1"', "Last-Modified": "then"}
CHUNKED = {**TAGGED, "Transfer-Encoding": "chunked"}
LIMIT = 300_000
#: A source of ten bytes, and of seven bytes whose body is on its way.
WHOLE = reply(200, b"0123456789", TAGGED)
SAME = reply(200, b"0123456", TAGGED)
COMING = reply(200, length=7, headers=TAGGED)
UNSIZED = (reply_without_length(200, b"", CHUNKED), chunk(b"x"))

#: A source that is longer than what is read of both of its ends.
LONG = bytes(range(250)) * 800
START = "0-65535"


def ranged(first: int, last: int, headers: Mapping[str, str] = TAGGED) -> bytes:
    """Return a response with a range of the long source."""
    lines = {**headers, "Content-Range": f"bytes {first}-{last}/{len(LONG)}"}
    return reply(206, LONG[first : last + 1], lines)


#: Responses to the first request and to the test.
FIRST = ranged(0, 65_535)
TESTED = reply(206, length=len(LONG), headers={**TAGGED, "Content-Range": "bytes 0-199999/200000"})


async def look(opened: Input) -> Input:
    """Look at a source without a child."""
    return opened


EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


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
            OriginClient(client, ("origin.test", "*.origin.test"), self.network),
            self.space,
            self.in_thread,
            LIMIT,
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

    def ranged(self, headers: Mapping[str, str] = TAGGED) -> OpenHttpsSource:
        """Open the long source, of an origin with ranges."""
        return self.opened(ranged(0, 65_535, headers))

    def whole(self, *responses: Any) -> OpenHttpsSource:
        """Open a source of an origin that responds with the whole, as it does by default."""
        return self.opened(*(responses or (WHOLE,)))

    def content(self, found: OpenHttpsSource) -> bytes:
        """Return the content of a copy."""
        return os.pread(found.descriptors[SOURCE_DESCRIPTOR], 10**6, 0)

    def fetch(self, found: OpenHttpsSource, *responses: Any, seconds: float = 60) -> Deferred[Any]:
        """Start to fetch the whole source."""
        self.network.scripts += responses
        return self.begin(found.input(self.deadline(seconds)))


class OpenTests(OriginCase):
    """`HttpsSources.open`: requests, and interpretation of the responses."""

    def test_one_request(self) -> None:
        """One GET of the start is sufficient; it accepts no compression."""
        for response, size in ((WHOLE, 10), (FIRST, 200_000)):
            self.network.requests.clear()
            found = self.opened(response)
            self.assertEqual([f"GET /a/b?c bytes={START}"], self.recorded_requests)
            self.assertEqual("identity", self.network.requests[0].headers["accept-encoding"])
            self.assertEqual(
                (size, b'"1" %d' % size, {}),
                (found.size, found.validator, dict(found.descriptors)),
            )
            found.close()

    def test_ranges_that_are_refused(self) -> None:
        """If an error may be for the range alone, the service requests the whole."""
        for status in (400, 416, 501):
            self.network.requests.clear()
            found = self.opened(reply(status), WHOLE)
            self.assertEqual([f"GET /a/b?c bytes={START}", "GET /a/b?c"], self.recorded_requests)
            self.assertEqual(10, found.size)
            found.close()

    def test_size(self) -> None:
        """The size is that of the whole source, or None if the origin does not send it."""
        for response, size in (
            (SAME, 7),
            (reply(206, b"x", {"Content-Range": "bytes 0-0/9"}), 9),
            (reply(206, b"x", {"Content-Range": "bytes 0-0/*"}), None),
            (reply(206, b"x", {"Content-Range": "bytes 0-0/" + "9" * 5000}), None),
            (reply(206, b"x"), None),
            (reply(203, b"x" * 7), 7),
            (UNSIZED, None),
        ):
            found = self.opened(response)
            self.assertEqual(size, found.size, response)
            found.close()

    def test_validator(self) -> None:
        """The validator is the ETag, or else Last-Modified, with the size.

        All forms of one tag are the same validator. A date that is as recent as the response is
        none. The identity of a source that is read in place is certain, where it has a validator.
        """
        then, recent = "Wed, 25 Nov 2026 10:00:00 GMT", "Wed, 25 Nov 2026 10:00:01 GMT"
        late = "Wed, 25 Nov 2026 10:00:02 GMT"
        for headers, validator in (
            (TAGGED, b'"1" 200000'),
            *(
                ({"ETag": it}, b'"1" 200000')
                for it in ('W/"1"', '"1-gzip"', '"1"-gzip', 'W/"1;br"')
            ),
            ({"ETag": '"gzip"'}, b'"gzip" 200000'),
            ({"Last-Modified": "then"}, b"then 200000"),
            ({"Last-Modified": then, "Date": late}, then.encode() + b" 200000"),
            ({"Last-Modified": then, "Date": recent}, b""),
            ({"Last-Modified": then, "Date": then}, b""),
            ({"Last-Modified": late, "Date": then}, b""),
            ({"Last-Modified": then, "Date": "now"}, then.encode() + b" 200000"),
            ({"Last-Modified": then, "Date": then, "ETag": '"1"'}, b'"1" 200000'),
            ({"ETag": '"\xe9"'}, b'"\xe9" 200000'),
            ({}, b""),
        ):
            found = self.opened(ranged(0, 65_535, headers))
            self.assertEqual(validator, found.validator, headers)
            self.assertIs(bool(validator), found.has_certain_identity())
            self.assertEqual(SOURCE.canonical + b"\n" + validator, found.identity)
            found.close()

    def test_statuses(self) -> None:
        """Each error status is the same refusal with and without a range."""
        for kind, statuses in (
            (NotFound, "401 402 403 404 405 406 409 410 411 412 414 418 421 451 499"),
            (UpstreamUnavailable, "408 425 429 500 502 503 504 507 511 599"),
        ):
            for status in map(int, statuses.split()):
                self.refused(kind, reply(status))
                self.refused(kind, reply(416), reply(status))
        for status, kind in ((400, NotFound), (501, UpstreamUnavailable)):
            self.refused(kind, reply(status), reply(status))

    def test_no_source(self) -> None:
        """A source whose status has no source body can be opened; reading it is a 415 (D48).

        So is a source with a Content-Encoding that was not requested. HEAD requests only open the
        source, and therefore succeed.
        """
        statuses = (201, 202, 204, 205, 207, 226, 300, 304, 305, 306)
        codings = ("gzip", "br", "GZIP", "identity, gzip", "aws-chunked,gzip")
        empty = reply(416, b"", {"Content-Range": "bytes */0"})
        for responses in (
            *((reply(status),) for status in statuses),
            *((reply(416), reply(status)) for status in (*statuses, 416)),
            *((reply(200, length=7, headers={"Content-Encoding": it}),) for it in codings),
            *((ranged(0, 65_535, {**TAGGED, "Content-Encoding": it}),) for it in codings),
            (empty,),
        ):
            found = self.opened(*responses)
            requests = len(self.recorded_requests)
            self.error_of(found.inspect(self.deadline(60), look), UndecodableSource)
            self.error_of(found.input(self.deadline(60)), UndecodableSource)
            self.assertEqual(requests, len(self.recorded_requests))
            found.close()
        for coding in ("identity", "Identity", "aws-chunked", "none", "utf-8", "identity, binary"):
            self.origins.reliable.clear()
            found = self.opened(ranged(0, 65_535, {**TAGGED, "Content-Encoding": coding}))
            self.network.scripts.append(TESTED)
            self.assertTrue(self.result_of(found.inspect(self.deadline(60), look)).seekable)
            found.close()

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
        found.close()
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
        """Five redirects are followed; a sixth is a 502 (D41, D48)."""
        self.assertEqual(5, len(self.follow(*(f"/{n}" for n in range(5)))))
        self.network.requests.clear()
        hop = redirect("/x")
        self.refused(UnusableOrigin, *[hop] * 6)
        self.assertEqual(6, len(self.network.requests))
        self.refused(UnusableOrigin, *[reply(416), hop] * 6)
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
        return OriginState(SOURCE, size, tag, modified)

    def test_matches(self) -> None:
        """Two states match if ETag or Last-Modified is equal; different sizes never match.

        Tags are compared weakly (RFC 9110, 8.8.3.2), and without the suffixes of compression. Two
        states that do not match contradict each other only if there is something to compare.
        """
        for first, second, verdict in (
            ((7, "a", "x"), (7, "a", "x"), True),
            ((7, 'W/"a"', ""), (7, '"a"', ""), True),
            ((7, '"a"', ""), (7, 'W/"a-gzip"', ""), True),
            ((7, '"a;br"', ""), (7, '"a"', ""), True),
            ((7, '"a-gzip"', ""), (7, '"b-gzip"', ""), False),
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
            ((7, "a", ""), (7, "", "x"), None),
            ((7, "", "x"), (7, "a", "y"), False),
            ((7, "a", "x"), (7, "", ""), None),
            ((7, "a", ""), (7, "b", ""), False),
            ((7, "", "x"), (7, "", "y"), False),
        ):
            states = self.state(*first), self.state(*second)
            self.assertIs(bool(verdict), states[0].matches(states[1]), (first, second))
            self.assertIs(verdict is False, states[0].contradicts(states[1]), (first, second))

    def test_unchanged(self) -> None:
        """The change check requests the original URL; an unavailable origin counts as unchanged."""
        byte = {"Content-Range": "bytes 0-0/200000"}
        same = reply(206, b"x", {**TAGGED, **byte})
        for responses, verdict in (
            ((same,), True),
            ((reply(416), reply(200, length=200_000, headers=TAGGED)), True),
            ((redirect("/new"), same), True),
            ((reply(206, b"x", byte),), True),
            ((reply(206, b"x", {**TAGGED, "Content-Range": "bytes 0-0/8"}),), False),
            ((reply(200, length=8, headers=TAGGED),), False),
            ((reply(206, b"x", {"ETag": '"2"', **byte}),), False),
            ((reply(404),), False),
            ((reply(204),), False),
            ((reply(302),), False),
            ((redirect("https://c.test/"),), False),
            ((reply(206, b"x", {**TAGGED, **byte, "Content-Encoding": "br"}),), False),
            ((redirect("/x"),) * 6, False),
            ((reply(503),), True),
            ((reset_connection, reset_connection), True),
        ):
            self.origins.unreliable.clear()
            found = self.opened(redirect("/old"), FIRST)
            self.network.scripts += responses
            self.network.requests.clear()
            self.assertIs(verdict, self.result_of(found.unchanged()), responses)
            self.assertEqual("GET /a/b?c bytes=0-0", self.recorded_requests[0])
            found.close()

    def test_nothing_to_compare(self) -> None:
        """Without ETag and Last-Modified, or with a copy, the origin is not asked for changes."""
        for response in (ranged(0, 65_535, {}), WHOLE):
            found = self.opened(response)
            self.network.scripts += [reply(200, LONG)] * (response is not WHOLE)
            self.result_of(found.input(self.deadline(9)))
            self.network.requests.clear()
            self.assertTrue(self.result_of(found.unchanged()))
            self.assertEqual([], self.recorded_requests)
            found.close()


class InputTests(OriginCase):
    """`OpenHttpsSource.inspect` and `input`: reading from the origin, or from a local copy."""

    def see(self, found: OpenHttpsSource, *responses: Any, seconds: float = 60) -> Deferred[Input]:
        """Start to look at a source."""
        self.network.scripts += responses
        return self.begin(found.inspect(self.deadline(seconds), look))

    def assert_in_place(self, opened: Input) -> None:
        """Assert that ffmpeg reads the source at the origin."""
        self.assertEqual((SOURCE.url, True), (opened.url, opened.seekable))
        self.assertEqual("1", opened.options[opened.options.index("-seekable") + 1])
        self.assertIn("/trust.pem", opened.options)
        self.assertIn(USER_AGENT, opened.options)

    def test_in_place(self) -> None:
        """A source with ranges is read in place; one request tests its origin for ever."""
        for responses in ((TESTED,), ()):
            found = self.ranged()
            self.assert_in_place(self.successResultOf(self.see(found, *responses)))
            self.assert_in_place(self.result_of(found.input(self.deadline(10))))
            found.close()
        requests = [f"GET /a/b?c bytes={each}" for each in (START, "0-", START)]
        self.assertEqual(requests, self.recorded_requests)

    def test_tested_without_a_probe(self) -> None:
        """A render whose probe is cached tests the origin, too."""
        found = self.ranged()
        self.assert_in_place(self.successResultOf(self.fetch(found, TESTED)))
        found.close()
        whole = reply(200, length=len(LONG), headers=TAGGED)
        self.origins.reliable.clear()
        found = self.ranged()
        self.assert_in_place(self.successResultOf(self.fetch(found, whole)))
        found.close()

    def test_copied_for_the_first_response(self) -> None:
        """Any other first response is followed by a copy, which is tried once for all."""
        part = {"Content-Range": "bytes 0-65535/200000"}
        for first in (
            (EARLY_HINTS + FIRST,),
            (CONTINUE + FIRST,),
            (ranged(0, 65_534),),
            (ranged(1, 65_535),),
            (ranged(0, 65_536),),
            (ranged(0, 65_535, {}),),
            (reply(206, LONG[:65_536], {**TAGGED, "Content-Range": "bytes 0-65535/*"}),),
            (reply(206, LONG[:65_536], {**TAGGED, "Content-Range": "bytes=0-65535/200000"}),),
            (reply(206, LONG[:65_536], TAGGED),),
            (reply(200, b"x", {"Accept-Ranges": "bytes", **part}), None),
        ):
            found = self.opened(first[0])
            self.network.requests.clear()
            whole = [] if len(first) > 1 else [reply(200, LONG, TAGGED)]
            self.assertEqual(local_input(), self.successResultOf(self.see(found, *whole)), first)
            self.assertEqual(local_input(), self.result_of(found.input(self.deadline(10))))
            self.assertEqual(["GET /a/b?c"] * len(whole), self.recorded_requests)
            self.assertEqual(LONG if whole else b"x", self.content(found))
            found.close()

    def test_copied_for_the_test(self) -> None:
        """If the origin limits its ranges or contradicts itself, the child looks at a copy.

        The next request for the source downloads it at once.
        """
        whole = {**TAGGED, "Content-Range": "bytes 0-199999/200000"}
        for response in (
            ranged(0, 100_000),
            EARLY_HINTS + TESTED,
            reply(206, length=200_000, headers={**whole, "Content-Range": "bytes 0-199999/*"}),
            reply(206, length=200_001, headers={**whole, "Content-Range": "bytes 0-200000/200001"}),
            reply(206, length=200_000, headers={**whole, "ETag": '"2"', "Last-Modified": "now"}),
            reply(206, length=200_000, headers={"Content-Range": whole["Content-Range"]}),
            reply(206, length=200_000, headers={**whole, "Content-Encoding": "gzip"}),
            reply_without_length(200, b"", CHUNKED),
            reply(404),
            reply(503),
            reset_connection,
        ):
            self.origins.unreliable.clear()
            found = self.ranged()
            looked = []

            async def look_forever(opened: Input, looked: list[Input] = looked) -> Input:
                looked.append(opened)
                if opened.seekable and opened != local_input():
                    await Deferred()
                return opened

            self.network.scripts += [response, reply(200, LONG, TAGGED)]
            if response is reset_connection:
                self.network.scripts.insert(0, reset_connection)
            seen = self.result_of(found.inspect(self.deadline(60), look_forever))
            self.assertEqual((local_input(), 2), (seen, len(looked)), response)
            self.assertEqual(local_input(), self.result_of(found.input(self.deadline(10))))
            self.assertTrue(found.has_certain_identity())
            found.close()
            found = self.ranged()
            self.network.requests.clear()
            seen = self.successResultOf(self.see(found, reply(200, LONG, {"ETag": '"3"'})))
            self.assertEqual((local_input(), ["GET /a/b?c"]), (seen, self.recorded_requests))
            self.assertEqual(b'"1" 200000', found.validator)
            self.assertFalse(found.has_certain_identity())
            found.close()
            self.network.advance(3600)
            self.assertNotIn(SOURCE.canonical, self.origins.unreliable)

    def test_look_that_fails(self) -> None:
        """A failed look counts if the origin passes the test, which is awaited."""

        async def fail(opened: Input) -> Input:
            if opened == local_input():
                return opened
            raise UndecodableSource

        for response, passes in ((TESTED, True), (ranged(0, 100_000), False)):
            found = self.ranged()
            looking = self.begin(found.inspect(self.deadline(60), fail))
            self.assertNoResult(looking)
            self.network.scripts.append(reply(200, LONG, TAGGED))
            self.network.peers[-1].send(response)
            self.network.run()
            if passes:
                self.exactly(looking, UndecodableSource)
                self.network.scripts.clear()
                self.origins.reliable.clear()
            else:
                self.assertEqual(local_input(), self.successResultOf(looking))
            found.close()

    def test_look_that_is_cancelled(self) -> None:
        """If the look is cancelled, so is the test."""
        found = self.ranged()

        async def look_forever(opened: Input) -> None:
            await Deferred()

        looking = self.begin(found.inspect(self.deadline(60), look_forever))
        looking.cancel()
        self.exactly(looking, CancelledError)
        self.network.run()
        self.assertTrue(self.network.peers[-1].closed)
        found.close()

    def test_dying_look_that_is_cancelled(self) -> None:
        """A look that nobody waits for is not repeated, whatever the test says meanwhile.

        Its child takes time to die, so the test may fail before or after the cancellation.
        """
        for rejected_first in (False, True):
            found = self.ranged()
            deaths: list[Deferred[None]] = []

            async def look_and_die(opened: Input, deaths: Any = deaths) -> None:
                try:
                    await Deferred()
                finally:
                    deaths.append(Deferred())
                    await deaths[-1]

            looking = self.begin(found.inspect(self.deadline(60), look_and_die))
            steps = [lambda: self.network.peers[-1].send(reply(404)), looking.cancel]
            for step in steps if rejected_first else steps[::-1]:
                step()
                self.network.run()
            self.assertNoResult(looking)
            deaths[0].callback(None)
            self.exactly(looking, CancelledError)
            self.network.run()
            self.assertEqual(1, len(deaths))
            self.assertEqual([], [each for each in self.recorded_requests if "bytes" not in each])
            found.close()
            self.network.requests.clear()

    def test_look_after_close(self) -> None:
        """A look that other requests share goes on when the source is closed."""
        for first, later in ((FIRST, TESTED), (COMING, b"0123456")):
            found = self.opened(first)
            looking = self.begin(found.inspect(self.deadline(60), look))
            found.close()
            self.network.peers[-1].send(later)
            self.network.run()
            self.successResultOf(looking)
            self.assertEqual((0, {}), (self.space.held, dict(found.descriptors)))

    def test_kept_response(self) -> None:
        """A whole body that nobody needed for ten seconds is requested again.

        If that is another version, the source is refused once, since it was probed before.
        """
        for seconds, then, refused in (
            (10, None, False),
            (10.1, WHOLE, False),
            (11, reply(200, b"0123456789", {"ETag": '"2"'}), True),
            (11, reply(200, b"0123456789", {"ETag": '"2"'}), False),
            (11, reply(200, b"0123456789"), False),
        ):
            found = self.whole()
            self.network.advance(seconds)
            fetching = self.fetch(found, *([then] if then is not None else []))
            if refused:
                self.exactly(fetching, RenderFailed)
            else:
                self.assertEqual(local_input(), self.successResultOf(fetching))
                self.assertEqual(b"0123456789", self.content(found))
            found.close()

    def test_unused_response(self) -> None:
        """The body of a response that is not needed is not read."""
        for first in (COMING, FIRST[:-1]):
            found = self.opened(first)
            for _ in range(2):
                found.close()
            self.network.run()
            self.assertTrue(self.network.peers[-1].closed)

    def test_too_large(self) -> None:
        """A source past the limit is inspected in place (Info endpoint, 4); its render is refused.

        That is so with and without a length.
        """
        unsized = (reply_without_length(200, b"", CHUNKED), chunk(b"x" * (LIMIT + 1)), chunk(b""))
        for response in (unsized, reply(200, length=LIMIT + 1, headers=TAGGED)):
            found = self.opened(response)
            for _ in range(2):
                seen = self.successResultOf(self.see(found))
                self.assertEqual((SOURCE.url, False), (seen.url, seen.seekable))
                self.assertEqual("0", seen.options[seen.options.index("-seekable") + 1])
            self.assertEqual((0, False), (self.space.held, found.has_certain_identity()))
            self.error_of(found.input(self.deadline(10)), SourceTooLarge)
            self.assertTrue(self.network.peers[-1].aborted)
            found.close()
        self.assertEqual(2, len(self.recorded_requests))

    def test_slow(self) -> None:
        """If a copy takes half of the time of a look, the source is inspected in place.

        The download continues, and a render waits for it.
        """
        found = self.opened(COMING)
        looking = self.see(found, seconds=10)
        self.network.advance(4.9)
        self.assertNoResult(looking)
        self.network.advance(0.1)
        self.assertFalse(self.successResultOf(looking).seekable)
        fetching = self.fetch(found)
        self.network.peers[-1].send(b"0123456")
        self.network.run()
        self.assertEqual(local_input(), self.successResultOf(fetching))
        self.assertEqual((b"0123456", 1), (self.content(found), len(self.recorded_requests)))
        found.close()

    def test_behind_a_redirect(self) -> None:
        """ffmpeg gets the URL at the end of the redirects."""
        found = self.opened(redirect("https://b.origin.test/x|y"), FIRST)
        seen = self.successResultOf(self.see(found, TESTED))
        self.assertEqual("https://b.origin.test/x%7Cy", seen.url)
        self.assertEqual(
            [f"GET /x%7Cy bytes={START}", "GET /x%7Cy bytes=0-"], self.recorded_requests[1:]
        )
        found.close()

    def test_short_lived(self) -> None:
        """Redirects are followed again before a render that has waited for five seconds."""
        found = self.opened(redirect("/old"), FIRST)
        self.successResultOf(self.see(found, TESTED))
        byte = {"Content-Range": "bytes 0-0/200000"}
        for seconds, responses, url in (
            (4, (), "/old"),
            (1, (redirect("/new"), reply(206, b"x", {**TAGGED, **byte})), "/new"),
            (4, (), "/new"),
        ):
            self.network.advance(seconds)
            opened = self.successResultOf(self.fetch(found, *responses))
            self.assertEqual(f"https://origin.test{url}", opened.url)
        self.network.advance(5)
        other = reply(206, b"x", {**byte, "ETag": '"2"', "Last-Modified": "now"})
        self.exactly(self.fetch(found, redirect("/new"), other), RenderFailed)
        self.assertIn(SOURCE.canonical, self.origins.unreliable)
        found.close()


class CopyTests(OriginCase):
    """Copies of whole sources"""

    def test_copy(self) -> None:
        """The first response is the copy, if it has the whole source; it is removed at the end."""
        small = reply(206, b"0123456789", {"Content-Range": "bytes 0-9/10"})
        in_chunks = (reply_without_length(200, b"", CHUNKED), chunk(b"0123456789"), chunk(b""))
        for response in (WHOLE, small, in_chunks, EARLY_HINTS + WHOLE):
            found = self.opened(response)
            self.network.requests.clear()
            self.assertEqual(local_input(), self.successResultOf(self.fetch(found)))
            self.assertEqual([], self.recorded_requests)
            self.assertEqual((10, b"0123456789"), (found.size, self.content(found)))
            for _ in range(2):
                found.close()
                self.assertEqual({}, dict(found.descriptors))

    def test_certain_identity(self) -> None:
        """A copy certainly is what the response said that it is, if that had a validator."""
        for response, expected in ((WHOLE, True), (reply(200, b"0123456789"), False)):
            found = self.opened(response)
            self.assertFalse(found.has_certain_identity())
            self.successResultOf(self.fetch(found))
            self.assertIs(expected, found.has_certain_identity())
            found.close()

    def test_until_close(self) -> None:
        """A body of unknown length that ends with the connection, without TLS, is a 502 (D48)."""

        def speak(peer: Any, _: object) -> None:
            peer.send(reply_without_length(200, b"0123456789", TAGGED))
            peer.close()

        found = self.opened(speak)
        self.error_of(found.inspect(self.deadline(60), look), UpstreamUnavailable)
        self.error_of(found.input(self.deadline(60)), UpstreamUnavailable)
        self.assertEqual(1, len(self.recorded_requests))
        found.close()

    def test_refusals(self) -> None:
        """If the response is an error, or has no source, the copy fails and is removed."""
        for kind, response in (
            (NotFound, reply(404)),
            (UpstreamUnavailable, reply(503)),
            (UpstreamUnavailable, reply(206, b"x", {**TAGGED, "Content-Range": "bytes 0-0/10"})),
            (UndecodableSource, reply(204)),
            (UndecodableSource, reply(200, b"0123456789", {**TAGGED, "Content-Encoding": "br"})),
        ):
            found = self.opened(reply(206, b"x"))
            self.exactly(self.fetch(found, response), kind)
            self.assertEqual(({}, 0), (dict(found.descriptors), self.space.held))
            found.close()

    def test_cut(self) -> None:
        """A copy that is truncated or has another length than announced is a 502 and is removed."""
        for packets in (
            (reply(200, b"01234", TAGGED, length=10),),
            (reply_without_length(200, chunk(b"01234"), CHUNKED),),
            (reply_without_length(200, b"8\r\n01234", CHUNKED),),
        ):

            def speak(peer: Peer, _: object, said: tuple[bytes, ...] = packets) -> None:
                peer.send(*said)
                peer.close()

            found = self.opened(speak)
            self.exactly(self.fetch(found), UpstreamUnavailable)
            self.assertEqual(({}, 0), (dict(found.descriptors), self.space.held))
            found.close()

    def test_too_much(self) -> None:
        """A body of unknown length is copied up to the limit; past it, reading stops with 413.

        If the copy's Content-Length exceeds the limit, no scratch file is created.
        """
        for size in (LIMIT, LIMIT + 1):
            body = (reply_without_length(200, b"", CHUNKED), chunk(b"x" * size), chunk(b""))
            found = self.opened(body)
            fetching = self.fetch(found)
            if size == LIMIT:
                self.successResultOf(fetching)
            else:
                self.assertIn(str(LIMIT), self.exactly(fetching, SourceTooLarge).message)
                self.assertTrue(self.network.peers[-1].aborted)
            found.close()
        made = len(self.space.made)
        found = self.opened(reply(200, length=10 * LIMIT, headers=TAGGED))
        self.exactly(self.fetch(found), SourceTooLarge)
        self.assertEqual(made, len(self.space.made))
        found.close()

    def test_no_room(self) -> None:
        """If a copy cannot be created or written, the response is 500."""
        full = OSError(errno.ENOSPC, "No space left on device")
        for response, refusal, thread_error in (
            (WHOLE, full, None),
            (reply(200, b"0" * 9, TAGGED, length=10), full, None),
            (WHOLE, None, full),
        ):
            found = self.opened(response)
            self.space.refusal, self.thread_error = refusal, thread_error
            self.exactly(self.fetch(found), RenderFailed)
            found.close()
            self.space.refusal = self.thread_error = None

    def test_copy_that_nobody_awaits(self) -> None:
        """A copy that ends when all who waited for it are gone is removed with its source."""
        for closed_first in (False, True):
            found = self.opened(COMING)
            fetching = self.fetch(found)
            fetching.cancel()
            self.exactly(fetching, CancelledError)
            if closed_first:
                found.close()
            self.network.peers[-1].send(b"0123456")
            self.network.run()
            found.close()
            self.assertEqual(0, self.space.held)

    def test_no_file_for_a_copy(self) -> None:
        """If the creation of the file is given up, so is the response."""
        found = self.opened(COMING)
        creating: Deferred[AnonymousFile] = Deferred()
        self.patch(self.space, "create", lambda seconds: creating)
        fetching = self.fetch(found)
        found.close()
        self.network.run()
        self.exactly(fetching, CancelledError)
        self.assertTrue(self.network.peers[-1].closed)


class ReadTests(OriginCase):
    """`OpenHttpsSource.read`"""

    def test_ranges(self) -> None:
        """A range is requested, again where the origin returns only its beginning (D57)."""
        found = self.ranged()
        for parts in (
            ("70000-70002",),
            ("70000-70001", "70002-70002"),
            ("70000-70000", "70001-70001", "70002-70002"),
        ):
            self.network.requests.clear()
            self.network.scripts += [ranged(*map(int, part.split("-"))) for part in parts]
            self.assertEqual(self.result_of(found.read(70_000, 3)), LONG[70_000:70_003])
            asked = [f"GET /a/b?c bytes={part.split('-')[0]}-70002" for part in parts]
            self.assertEqual(asked, self.recorded_requests)
        found.close()

    def test_both_ends(self) -> None:
        """The start is read with the first request, the end with one more, when it is needed."""
        found = self.ranged()
        for offset, count in ((0, 9), (65_000, 536)):
            expected = LONG[offset : offset + count]
            self.assertEqual(expected, self.result_of(found.read(offset, count)), offset)
        self.assertEqual(1, len(self.recorded_requests))
        self.network.scripts.append(ranged(134_464, 199_999))
        for offset, count in ((199_999, 1), (134_464, 65_536), (150_000, 9)):
            expected = LONG[offset : offset + count]
            self.assertEqual(expected, self.result_of(found.read(offset, count)), offset)
        self.assertEqual("GET /a/b?c bytes=134464-199999", self.recorded_requests[-1])
        self.assertEqual(2, len(self.recorded_requests))
        self.network.scripts.append(ranged(65_000, 65_999))
        self.assertEqual(LONG[65_000:66_000], self.result_of(found.read(65_000, 1000)))
        found.close()

    def test_start_that_fails(self) -> None:
        """Bytes of the start that did not arrive are requested when they are needed."""
        found = self.opened(FIRST[:-1])
        self.network.peers[-1].reset()
        self.network.run()
        self.network.scripts.append(ranged(0, 8))
        self.assertEqual(LONG[:9], self.result_of(found.read(0, 9)))
        found.close()

    def test_errors(self) -> None:
        """An error status, or a body that is cut off, is a failed source."""
        for refusal, response in (
            (UpstreamUnavailable, reply(503)),
            (NotFound, reply(404)),
            (UpstreamUnavailable, ranged(70_000, 70_002)[:-1]),
        ):
            found = self.ranged()
            self.network.scripts.append(response)
            reading = self.begin(found.read(70_000, 3))
            if response.endswith(LONG[70_000:70_002]):
                self.network.peers[-1].close()
                self.network.run()
            self.exactly(reading, refusal)
            found.close()

    def test_disagreement(self) -> None:
        """Another version, or something else than the range, is followed by a copy.

        The copy must be what was probed: it has the same size and the same start.
        """
        other_tag = {"ETag": '"2"', "Last-Modified": "now"}
        short = [ranged(first, first) for first in range(70_000, 70_008)]
        for responses in (
            [ranged(70_000, 70_009, other_tag)],
            [ranged(70_000, 70_009, {})],
            [ranged(69_999, 70_009)],
            [ranged(70_000, 70_010)],
            [reply(206, b"0" * 9, {**TAGGED, "Content-Range": "bytes 70000-70009/200000"})],
            [reply(206, b"0" * 11, {**TAGGED, "Content-Range": "bytes 70000-70009/200000"})],
            [reply(206, b"0" * 10, {**TAGGED, "Content-Range": "bytes 70000-70009/*"})],
            [reply(200, length=200_000, headers=TAGGED)],
            [reply(204)],
            # An origin that returns a byte at a time does not hold a render.
            short,
        ):
            for copy, refusal in (
                (reply(200, LONG, {"ETag": '"3"'}), None),
                (reply(200, LONG + b"x"), RenderFailed),
                (reply(200, b"x" + LONG[1:]), RenderFailed),
                (reply(404), NotFound),
            ):
                self.origins.unreliable.clear()
                found = self.ranged()
                self.network.scripts += [*responses, copy]
                reading = self.begin(found.read(70_000, 10))
                if refusal is None:
                    self.assertEqual(LONG[70_000:70_010], self.successResultOf(reading))
                    self.assertEqual(local_input(), self.result_of(found.input(self.deadline(9))))
                else:
                    self.exactly(reading, refusal)
                self.assertIn(SOURCE.canonical, self.origins.unreliable)
                found.close()

    def test_copy(self) -> None:
        """A copy is read without a request, and has the size of the file."""
        found = self.opened(reply_without_length(200, b"", CHUNKED))
        self.network.peers[-1].send(chunk(b"0123456789"), chunk(b""))
        self.assertEqual(self.result_of(found.read(3, 4)), b"3456")
        self.assertEqual((10, 1), (found.size, len(self.recorded_requests)))
        self.thread_error = OSError(11, "no thread")
        self.error_of(found.read(3, 4), RenderFailed)
        self.thread_error = None
        found.close()


class DeadlineTests(OriginCase):
    """Deadlines of requests to the origin."""

    def test_body(self) -> None:
        """A render that waits for a copy ends with TimeoutError when the given time is over."""
        found = self.opened(reply(200, length=10, headers=TAGGED))
        fetching = self.fetch(found, seconds=9)
        for _ in range(8):
            self.network.advance(1)
            self.network.peers[-1].send(b"x")
        self.network.run()
        self.assertNoResult(fetching)
        self.network.advance(1)
        self.exactly(fetching, TimeoutError)
        found.close()
        self.network.run()
        self.assertEqual((True, 0), (self.network.peers[-1].aborted, self.space.held))

    def test_stall(self) -> None:
        """A copy without progress for thirty seconds is a 502."""
        found = self.opened(COMING)
        fetching = self.fetch(found, seconds=90)
        self.network.advance(29.9)
        self.assertNoResult(fetching)
        self.network.advance(0.1)
        self.exactly(fetching, UpstreamUnavailable)
        found.close()

    def test_silence(self) -> None:
        """A test without a response ends with TimeoutError when the given time is over.

        If no time is left, it ends at once.
        """
        for seconds in (5, -1):
            for begin in (
                lambda found, given: found.inspect(self.deadline(given), look),
                lambda found, given: found.input(self.deadline(given)),
            ):
                found = self.ranged()
                asking = self.begin(begin(found, seconds))
                self.network.advance(max(0, seconds))
                self.exactly(asking, TimeoutError)
                self.network.run()
                self.assertTrue(self.network.peers[-1].closed or seconds < 0)
                found.close()

    def test_stalling_everywhere(self) -> None:
        """Each request of a lookup may take fifteen seconds."""
        for responses in ((), (reply(416),)):
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
        paths = [request.split()[1] for request in self.recorded_requests]
        self.assertEqual(["/a/b?c", "/0", "/1"], paths)
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
        """When a source is closed, its copy is aborted, before or during the body, and removed."""
        for first, responses in ((reply(206, b"x"), ()), (COMING, ())):
            found = self.opened(first)
            fetching = self.fetch(found, *responses)
            self.assertNoResult(fetching)
            fetching.cancel()
            self.exactly(fetching, CancelledError)
            found.close()
            self.network.run()
            self.assertTrue(self.network.peers[-1].closed)
            self.assertEqual(({}, 0), (dict(found.descriptors), self.space.held))
