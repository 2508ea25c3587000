"""Responses to signed variant URLs: order of checks, every status, every header."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import AsyncMock, Mock, patch
from urllib.parse import parse_qs, unquote

from hypothesis import given
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.config.values import cache_tag_header
from audioproxy.errors import (
    Expired,
    InvalidOptions,
    InvalidSignature,
    InvalidValue,
    NotConfigured,
    NotFound,
    ProbeFailed,
    ProbeTimeout,
    QueueFull,
    RangeNotSatisfiable,
    Refusal,
    RenderFailed,
    RenderTimeout,
    SourceTooLarge,
    Stopping,
    UndecodableSource,
    UpstreamUnavailable,
    VideoSource,
)
from audioproxy.files.streams import FileProducer
from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.variants.interfaces import VariantChanged
from audioproxy.variants.response_headers import VariantHeaders
from tests.observe.test_metrics import Counts
from tests.support.http import (
    MEDIA_CACHE_CONTROL,
    NOW,
    Connection,
    Log,
    ResourceHarness,
    Response,
    key_of,
)
from tests.support.stores import FakeStored
from tests.support.strategies import DETERMINISTIC, FILENAMES

PATH = b"/f:mp3/plain/local://a.mp3"
TAG = b'"' + key_of(PATH).encode() + b'"'
DATA = bytes(range(256)) * 3

#: The error table (Errors; D20 for the codes).
ERRORS: dict[type[Refusal], tuple[int, str, bytes]] = {
    InvalidSignature: (401, "invalid_signature", b"max-age=60"),
    NotFound: (404, "not_found", b"max-age=10"),
    Expired: (410, "expired", b"public, max-age=31536000, immutable"),
    SourceTooLarge: (413, "source_too_large", b"max-age=10"),
    UndecodableSource: (415, "undecodable_source", b"max-age=10"),
    VideoSource: (415, "video_source", b"max-age=10"),
    RangeNotSatisfiable: (416, "range_not_satisfiable", b"no-store"),
    InvalidOptions: (422, "invalid_options", b"max-age=60"),
    QueueFull: (429, "queue_full", b"no-store"),
    RenderFailed: (500, "render_failed", b"no-store"),
    NotConfigured: (500, "not_configured", b"no-store"),
    ProbeFailed: (500, "probe_failed", b"no-store"),
    UpstreamUnavailable: (502, "upstream_unavailable", b"no-store"),
    RenderTimeout: (504, "render_timeout", b"no-store"),
    ProbeTimeout: (504, "probe_timeout", b"no-store"),
}


#: The headers of a MISS, and the stored headers of the HITs, which differ from them.
MISS: dict[str, bytes | None] = {
    "content-type": b"audio/mpeg",
    "cache-control": MEDIA_CACHE_CONTROL.encode(),
    "etag": TAG,
    "x-audio-proxy": b"MISS",
    "x-accel-expires": b"0",
    "surrogate-control": b"no-store",
    "cdn-cache-control": b"no-store",
}
HIT: dict[str, bytes | None] = {
    "content-type": b"audio/mpeg",
    "cache-control": MEDIA_CACHE_CONTROL.encode(),
    "etag": TAG,
    "x-audio-proxy": b"HIT",
    "accept-ranges": b"bytes",
}


def _seen(response: Response) -> tuple[int, bytes]:
    return response.status, response.body


class VariantCase(SynchronousTestCase):
    """A service with a variant store."""

    def setUp(self) -> None:
        self.harness = ResourceHarness()

    def assert_error(self, response: Response, refusal: type[Refusal]) -> None:
        """Assert that a response is the error document of a refusal, as in the table."""
        status, code, cache_control = ERRORS[refusal]
        self.assertEqual((status, code), (response.status, response.error))
        self.assertEqual(cache_control, response["cache-control"])
        for name in ("etag", "x-audio-proxy", "content-disposition", "accept-ranges"):
            self.assertIsNone(response[name], name)
        message = response.document["message"]
        self.assertTrue(message.endswith(".") and "\n" not in message, message)

    def send(self, rest: bytes, **more: Any) -> Connection:
        """Send a signed request, and return its connection."""
        connection = self.harness.connect()
        connection.send(self.harness.path(rest), **more)
        return connection

    def get_miss(self, rest: bytes = PATH, **more: Any) -> Response:
        """Complete a render for a request, and return the response."""
        connection = self.send(rest, **more)
        render = self.harness.render(rest)
        if render.waiting:
            render.write_output(DATA)
            render.end()
        return connection.response


class OrderTests(VariantCase):
    """Order of the checks (Request handling order)."""

    def test_signature_first(self) -> None:
        """A wrong signature is a 401 before every other check (Request handling order, 1)."""
        for rest in (
            *(PATH, b"/f:nonsense/plain/local://a.mp3", b"/exp:1/plain/local://a.mp3"),
            *(b"/plain/http://refused", b"/f:mp3/no-source", b"/", b"/info/", b"/info/no-source"),
            *(b"/info/plain/local://a.mp3", b"/info/f:mp3/plain/local://a.mp3"),
            *(b"/info/exp:1/plain/local://a.mp3", b"/info/plain/http://refused"),
        ):
            target = b"/" + b"A" * 43 + rest
            self.assert_error(self.harness.fetch(target, if_none_match=TAG), InvalidSignature)
            self.assertEqual(401, self.harness.fetch(target, b"HEAD", if_none_match=TAG).status)
        self.assertEqual([], self.harness.called_methods())

    def test_expiry_second(self) -> None:
        """An expired URL is a 410 before its options are parsed (Request handling order, 2)."""
        for rest in (
            b"/exp:%d/plain/local://a.mp3" % (NOW - 1),
            b"/exp:0/plain/local://a.mp3",
            b"/exp:1/f:nonsense/plain/local://a.mp3",
            b"/f:mp3/f:mp3/exp:1/plain/http://refused",
        ):
            response = self.harness.fetch_signed(rest, if_none_match=TAG)
            self.assert_error(response, Expired)
        self.assertEqual([], self.harness.called_methods())

    def test_options_and_source_grammar(self) -> None:
        """Invalid options are a 422 and malformed sources a 404, without storage access (D16).

        Every 404 has the same body, so that it reveals nothing about its cause (Errors, 7).
        """
        for segments in (b"f:", b"exp:-1", b"exp:1.5", b"exp:", b"exp:1/exp:2", b"exp:x"):
            response = self.harness.fetch_signed(b"/" + segments + b"/plain/local://a.mp3")
            self.assert_error(response, InvalidOptions)
        bodies = set()
        for source in (
            *(b"plain/http://a/b", b"plain/https://u:p@host/", b"plain/s3://bucket", b"plain/"),
            *(b"plain/local:///etc/passwd", b"plain/local://a%00", b"plain/local://../up"),
            *(b"enc/!!!", b"enc/QQ==", b"plain/local://" + b"a/" * 64 + b"a", b"no-source", b""),
        ):
            for first in (b"/f:mp3/", b"/info/"):
                response = self.harness.fetch_signed(first + source, if_none_match=TAG)
                self.assert_error(response, NotFound)
                bodies.add(response.body)
        self.assertEqual([], self.harness.called_methods())
        refusal = NotFound("a reason that no client sees")
        self.harness.sources.crash = self.harness.renders.refusal = refusal
        bodies |= {
            self.harness.fetch_signed(PATH).body,
            self.harness.fetch_signed(b"/info/plain/local://a.mp3").body,
            self.harness.fetch(b"/").body,
            self.harness.fetch(b"/metrics").body,
            self.harness.fetch(PATH, b"POST").body,
        }
        self.assertEqual(1, len(bodies), bodies)

    def test_lookup_before_source(self) -> None:
        """A stored variant is served without its source or render (Request handling order, 4)."""
        self.harness.sources.crash = NotFound()
        for rest in (PATH, b"/plain/local://b"):
            self.get_miss(rest)
            self.harness.store_variant(rest, DATA)
            self.harness.calls.clear()
            for method in (b"GET", b"HEAD"):
                response = self.harness.fetch_signed(rest, method)
                self.assertEqual((200, b"HIT"), (response.status, response["x-audio-proxy"]))
            self.assertEqual(["lookup"] * 2, self.harness.called_methods())

    def test_stopping(self) -> None:
        """A service that stops closes the connection before a response, or aborts one (D39).

        A balancer repeats a request without a response elsewhere. The log names the reason.
        """
        for begun in (False, True):
            log = Log(self)
            connection = self.send(PATH)
            if begun:
                self.harness.render(PATH).write_output(b"sound")
            self.harness.render(PATH).end(Stopping())
            del self.harness.renders.running[key_of(PATH)]
            self.assertTrue(connection.closed)
            self.assertEqual(begun, b"sound" in connection.received)
            self.assertNotIn(b"\r\n0\r\n", connection.received)
            (record,) = log.requests
            self.assertEqual(
                (200 if begun else 499, "stopping"), (record.status, record.error_code)
            )

    def test_miss(self) -> None:
        """After a miss, GET renders and HEAD opens the source (Request handling order, 5).

        HEAD runs no probe (HEAD on signed endpoints, 6). Without a store there is no lookup; every
        GET starts or joins a render, and caches in front may store its output (D62).
        """
        key = key_of(PATH)
        for has_store, lookups in ((True, [("lookup", key)]), (False, [])):
            self.harness = ResourceHarness(has_store=has_store)
            responses = [self.get_miss() for _ in range(2)]
            responses.append(self.harness.fetch_signed(PATH, b"HEAD"))
            self.assertEqual(
                [b"MISS", b"COALESCED", b"MISS"], [each["x-audio-proxy"] for each in responses]
            )
            self.assertEqual(
                {b"no-store" if has_store else None},
                {each["cdn-cache-control"] for each in responses},
            )
            expected = [*lookups, ("join", key)] * 2 + [*lookups, ("open", b"local://a.mp3")]
            self.assertEqual(expected, self.harness.calls)
            self.assertEqual(([], 0), (self.harness.spawner.children, self.harness.sources.held))


class ErrorTests(VariantCase):
    """Requests that are refused; `tests.web.test_exchange` has every refusal of a render."""

    def test_head_is_refused_like_get(self) -> None:
        """HEAD is refused like GET, without body or render (HEAD on signed endpoints, 1 and 2)."""
        too_large = "The source has 1000001 bytes; this service accepts at most 1000000."
        info = b"/info/plain/local://a.mp3"
        crashes = (NotFound(), NotConfigured(), UpstreamUnavailable())
        rows: tuple[tuple[bytes, Refusal | None, int], ...] = (
            *((b"/f:mp3/q:99/plain/local://a.mp3", None, 1), (b"/no-source", None, 1)),
            *((b"/exp:1/plain/local://a.mp3", None, 1), (b"/plain/http://refused/", None, 1)),
            *((b"/info/q:2/plain/local://a.mp3", None, 1), (b"/info/no-source", None, 1)),
            *((b"/info/exp:1/plain/local://a.mp3", None, 1), (b"/info//plain/local://a", None, 1)),
            (b"/info/plain/http://refused/", None, 1),
            *((path, crash, 1) for path in (PATH, info) for crash in crashes),
            (PATH, SourceTooLarge(too_large), 1_000_001),
        )
        for rest, refusal, size in rows:
            harness = ResourceHarness()
            harness.sources.default_size, harness.renders.refusal = size, refusal
            harness.sources.crash = refusal if size == 1 else None
            get = harness.fetch_signed(rest)
            harness.calls.clear()
            head = harness.fetch_signed(rest, b"HEAD")
            self.assertGreaterEqual(head.status, 400)
            self.assertEqual((get.status, b"", get.fields), (*_seen(head), head.fields), rest)
            self.assertNotIn("join", harness.called_methods())
            self.assertEqual([], harness.spawner.children)

    def test_422_quotes_the_segment(self) -> None:
        """The message of a 422 quotes the segment as valid JSON, whatever its bytes are (D20)."""
        response = self.harness.fetch_signed(b'/f:"\x80\xb0%0a/plain/local://a.mp3')
        self.assert_error(response, InvalidOptions)
        self.assertIn("mp3", response.document["message"])
        self.assertTrue(response.body.isascii())


class MissTests(VariantCase):
    """MISS and COALESCED: chunked responses."""

    def test_headers(self) -> None:
        """A MISS is chunked, without Content-Length and Accept-Ranges (Framing by cache state).

        HEAD has the headers of GET without framing, and starts no render.
        """
        for prefix, own in (
            (b"", {}),
            (b"/dl:a.mp3", {"content-disposition": _disposition(b"a.mp3").encode()}),
        ):
            expected = MISS | own | {"etag": b'"%s"' % key_of(prefix + PATH).encode()}
            head = self.harness.fetch_signed(prefix + PATH, b"HEAD", range=b"bytes=0-1")
            self.assertEqual((200, b"", expected), (*_seen(head), head.fields))
            get = self.get_miss(prefix + PATH)
            expected |= {"transfer-encoding": b"chunked"}
            self.assertEqual((200, DATA, expected), (*_seen(get), get.fields))
            self.assertTrue(get.complete)

    def test_coalesced(self) -> None:
        """A client that joins midway receives all bytes (Variant delivery states).

        Headers are sent with the first byte, so that an earlier refusal can set the status.
        """
        first = self.send(PATH)
        self.assertEqual(b"", first.received)
        render = self.harness.render(PATH)
        render.write_output(b"one ")
        self.assertEqual((b"one ", False), (first.response.body, first.response.complete))
        # The same variant in another spelling, and with a request option.
        second = self.send(b"/exp:%d/enc/bG9jYWw6Ly9hLm1wMw" % (NOW + 5))
        self.assertEqual(b"one ", second.response.body)
        render.write_output(b"two")
        render.end()
        for connection, state in ((first, b"MISS"), (second, b"COALESCED")):
            response = connection.response
            self.assertEqual((b"one two", True), (response.body, response.complete))
            self.assertEqual((state, TAG), (response["x-audio-proxy"], response["etag"]))
        self.assertEqual((2, 2), (render.subscribers, render.left))

    def test_lane(self) -> None:
        """``X-Audio-Proxy-Lane: low`` lowers a render until another request joins it (D65).

        The response and the log line are the same; any other value is ignored.
        """
        responses, records = [], []
        for value, is_low in (
            *((value, True) for value in (b"low", b"LOW", b" low ")),
            *((value, False) for value in (b"", b"high", b"lower", b"low, low", [b"low", b"high"])),
        ):
            self.harness = ResourceHarness()
            log = Log(self)
            connection = self.send(PATH, x_audio_proxy_lane=value, x_request_id=b"a")
            render = self.harness.render(PATH)
            self.assertEqual(is_low, render.is_low, value)
            self.send(PATH, x_audio_proxy_lane=b"low").leave()
            self.assertEqual(is_low, render.is_low, value)
            render.write_output(DATA)
            render.end()
            responses.append(connection.response.headers_without_date)
            records.append(next(each for each in log.requests if each.request_id == "a"))
            self.send(PATH)
            self.assertFalse(render.is_low)
        self.assertEqual([responses[0]] * len(responses), responses)
        self.assertEqual([records[0]] * len(records), records)

    def test_http_1_0(self) -> None:
        """A response to HTTP/1.0 is not chunked, and ends with the connection."""
        connection = self.send(PATH, version=b"HTTP/1.0")
        self.harness.render(PATH).write_output(DATA)
        self.harness.render(PATH).end()
        self.assertTrue(connection.closed and not connection.aborted)
        self.assertIsNone(connection.response["transfer-encoding"])
        self.assertEqual((200, DATA), _seen(connection.response))


class HitTests(VariantCase):
    """HIT in proxy mode: Content-Length, ranges, and the headers of a MISS."""

    def setUp(self) -> None:
        super().setUp()
        self.stored = self.harness.store_variant(PATH, DATA)

    def test_responses(self) -> None:
        """A HIT has its own headers, Content-Length and Accept-Ranges (Framing by cache state).

        A single byte range is a 206. Several ranges and malformed values are ignored, like a Range
        on HEAD, which has all headers of GET (Hit in proxy mode, 2 and 4; HEAD on signed endpoints,
        4). `tests.web.test_conditions` has more ranges.
        """
        whole: Any = (200, DATA, {"content-length": b"768"})
        part = {"content-length": b"10", "content-range": b"bytes 10-19/768"}
        rows: tuple[tuple[bytes, dict[str, Any], tuple[int, bytes, dict[str, bytes]]], ...] = (
            (b"GET", {}, whole),
            (b"GET", {"range": b"bytes=10-19"}, (206, DATA[10:20], part)),
            (b"GET", {"range": b"bytes=10-19", "if_range": TAG}, (206, DATA[10:20], part)),
            (b"GET", {"range": b"bytes=10-19", "if_range": b'"another"'}, whole),
            (b"GET", {"range": [b"bytes=0-1", b"bytes=3-4"]}, whole),
            (b"HEAD", {}, (200, b"", whole[2])),
            (b"HEAD", {"range": b"bytes=9999-"}, (200, b"", whole[2])),
        )
        for method, headers, (status, body, own) in rows:
            response = self.harness.fetch_signed(PATH, method, **headers)
            self.assertEqual((status, body, HIT | own), (*_seen(response), response.fields))
        self.assertEqual((len(rows), len(rows)), (self.stored.opened, self.stored.closed))

    def test_unsatisfiable_range(self) -> None:
        """An unsatisfiable range is a 416 with the size and without Vary (Hit in proxy mode, 3)."""
        response = self.harness.fetch_signed(PATH, range=b"bytes=768-")
        self.assert_error(response, RangeNotSatisfiable)
        self.assertEqual(b"bytes */768", response["content-range"])
        self.assertEqual([], response.all("vary"))
        self.assertEqual(1, self.stored.closed)

    def test_empty_variant(self) -> None:
        """An empty variant is a 200 with Content-Length 0."""
        self.harness.store_variant(PATH, b"")
        response = self.harness.fetch_signed(PATH)
        self.assertEqual((200, b"", b"0"), (*_seen(response), response["content-length"]))

    def test_bytes_refused(self) -> None:
        """If the bytes of a found variant are refused or unreadable, no variant headers are sent.

        HEAD does not request the bytes.
        """
        gone, down = OSError("the disk is gone"), UpstreamUnavailable()
        for refusal, error in ((down, None), (None, down), (None, gone)):
            stored = self.harness.store_variant(PATH, DATA)
            stored.refusal, stored.error = refusal, error
            for headers in ({}, {"range": b"bytes=0-1"}):
                response = self.harness.fetch_signed(PATH, **headers)
                self.assert_error(response, UpstreamUnavailable)
                self.assertIsNone(response["content-range"])
                self.assertEqual(b"%d" % len(response.body), response["content-length"])
            self.assertEqual((2, 2), (stored.opened, stored.closed))
            self.assertEqual(200, self.harness.fetch_signed(PATH, b"HEAD").status)

    def test_replaced(self) -> None:
        """A variant that was replaced after its lookup is looked up once more, and then is a 502.

        The response has the length of the second object. Only the first lookup is counted.
        """
        for times, headers, expected in (
            (1, {}, b"x" * 20),
            (1, {"range": b"bytes=5-"}, b"x" * 15),
            (2, {}, None),
        ):
            versions = [FakeStored(data) for data in (*[DATA] * times, b"x" * 20)]
            for stored in versions:
                stored.opened = 1
            for stored in versions[:times]:
                stored.refusal = VariantChanged("another ETag")
            log, counts = Log(), Counts(self.harness.metrics)
            with patch.object(self.harness.store, "lookup", AsyncMock(side_effect=versions)):
                stop = log.start()
                response = self.harness.fetch_signed(PATH, **headers)
                stop()
            self.assertEqual({"cache_lookups_total mp3 hit": 1}, counts.of("cache_lookups_total"))
            self.assertEqual([1, 1], [stored.closed for stored in versions[:2]])
            if expected is None:
                self.assert_error(response, UpstreamUnavailable)
                self.assertEqual(["a stored variant cannot be read: another ETag"], log.warnings)
            else:
                self.assertEqual(expected, response.body)
                self.assertEqual(b"%d" % len(expected), response["content-length"])
                self.assertEqual([], log.warnings)

    def test_removed(self) -> None:
        """A variant that is removed between its lookup and its reading is rendered, not a 502."""
        self.stored.refusal = VariantChanged("status 404")
        with patch.object(self.harness.store, "lookup", AsyncMock(side_effect=[self.stored, None])):
            response = self.get_miss(PATH)
        self.assertEqual((200, DATA, b"MISS"), (*_seen(response), response["x-audio-proxy"]))

    def test_opened_too_late(self) -> None:
        """A range that the store opens although its client has left is discarded."""
        late = Mock(FileProducer)
        opening: Deferred[FileProducer] = Deferred(lambda opening: opening.callback(late))
        with patch.object(self.stored, "open_range", lambda start, stop: opening):
            self.send(PATH).leave()
        late.discard.assert_called_once_with()
        late.send.assert_not_called()
        self.assertEqual(1, self.stored.closed)


class RedirectTests(VariantCase):
    """HIT in redirect mode: a 302 to a presigned URL of the store."""

    def test_responses(self) -> None:
        """A HIT is a 302 without a body and with ``no-store`` (Hit in redirect mode).

        It has the framing headers of a HIT; with HEAD, the object's size (Framing by cache state;
        HEAD on signed endpoints, 3 and 4). The bytes are not read, and Range is left to the store.
        A MISS is rendered and sent by the service.
        """
        self.harness = ResourceHarness(presign_ttl=300)
        stored = self.harness.store_variant(PATH, DATA)
        stored.refusal = stored.error = UpstreamUnavailable()
        location = f"https://store.example/{key_of(PATH)}?expires=300".encode()
        for method, length in ((b"GET", b"0"), (b"HEAD", b"768")):
            own = {"location": location, "cache-control": b"no-store", "content-length": length}
            for headers in ({}, {"range": b"bytes=0-1"}):
                response = self.harness.fetch_signed(PATH, method, **headers)
                self.assertEqual((302, b"", HIT | own), (*_seen(response), response.fields))
        self.assertEqual(["lookup"] * 4, self.harness.called_methods())
        self.assertEqual((4, 4), (stored.opened, stored.closed))
        rest = b"/f:ogg/plain/local://a.mp3"
        response = self.get_miss(rest)
        self.assertEqual((200, DATA, b"MISS"), (*_seen(response), response["x-audio-proxy"]))
        self.assertEqual(200, self.harness.fetch_signed(rest, b"HEAD").status)


class CacheTagTests(VariantCase):
    """The tag of the source in a header of its own (D59)."""

    def test_responses(self) -> None:
        """Variants of a source have one tag, in whatever state and spelling; refusals have none.

        Scripts of other origins cannot read it: it is for caches (CORS, 2). No other header of a
        response is accepted as its name.
        """
        header = CacheTagHeader("cache-tag", b"salt")
        _, tag = header.line(b"local://a.mp3")
        spelled, names = b"/f:ogg/enc/bG9jYWw6Ly9hLm1wMw", set()
        for presign_ttl in (None, 300):
            self.harness = ResourceHarness(
                presign_ttl=presign_ttl, origin="https://a.example", cache_tag=header
            )
            self.harness.store_variant(PATH, DATA)
            get = self.harness.fetch_signed
            tagged = [get(PATH), get(PATH, range=b"bytes=1-2"), get(PATH, if_none_match=TAG)]
            tagged += [get(PATH, b"HEAD"), get(spelled, b"HEAD"), self.get_miss(spelled)]
            self.harness.renders.refusal = QueueFull(7)
            refused = [get(b"/q:99" + PATH), get(b"/ch:1" + PATH)]
            if presign_ttl is None:
                refused.append(get(PATH, range=b"bytes=768-"))
            self.assertEqual(
                [[tag.encode()]] * 6, [response.all("cache-tag") for response in tagged]
            )
            self.assertEqual({()}, {tuple(response.all("cache-tag")) for response in refused})
            for response in tagged + refused:
                self.assertNotIn(b"cache-tag", response["access-control-expose-headers"] or b"")
                names |= {name.decode() for name, _ in response.headers}
        self.assertLess({"location", "retry-after", "content-range", "vary"}, names)
        for name in names - {"cache-tag"}:
            self.assertRaises(InvalidValue, cache_tag_header, name)


class ConditionalTests(VariantCase):
    """If-None-Match with the entity tag, which depends only on the URL."""

    def test_match(self) -> None:
        """A list with the variant's tag, in one or several headers, is a 304; others are a 200.

        The variant store is not asked (Request handling order, 3).
        """
        self.harness.store_variant(PATH, DATA)
        for value in (b'"another"', b"*"):
            other = self.harness.fetch_signed(PATH, if_none_match=value)
            self.assertEqual((200, DATA), _seen(other))
        self.harness.store.lookup_error = UpstreamUnavailable()
        self.harness.calls.clear()
        expected = {"etag": TAG, "cache-control": MEDIA_CACHE_CONTROL.encode()}
        values: tuple[Any, ...] = (TAG, [b'"another, with a comma"', b"W/" + TAG])
        for value in values:
            for method in (b"GET", b"HEAD"):
                response = self.harness.fetch_signed(PATH, method, if_none_match=value)
                self.assertEqual((304, b"", expected), (*_seen(response), response.fields), value)
        self.assertEqual([], self.harness.called_methods())


def _disposition(dl: bytes) -> str:
    """Return the Content-Disposition for a value of ``dl``."""
    options, _ = parse_options([b"dl:" + dl])
    value = VariantHeaders.of(options).content_disposition
    assert value is not None and value.isascii()
    return value


class DownloadTests(SynchronousTestCase):
    """dl: Content-Disposition (D10, RFC 6266)."""

    def test_values(self) -> None:
        """The ASCII fallback precedes the exact name in UTF-8."""
        for dl, expected in (
            (b"song.mp3", "attachment; filename=\"song.mp3\"; filename*=UTF-8''song.mp3"),
            (b"a%20b.mp3", "attachment; filename=\"a b.mp3\"; filename*=UTF-8''a%20b.mp3"),
            (b"a%22b.mp3", "attachment; filename=\"a_b.mp3\"; filename*=UTF-8''a%22b.mp3"),
            (b"100%25.mp3", "attachment; filename=\"100_.mp3\"; filename*=UTF-8''100%25.mp3"),
            (b"M%C3%BCll", "attachment; filename=\"M_ll\"; filename*=UTF-8''M%C3%BCll"),
            (b"a:b;c'd", "attachment; filename=\"a:b;c'd\"; filename*=UTF-8''a%3Ab%3Bc%27d"),
            (b"%F0%9F%8E%B5", "attachment; filename=\"_\"; filename*=UTF-8''%F0%9F%8E%B5"),
        ):
            self.assertEqual(expected, _disposition(dl))

    def test_presigned(self) -> None:
        """A presigned URL names the header, or ``inline`` without ``dl``: a store may add one."""
        for name, expected in ((None, "inline"), ("a+b&.mp3", _disposition(b"a+b&.mp3"))):
            headers = VariantHeaders.of(VariantOptions(dl=name))
            query = parse_qs(headers.response_parameters())
            self.assertEqual([expected], query["response-content-disposition"])

    @DETERMINISTIC
    @given(FILENAMES)
    def test_any_name(self, name: str) -> None:
        """For any name, the header is one line from which the exact name can be decoded."""
        escaped = "".join(f"%{byte:02X}" for byte in name.encode()).encode()
        value = _disposition(escaped)
        match = re.fullmatch(
            r"attachment; filename=\"([^\"\\%]*)\"; filename\*=UTF-8''(\S*)", value
        )
        assert match is not None, value
        self.assertEqual(name, unquote(match[2], errors="strict"))
