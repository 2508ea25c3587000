"""Https sources: requests to the origin, and the interpretation of its responses."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.python.failure import Failure

from audioproxy.errors import (
    NoSuchSource,
    NotFound,
    Refusal,
    RenderFailed,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.grammar.sources import parse_https
from audioproxy.http_client.client import Response
from audioproxy.http_client.errors import PrivateAddress, UntrustedCertificate
from audioproxy.sources.far_source import FarSource
from audioproxy.sources.https import HttpsSources
from audioproxy.sources.https_origin import OriginClient
from audioproxy.sources.origin_state import OriginState
from tests.support import far_versions
from tests.support.far_versions import (
    END,
    LONG,
    MIDDLE,
    START,
    TAGGED,
    FarClientCase,
    PlaintextClient,
    busy,
    cut,
    ranged,
    serve,
)
from tests.support.http import Log
from tests.support.wire import Peer, Request, Script, chunk, reply, reply_without_length

T = TypeVar("T")

SOURCE = parse_https(b"https://origin.test/a/b?c")
CHUNKED = {**TAGGED, "Transfer-Encoding": "chunked"}
#: A source of ten bytes, and of seven bytes whose body is on its way.
WHOLE = reply(200, b"0123456789", TAGGED)
COMING = reply(200, length=7, headers=TAGGED)
UNSIZED = reply_without_length(200, b"", CHUNKED)

#: The long source's first response, the one with its end, and the one for a place in the middle.
FIRST, LAST, MIDST = ranged(0, 262_143), ranged(917_504, 999_999), ranged(393_216, 917_503)


def redirect(location: str) -> bytes:
    """Return a redirect."""
    return reply(302, b"", {"Location": location})


def reset_connection(peer: Peer, _: object) -> None:
    """Close the connection without a response; Twisted retries if the connection was reused."""
    peer.reset()


class Refusing:
    """A client none of whose requests is sent."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def request(self, *_: object) -> Response:
        raise self._error

    def is_connected(self, url: str) -> bool:
        return True


class OriginCase(FarClientCase):
    """One source of one fake origin at a time, with a fake clock."""

    def setUp(self) -> None:
        super().setUp()
        client: Any = PlaintextClient(self.client)
        origins = OriginClient(client, ("origin.test", "*.origin.test"), self.network)
        self.sources = HttpsSources(origins, self.reading)

    def forget(self) -> None:
        """Forget what is known of the source."""
        super().forget()
        self.sources.unreliable.clear()

    def refuse_all(self, error: Exception) -> None:
        """Refuse all requests of the client."""
        client: Any = Refusing(error)
        self.sources.origins = replace(self.sources.origins, client=client)

    def send_headers(self, headers: Mapping[str, Mapping[str, str]]) -> None:
        """Send headers to some origins."""
        self.sources.origins = replace(self.sources.origins, headers=headers)

    @property
    def recorded_requests(self) -> list[str]:
        """The requests since the source was opened, each with its method, target and Range."""
        return [
            " ".join(filter(None, (each.method, each.target, each.headers.get("range"))))
            for each in self.network.requests
        ]

    def open_source(self, reads: bool) -> Coroutine[Any, Any, FarSource]:
        """Open the source."""
        return self.sources.open(SOURCE, reads=reads)

    def respond(self, *packets: bytes) -> None:
        """Send packets from the origin."""
        self.peer.send(*packets)
        self.network.run()


