"""Https sources: requests to the origin, interpretation of responses, and local copies."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, execute
from twisted.internet.error import ConnectionRefusedError
from twisted.logger import formatEvent

from audioproxy.errors import (
    NoSuchSource,
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
from audioproxy.http_client.errors import PrivateAddress, UntrustedCertificate
from audioproxy.media.command.inputs import SOURCE_DESCRIPTOR, Input, local_input
from audioproxy.sources.https import HttpsSources, OpenHttpsSource
from audioproxy.sources.https_origin import OriginClient, OriginState, UnusableOrigin
from tests.support.http import Log
from tests.support.stores import FakeStore
from tests.support.wire import ClientCase, Peer, Script, chunk, reply, reply_without_length

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


def cut(response: bytes) -> Script:
    """Return a script that sends a response and closes the connection."""

    def respond(peer: Peer, _: object) -> None:
        peer.send(response)
        peer.close()

    return respond


class PlaintextClient:
    """`HttpClient` wrapper that requests https URLs without TLS."""

    def __init__(self, outbound: HttpClient) -> None:
        self._outbound = outbound

    async def request(self, method: str, url: str, headers: Mapping[str, str]) -> Response:
        assert url.startswith("https://"), url
        return await self._outbound.request(method, "http" + url[5:], headers)


class OriginCase(ClientCase):
    """One source of one fake origin at a time, with a fake clock."""

    def setUp(self) -> None:
        super().setUp()
        self.space = FakeStore()
        self.thread_error: OSError | None = None
        client: Any = PlaintextClient(self.client)
        origins = OriginClient(client, ("origin.test", "*.origin.test"), self.network)
        self.origins = HttpsSources(origins, self.space, self.in_thread, LIMIT, 300, "/trust.pem")
        self.last: OpenHttpsSource | None = None

    def tearDown(self) -> None:
        self.close_last()
        self.assertEqual(0, self.copies, "a copy was left")
        super().tearDown()

    def in_thread(self, work: Any) -> Any:
        """Run disk work at once, or raise ``thread_error`` if it is set."""
        if self.thread_error is not None:
            raise self.thread_error
        return execute(work)

    @property
    def recorded_requests(self) -> list[str]:
        """The requests since the source was opened, each with its method, target and Range."""
        return [
            " ".join(filter(None, (each.method, each.target, each.headers.get("range"))))
            for each in self.network.requests
        ]

    @property
    def copies(self) -> int:
        """The number of open copies."""
        return sum(not copy._file.closed for copy in self.space.scratches)

    def close_last(self) -> None:
        """Close the source that was opened last."""
        if self.last is not None:
            self.last.close()
            self.assertEqual({}, dict(self.last.descriptors))

    def opened(self, *responses: Any) -> OpenHttpsSource:
        """Open the source with these responses of the origin, and close the one before it."""
        self.close_last()
        self.network.requests.clear()
        self.network.scripts += responses
        self.last = self.result_of(self.origins.open(SOURCE))
        return self.last

    def refused(self, kind: type[Refusal], *responses: Any) -> None:
        """Assert that opening the source is refused after these responses."""
        self.network.scripts += responses
        self.error_of(self.origins.open(SOURCE), kind)
        self.assertEqual([], self.network.scripts)

    def respond(self, *packets: bytes) -> None:
        """Send packets from the origin."""
        self.peer.send(*packets)
        self.network.run()

    def content(self, found: OpenHttpsSource) -> bytes:
        """Return the content of a copy."""
        return os.pread(found.descriptors[SOURCE_DESCRIPTOR], 10**6, 0)

    def fetch(self, found: OpenHttpsSource, *responses: Any, seconds: float = 60) -> Deferred[Any]:
        """Start to fetch the whole source."""
        self.network.scripts += responses
        return self.begin(found.input(self.deadline(seconds)))

    def see(self, found: OpenHttpsSource, *responses: Any, seconds: float = 60) -> Deferred[Input]:
        """Start to look at a source."""
        self.network.scripts += responses
        return self.begin(found.inspect(self.deadline(seconds), look))


class OpenTests(OriginCase):
    """`HttpsSources.open`: requests, and interpretation of the responses."""

    def test_one_request(self) -> None:
        """One GET of the start is sufficient; it accepts no compression."""
        for response, size in ((WHOLE, 10), (FIRST, 200_000)):
            found = self.opened(response)
            self.assertEqual([f"GET /a/b?c bytes={START}"], self.recorded_requests)
            self.assertEqual("identity", self.network.requests[0].headers["accept-encoding"])
            self.assertEqual((size, b'"1" %d' % size), (found.size, found.validator))
            self.assertEqual({}, dict(found.descriptors))

    def test_ranges_that_are_refused(self) -> None:
        """If an error may be for the range alone, the service requests the whole."""
        for status in (400, 416, 501):
            self.assertEqual(10, self.opened(reply(status), WHOLE).size)
            self.assertEqual([f"GET /a/b?c bytes={START}", "GET /a/b?c"], self.recorded_requests)

    def test_size(self) -> None:
        """The size is that of the whole source, or None if the origin does not send it."""
        sizes = {
            SAME: 7,
            reply(206, b"x", {"Content-Range": "bytes 0-0/9"}): 9,
            reply(206, b"x", {"Content-Range": "bytes 0-0/*"}): None,
            reply(206, b"x", {"Content-Range": "bytes 0-0/" + "9" * 5000}): None,
            reply(206, b"x"): None,
            reply(203, b"x" * 7): 7,
            UNSIZED: None,
        }
        self.assertEqual(sizes, {response: self.opened(response).size for response in sizes})

    def test_validator(self) -> None:
        """The validator is the ETag, or else Last-Modified, with the size.

        All forms of one tag are the same validator. A date that is as recent as the response is
        none. The identity of a source that is read in place is certain, where it has a validator.
        """
        then, recent = "Wed, 25 Nov 2026 10:00:00 GMT", "Wed, 25 Nov 2026 10:00:01 GMT"
        late = "Wed, 25 Nov 2026 10:00:02 GMT"
        forms = ('W/"1"', '"1-gzip"', '"1"-gzip', 'W/"1;br"')
        for headers, version in (
            (TAGGED, '"1"'),
            *(({"ETag": it}, '"1"') for it in forms),
            ({"ETag": '"gzip"'}, '"gzip"'),
            ({"Last-Modified": "then"}, "then"),
            ({"Last-Modified": then, "Date": late}, then),
            ({"Last-Modified": then, "Date": recent}, ""),
            ({"Last-Modified": then, "Date": then}, ""),
            ({"Last-Modified": late, "Date": then}, ""),
            ({"Last-Modified": then, "Date": "now"}, then),
            ({"Last-Modified": then, "Date": then, "ETag": '"1"'}, '"1"'),
            ({"ETag": '"\xe9"'}, '"\xe9"'),
            ({}, ""),
        ):
            found = self.opened(ranged(0, 65_535, headers))
            validator = f"{version} 200000".encode("latin-1") if version else b""
            self.assertEqual(validator, found.validator, headers)
            self.assertIs(bool(validator), found.has_certain_identity())
            self.assertEqual(SOURCE.canonical + b"\n" + validator, found.identity)

    def test_statuses(self) -> None:
        """Each error status is the same refusal with and without a range."""
        for kind, statuses in (
            (NotFound, (401, 403, 409, 499)),
            (NoSuchSource, (404, 410)),
            (UpstreamUnavailable, (408, 425, 429, 500, 503, 599)),
        ):
            for status in statuses:
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
        for responses in (
            *((reply(status),) for status in statuses),
            *((reply(416), reply(status)) for status in (*statuses, 416)),
            *((reply(200, length=7, headers={"Content-Encoding": it}),) for it in codings),
            *((ranged(0, 65_535, {**TAGGED, "Content-Encoding": it}),) for it in codings),
            (reply(416, b"", {"Content-Range": "bytes */0"}),),
        ):
            found = self.opened(*responses)
            requests = len(self.recorded_requests)
            self.exactly(self.see(found), UndecodableSource)
            self.exactly(self.fetch(found), UndecodableSource)
            self.assertEqual(requests, len(self.recorded_requests))
        for coding in ("identity", "Identity", "aws-chunked", "none", "utf-8", "identity, binary"):
            self.origins.reliable.clear()
            found = self.opened(ranged(0, 65_535, {**TAGGED, "Content-Encoding": coding}))
            self.assertTrue(self.successResultOf(self.see(found, TESTED)).seekable)

    def test_unreachable(self) -> None:
        """An origin that cannot be reached, or is not trusted, is a 502, and is logged."""
        log = Log(self)
        self.network.refusal = ConnectionRefusedError()
        self.network.unknown.add("origin.test")
        self.error_of(self.origins.open(SOURCE), UpstreamUnavailable)

        async def refuse(*_: object) -> Response:
            raise UntrustedCertificate("it has expired")

        self.patch(PlaintextClient, "request", refuse)
        self.error_of(self.origins.open(SOURCE), UnusableOrigin)
        first, second = map(formatEvent, log.events)
        self.assertIn("the origin origin.test is unreachable: ", first)
        self.assertEqual("the origin origin.test is not trusted: it has expired", second)


class RedirectTests(OriginCase):
    """Redirects, which the service follows itself."""

    def follow(self, *locations: str, status: int = 302) -> list[str]:
        """Follow redirects, and return the requests after the first, each as host and target."""
        hops = [reply(status, b"", {"Location": to}) for to in locations]
        self.assertEqual(1, self.opened(*hops, reply(200, length=1)).size)
        return [f"{each.headers['host']}{each.target}" for each in self.network.requests[1:]]

    def test_locations(self) -> None:
        """A Location is resolved against the previous URL, as browsers do."""
        targets = {
            "/x": "origin.test/x",
            "x": "origin.test/a/x",
            "../x": "origin.test/x",
            "?x": "origin.test/a/b?x",
            "#x": "origin.test/a/b?c",
            "": "origin.test/a/b?c",
            "//b.origin.test/x": "b.origin.test/x",
            "https://ORIGIN.test.:443/x": "origin.test/x",
            "HTTPS://origin.test": "origin.test/",
            "https://b.origin.test:8443/x/../y%2f//z": "b.origin.test:8443/x/../y%2f//z",
            "/x?u=https://c.test/": "origin.test/x?u=https://c.test/",
            "https:/c.test/x": "origin.test/c.test/x",
            "https:\\\\c.test": "origin.test/a/%5C%5Cc.test",
            "https://": "origin.test/a/b?c",
            "//": "origin.test/a/b?c",
            # Bytes that a URL cannot have are encoded: a space, UTF-8 and Latin-1.
            "/a b?c d": "origin.test/a%20b?c%20d",
            "/\xc3\xa9%C3%A9": "origin.test/%C3%A9%C3%A9",
            "https://b.origin.test/\xe9": "b.origin.test/%E9",
            "\x01": "origin.test/a/%01",
        }
        for status in (301, 302, 303, 307, 308):
            found = {place: self.follow(place, status=status) for place in targets}
            self.assertEqual({place: [there] for place, there in targets.items()}, found)

    def test_semicolon(self) -> None:
        """A semicolon in a Location or in the previous URL is an ordinary character."""
        self.assertEqual(["origin.test/x;"], self.follow("/x;"))
        there = [f"origin.test/{path}" for path in ("x;y", "x;y?a;b;", ";", "z;?c")]
        self.assertEqual(there, self.follow("/x;y", "?a;b;", ";", "./z;?c"))

    def test_invalid_locations(self) -> None:
        """A redirect without Location, or to anything but a valid https URL, is a 404 (D48)."""
        for place in (
            *"http://origin.test/ HTTP://origin.test/ file:///etc/passwd concat:/a local://a".split(),
            *"s3://bucket/key tcp://origin.test:80 https://me:secret@origin.test/".split(),
            *"https://[::1/ https://origin.test:99999/ https://origin.test:x/".split(),
            *"https://a..test/ https://\xe9.test/ https://%6frigin.test/ https://:443/".split(),
            *("https://a b.test/", "/" + "x" * 2048),
        ):
            self.refused(NotFound, redirect(place))
        self.refused(NotFound, reply(302))
        self.assertEqual({"origin.test"}, {*self.network.names})

    def test_five(self) -> None:
        """Five redirects are followed; a sixth is a 502, as in a loop (D41, D48)."""
        self.assertEqual(5, len(self.follow(*(f"/{n}" for n in range(5)))))
        self.network.requests.clear()
        hop = redirect("/x")
        self.refused(UnusableOrigin, *[hop] * 6)
        self.assertEqual(6, len(self.network.requests))
        self.refused(UnusableOrigin, *[reply(416), hop] * 6)
        self.assertTrue(issubclass(UnusableOrigin, UpstreamUnavailable))

    def test_allowlist(self) -> None:
        """Each redirect target must be on the allowlist; a refused host name is not resolved."""
        for place in (
            *"https://c.test/ //origin.test.evil.test/ https://127.0.0.1/ https://[::1]/".split(),
            *"https://[::ffff:127.0.0.1]/ https://2130706433/ https://origin.test@c.test/".split(),
            *("https://origin.test\\@c.test/", "https://c.test#@origin.test/"),
        ):
            self.refused(NotFound, redirect(place))
            near = redirect("https://b.origin.test/")
            self.refused(NotFound, near, reply(307, b"", {"Location": place}))
        self.assertEqual({"origin.test", "b.origin.test"}, {*self.network.names})


class PrivateTests(OriginCase):
    """Headers for origins, and origins at private addresses (D59)."""

    def setUp(self) -> None:
        super().setUp()
        headers = {
            "origin.test": {"Authorization": "Bearer s3cret", "X-Key": "a, b"},
            "b.origin.test:8443": {"Cookie": "s3cret=1"},
        }
        self.origins.origins = replace(self.origins.origins, headers=headers)

    @property
    def sent(self) -> list[list[str]]:
        """The headers of the last requests that no other request has, by name."""
        usual = {"host", "user-agent", "accept-encoding", "range"}
        return [sorted(each.headers.keys() - usual) for each in self.network.requests]

    def test_one_host(self) -> None:
        """A header is sent to its host and port alone, also behind redirects and for a copy."""
        key, cookie, none = ["authorization", "x-key"], ["cookie"], list[str]()
        for places, sent in (
            (("/x",), [key, key]),
            (("https://origin.test:8443/x", "https://ORIGIN.test.:443/x"), [key, none, key]),
            (("https://b.origin.test/x", "https://b.origin.test:8443/x"), [key, none, cookie]),
            (("https://b.origin.test:8443/x", SOURCE.url), [key, cookie, key]),
            (("https://a.b.origin.test:8443/x",), [key, none]),
        ):
            hops = [redirect(place) for place in places]
            found = self.opened(*hops, FIRST)
            self.assertEqual(sent, self.sent)
            self.successResultOf(self.see(found, *hops, reply(200, LONG, TAGGED)))
            self.assertEqual(sent * 2, self.sent)
            for request, names in zip(self.network.requests, self.sent, strict=True):
                if names == key:
                    self.assertEqual("Bearer s3cret", request.headers["authorization"])
                    self.assertEqual("a, b", request.headers["x-key"])

    def test_copied(self) -> None:
        """A source behind a host with headers is never given to ffmpeg or ffprobe as a URL.

        It is downloaded, or refused where that takes too long or it is too large. The download has
        a time limit of its own.
        """
        public = "https://a.origin.test/x"
        for first in ((FIRST,), (redirect(public), FIRST)):
            found = self.opened(*first)
            whole = (*first[:-1], reply(200, LONG, TAGGED))
            self.assertEqual(local_input(), self.successResultOf(self.see(found, *whole)))
            self.assertEqual(local_input(), self.successResultOf(self.fetch(found)))
            self.assertEqual(LONG, self.content(found))
        self.exactly(self.see(self.opened(FIRST), reply(200, length=LIMIT + 1)), SourceTooLarge)
        self.origins.download_timeout = 20
        for rest, seconds in ((b"456", 19), (b"", 20)):
            looking = self.see(self.opened(FIRST), COMING + b"0123", seconds=9)
            self.network.advance(seconds)
            self.respond(rest)
            if rest:
                self.assertEqual(local_input(), self.successResultOf(looking))
            else:
                self.exactly(looking, TimeoutError)

    def test_other_target_later(self) -> None:
        """A render fails if a redirect leads to a host with headers once the source is open."""
        old = parse_https(b"https://a.origin.test/old")
        self.network.scripts += (redirect("https://a.origin.test/x"), FIRST)
        found = self.last = self.result_of(self.origins.open(old))
        self.network.advance(5)
        self.exactly(self.fetch(found, redirect(SOURCE.url), FIRST), RenderFailed)

    def test_log(self) -> None:
        """Refused headers are a 404 as any, and a line in the log; no line has a value.

        A response that is not HTTP may repeat the request, and is not quoted.
        """
        log = Log(self)
        for status in (401, 403):
            self.refused(NotFound, reply(status))
            self.refused(NotFound, redirect("https://a.origin.test/"), reply(status))
        self.refused(UpstreamUnavailable, cut(b"SSH-Bearer s3cret\r\n\r\n"))
        lines = list(map(formatEvent, log.events))
        self.assertEqual(3, len(lines), lines)
        for status, line in zip((401, 403), lines, strict=False):
            self.assertIn(f"the origin origin.test responds with {status}: its headers", line)
        self.assertEqual(
            "the origin origin.test is unreachable: the response is not HTTP", lines[2]
        )

    def test_private_address(self) -> None:
        """A host without a public address is a 404, and is logged; sources are copied."""
        self.origins.origins = replace(self.origins.origins, headers={}, deny_private=True)
        found = self.opened(FIRST)
        whole = reply(200, LONG, TAGGED)
        self.assertEqual(local_input(), self.successResultOf(self.see(found, whole)))
        log = Log(self)

        async def refuse(*_: object) -> Response:
            raise PrivateAddress("no address of it is public")

        self.patch(PlaintextClient, "request", refuse)
        self.error_of(self.origins.open(SOURCE), NotFound)
        (line,) = map(formatEvent, log.events)
        text = "the origin origin.test is refused by AP_SOURCE_DENY_PRIVATE: no address of it is"
        self.assertEqual(f"{text} public", line)


class OriginStateTests(OriginCase):
    """Comparison of two states of a source."""

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
            ((7, "a", "x"), (7, "b", "x"), True),
            ((7, "a", "x"), (7, "a", "y"), True),
            ((None, "a", ""), (7, "a", ""), True),
            ((7, "a", "x"), (None, "a", ""), True),
            ((7, "", "x"), (7, "a", ""), None),
            ((7, "", ""), (7, "", ""), True),
            ((None, "", ""), (None, "", ""), True),
            ((7, "a", "x"), (8, "a", "x"), False),
            ((7, "a", "x"), (7, "b", "y"), False),
            ((7, "a", ""), (7, "", "x"), None),
            ((7, "a", "x"), (7, "", ""), None),
            ((7, "a", ""), (7, "b", ""), False),
            ((7, "", "x"), (7, "", "y"), False),
        ):
            one, other = OriginState(SOURCE, *first), OriginState(SOURCE, *second)
            self.assertIs(bool(verdict), one.matches(other), (first, second))
            self.assertIs(verdict is False, one.contradicts(other), (first, second))

    def test_unchanged(self) -> None:
        """The change check requests the original URL; an unavailable origin counts as unchanged."""
        byte = {"Content-Range": "bytes 0-0/200000"}
        same = reply(206, b"x", {**TAGGED, **byte})
        for verdict, rows in (
            (
                True,
                (
                    (same,),
                    (reply(416), reply(200, length=200_000, headers=TAGGED)),
                    (redirect("/new"), same),
                    (reply(206, b"x", byte),),
                    (reply(503),),
                    (reset_connection, reset_connection),
                ),
            ),
            (
                False,
                (
                    (reply(206, b"x", {**TAGGED, "Content-Range": "bytes 0-0/8"}),),
                    (reply(200, length=8, headers=TAGGED),),
                    (reply(206, b"x", {"ETag": '"2"', **byte}),),
                    *((reply(status),) for status in (404, 204, 302)),
                    (redirect("https://c.test/"),),
                    (reply(206, b"x", {**TAGGED, **byte, "Content-Encoding": "br"}),),
                    (redirect("/x"),) * 6,
                ),
            ),
        ):
            for responses in rows:
                self.origins.unreliable.clear()
                found = self.opened(redirect("/old"), FIRST)
                self.network.scripts += responses
                self.network.requests.clear()
                self.assertIs(verdict, self.result_of(found.unchanged()), responses)
                self.assertEqual("GET /a/b?c bytes=0-0", self.recorded_requests[0])

    def test_nothing_to_compare(self) -> None:
        """Without ETag and Last-Modified, or with a copy, the origin is not asked for changes."""
        for responses in ((ranged(0, 65_535, {}), reply(200, LONG)), (WHOLE,)):
            found = self.opened(responses[0])
            self.successResultOf(self.fetch(found, *responses[1:]))
            self.network.requests.clear()
            self.assertTrue(self.result_of(found.unchanged()))
            self.assertEqual([], self.recorded_requests)


class InputTests(OriginCase):
    """`OpenHttpsSource.inspect` and `input`: reading from the origin, or from a local copy."""

    def assert_in_place(self, opened: Input) -> None:
        """Assert that ffmpeg reads the source at the origin."""
        self.assertEqual((SOURCE.url, True), (opened.url, opened.seekable))
        self.assertEqual("1", opened.options[opened.options.index("-seekable") + 1])
        self.assertIn("/trust.pem", opened.options)
        self.assertIn(USER_AGENT, opened.options)

    def test_in_place(self) -> None:
        """A source with ranges is read in place; its origin is tested with one request only."""
        for responses in ((TESTED,), ()):
            found = self.opened(FIRST)
            self.assert_in_place(self.successResultOf(self.see(found, *responses)))
            self.assert_in_place(self.successResultOf(self.fetch(found)))
            requests = [f"GET /a/b?c bytes={each}" for each in (START, "0-")[: len(responses) + 1]]
            self.assertEqual(requests, self.recorded_requests)

    def test_tested_without_a_probe(self) -> None:
        """A render whose probe is cached tests the origin, too."""
        for response in (TESTED, reply(200, length=len(LONG), headers=TAGGED)):
            self.origins.reliable.clear()
            self.assert_in_place(self.successResultOf(self.fetch(self.opened(FIRST), response)))
            self.assertEqual("GET /a/b?c bytes=0-", self.recorded_requests[-1])

    def test_copied_for_the_first_response(self) -> None:
        """Any other first response is followed by a copy, which is tried once for all."""
        part = {"Content-Range": "bytes 0-65535/200000"}
        for first in (
            EARLY_HINTS + FIRST,
            CONTINUE + FIRST,
            ranged(0, 65_534),
            ranged(1, 65_535),
            ranged(0, 65_536),
            ranged(0, 65_535, {}),
            reply(206, LONG[:65_536], {**TAGGED, "Content-Range": "bytes 0-65535/*"}),
            reply(206, LONG[:65_536], {**TAGGED, "Content-Range": "bytes=0-65535/200000"}),
            reply(206, LONG[:65_536], TAGGED),
        ):
            found = self.opened(first)
            self.network.requests.clear()
            seen = self.successResultOf(self.see(found, reply(200, LONG, TAGGED)))
            self.assertEqual([local_input()] * 2, [seen, self.successResultOf(self.fetch(found))])
            self.assertEqual((["GET /a/b?c"], LONG), (self.recorded_requests, self.content(found)))
        found = self.opened(reply(200, b"x", {"Accept-Ranges": "bytes", **part}))
        self.assertEqual(local_input(), self.successResultOf(self.see(found)))
        self.assertEqual((1, b"x"), (len(self.recorded_requests), self.content(found)))

    def test_copied_for_the_test(self) -> None:
        """If the origin limits its ranges or contradicts itself, the child looks at a copy.

        The next request for the source downloads it at once.
        """
        whole = {**TAGGED, "Content-Range": "bytes 0-199999/200000"}
        looked: list[Input] = []

        async def look_forever(opened: Input) -> Input:
            looked.append(opened)
            if opened.seekable and opened != local_input():
                await Deferred()
            return opened

        for responses in (
            [ranged(0, 100_000)],
            [EARLY_HINTS + TESTED],
            *(
                [reply(206, length=size, headers={**whole, **more})]
                for size, more in (
                    (200_000, {"Content-Range": "bytes 0-199999/*"}),
                    (200_001, {"Content-Range": "bytes 0-200000/200001"}),
                    (200_000, {"ETag": '"2"', "Last-Modified": "now"}),
                    (200_000, {"Content-Encoding": "gzip"}),
                )
            ),
            [reply(206, length=200_000, headers={"Content-Range": whole["Content-Range"]})],
            [reply_without_length(200, b"", CHUNKED)],
            [reply(404)],
            [reply(503)],
            [reset_connection] * 2,
        ):
            self.origins.unreliable.clear()
            looked.clear()
            found = self.opened(FIRST)
            self.network.scripts += [*responses, reply(200, LONG, TAGGED)]
            seen = self.result_of(found.inspect(self.deadline(60), look_forever))
            self.assertEqual((local_input(), 2), (seen, len(looked)), responses)
            self.assertEqual(local_input(), self.successResultOf(self.fetch(found)))
            self.assertTrue(found.has_certain_identity())
            found = self.opened(FIRST)
            self.network.requests.clear()
            seen = self.successResultOf(self.see(found, reply(200, LONG, {"ETag": '"3"'})))
            self.assertEqual((local_input(), ["GET /a/b?c"]), (seen, self.recorded_requests))
            self.assertEqual(b'"1" 200000', found.validator)
            self.assertFalse(found.has_certain_identity())
            self.close_last()
            self.network.advance(3600)
            self.assertNotIn(SOURCE.canonical, self.origins.unreliable)

    def test_look_that_fails(self) -> None:
        """A failed look counts if the origin passes the test, which is awaited."""

        async def fail(opened: Input) -> Input:
            if opened == local_input():
                return opened
            raise UndecodableSource

        for response, passes in ((TESTED, True), (ranged(0, 100_000), False)):
            looking = self.begin(self.opened(FIRST).inspect(self.deadline(60), fail))
            self.assertNoResult(looking)
            self.network.scripts[:] = [reply(200, LONG, TAGGED)] * (not passes)
            self.respond(response)
            self.origins.reliable.clear()
            if passes:
                self.exactly(looking, UndecodableSource)
            else:
                self.assertEqual(local_input(), self.successResultOf(looking))

    def test_dying_look_that_is_cancelled(self) -> None:
        """A look that nobody waits for is not repeated, and ends its test.

        Its child takes time to die, so the test may fail before or after the cancellation.
        """
        for rejected_first in (False, True):
            deaths: list[Deferred[None]] = []

            async def look_and_die(opened: Input, deaths: Any = deaths) -> None:
                try:
                    await Deferred()
                finally:
                    deaths.append(Deferred())
                    await deaths[-1]

            looking = self.begin(self.opened(FIRST).inspect(self.deadline(60), look_and_die))
            steps = [lambda: self.peer.send(reply(404)), looking.cancel]
            for step in steps if rejected_first else steps[::-1]:
                step()
                self.network.run()
            self.assertNoResult(looking)
            deaths[0].callback(None)
            self.exactly(looking, CancelledError)
            self.network.run()
            self.assertEqual(1, len(deaths))
            self.assertTrue(self.peer.closed or rejected_first)
            self.assertEqual([], [each for each in self.recorded_requests if "bytes" not in each])

    def test_look_after_close(self) -> None:
        """A look that other requests share goes on when the source is closed."""
        for first, later in ((FIRST, TESTED), (COMING, b"0123456")):
            looking = self.see(self.opened(first))
            self.close_last()
            self.respond(later)
            self.successResultOf(looking)
            self.close_last()
            self.assertEqual(0, self.copies)

    def test_kept_response(self) -> None:
        """A whole body that nobody needed for ten seconds is requested again.

        If that is another version, the source is refused once, since it was probed before.
        """
        other = reply(200, b"0123456789", {"ETag": '"2"'})
        for seconds, responses, refused in (
            (10, (), False),
            (10.1, (WHOLE,), False),
            (11, (other,), True),
            (11, (other,), False),
            (11, (reply(200, b"0123456789"),), False),
        ):
            found = self.opened(WHOLE)
            self.network.advance(seconds)
            fetching = self.fetch(found, *responses)
            if refused:
                self.exactly(fetching, RenderFailed)
            else:
                self.assertEqual(local_input(), self.successResultOf(fetching))
                self.assertEqual(b"0123456789", self.content(found))

    def test_unused_response(self) -> None:
        """The body of a response that is not needed is not read."""
        for first in (COMING, FIRST[:-1]):
            self.opened(first)
            for _ in range(2):
                self.close_last()
            self.network.run()
            self.assertTrue(self.peer.closed)

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
            self.assertEqual((0, False), (self.copies, found.has_certain_identity()))
            self.exactly(self.fetch(found), SourceTooLarge)
            self.assertTrue(self.peer.aborted)
            self.assertEqual(1, len(self.recorded_requests))

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
        self.respond(b"0123456")
        self.assertEqual(local_input(), self.successResultOf(fetching))
        self.assertEqual((b"0123456", 1), (self.content(found), len(self.recorded_requests)))

    def test_behind_a_redirect(self) -> None:
        """ffmpeg gets the URL at the end of the redirects."""
        found = self.opened(redirect("https://b.origin.test/x|y"), FIRST)
        seen = self.successResultOf(self.see(found, TESTED))
        self.assertEqual("https://b.origin.test/x%7Cy", seen.url)
        requests = [f"GET /x%7Cy bytes={each}" for each in (START, "0-")]
        self.assertEqual(requests, self.recorded_requests[1:])

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


class CopyTests(OriginCase):
    """Copies of whole sources"""

    def test_copy(self) -> None:
        """The first response is the copy, if it has the whole source; it is removed at the end.

        A copy certainly is what the response said that it is, if that had a validator.
        """
        small = reply(206, b"0123456789", {"Content-Range": "bytes 0-9/10"})
        in_chunks = (reply_without_length(200, b"", CHUNKED), chunk(b"0123456789"), chunk(b""))
        for response, is_certain in (
            (WHOLE, True),
            (small, False),
            (in_chunks, True),
            (EARLY_HINTS + WHOLE, True),
            (reply(200, b"0123456789"), False),
        ):
            found = self.opened(response)
            self.assertFalse(found.has_certain_identity())
            self.assertEqual(local_input(), self.successResultOf(self.fetch(found)))
            self.assertEqual(1, len(self.recorded_requests))
            self.assertEqual((10, b"0123456789"), (found.size, self.content(found)))
            self.assertIs(is_certain, found.has_certain_identity())
            for _ in range(2):
                self.close_last()

    def test_refusals(self) -> None:
        """If the response is an error, has no source or is cut, the copy fails and is removed.

        That is a 502 for a body that is truncated or has another length than announced, and for one
        of unknown length that ends with the connection, without TLS (D48).
        """
        unknown = reply(206, b"x")
        for kind, responses in (
            (NoSuchSource, (unknown, reply(404))),
            (UpstreamUnavailable, (unknown, reply(503))),
            (UpstreamUnavailable, (unknown, reply(206, b"x", {"Content-Range": "bytes 0-0/10"}))),
            (UndecodableSource, (unknown, reply(204))),
            (UndecodableSource, (unknown, reply(200, b"01", {"Content-Encoding": "br"}))),
            (UpstreamUnavailable, (cut(reply(200, b"01234", TAGGED, length=10)),)),
            (UpstreamUnavailable, (cut(reply_without_length(200, chunk(b"01234"), CHUNKED)),)),
            (UpstreamUnavailable, (cut(reply_without_length(200, b"8\r\n01234", CHUNKED)),)),
            (UpstreamUnavailable, (cut(reply_without_length(200, b"01234", TAGGED)),)),
        ):
            found = self.opened(responses[0])
            for begin in (self.see, self.fetch):
                self.exactly(begin(found, *responses[1:]), kind)
                responses = ()
            self.assertEqual(({}, 0), (dict(found.descriptors), self.copies))

    def test_too_much(self) -> None:
        """A body of unknown length is copied up to the limit; past it, reading stops with 413.

        If the copy's Content-Length exceeds the limit, no scratch file is created.
        """
        for size in (LIMIT, LIMIT + 1):
            body = (reply_without_length(200, b"", CHUNKED), chunk(b"x" * size), chunk(b""))
            fetching = self.fetch(self.opened(body))
            if size == LIMIT:
                self.successResultOf(fetching)
            else:
                self.assertIn(str(LIMIT), self.exactly(fetching, SourceTooLarge).message)
                self.assertTrue(self.peer.aborted)
        made = len(self.space.scratches)
        large = reply(200, length=10 * LIMIT, headers=TAGGED)
        self.exactly(self.fetch(self.opened(large)), SourceTooLarge)
        self.assertEqual(made, len(self.space.scratches))

    def test_no_room(self) -> None:
        """If a copy cannot be created or written, the response is 500."""
        full = OSError(errno.ENOSPC, "No space left on device")
        for response, refusal, thread_error in (
            (WHOLE, full, None),
            (reply(200, b"0" * 9, TAGGED, length=10), full, None),
            (WHOLE, None, full),
        ):
            found = self.opened(response)
            self.space.create_error, self.thread_error = refusal, thread_error
            self.exactly(self.fetch(found), RenderFailed)
            self.space.create_error = self.thread_error = None

    def test_copy_that_nobody_awaits(self) -> None:
        """A copy that ends when all who waited for it are gone is removed with its source.

        If its source is closed first, it is aborted before or during the body.
        """
        for first, closed_first in ((COMING, False), (COMING, True), (reply(206, b"x"), True)):
            fetching = self.fetch(self.opened(first))
            self.assertNoResult(fetching)
            fetching.cancel()
            self.exactly(fetching, CancelledError)
            if closed_first:
                self.close_last()
                self.network.run()
                self.assertTrue(self.peer.closed)
            else:
                self.respond(b"0123456")
            self.close_last()
            self.assertEqual(0, self.copies)

    def test_no_file_for_a_copy(self) -> None:
        """If the creation of the file is given up, so is the response."""
        found = self.opened(COMING)
        creating: Deferred[AnonymousFile] = Deferred()
        self.patch(self.space, "create", lambda seconds: creating)
        fetching = self.fetch(found)
        found.close()
        self.network.run()
        self.exactly(fetching, CancelledError)
        self.assertTrue(self.peer.closed)


class ReadTests(OriginCase):
    """`OpenHttpsSource.read`"""

    def test_ranges(self) -> None:
        """A range is requested, again where the origin returns only its beginning (D57)."""
        found = self.opened(FIRST)
        for ends in ((70_002,), (70_001, 70_002), (70_000, 70_001, 70_002)):
            starts = (70_000, *(end + 1 for end in ends[:-1]))
            self.network.requests.clear()
            self.network.scripts += map(ranged, starts, ends)
            self.assertEqual(self.result_of(found.read(70_000, 3)), LONG[70_000:70_003])
            asked = [f"GET /a/b?c bytes={start}-70002" for start in starts]
            self.assertEqual(asked, self.recorded_requests)

    def test_both_ends(self) -> None:
        """The start is read with the first request, the end with one more, when it is needed.

        Bytes of the start that did not arrive are requested again.
        """
        found = self.opened(FIRST)

        def read(offset: int, count: int) -> None:
            expected = LONG[offset : offset + count]
            self.assertEqual(expected, self.result_of(found.read(offset, count)), offset)

        read(0, 9)
        read(65_000, 536)
        self.assertEqual(1, len(self.recorded_requests))
        self.network.scripts.append(ranged(134_464, 199_999))
        read(199_999, 1)
        read(134_464, 65_536)
        read(150_000, 9)
        self.assertEqual(["GET /a/b?c bytes=134464-199999"], self.recorded_requests[1:])
        self.network.scripts.append(ranged(65_000, 65_999))
        read(65_000, 1000)
        found = self.opened(FIRST[:-1])
        self.peer.reset()
        self.network.run()
        self.network.scripts.append(ranged(0, 8))
        read(0, 9)

    def test_errors(self) -> None:
        """An error status, or a body that is cut off, is a failed source."""
        for refusal, response in (
            (UpstreamUnavailable, reply(503)),
            (NoSuchSource, reply(404)),
            (UpstreamUnavailable, cut(ranged(70_000, 70_002)[:-1])),
        ):
            found = self.opened(FIRST)
            self.network.scripts.append(response)
            self.error_of(found.read(70_000, 3), refusal)

    def test_disagreement(self) -> None:
        """Another version, or something else than the range, is followed by a copy.

        The copy must be what was probed: it has the same size and the same start.
        """
        other_tag = {"ETag": '"2"', "Last-Modified": "now"}
        for responses in (
            [ranged(70_000, 70_009, other_tag)],
            [ranged(70_000, 70_009, {})],
            [ranged(69_999, 70_009)],
            [ranged(70_000, 70_010)],
            *(
                [reply(206, b"0" * count, {**TAGGED, "Content-Range": f"bytes 70000-70009/{size}"})]
                for count, size in ((9, 200_000), (11, 200_000), (10, "*"))
            ),
            [reply(200, length=200_000, headers=TAGGED)],
            [reply(204)],
            # An origin that returns a byte at a time does not hold a render.
            [ranged(first, first) for first in range(70_000, 70_008)],
        ):
            for copy, refusal in (
                (reply(200, LONG, {"ETag": '"3"'}), None),
                (reply(200, LONG + b"x"), RenderFailed),
                (reply(200, b"x" + LONG[1:]), RenderFailed),
                (reply(404), NoSuchSource),
            ):
                self.origins.unreliable.clear()
                found = self.opened(FIRST)
                self.network.scripts += [*responses, copy]
                reading = self.begin(found.read(70_000, 10))
                if refusal is None:
                    self.assertEqual(LONG[70_000:70_010], self.successResultOf(reading))
                    self.assertEqual(local_input(), self.successResultOf(self.fetch(found)))
                else:
                    self.exactly(reading, refusal)
                self.assertIn(SOURCE.canonical, self.origins.unreliable)

    def test_copy(self) -> None:
        """A copy is read without a request, and has the size of the file."""
        found = self.opened(reply_without_length(200, b"", CHUNKED))
        self.peer.send(chunk(b"0123456789"), chunk(b""))
        self.assertEqual(self.result_of(found.read(3, 4)), b"3456")
        self.assertEqual((10, 1), (found.size, len(self.recorded_requests)))
        self.thread_error = OSError(11, "no thread")
        self.error_of(found.read(3, 4), RenderFailed)
        self.thread_error = None


class DeadlineTests(OriginCase):
    """Deadlines and cancellation of requests to the origin."""

    def test_body(self) -> None:
        """A render that waits for a copy ends with TimeoutError when the given time is over."""
        found = self.opened(reply(200, length=10, headers=TAGGED))
        fetching = self.fetch(found, seconds=9)
        for _ in range(8):
            self.network.advance(1)
            self.respond(b"x")
        self.assertNoResult(fetching)
        self.network.advance(1)
        self.exactly(fetching, TimeoutError)
        found.close()
        self.network.run()
        self.assertEqual((True, 0), (self.peer.aborted, self.copies))

    def test_stall(self) -> None:
        """A copy without progress for thirty seconds is a 502."""
        fetching = self.fetch(self.opened(COMING), seconds=90)
        self.network.advance(29.9)
        self.assertNoResult(fetching)
        self.network.advance(0.1)
        self.exactly(fetching, UpstreamUnavailable)

    def test_silence(self) -> None:
        """A test without a response ends with TimeoutError when the given time is over.

        If no time is left, it ends at once.
        """
        for seconds in (5, -1):
            for begin in (self.see, self.fetch):
                asking = begin(self.opened(FIRST), seconds=seconds)
                self.network.advance(max(0, seconds))
                self.exactly(asking, TimeoutError)
                self.network.run()
                self.assertTrue(self.peer.closed or seconds < 0)

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
            self.peer.send(reply(302, b"", {"Location": f"/{hop}"}))
        self.network.advance(1.9)
        self.assertNoResult(asking)
        self.network.advance(0.1)
        self.exactly(asking, UpstreamUnavailable)
        paths = [request.split()[1] for request in self.recorded_requests]
        self.assertEqual(["/a/b?c", "/0", "/1"], paths)
        self.assertTrue(self.peer.closed)

    def test_cancelled_open(self) -> None:
        """A cancelled lookup aborts its request."""
        asking = self.begin(self.origins.open(SOURCE))
        asking.cancel()
        self.network.run()
        self.exactly(asking, CancelledError)
        self.assertTrue(self.peer.closed)
