"""Routing and methods: every request gets a documented response, never 405 or HTML."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import Site
from twisted.web.static import Data

import audioproxy
from audioproxy.errors import UpstreamUnavailable
from audioproxy.grammar.signature import sign
from audioproxy.web.cors import Cors
from audioproxy.web.metrics_resource import exposition
from tests.support.http import KEY, SALT, Connection, Log, ResourceHarness, Response, key_of

PATH = b"/f:mp3/plain/local://a.mp3"
DATA = b"the variant"
EXPOSED = (
    b"x-audio-proxy, retry-after, accept-ranges, etag, content-range, content-length,"
    b" content-disposition, x-request-id"
)

METHODS = (
    *(b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT", b"PROPFIND"),
    *(b"get", b"Get", b"head", b"options", b"MADEUP", b"!#$%&'*+-.^_`|~0aZ"),
)


class RootCase(SynchronousTestCase):
    """A service with a stored variant."""

    def setUp(self) -> None:
        self.log = Log(self)
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

    def assert_head(self, path: bytes, get: Response) -> None:
        """Assert that HEAD has the status and the headers of GET, without the body (D19)."""
        head = self.harness.fetch(path, b"HEAD")
        self.assertEqual((get.status, get.fields, b""), (head.status, head.fields, head.body))

    def test_health(self) -> None:
        """``/health`` is a 200 with the version and with ``no-store`` (D23)."""
        response = self.harness.fetch(b"/health?now")
        self.assertEqual({"status": "ok", "version": audioproxy.__version__}, response.document)
        self.assertEqual((200, b"no-store"), (response.status, response["cache-control"]))
        self.assert_head(b"/health", response)

    def test_ready(self) -> None:
        """``/ready`` is a 503 from the threshold on, and 200 again at half of it.

        A store that fails does not matter. Both have the ready document, which is not an error
        document (Health and readiness).
        """
        self.harness.store.lookup_error = UpstreamUnavailable()

        async def hold() -> None:
            async with self.harness.slots.hold():
                await Deferred()

        holds = [Deferred.fromCoroutine(hold())]
        for depth, ready in ((0, True), (1, True), (2, False), (1, True)):
            if depth == len(holds):
                holds.append(Deferred.fromCoroutine(hold()))
            elif depth:
                holds[-1].cancel()
                self.failureResultOf(holds.pop(), CancelledError)
            response = self.harness.fetch(b"/ready")
            self.assertEqual(200 if ready else 503, response.status)
            self.assertEqual(
                {"status": "ready" if ready else "not_ready", "queued": depth, "threshold": 2},
                response.document,
            )
            self.assertEqual(b"no-store", response["cache-control"])
            self.assertIsNone(response["retry-after"])
            self.assert_head(b"/ready", response)

    def test_unmatched(self) -> None:
        """``/``, other paths of one segment and reserved paths are a 404 (D18).

        ``/metrics`` is no scrape (Metrics endpoint, 1).
        """
        for path in (
            *(b"/", b"/metrics", b"/favicon.ico", b"/health2", b"/Health", b"/%68ealth"),
            *(b"/hls/x/f:mp3/plain/local://a.mp3/index.m3u8", b"/hls/", b"/insecure"),
            *(b"/?/health", b"?", b"x", b"health", b"x/health"),
        ):
            self.assert_not_found(self.harness.fetch(path))
        self.assertEqual({"unknown"}, {record.endpoint for record in self.log.requests})

    def test_two_segments_are_signed(self) -> None:
        """Any path of two segments is checked for its signature first (D18)."""
        for path in (b"//", b"/a/b", b"/health/", b"/ready/x", b"//health", b"/metrics/"):
            response = self.harness.fetch(path)
            self.assertEqual((401, "invalid_signature"), (response.status, response.error))

    def test_signatures(self) -> None:
        """A 401 answers all but valid signatures of the raw path (Authentication, 1 and 2).

        Once a path is verified, every other spelling of it is still verified.
        `tests.grammar.test_signature` has more spellings.
        """
        signature = sign(KEY, SALT, PATH)
        for spelling in (signature, signature + b"="):
            self.assertEqual(DATA, self.harness.fetch(b"/" + spelling + PATH).body)
        for spelling in (b"", signature + b"==", signature[:-1], b"=" + signature, b"insecure"):
            self.assertEqual(401, self.harness.fetch(b"/" + spelling + PATH).status)
        target = self.harness.path(PATH).replace(b"a.mp3", b"%61.mp3")
        self.assertEqual(401, self.harness.fetch(target).status)

    def test_signing_mistake(self) -> None:
        """A 401 explains a common signing mistake (D20); `tests.grammar.test_request` has more."""
        mistake = sign(KEY.hex().encode(), SALT.hex().encode(), PATH)
        response = self.harness.fetch(b"/" + mistake + PATH)
        self.assertEqual((401, "invalid_signature"), (response.status, response.error))
        words = "made with the text of AP_KEY and AP_SALT; the bytes that"
        self.assertIn(words, response.document["message"])

    def test_previous_pairs(self) -> None:
        """A previous pair verifies as the current one does, and requests count by pair (D55)."""
        old_key, old_salt = b"o" * 32, b"old"
        rows = (PATH, 200), (b"/exp:1" + PATH, 410), (b"/f:x" + PATH, 422)
        for fast in (False, True):
            harness = self.make_harness(previous=((old_key, old_salt),), insecure=True, fast=fast)

            def status(key: bytes, salt: bytes, path: bytes) -> int:
                return harness.fetch(b"/" + sign(key, salt, path) + path).status  # noqa: B023

            for path, expected in rows:
                for key, salt in 2 * ((KEY, SALT), (old_key, old_salt)):
                    self.assertEqual(expected, status(key, salt, path), path)
                self.assertEqual(401, status(old_key, SALT, path), path)
            for path in (b"/insecure" + PATH, b"/health"):
                self.assertEqual(200, harness.fetch(path).status)
            counts = exposition(harness.metrics.registry)
            for pair in (b"current", b"previous"):
                line = b'\naudio_proxy_signed_requests_total{pair="%s"} 6.0\n' % pair
                self.assertIn(line, counts)

    def test_insecure(self) -> None:
        """If ``insecure`` is enabled, it is accepted as well as valid signatures (D31)."""
        signed = self.harness.path(PATH)
        for key, statuses in ((KEY, (200, 200, 401, 401)), (None, (200, 401, 401, 401))):
            harness = self.make_harness(insecure=True, key=key)
            targets = (b"/insecure" + PATH, signed, b"/Insecure" + PATH, b"/insecure=" + PATH)
            self.assertEqual(statuses, tuple(harness.fetch(each).status for each in targets))

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

    def test_preflight(self) -> None:
        """With AP_ALLOW_ORIGIN, OPTIONS on any path is a 204 without a signature (CORS, 3).

        It allows GET, HEAD and the requested headers, if any, for a day.
        """
        harness = self.make_harness(origin="*")
        expected = {
            "access-control-allow-origin": b"*",
            "access-control-expose-headers": EXPOSED,
            "cross-origin-resource-policy": b"cross-origin",
            "access-control-allow-methods": b"GET, HEAD",
            "access-control-max-age": b"86400",
            "cache-control": b"no-store",
        }
        for target in (b"/health", b"/a/b" + PATH, b"/nowhere", b"*", b"http://h/x"):
            response = harness.fetch(target, b"OPTIONS")
            self.assertEqual(
                (204, b"", expected), (response.status, response.body, response.fields)
            )
        names = b"range, x-request-id"
        response = harness.fetch(b"/", b"OPTIONS", access_control_request_headers=names)
        self.assertEqual(expected | {"access-control-allow-headers": names}, response.fields)
        self.assertEqual([], harness.calls)
        self.assertEqual({"preflight"}, {record.endpoint for record in self.log.requests})


class AllResponsesTests(RootCase):
    """Headers and bodies of every response."""

    def test_headers(self) -> None:
        """Every response has a Cache-Control, a reason phrase, and a body of JSON or audio.

        Each has a unique request id, which is also in the log (Render response; Request log, 4).
        With AP_ALLOW_ORIGIN every response has CORS headers, without it none has; with ``*`` they
        do not depend on the request, so that there is no Vary (CORS, 1 and 2). They include
        Cross-Origin-Resource-Policy, so that pages with COEP play a stored variant (D76).
        """
        tag, miss = b'"' + key_of(PATH).encode() + b'"', b"/cb:miss" + PATH
        for origin, vary in ((None, []), ("*", []), ("https://player.example", [b"Origin"])):
            self.log.events.clear()
            harness = self.make_harness(origin=origin)
            targets = (b"/health", b"/ready", b"/metrics", b"*", b"/a/b")
            signed = (b"/exp:1" + PATH, b"/q:-5" + PATH, b"/plain/http://x/", PATH)
            ranges = ({"range": b"bytes=0-1"}, {"range": b"bytes=999-"}, {"if_none_match": tag})
            responses = [harness.fetch(target) for target in targets]
            responses += [harness.fetch_signed(rest) for rest in signed]
            responses += [harness.fetch_signed(PATH, **headers) for headers in ranges]
            responses += [harness.fetch_signed(PATH, b"HEAD"), harness.fetch(b"/x", b"DELETE")]
            connection = harness.connect()
            connection.send(harness.path(miss))
            harness.render(miss).write_output(DATA)
            harness.render(miss).end()
            responses.append(connection.response)
            responses.append(self.make_harness(origin=origin, presign_ttl=300).fetch_signed(PATH))
            statuses = {response.status for response in responses}
            self.assertEqual({200, 206, 302, 304, 401, 404, 410, 416, 422}, statuses)
            for response in responses:
                self.assertIsNotNone(response["cache-control"], response)
                self.assertRegex(response.reason, rb"\A[A-Z][A-Za-z -]+\Z")
                self.assertNotIn(b"Unknown", response.reason)
                self.assertIn(response["content-type"], (b"application/json", b"audio/mpeg", None))
                expected = origin and [origin.encode(), EXPOSED, b"cross-origin"]
                names = "access-control-allow-origin", "access-control-expose-headers"
                found = [response[name] for name in (*names, "cross-origin-resource-policy")]
                self.assertEqual(expected or [None] * 3, found)
                self.assertEqual(vary, response.all("vary"))
            ids = [response["x-request-id"] or b"" for response in responses]
            self.assertEqual(len(ids), len(set(ids)))
            logged = [record.request_id.encode() for record in self.log.requests]
            self.assertEqual(sorted(ids), sorted(logged))

    def test_vary(self) -> None:
        """Values of Vary that an embedding application has set are kept."""
        headers = Headers({b"vary": [b"Accept-Encoding"]})
        Cors("https://player.example").add_to(headers)
        self.assertEqual([b"Accept-Encoding", b"Origin"], headers.getRawHeaders(b"vary"))

    def test_client_request_id(self) -> None:
        """A valid request id of the client is used; otherwise one is generated (D27)."""
        for theirs in (b"a", b"A-b_c.9", b"x" * 200, b"a:/+=,{}b", b"<script>", b"%0d%0a", b"!~"):
            self.assertEqual(theirs, self.harness.fetch(b"/x", x_request_id=theirs)["x-request-id"])
        for theirs in (b"", b"x" * 201, b"a b", b"a\tb", b"\xff", b"a\x7f"):
            ours = self.harness.fetch(b"/x", x_request_id=theirs)["x-request-id"]
            self.assertRegex(ours or b"", rb"\A[0-9a-f]{32}\Z")

    def test_traceparent(self) -> None:
        """Without a valid request id, trace id and parent id of a traceparent are it (D67).

        Ids of zeros, upper case, the version ff and a second header are invalid (W3C Trace Context,
        3.2). Later versions may have more fields.
        """
        trace, parent = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
        ids = b"%s-%s" % (trace, parent)
        for value in (b"00-%s-01", b"00-%s-ff", b"01-%s-00", b"fe-%s-00-more"):
            response = self.harness.fetch(b"/x", traceparent=value % ids)
            self.assertEqual(ids, response["x-request-id"], value)
            self.assertEqual(ids.decode(), self.log.requests[-1].request_id)
        for value in (
            *(b"", b"00-%s", b"00-%s-", b"00-%s-1", b"00-%s-001", b"00-%s-01-", b"00-%s-01-more"),
            *(b"ff-%s-01", b"0-%s-01", b"0g-%s-01", b"fe-%s-00more", b"x00-%s-01", b"00-%s-0G"),
            *(b"00-%s-01, 00-%s-01", b"fe-%s-00-a, fe-%s-00-a", b"00-%s-01,", b"00 %s 01"),
        ):
            value = value.replace(b"%s", ids)
            response = self.harness.fetch(b"/x", traceparent=value)
            self.assertRegex(response["x-request-id"] or b"", rb"\A[0-9a-f]{32}\Z", value)
        for invalid in (
            *(ids.upper(), b"0" * 32 + b"-" + parent, trace + b"-" + b"0" * 16),
            *(ids[1:], ids[:-1], b"0" + ids, ids.replace(b"-", b"")),
        ):
            response = self.harness.fetch(b"/x", traceparent=b"00-%s-01" % invalid)
            self.assertRegex(response["x-request-id"] or b"", rb"\A[0-9a-f]{32}\Z", invalid)
        for theirs, expected in ((b"mine", b"mine"), (b"a b", ids), (b"", ids)):
            headers = {"x_request_id": theirs, "traceparent": b"00-%s-01" % ids}
            self.assertEqual(expected, self.harness.fetch(b"/x", **headers)["x-request-id"])


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