class OpenTests(OriginCase, far_versions.StartTests):
    """`HttpsSources.open`: requests, and interpretation of the responses."""

    def test_one_request(self) -> None:
        """One GET of the start is sufficient; it accepts no compression (D41)."""
        for responses, size, requests in (
            ((WHOLE,), 10, [START]),
            ((FIRST, LAST), 10**6, [START, END]),
        ):
            found = self.opened_anew(*responses)
            self.assertEqual(
                [f"GET /a/b?c bytes={each}" for each in requests], self.recorded_requests
            )
            self.assertEqual("identity", self.network.requests[0].headers["accept-encoding"])
            self.assertEqual((size, b'"1" %d' % size), (found.size, found.validator))
            self.assertEqual(SOURCE.canonical + b"\n" + found.validator, found.identity)

    def test_path(self) -> None:
        """A path is requested as it is spelled; what a URL may not contain is escaped."""
        marks = '|"<>^`{}\\'
        escaped = {
            "/concat:b|c": "/concat:b%7Cc",
            "/a'b\"c": "/a'b%22c",
            f"/a{'-'.join(marks)}b": f"/a{'-'.join(f'%{ord(mark):02X}' for mark in marks)}b",
            "/a%zz": "/a%25zz",
            "/100%": "/100%25",
            "/?": "/",
        }
        for path in (
            *("/a%0d%0aX-Injected:%201", "/a%20HTTP/1.1%0d%0aHost:%20b", "//127.0.0.1/a"),
            *"/-i /subfile,,start,0:b /%03d.flac /a?x=-i&y=%0a /x/../a/./b //a:b@c!$&'()*".split(),
            *("/a%2Fb%2f%41//a//b/", "/a;b=c;/d?b=c%20+?d/../&e=;", "/,=~[]", "/a;?b", *escaped),
        ):
            source = parse_https(f"https://origin.test{path}".encode())
            self.network.scripts.append(reply(200, length=1))
            self.result_of(self.sources.open(source, reads=False)).close()
            request = self.network.requests[-1]
            self.assertEqual(escaped.get(path, path), request.target)
            self.assertEqual("origin.test", request.headers["host"])

    def test_stat(self) -> None:
        """A HEAD asks for 64 KiB, and reads nothing more."""
        found = self.opened(ranged(0, 65_535), reads=False)
        self.assertEqual((10**6, ["0-65535"]), (found.size, self.ranges))

    def test_known_and_changed(self) -> None:
        """Another version than the one that is kept is read from the origin."""
        self.opened(FIRST, LAST)
        other = {"ETag": '"2"'}
        found = self.opened(
            ranged(0, 0, other), ranged(0, 262_143, other), ranged(917_504, 999_999, other)
        )
        self.assertEqual(["0-0", START, END], self.ranges)
        self.assert_read(found, place=5)

    def test_ranges_that_are_refused(self) -> None:
        """If an error may be for the range alone, the service requests the whole."""
        for status in (400, 416, 501):
            found = self.opened_anew(reply(status), WHOLE)
            self.assertEqual([START, ""], self.ranges)
            self.successResultOf(self.complete(found))
            self.assertEqual(b"0123456789", self.content(found))

    def test_first_response(self) -> None:
        """A first range that cannot be read on from is followed by one request for the whole.

        Its size must be known, and a validator must distinguish the versions.
        """
        whole = reply(200, LONG, TAGGED)
        for first in (
            ranged(0, 262_142),
            ranged(1, 262_143),
            ranged(0, 262_143, {}),
            reply(206, LONG[:262_144], {**TAGGED, "Content-Range": "bytes 0-262143/*"}),
            reply(206, b"x", {**TAGGED, "Content-Range": "bytes 0-0/" + "9" * 5000}),
            reply(206, LONG, {**TAGGED, "Content-Range": "bytes 0-262143/1000000"}),
        ):
            found = self.opened_anew(first, whole)
            self.assertEqual([START, ""], self.ranges, first[:200])
            self.successResultOf(self.complete(found))
            self.assertEqual(LONG, self.content(found))
        for part in (reply(206, b"x"), ranged(0, 262_143), ranged(5, 999_999)):
            self.forget()
            self.refused(UpstreamUnavailable, ranged(1, 262_143), part)

    def test_status_of_a_range(self) -> None:
        """A 200 or 203 with exactly the range that was asked for is a 206 (D41).

        With any other range, it has the whole source.
        """
        for status in (200, 203):
            found = self.opened_anew(ranged(0, 262_143, status=status), LAST)
            self.assertEqual([START, END], self.ranges)
            middle = self.read(found, ranged(393_216, 917_503, status=status))
            self.assertEqual(LONG[400_000:400_010], self.successResultOf(middle))
            self.forget()
            other = {**TAGGED, "Content-Range": "bytes 0-262142/1000000"}
            found = self.opened(reply(status, LONG, other))
            self.assertEqual([START], self.ranges)
            self.successResultOf(self.complete(found))
            self.assertEqual(LONG, self.content(found))

    def test_small(self) -> None:
        """A source that is smaller than the first range needs one request, with a validator or not.

        Nothing is asked for again where no validator can tell its versions apart.
        """
        for headers in (TAGGED, {}):
            self.forget()
            small = {**headers, "Content-Range": "bytes 0-9/10"}
            found = self.opened(reply(206, b"0123456789", small))
            self.assertEqual(b"0123456789", self.successResultOf(self.read(found, place=0)))
            self.assertIs(bool(headers), found.has_certain_identity())
            self.forget()
            rest = reply(206, b"56789", {**headers, "Content-Range": "bytes 5-9/10"})
            first = cut(reply(206, b"01234", small, length=10))
            reading = self.read(self.opened(first, *[rest] * bool(headers)), place=0)
            self.network.advance(0.25)
            if headers:
                self.assertEqual(b"0123456789", self.successResultOf(reading))
            else:
                self.exactly(reading, UpstreamUnavailable)

    def test_validator(self) -> None:
        """The validator is the ETag, or else Last-Modified, with the size.

        All forms of one tag are the same validator. A date that is as recent as the response is
        none. The identity of a source is certain, where it has a validator.
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
            found = self.opened_anew(reply(200, LONG, headers))
            validator = f"{version} 1000000".encode("latin-1") if version else b""
            self.assertEqual(validator, found.validator, headers)
            self.assertIs(bool(validator), found.has_certain_identity())

    def test_statuses(self) -> None:
        """Each error status is the same refusal with and without a range."""
        for kind, statuses in ((NotFound, (401, 403, 409, 499)), (NoSuchSource, (404, 410))):
            for status in statuses:
                self.refused(kind, reply(status))
                self.refused(kind, reply(416), reply(status))
        self.refused(NotFound, reply(400), reply(400))

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
            *((ranged(0, 262_143, {**TAGGED, "Content-Encoding": it}),) for it in codings),
            (reply(416, b"", {"Content-Range": "bytes */0"}),),
        ):
            found = self.opened(*responses)
            self.exactly(self.see(found), UndecodableSource)
            self.exactly(self.begin(found.input(self.deadline(60))), UndecodableSource)
            self.assertEqual(len(responses), len(self.recorded_requests))
        for coding in ("identity", "Identity", "aws-chunked", "none", "utf-8", "identity, binary"):
            found = self.opened_anew(reply(200, LONG, {**TAGGED, "Content-Encoding": coding}))
            self.successResultOf(self.see(found))

    def test_unreachable(self) -> None:
        """An origin that cannot be reached, or is not trusted, is a 502, and is logged."""
        log = Log(self)
        self.network.refusal = ConnectionRefusedError()
        self.network.unknown.add("origin.test")
        self.error_of(self.sources.open(SOURCE), UpstreamUnavailable)
        self.refuse_all(UntrustedCertificate("it has expired"))
        self.error_of(self.sources.open(SOURCE), UpstreamUnavailable)
        first, second = log.texts
        self.assertIn("the origin origin.test is unreachable: ", first)
        self.assertEqual("the origin origin.test is not trusted: it has expired", second)

    def test_unused_response(self) -> None:
        """The body of a response that is not needed is not read."""
        for first, reads in ((COMING, True), (ranged(0, 65_535)[:-1], False)):
            self.opened(first, reads=reads)
            for _ in range(2):
                self.close_last()
            self.assertTrue(self.peer.closed)


class RedirectTests(OriginCase):
    """Redirects, which the service follows itself."""

    def follow(self, *locations: str, status: int = 302) -> list[str]:
        """Follow redirects, and return the requests after the first, each as host and target."""
        hops = [reply(status, b"", {"Location": to}) for to in locations]
        self.assertEqual(1, self.opened(*hops, reply(200, length=1), reads=False).size)
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

    def test_number(self) -> None:
        """A host that is a number is looked up like any name, also behind a redirect."""
        self.sources.origins = replace(self.sources.origins, allowlist=("*",))
        self.assertEqual(["1572395042/x"], self.follow("https://1572395042/x"))
        self.assertIn("1572395042", self.network.names)

    def test_five(self) -> None:
        """Five redirects are followed; a sixth is a 502, as in a loop (D41, D48)."""
        self.assertEqual(5, len(self.follow(*(f"/{n}" for n in range(5)))))
        self.network.requests.clear()
        hop = redirect("/x")
        self.refused(UpstreamUnavailable, *[hop] * 6)
        self.assertEqual(6, len(self.network.requests))
        self.refused(UpstreamUnavailable, *[reply(416), hop] * 6)

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
    """Headers for origins, and origins at private addresses (D59, D79)."""

    def setUp(self) -> None:
        super().setUp()
        self.send_headers(
            {
                "origin.test": {"Authorization": "Bearer s3cret", "X-Key": "a, b"},
                "b.origin.test:8443": {"Cookie": "s3cret=1"},
            }
        )

    @property
    def sent(self) -> list[list[str]]:
        """The headers of the last requests that no other request has, by name."""
        usual = {"host", "user-agent", "accept-encoding", "range"}
        return [sorted(each.headers.keys() - usual) for each in self.network.requests]

    def test_one_host(self) -> None:
        """A header goes to the origin that the source's own URL names, and to no other (D79).

        A redirect to another origin carries none, even if that one has headers of its own, and one
        back carries them again. Later ranges do the same.
        """
        key, none = ["authorization", "x-key"], list[str]()
        for places, sent in (
            (("/x",), [key, key]),
            (("https://origin.test:8443/x", "https://ORIGIN.test.:443/x"), [key, none, key]),
            (("https://b.origin.test/x", "https://b.origin.test:8443/x"), [key, none, none]),
            (("https://b.origin.test:8443/x", SOURCE.url), [key, none, key]),
            (("https://a.b.origin.test:8443/x",), [key, none]),
        ):
            found = self.opened_anew(*map(redirect, places), FIRST, LAST)
            self.assertEqual([*sent, sent[-1]], self.sent)
            self.network.requests.clear()
            # Where the target of a redirect refuses, redirects are followed again.
            refusal = [reply(403)] * (places[-1] != SOURCE.url)
            self.successResultOf(self.read(found, *refusal, *map(redirect, places), MIDST))
            self.assertEqual(sent[-1:] * len(refusal) + sent, self.sent)
            for request, names in zip(self.network.requests, self.sent, strict=True):
                if names == key:
                    self.assertEqual("Bearer s3cret", request.headers["authorization"])
                    self.assertEqual("a, b", request.headers["x-key"])

    def test_origin_without_headers(self) -> None:
        """A source without headers gets no private audio by a redirect; a line says so (D79)."""
        self.send_headers({"b.origin.test": {"Cookie": "s3cret=1"}})
        log = Log(self)
        self.refused(NotFound, redirect("https://b.origin.test/private"), reply(401))
        self.assertEqual([[], []], self.sent)
        (text,) = log.texts
        self.assertIn("no redirect carries them", text)
        self.assertNotIn("s3cret", f"{log.events}")

    def test_log(self) -> None:
        """Refused headers are a 404 as any, and a line in the log; no line has a value.

        A response that is not HTTP may repeat the request, and is not quoted.
        """
        log = Log(self)
        for status in (401, 403):
            self.refused(NotFound, reply(status))
            self.refused(NotFound, redirect("https://a.origin.test/"), reply(status))
        self.refused(UpstreamUnavailable, cut(b"SSH-Bearer s3cret\r\n\r\n"))
        lines = log.texts
        self.assertEqual(3, len(lines), lines)
        for status, line in zip((401, 403), lines, strict=False):
            self.assertIn(f"the origin origin.test responds with {status}: its headers", line)
        self.assertEqual(
            "the origin origin.test is unreachable: the response is not HTTP", lines[2]
        )

    def test_private_address(self) -> None:
        """A host without a public address is a 404, and is logged."""
        log = Log(self)
        self.refuse_all(PrivateAddress("no address of it is public"))
        self.error_of(self.sources.open(SOURCE), NotFound)
        text = "the origin origin.test is refused by AP_SOURCE_DENY_PRIVATE: no address of it is"
        self.assertEqual([f"{text} public"], log.texts)


class OriginStateTests(OriginCase):
    """Comparison of two states of a source."""

    def test_matches(self) -> None:
        """Two states match if ETag or Last-Modified is equal; different sizes never match.

        Tags are compared weakly (RFC 9110, 8.8.3.2), and without the suffixes of compression.
        """
        for first, second, verdict in (
            ((7, 'W/"a"', ""), (7, '"a"', ""), True),
            ((7, '"a"', ""), (7, 'W/"a-gzip"', ""), True),
            ((7, '"a;br"', ""), (7, '"a"', ""), True),
            ((7, "a", "x"), (7, "b", "x"), True),
            ((7, "a", "x"), (7, "a", "y"), True),
            ((None, "a", ""), (7, "a", ""), True),
            ((7, "", "x"), (7, "a", ""), False),
            ((7, "", ""), (7, "", ""), True),
            ((7, "a", "x"), (8, "a", "x"), False),
            ((7, "a", "x"), (7, "b", "y"), False),
            ((7, "a", "x"), (7, "", ""), False),
            ((7, "a", ""), (7, "b", ""), False),
            ((7, "", "x"), (7, "", "y"), False),
        ):
            one, other = OriginState(SOURCE, *first), OriginState(SOURCE, *second)
            self.assertIs(verdict, one.matches(other), (first, second))


class RangeTests(OriginCase):
    """Ranges of a version, each of which is compared with the first response."""

    def test_ranges(self) -> None:
        """A place is requested when it is read, and then all up to what is there."""
        found = self.opened(FIRST, LAST)
        self.assert_read(found, MIDST)
        self.assertEqual([START, END, MIDDLE], self.ranges)
        self.assert_read(found, place=900_000)
        self.assertEqual(3, len(self.recorded_requests))
        self.assertTrue(self.result_of(found.unchanged()))

    def test_disagreement(self) -> None:
        """Another version, or something else than the range, ends the version.

        The source is refused once; opened again, it is read with one request without a range, for
        an hour. A HEAD, which reads nothing, still asks for a range.
        """
        for response in (
            ranged(393_216, 917_503, {"ETag": '"2"', "Last-Modified": "now"}),
            ranged(393_215, 917_503),
            reply(200, LONG, TAGGED),
            reply(204),
        ):
            found = self.long()
            error = self.exactly(self.read(found, response), RenderFailed)
            self.assertEqual("The source changed while it was read.", error.message)
            self.assertIs(error, found.failure)
            self.assertFalse(self.result_of(found.unchanged()))
            self.assertFalse(found.has_certain_identity())
            found = self.opened(reply(200, LONG, {"ETag": '"3"'}))
            self.assertEqual([""], self.ranges)
            self.assert_read(found)
        self.close_last()
        self.files.close()
        self.opened(ranged(0, 65_535), reads=False)
        self.assertEqual(["0-65535"], self.ranges)
        self.network.advance(3600)
        self.opened(FIRST, LAST)
        self.assertEqual([START, END], self.ranges)

    def test_other_length(self) -> None:
        """A body of another length than its range may be of another place: the version ends.

        One that arrives in chunks, with less bytes, may have been cut by a proxy.
        """
        chunked = {"Content-Range": f"bytes {MIDDLE}/1000000", "Transfer-Encoding": "chunked"}
        head = reply_without_length(206, b"", {**TAGGED, **chunked})
        found = self.opened(FIRST, LAST)
        short = head, chunk(LONG[393_216:600_000]), chunk(b"")
        self.successResultOf(self.read(found, short, serve, serve))
        self.network.advance(1)
        for place in (590_000, 700_000, 900_000):
            self.assert_read(found, place=place)
        self.network.scripts.clear()
        stated = {**TAGGED, "Content-Range": f"bytes {MIDDLE}/1000000"}
        for response in (
            reply(206, LONG[393_216:600_000], stated),
            reply(206, LONG, stated),
            cut(head + chunk(LONG)),
        ):
            found = self.long()
            self.read(found, response).addErrback(lambda failure: None)
            self.assertIsInstance(
                self.failureResultOf(self.read(found, place=900_000)).value, RenderFailed
            )
            self.assertFalse(self.result_of(found.unchanged()))

    def test_short_lived(self) -> None:
        """If the target of a redirect refuses later, redirects are followed again.

        URLs may be signed for seconds. What they lead to must be the same version.
        """
        refusals = (*map(reply, (400, 401, 403, 404, 410)), redirect("https://b.origin.test/login"))
        for refusal in refusals:
            found = self.opened_anew(redirect("/old"), FIRST, LAST)
            self.assert_read(found, refusal, redirect("/new"), MIDST)
            targets = [each.target for each in self.network.requests]
            self.assertEqual(["/a/b?c", "/old", "/old", "/old", "/a/b?c", "/new"], targets)
            # From now on, the new target is requested.
            self.successResultOf(self.read(found, serve, place=270_000))
            self.assertEqual("/new", self.network.requests[-1].target)
        for later, kind in (
            ((redirect("/new"), ranged(393_216, 917_503, {"ETag": '"2"'})), RenderFailed),
            ((redirect("https://c.test/"),), NotFound),
            ((redirect("http://origin.test/"),), NotFound),
            ((redirect("/new"), reply(404)), NoSuchSource),
            ((redirect("/x"),) * 6, UpstreamUnavailable),
        ):
            found = self.opened_anew(redirect("/old"), FIRST, LAST)
            self.exactly(self.read(found, reply(403), *later), kind)


class RetryTests(OriginCase):
    """Requests that are sent again: busy origins and lost connections."""

    def test_look_up(self) -> None:
        """A busy origin is asked again for the state of a source, after Retry-After if it has one.

        So is one that closes the connection. One that stays busy, or names more time than there
        is, is a 502.
        """
        for status in (408, 425, 429, 500, 503, 599):
            for responses, seconds in (
                ([busy(status)], [0.5]),
                ([busy(status, "7")], [7.0]),
                ([busy(status), busy(status)], [0.5, 2.0]),
                ([reply(416), busy(status)], [0.5]),
                ([redirect("/x"), busy(status)], [0.5]),
            ):
                opening = self.asked_again(seconds, *responses, WHOLE)
                self.successResultOf(opening).close()
        # A connection that was kept is replaced at once.
        opening = self.asked_again([0.5], reset_connection, reset_connection, WHOLE)
        self.successResultOf(opening).close()
        log = Log(self)
        opening = self.asked_again([0.5, 2], busy(), busy(), busy())
        self.exactly(opening, UpstreamUnavailable)
        self.exactly(self.asked_again([], busy(429, "30")), UpstreamUnavailable)
        expected = [f"the origin origin.test responds with {status}" for status in (503, 429)]
        self.assertEqual(expected, log.texts)
        self.opened(reply(501), reply(501), WHOLE)

    def asked_again(self, seconds: list[float], *responses: Script) -> Deferred[FarSource]:
        """Start to open a source; the origin is asked again after each of some times."""
        self.forget()
        opening = self.begin_to_open(*responses)
        for delay in seconds:
            self.assertNoResult(opening)
            self.network.advance(delay - 0.01)
            self.assertNoResult(opening)
            self.network.advance(0.02)
        self.assertEqual([], self.network.scripts)
        return opening

    def test_range(self) -> None:
        """A busy origin is asked again for a range, soon or after Retry-After."""
        for status in (408, 425, 429, 500, 503):
            for seconds, delay in (("", 0.25), ("0", 0.25), ("9", 9)):
                found = self.long()
                reading = self.read(found, busy(status, seconds), MIDST)
                self.network.advance(delay - 0.01)
                self.assertNoResult(reading)
                self.network.advance(0.02)
                self.assertEqual(LONG[400_000:400_010], self.successResultOf(reading))
                self.assertIsNone(found.failure)

    def test_origin_that_stays_busy(self) -> None:
        """An origin that does not serve a range in five attempts, or names long times, is a 502.

        The log says why. Later readers ask again.
        """
        for responses, delays in (
            ([busy()] * 5, (0.25, 1, 2, 4)),
            ([busy(429, "21")], ()),
            ([reset_connection] * 10, (0.25, 1, 2, 4)),
        ):
            log, found = Log(self), self.long()
            reading = self.read(found, *responses)
            for delay in delays:
                self.assertNoResult(reading)
                self.network.advance(delay)
            self.exactly(reading, UpstreamUnavailable)
            self.assertIn("the origin origin.test does not return a source: ", log.texts[-1])
            self.network.scripts.clear()
            found = self.opened(serve)
            self.assert_read(found, serve)

    def test_stall(self) -> None:
        """A range without progress for fifteen seconds is requested again."""
        found = self.opened(FIRST, LAST)
        reading = self.read(found, MIDST[:200])
        self.network.advance(14.9)
        self.assertNoResult(reading)
        self.network.scripts.append(serve)
        self.network.advance(0.1)
        self.network.advance(0.25)
        self.assertEqual(LONG[400_000:400_010], self.successResultOf(reading))

    def test_other_server(self) -> None:
        """If the target of a redirect is down or busy, redirects are followed again."""
        # A lost connection is replaced once by the client.
        rows: tuple[tuple[Script, ...], ...] = ((reset_connection, reset_connection), (busy(),))
        for failures in rows:
            found = self.opened_anew(redirect("https://a.origin.test/"), FIRST, LAST)
            reading = self.read(found, *failures, redirect("https://b.origin.test/"), MIDST)
            self.network.advance(0.25)
            self.assertEqual(LONG[400_000:400_010], self.successResultOf(reading))
            self.assertEqual("b.origin.test", self.network.requests[-1].headers["host"])


class CopyTests(OriginCase):
    """Sources whose origin serves no ranges: one response brings the whole, in order."""

    def test_copy(self) -> None:
        """A body of any form is read to its end; its identity is certain if it has a validator."""
        in_chunks = (UNSIZED, chunk(b"01234"), chunk(b"56789"), chunk(b""))
        for response, is_certain in (
            (WHOLE, True),
            (reply(203, b"0123456789", TAGGED), True),
            (in_chunks, True),
            (reply(200, b"0123456789"), False),
        ):
            found = self.opened_anew(response)
            self.successResultOf(self.complete(found))
            self.assertEqual((10, b"0123456789"), (found.size, self.content(found)))
            self.assertIs(is_certain, found.has_certain_identity())
            self.assertEqual(1, len(self.recorded_requests))

    def test_cut(self) -> None:
        """A body that is cut is requested again, and what is there already is dropped.

        So is a body without a length whose chunks end early.
        """
        for first, later in (
            (cut(reply(200, LONG[:-5], TAGGED, length=len(LONG))), reply(200, LONG, TAGGED)),
            (cut(UNSIZED + chunk(LONG[:-5])), (UNSIZED, chunk(LONG), chunk(b""))),
            (cut(UNSIZED + chunk(LONG)[:-9]), (UNSIZED, chunk(LONG), chunk(b""))),
        ):
            found = self.opened_anew(first, later)
            self.successResultOf(self.complete(found))
            self.assertEqual((LONG, [START, ""]), (self.content(found), self.ranges))

    def test_cut_and_changed(self) -> None:
        """If a body that was cut is of another version later, or of none, the source has failed."""
        first = cut(reply(200, LONG[:-5], TAGGED, length=len(LONG)))
        for later, kind in (
            (reply(200, LONG, {"ETag": '"2"'}), RenderFailed),
            (reply(200, LONG), RenderFailed),
            (reply(200, LONG + b"x", TAGGED), RenderFailed),
            (reply(204), RenderFailed),
            (reply(404), NoSuchSource),
        ):
            found = self.opened_anew(first, later)
            self.exactly(self.complete(found), kind)
            self.assertIsInstance(found.failure, kind)
            self.assertFalse(found.has_certain_identity())

    def test_without_a_marked_end(self) -> None:
        """A body that ends with the connection, without TLS, may be cut, and is a 502 (D48)."""
        ended = cut(reply_without_length(200, b"01234", TAGGED))
        found = self.opened(*[ended] * 6)
        completing = self.complete(found)
        for delay in (0.25, 1):
            self.assertNoResult(completing)
            self.network.advance(delay)
        self.exactly(completing, UpstreamUnavailable)

    def test_deadline(self) -> None:
        """Who waits for a source ends with TimeoutError when the given time is over."""
        found = self.opened(reply(200, length=10, headers=TAGGED))
        completing = self.complete(found, seconds=9)
        for _ in range(8):
            self.network.advance(1)
            self.respond(b"x")
        self.assertNoResult(completing)
        self.network.advance(1)
        self.exactly(completing, TimeoutError)


class Unreliable:
    """An origin that behaves otherwise at each request, and says of all bytes whose they are.

    :ivar contents: by entity tag.
    """

    contents: ClassVar = {'"1"': LONG, '"2"': LONG[::-1]}

    def __init__(self, behaviors: list[str]) -> None:
        self._behaviors = behaviors

    def __call__(self, peer: Peer, request: Request) -> None:
        """Respond; at the end of the list, as a good origin does."""
        behavior = self._behaviors.pop(0) if self._behaviors else "good"
        tag = '"2"' if behavior == "changed" else '"1"'
        content = self.contents[tag]
        wanted = request.headers.get("range", "").removeprefix("bytes=")
        first, last = 0, len(content) - 1
        if wanted and behavior != "whole":
            first, last = (min(int(each), last) for each in wanted.split("-"))
        if behavior == "shorter":
            last = (first + last) // 2
        status, headers = 200, {"ETag": tag}
        if wanted and behavior != "whole":
            status = 206
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        if behavior == "untagged":
            del headers["ETag"]
        response = reply(status, content[first : last + 1], headers)
        if behavior == "busy":
            response = busy()
        elif behavior == "gone":
            response = reply(404)
        elif behavior == "redirect":
            response = redirect("/another")
        elif behavior == "cut":
            response = response[: len(response) * 2 // 3]
        peer.send(response)
        if behavior == "cut":
            peer.close()


class PropertyTests(OriginCase):
    """Whatever an origin does"""

    behaviors = "good good good changed whole shorter untagged busy gone redirect cut".split()

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(st.sampled_from(behaviors), max_size=12),
        st.lists(st.sampled_from((0, 262_140, 400_000, 800_000, 999_990)), min_size=1, max_size=4),
    )
    def test_right_bytes(self, behaviors: list[str], places: list[int]) -> None:
        """A reader gets bytes of the version that it has opened, or a refusal, and gets it soon."""
        self.forget()
        self.network.peers = [each for each in self.network.peers if not each.closed]
        origin = Unreliable(behaviors)
        self.network.scripts[:] = [origin] * 200
        for place in places:
            opening = self.begin(self.sources.open(SOURCE))
            found = self.result_in_time(opening)
            if found is None or (found.size or 0) < place + 10:
                continue
            content = origin.contents.get(found.validator.decode().partition(" ")[0])
            data = self.result_in_time(self.begin(found.read(place, 10)))
            if data is not None:
                wanted = {each[place : place + 10] for each in origin.contents.values()}
                expected = wanted if content is None else {content[place : place + 10]}
                self.assertIn(data, expected)
            found.close()
            self.network.run()
        self.network.scripts.clear()

    def result_in_time(self, begun: Deferred[T]) -> T | None:
        """Return a result; None for a refusal."""
        results: list[Any] = []
        begun.addBoth(results.append)
        for _ in range(60):
            if not results:
                self.network.advance(0.5)
        (result,) = results
        if isinstance(result, Failure):
            result.trap(Refusal)
            return None
        return cast(T, result)


class DeadlineTests(OriginCase):
    """Deadlines and cancellation of requests for the state of a source."""

    def test_stalling_everywhere(self) -> None:
        """Each request of a look-up may take fifteen seconds."""
        for responses in ((), (reply(416),)):
            asking = self.begin_to_open(*responses)
            self.network.advance(15)
            self.exactly(asking, UpstreamUnavailable)

    def test_slow_everywhere(self) -> None:
        """All requests of a look-up, redirects included, may take thirty seconds together."""
        asking = self.begin_to_open()
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
        """A cancelled look-up aborts its request, and is not repeated."""
        for responses in ((), (busy(),)):
            asking = self.begin_to_open(*responses)
            asking.cancel()
            self.network.run()
            self.exactly(asking, CancelledError)
            self.assertTrue(self.peer.closed or responses)
