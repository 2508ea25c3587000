"""Routing and methods: every request gets a documented response, never 405 or HTML."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import Site
from twisted.web.static import Data

import audioproxy
from audioproxy.errors import NotFound
from audioproxy.grammar.signature import sign
from tests.support.http import KEY, SALT, Connection, Log, ResourceHarness, Response, key_of
from tests.support.strategies import DETERMINISTIC, junk

PATH = b"/f:mp3/plain/local://a.mp3"
DATA = b"the variant"

METHODS = (
    *(b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT", b"PROPFIND"),
    *(b"get", b"Get", b"head", b"options", b"MADEUP", b"!#$%&'*+-.^_`|~0aZ"),
)


class RootCase(SynchronousTestCase):
    """A service with a stored variant."""

    def setUp(self) -> None:
        self.log = Log()
        self.addCleanup(self.log.start())
        self.harness = self.make_harness()

    def make_harness(self, **settings: Any) -> ResourceHarness:
        """Return a service with one stored variant."""
        harness = ResourceHarness(**settings)
        harness.store_variant(PATH, DATA)
        return harness

    def assert_not_found(self, response: Response) -> None:
        """Assert that a response is the 404 document."""
        self.assertEqual((404, "not_found"), (response.status, response.error))
        self.assertEqual(b"max-age=10", response["cache-control"])


class RoutingTests(RootCase):
    """Routes: signed paths, health and readiness; other paths are a 404."""

    def test_health(self) -> None:
        """``/health`` is a 200 with the version and with ``no-store`` (D23)."""
        response = self.harness.fetch(b"/health?now")
        self.assertEqual({"status": "ok", "version": audioproxy.__version__}, response.document)
        self.assertEqual((200, b"no-store"), (response.status, response["cache-control"]))

    def test_ready(self) -> None:
        """``/ready`` is a 503 from the threshold on, and 200 again at half of it.

        Both have the ready document, which is not an error document (Ready document).
        """
        for depth, ready in ((0, True), (1, True), (2, False), (1, True)):
            self.harness.readiness.depth_changed(depth)
            response = self.harness.fetch(b"/ready")
            self.assertEqual(200 if ready else 503, response.status)
            self.assertEqual(
                {"status": "ready" if ready else "not_ready", "queued": 0, "threshold": 2},
                response.document,
            )
            self.assertEqual(b"no-store", response["cache-control"])
            self.assertIsNone(response["retry-after"])

    def test_head(self) -> None:
        """HEAD of ``/health`` and ``/ready`` has the headers of GET, without the body (D19)."""
        for path in (b"/health", b"/ready"):
            get, head = self.harness.fetch(path), self.harness.fetch(path, b"HEAD")
            self.assertEqual((200, b""), (head.status, head.body))
            for name in ("content-type", "content-length", "cache-control"):
                self.assertEqual(get[name], head[name])

    def test_unmatched(self) -> None:
        """``/``, other paths of one segment and reserved paths are a 404 (D18)."""
        for path in (
            *(b"/", b"/metrics", b"/favicon.ico", b"/health2", b"/Health", b"/%68ealth"),
            *(b"/hls/x/f:mp3/plain/local://a.mp3/index.m3u8", b"/hls/", b"/insecure"),
            *(b"/?/health", b"?", b"x", b"health", b"x/health"),
        ):
            self.assert_not_found(self.harness.fetch(path))

    def test_two_segments_are_signed(self) -> None:
        """Any path of two segments is checked for its signature first (D18)."""
        for path in (b"//", b"/a/b", b"/health/", b"/ready/x", b"//health", b"/metrics/"):
            response = self.harness.fetch(path)
            self.assertEqual((401, "invalid_signature"), (response.status, response.error))

    def test_signature_spellings(self) -> None:
        """Signatures are accepted only unpadded or with one ``=`` (Authentication, 2)."""
        signature = sign(KEY, SALT, PATH)
        for spelling in (signature, signature + b"="):
            self.assertEqual(DATA, self.harness.fetch(b"/" + spelling + PATH).body)
        for spelling in (
            b"",
            signature + b"==",
            signature[:-1],
            b"=" + signature,
            b"insecure",
            signature.replace(signature[:1], b"%%%02X" % signature[0], 1),
        ):
            self.assertEqual(401, self.harness.fetch(b"/" + spelling + PATH).status)

    def test_signing_mistakes(self) -> None:
        """A 401 explains common signing mistakes, but nothing about a wrong key (D20)."""
        slip = sign(KEY.hex().encode(), SALT.hex().encode(), PATH)
        for signature, words in (
            (slip, "made with the text of AP_KEY and AP_SALT; the bytes that"),
            (b"insecure", "set AP_ALLOW_INSECURE"),
            (sign(bytes(32), SALT, PATH), "missing or does not match the path"),
        ):
            response = self.harness.fetch(b"/" + signature + PATH)
            self.assertEqual((401, "invalid_signature"), (response.status, response.error))
            self.assertIn(words, response.document["message"])
        response = self.make_harness(insecure=True, key=None).fetch(b"/" + slip + PATH)
        self.assertIn("AP_KEY is not set", response.document["message"])

    def test_raw_bytes_are_signed(self) -> None:
        """The signature covers the raw path: another spelling is a 401 (Authentication, 1)."""
        target = self.harness.path(PATH).replace(b"a.mp3", b"%61.mp3")
        self.assertEqual(401, self.harness.fetch(target).status)

    def test_insecure(self) -> None:
        """If ``insecure`` is enabled, it is accepted as well as valid signatures (D31)."""
        harness = self.make_harness(insecure=True)
        for target in (b"/insecure" + PATH, harness.path(PATH)):
            self.assertEqual(DATA, harness.fetch(target).body)
        harness = self.make_harness(insecure=True, key=None)
        self.assertEqual(DATA, harness.fetch(b"/insecure" + PATH).body)
        for target in (harness.path(PATH), b"/Insecure" + PATH, b"/insecure=" + PATH):
            self.assertEqual(401, harness.fetch(target).status)

    def test_query(self) -> None:
        """A query is not signed, not a part of the cache key and not logged (D17)."""
        target = self.harness.path(PATH) + b"?token=secret&f:wav/plain/x"
        self.assertEqual(DATA, self.harness.fetch(target).body)
        self.assertNotIn("secret", " ".join(map(str, self.log.events)))

    def test_absolute_form(self) -> None:
        """A target in absolute form is served like its path (RFC 9112, 3.2.2)."""
        for origin in (b"http://proxy.example", b"HTTPS://x:443", b"http://"):
            self.assertEqual(DATA, self.harness.fetch(origin + self.harness.path(PATH)).body)
            self.assertEqual(200, self.harness.fetch(origin + b"/health").status)
        self.assertEqual(401, self.harness.fetch(b"http://h/x" + PATH).status)
        for target in (b"http://h", b"http://h?x", b"proxy.example:443", b"*"):
            self.assert_not_found(self.harness.fetch(target))


class MethodTests(RootCase):
    """Methods: GET, HEAD and a configured preflight; the others are a 404."""

    def test_other_methods(self) -> None:
        """Other methods, and OPTIONS without AP_ALLOW_ORIGIN, are a 404, never a 405 (CORS, 1)."""
        for method in METHODS:
            signed = self.harness.path(PATH)
            for target in (b"/", b"/health", b"/ready", signed, b"*", b"http://h/"):
                self.assert_not_found(self.harness.fetch(target, method))
        self.assertEqual([], self.harness.calls)

    def test_bodies(self) -> None:
        """A request body of any kind is read and dropped."""
        rows: tuple[dict[str, Any], ...] = (
            {"body": b"x" * 60_000},
            {"transfer_encoding": b"chunked", "body": b"3\r\nabc\r\n0\r\n\r\n"},
            {"content_type": b"application/x-www-form-urlencoded", "body": b"a=b"},
            {"content_type": b"multipart/form-data; boundary=x", "body": b"--x"},
        )
        for headers in rows:
            if "transfer_encoding" not in headers:
                headers["content_length"] = b"%d" % len(headers["body"])
            self.assert_not_found(self.harness.fetch(b"/health", b"POST", **headers))
            self.assertEqual(200, self.harness.fetch(b"/health", **headers).status)

    def test_preflight(self) -> None:
        """With AP_ALLOW_ORIGIN, OPTIONS on any path is a 204 without a signature (CORS, 3)."""
        for origin in ("*", "https://player.example"):
            harness = self.make_harness(origin=origin)
            for target in (b"/health", b"/a/b" + PATH, b"/nowhere", b"*", b"http://h/x"):
                response = harness.fetch(
                    target, b"OPTIONS", access_control_request_headers=b"range, x-request-id"
                )
                self.assertEqual((204, b""), (response.status, response.body))
                for name, value in {
                    "access-control-allow-origin": origin.encode(),
                    "access-control-allow-methods": b"GET, HEAD",
                    "access-control-allow-headers": b"range, x-request-id",
                    "access-control-max-age": b"86400",
                    "cache-control": b"no-store",
                    "content-type": None,
                    "content-length": None,
                }.items():
                    self.assertEqual(value, response[name], name)
            self.assertEqual([], harness.calls)
        self.assertEqual({"preflight"}, {record.endpoint for record in self.log.requests})


class AllResponsesTests(RootCase):
    """Headers and bodies of every response."""

    def all_responses(self, harness: ResourceHarness) -> list[Response]:
        """Return responses of every kind."""
        tag = b'"' + key_of(PATH).encode() + b'"'
        responses = [
            harness.fetch(b"/health"),
            harness.fetch(b"/ready"),
            harness.fetch(b"/metrics"),
            harness.fetch(b"*"),
            harness.fetch(b"/a/b"),
            harness.fetch(b"/health", b"DELETE"),
            harness.fetch_signed(PATH),
            harness.fetch_signed(PATH, b"HEAD"),
            harness.fetch_signed(PATH, range=b"bytes=0-1"),
            harness.fetch_signed(PATH, range=b"bytes=999-"),
            harness.fetch_signed(PATH, if_none_match=tag),
            harness.fetch_signed(b"/exp:1" + PATH),
            harness.fetch_signed(b"/q:-5" + PATH),
            harness.fetch_signed(b"/plain/http://x/"),
        ]
        connection = harness.connect()
        miss = b"/cb:miss" + PATH
        connection.send(harness.path(miss))
        harness.render(miss).write_output(DATA)
        harness.render(miss).end()
        return [*responses, connection.response]

    def test_headers(self) -> None:
        """Every response has a Cache-Control, a reason phrase, and a body of JSON or audio.

        Each has a unique request id, which is also in the log (Edge-cache discipline; Request log,
        4).
        """
        responses = self.all_responses(self.harness)
        statuses = {response.status for response in responses}
        self.assertEqual({200, 206, 304, 401, 404, 410, 416, 422}, statuses)
        for response in responses:
            self.assertIsNotNone(response["cache-control"], response)
            self.assertRegex(response.reason, rb"\A[A-Z][A-Za-z -]+\Z")
            self.assertNotIn(b"Unknown", response.reason)
            self.assertIn(response["content-type"], (b"application/json", b"audio/mpeg", None))
        ids = [response["x-request-id"] or b"" for response in responses]
        self.assertEqual(len(ids), len(set(ids)))
        logged = [record.request_id.encode() for record in self.log.requests]
        self.assertEqual(sorted(ids), sorted(logged))

    def test_cors(self) -> None:
        """With AP_ALLOW_ORIGIN every response has CORS headers, without it none has (CORS, 2)."""
        for origin in (None, "*", "https://player.example"):
            for response in self.all_responses(self.make_harness(origin=origin)):
                allowed = response["access-control-allow-origin"]
                self.assertEqual(origin.encode() if origin else None, allowed)
                self.assertEqual(
                    b"x-audio-proxy, retry-after, accept-ranges, etag" if origin else None,
                    response["access-control-expose-headers"],
                )
                named = origin is not None and origin != "*"
                self.assertEqual([b"Origin"] if named else [], response.all("vary"))

    def test_client_request_id(self) -> None:
        """A valid request id of the client is used; otherwise one is generated (D27)."""
        for theirs in (b"a", b"A-b_c.9", b"x" * 200, b"a:/+=,{}b", b"<script>", b"%0d%0a", b"!~"):
            self.assertEqual(theirs, self.harness.fetch(b"/x", x_request_id=theirs)["x-request-id"])
        for theirs in (b"", b"x" * 201, b"a b", b"a\tb", b"\xff", b"a\x7f"):
            ours = self.harness.fetch(b"/x", x_request_id=theirs)["x-request-id"]
            self.assertRegex(ours or b"", rb"\A[0-9a-f]{32}\Z")


class AnyBytesTests(RootCase):
    """Properties of responses to arbitrary bytes."""

    def setUp(self) -> None:
        super().setUp()
        self.harness = self.make_harness(insecure=True)
        self.harness.renders.refusal = NotFound()

    def assert_answered(self, connection: Connection) -> None:
        """Assert that a response is complete, has an expected status, and logged no error."""
        response = connection.response
        self.assertTrue(response.complete, response)
        self.assertIn(response.status, (200, 206, 304, 400, 401, 404, 410, 416, 422), response)
        self.assertIsNotNone(response["cache-control"])
        if connection.method != b"HEAD" and response.status != 200:
            self.assertEqual({"error", "message"}, set(json.loads(response.body)))
        self.assertEqual([], self.log.errors)
        self.log.events.clear()

    def ask_and_check(self, target: bytes, method: bytes = b"GET") -> None:
        """Send a request and check its response."""
        connection = self.harness.connect()
        connection.send(target, method)
        self.assert_answered(connection)

    @DETERMINISTIC
    @given(junk(), st.sampled_from((b"GET", b"HEAD", b"OPTIONS", b"POST")))
    def test_any_target(self, target: bytes, method: bytes) -> None:
        """Any bytes as the request target get a valid response."""
        self.ask_and_check(target, method)
        self.ask_and_check(b"/" + target, method)

    @DETERMINISTIC
    @given(junk())
    def test_any_signed_path(self, rest: bytes) -> None:
        """Any bytes in a signed path get a valid response."""
        printable = bytes(byte for byte in rest if 32 < byte < 127 and byte != ord("?"))
        self.ask_and_check(self.harness.path(b"/" + printable))
        self.ask_and_check(b"/insecure/" + printable + b"/plain/local://a", b"HEAD")

    @DETERMINISTIC
    @given(st.binary(max_size=20))
    def test_any_method(self, method: bytes) -> None:
        """Any bytes as the method get a valid response."""
        self.ask_and_check(self.harness.path(PATH), method)

    @DETERMINISTIC
    @given(
        st.sampled_from(b"Range If-Range If-None-Match X-Request-Id Cookie Expect".split()),
        st.binary(max_size=40),
    )
    def test_any_header(self, name: bytes, value: bytes) -> None:
        """Any bytes in a header get a valid response."""
        connection = self.harness.connect()
        connection.send_raw(
            b"GET %s HTTP/1.1\r\nHost: h\r\n%s: %s\r\n\r\n" % (self.harness.path(PATH), name, value)
        )
        if connection.received:
            self.assert_answered(connection)

    def test_long_paths(self) -> None:
        """A path up to Twisted's limit gets a valid response; a longer path is a 400."""
        for length in (1000, 15_000):
            self.ask_and_check(b"/" + b"a" * length)
            self.ask_and_check(b"/" + b"/" * length)
            self.ask_and_check(self.harness.path(b"/" + b"f:mp3/" * (length // 6) + b"plain/x"))
            self.ask_and_check(self.harness.path(b"/plain/local://" + b"%41" * (length // 3)))
        connection = self.harness.connect()
        connection.send(b"/" + b"a" * 20_000)
        self.assertEqual(
            (400, "bad_request"), (connection.response.status, connection.response.error)
        )


class MountTests(RootCase):
    """The resource below a prefix of another application's site."""

    def mount(self, *prefix: bytes) -> Site:
        """Return a site with the resource below a prefix, and a text resource beside it."""
        root = here = Resource()
        for segment in prefix[:-1]:
            here.putChild(segment, inner := Resource())
            here = inner
        here.putChild(prefix[-1], self.harness.resource)
        here.putChild(b"text", Data(b"a text", "text/plain"))
        return Site(root, timeout=None)

    def fetch(self, site: Site, target: bytes, method: bytes = b"GET") -> Response:
        """Send a request to a site, and return the response."""
        connection = Connection(site)
        connection.send(target, method)
        return connection.response

    def test_below_a_prefix(self) -> None:
        """The signature covers the path after the prefix, wherever the resource is mounted."""
        for prefix in ((b"audio",), (b"a", b"b c", b"audio")):
            site = self.mount(*prefix)
            address = b"".join(b"/" + segment.replace(b" ", b"%20") for segment in prefix)
            self.assertEqual(DATA, self.fetch(site, address + self.harness.path(PATH)).body)
            self.assertEqual(200, self.fetch(site, address + b"/health").status)
            self.assertEqual(401, self.fetch(site, address + b"/x" + PATH).status)
            for target in (address, address + b"/", address + b"/x"):
                self.assert_not_found(self.fetch(site, target))
            for method in METHODS:
                self.assert_not_found(self.fetch(site, address + b"/health", method))
            beside = address.rpartition(b"/")[0] + b"/text"
            self.assertEqual(b"a text", self.fetch(site, beside).body)

    def test_spellings(self) -> None:
        """The prefix may be percent-encoded in any way.

        Empty segments and escaped slashes are a part of the signed path.
        """
        site = self.mount(b"audio")
        self.assertEqual(DATA, self.fetch(site, b"/%61udio" + self.harness.path(PATH)).body)
        for rest in (b"//f:mp3/plain/local://a.mp3", b"/f%2Fmp3/plain/local://a%2Fb.mp3"):
            response = self.fetch(site, b"/audio" + self.harness.path(rest))
            self.assertEqual((422, "invalid_options"), (response.status, response.error))
