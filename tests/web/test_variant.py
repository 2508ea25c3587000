"""Responses to signed variant URLs: order of checks, every status, every header."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import Mock, patch
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.logger import formatEvent
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import (
    Expired,
    InvalidOptions,
    InvalidSignature,
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
    UndecodableSource,
    UpstreamUnavailable,
    VideoSource,
)
from audioproxy.files.streams import FileProducer
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.option_parser import parse_options
from audioproxy.variants.headers import VariantHeaders
from audioproxy.variants.interfaces import VariantChanged
from tests.support.http import (
    MEDIA_CACHE_CONTROL,
    NOW,
    Log,
    ResourceHarness,
    Response,
    key_of,
)
from tests.support.stores import FakeStored
from tests.support.strategies import DETERMINISTIC

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


def _seen(response: Response) -> tuple[int, bytes]:
    return response.status, response.body


def _of(response: Response) -> tuple[bytes, bool]:
    return response.body, response.complete


class ReplacedVariant(FakeStored):
    """Stored variant that is replaced when it is read."""

    def __init__(self, successor: FakeStored, stored: dict[str, FakeStored]) -> None:
        super().__init__(DATA, successor.headers)
        self._successor = successor
        self._stored = stored

    async def open_range(self, start: int, stop: int) -> FileProducer:
        """Replace the variant, and raise `VariantChanged`."""
        self._stored[key_of(PATH)] = self._successor
        raise VariantChanged("another ETag")


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

    def get_miss(self, rest: bytes = PATH, data: bytes = DATA, **headers: Any) -> Response:
        """Complete a render for a request, and return the response."""
        connection = self.harness.connect()
        connection.send(self.harness.path(rest), **headers)
        render = self.harness.render(rest)
        if render.waiting:
            render.write_output(data)
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
        """A stored variant is served without opening its source (Request handling order, 4)."""
        self.harness.sources.crash = NotFound()
        self.harness.store_variant(PATH, DATA)
        for method in (b"GET", b"HEAD"):
            self.harness.calls.clear()
            response = self.harness.fetch_signed(PATH, method)
            self.assertEqual((200, b"HIT"), (response.status, response["x-audio-proxy"]))
            self.assertEqual(["lookup"], self.harness.called_methods())
        # A render that could be joined is not looked for either.
        self.get_miss(b"/plain/local://b")
        self.harness.store_variant(b"/plain/local://b", DATA)
        self.assertEqual(b"HIT", self.harness.fetch_signed(b"/plain/local://b")["x-audio-proxy"])

    def test_miss(self) -> None:
        """After a miss, GET renders and HEAD opens the source (Request handling order, 5)."""
        self.get_miss()
        self.assertEqual(["lookup", "join"], self.harness.called_methods())
        self.harness.calls.clear()
        self.harness.fetch_signed(PATH, b"HEAD")
        self.assertEqual([("lookup", key_of(PATH)), ("open", b"local://a.mp3")], self.harness.calls)
        self.assertEqual((1, 0), (len(self.harness.sources.opened), self.harness.sources.held))

    def test_without_a_store(self) -> None:
        """Without a store there is no lookup; every GET starts or joins a render."""
        self.harness = ResourceHarness(has_store=False)
        self.assertEqual(b"MISS", self.get_miss()["x-audio-proxy"])
        self.assertEqual(b"COALESCED", self.get_miss()["x-audio-proxy"])
        self.assertEqual(["join", "join"], self.harness.called_methods())


class ErrorTests(VariantCase):
    """Every row of the error table that applies to variant requests."""

    def test_from_the_render(self) -> None:
        """If a render is refused before its first byte, the response has the refusal's status."""
        for refusal in (
            *(NotFound("a reason for operators"), SourceTooLarge(), UndecodableSource()),
            *(VideoSource(), InvalidOptions("Not this."), QueueFull(7), RenderFailed()),
            *(NotConfigured(), ProbeFailed(), UpstreamUnavailable(), RenderTimeout()),
            ProbeTimeout(),
        ):
            self.harness = ResourceHarness()
            self.harness.renders.refusal = refusal
            response = self.harness.fetch_signed(PATH)
            self.assert_error(response, type(refusal))
            self.assertEqual(1, self.harness.render(PATH).left)
            retry_after = b"7" if isinstance(refusal, QueueFull) else None
            self.assertEqual(retry_after, response["retry-after"])

    def test_from_the_store(self) -> None:
        """A store that fails is a 502, not a miss (Errors, 8)."""
        self.harness.store.lookup_error = UpstreamUnavailable()
        for method in (b"GET", b"HEAD"):
            response = self.harness.fetch_signed(PATH, method)
            self.assertEqual(502, response.status)
        self.assertEqual(["lookup", "lookup"], self.harness.called_methods())

    def test_head_is_refused_like_get(self) -> None:
        """HEAD is refused like GET, without body or render (HEAD on signed endpoints, 1 and 2)."""
        too_large = "The source has 1000001 bytes; this service accepts at most 1000000."
        rows: tuple[tuple[bytes, Refusal | None], ...] = (
            (b"/f:mp3/q:99/plain/local://a.mp3", None),
            (b"/exp:1/plain/local://a.mp3", None),
            (b"/plain/http://refused/", None),
            (b"/no-source", None),
            *((PATH, NotFound()), (PATH, NotConfigured()), (PATH, UpstreamUnavailable())),
            (PATH, SourceTooLarge(too_large)),
        )
        for rest, refusal in rows:
            head, get = ResourceHarness(), ResourceHarness()
            get.renders.refusal = refusal
            if isinstance(refusal, SourceTooLarge):
                head.sources.default_size = 1_000_001
            else:
                head.sources.crash = refusal
            expected = get.fetch_signed(rest, x_request_id=b"same")
            response = head.fetch_signed(rest, b"HEAD", x_request_id=b"same")
            self.assertGreaterEqual(response.status, 400)
            self.assertEqual(expected.status, response.status, rest)
            self.assertEqual(expected.headers_without_date, response.headers_without_date)
            self.assertEqual(b"", response.body)
            self.assertNotIn("join", [name for name, _ in head.calls])

    def test_422_quotes_the_segment(self) -> None:
        """The message of a 422 quotes the segment as valid JSON, whatever its bytes are (D20)."""
        response = self.harness.fetch_signed(b'/f:"\x80\xb0%0a/plain/local://a.mp3')
        self.assert_error(response, InvalidOptions)
        self.assertIn("mp3", response.document["message"])
        self.assertTrue(response.body.isascii())


class MissTests(VariantCase):
    """MISS and COALESCED: chunked responses."""

    def test_headers(self) -> None:
        """A MISS is chunked, without Content-Length and Accept-Ranges (Framing by cache state)."""
        response = self.get_miss()
        self.assertEqual((200, DATA, True), (response.status, response.body, response.complete))
        for name, value in {
            "content-type": b"audio/mpeg",
            "cache-control": MEDIA_CACHE_CONTROL.encode(),
            "etag": TAG,
            "x-audio-proxy": b"MISS",
            "transfer-encoding": b"chunked",
            "content-length": None,
            "accept-ranges": None,
            "content-disposition": None,
        }.items():
            self.assertEqual(value, response[name], name)

    def test_coalesced(self) -> None:
        """A client that joins midway receives all bytes (Variant delivery states).

        Headers are sent with the first byte, so that an earlier refusal can set the status.
        """
        first, second = self.harness.connect(), self.harness.connect()
        first.send(self.harness.path(PATH))
        self.assertEqual(b"", first.received)
        render = self.harness.render(PATH)
        render.write_output(b"one ")
        self.assertEqual((b"one ", False), _of(first.response))
        # The same variant in another spelling, and with a request option.
        second.send(self.harness.path(b"/exp:%d/enc/bG9jYWw6Ly9hLm1wMw" % (NOW + 5)))
        self.assertEqual(b"one ", second.response.body)
        render.write_output(b"two")
        render.end()
        for connection, state in ((first, b"MISS"), (second, b"COALESCED")):
            response = connection.response
            self.assertEqual((b"one two", True), _of(response))
            self.assertEqual(state, response["x-audio-proxy"])
            self.assertEqual(TAG, response["etag"])
        self.assertEqual((2, 2), (render.subscribers, render.left))

    def test_content_types(self) -> None:
        """Every format of audio has its content type (D22)."""
        for token, form in FORMATS.items():
            if form.content_type:
                response = self.get_miss(b"/f:%s/plain/local://a" % token.encode())
                self.assertEqual(form.content_type.encode(), response["content-type"])

    def test_range_is_ignored(self) -> None:
        """A MISS ignores Range, and is never a 206 or a 416."""
        for header in (b"bytes=0-1", b"bytes=99999-"):
            self.assertEqual((200, DATA), _seen(self.get_miss(range=header)))

    def test_head(self) -> None:
        """HEAD of a MISS has the headers of GET without framing, and starts no render."""
        response = self.harness.fetch_signed(PATH, b"HEAD", range=b"bytes=0-1")
        self.assertEqual((200, b""), _seen(response))
        self.assertEqual(b"MISS", response["x-audio-proxy"])
        for name in ("content-length", "accept-ranges", "transfer-encoding", "content-range"):
            self.assertIsNone(response[name], name)
        get = self.get_miss()
        for name in ("content-type", "cache-control", "etag"):
            self.assertEqual(get[name], response[name])

    def test_http_1_0(self) -> None:
        """A response to HTTP/1.0 is not chunked, and ends with the connection."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH), version=b"HTTP/1.0")
        self.harness.render(PATH).write_output(DATA)
        self.harness.render(PATH).end()
        self.assertTrue(connection.closed and not connection.aborted)
        self.assertIsNone(connection.response["transfer-encoding"])
        self.assertEqual((200, DATA), _seen(connection.response))

    def test_reader_that_pauses(self) -> None:
        """A client that pauses receives no more bytes, and the rest when it resumes (D38)."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        render = self.harness.render(PATH)
        render.write_output(b"one")
        connection.pause()
        render.write_output(b"two")
        self.assertEqual(b"one", connection.response.body)
        connection.resume()
        self.assertEqual(b"onetwo", connection.response.body)
        connection.pause()
        render.end()
        connection.resume()
        self.assertTrue(connection.response.complete)


class HitTests(VariantCase):
    """HIT in proxy mode: Content-Length, ranges, and the headers of the write-back."""

    def setUp(self) -> None:
        super().setUp()
        self.stored = self.harness.store_variant(PATH, DATA)

    def test_headers(self) -> None:
        """A HIT has Content-Length and Accept-Ranges (Framing by cache state)."""
        response = self.harness.fetch_signed(PATH)
        self.assertEqual((200, DATA), _seen(response))
        for name, value in {
            "content-type": b"audio/mpeg",
            "cache-control": MEDIA_CACHE_CONTROL.encode(),
            "etag": TAG,
            "x-audio-proxy": b"HIT",
            "content-length": b"%d" % len(DATA),
            "accept-ranges": b"bytes",
            "transfer-encoding": None,
            "content-range": None,
        }.items():
            self.assertEqual(value, response[name], name)
        self.assertEqual(1, self.stored.closed)

    def test_head(self) -> None:
        """HEAD of a HIT has all headers of GET, and ignores Range (HEAD on signed endpoints, 4)."""
        get = self.harness.fetch_signed(PATH, x_request_id=b"same")
        for headers in ({}, {"range": b"bytes=0-1"}, {"range": b"bytes=9999-"}):
            head = self.harness.fetch_signed(PATH, b"HEAD", x_request_id=b"same", **headers)
            self.assertEqual((200, b""), _seen(head))
            self.assertEqual(get.headers_without_date, head.headers_without_date)
        self.assertEqual((4, 4), (self.stored.opened, self.stored.closed))

    def test_stored_headers_win(self) -> None:
        """A HIT has the Content-Type, Cache-Control and Content-Disposition that were stored."""
        stored = self.harness.store_variant(PATH, DATA, "audio/x-old", "attachment")
        stored.headers = type(stored.headers)("audio/x-old", "public, max-age=5", "attachment")
        for method in (b"GET", b"HEAD"):
            response = self.harness.fetch_signed(PATH, method)
            self.assertEqual(b"audio/x-old", response["content-type"])
            self.assertEqual(b"public, max-age=5", response["cache-control"])
            self.assertEqual(b"attachment", response["content-disposition"])

    def test_range(self) -> None:
        """A single byte range is a 206 with these bytes (Hit in proxy mode, 2)."""
        for header, start, stop in ((b"bytes=10-19", 10, 20), (b"bytes=-8", 760, 768)):
            response = self.harness.fetch_signed(PATH, range=header)
            self.assertEqual((206, DATA[start:stop]), _seen(response))
            self.assertEqual(b"bytes %d-%d/768" % (start, stop - 1), response["content-range"])
            self.assertEqual(b"%d" % (stop - start), response["content-length"])
            self.assertEqual(TAG, response["etag"])
            self.assertNotIn(b"Range", b",".join(response.all("vary")))

    def test_unsatisfiable_range(self) -> None:
        """An unsatisfiable range is a 416 with the size and without Vary (Hit in proxy mode, 3)."""
        response = self.harness.fetch_signed(PATH, range=b"bytes=768-")
        self.assert_error(response, RangeNotSatisfiable)
        self.assertEqual(b"bytes */768", response["content-range"])
        self.assertEqual([], response.all("vary"))
        self.assertEqual(1, self.stored.closed)

    def test_ignored_ranges(self) -> None:
        """Several ranges and malformed values are ignored (Hit in proxy mode, 4).

        A range applies only if If-Range is absent or the strong tag (RFC 9110, 13.1.5).
        """
        other = {"if_range": b'"another"'}
        rows: tuple[dict[str, Any], ...] = (
            *({"range": b"bytes=x"}, {"range": [b"bytes=0-1", b"bytes=3-4"]}),
            *({"range": b"bytes=0-1", **other}, {"range": b"bytes=9999-", **other}),
        )
        for headers in rows:
            response = self.harness.fetch_signed(PATH, **headers)
            self.assertEqual((200, DATA), _seen(response), headers)
            self.assertIsNone(response["content-range"])
        response = self.harness.fetch_signed(PATH, range=b"bytes=0-1", if_range=TAG)
        self.assertEqual(206, response.status)

    def test_empty_variant(self) -> None:
        """An empty variant is a 200 with Content-Length 0."""
        self.harness.store_variant(PATH, b"")
        response = self.harness.fetch_signed(PATH)
        self.assertEqual((200, b"", b"0"), (*_seen(response), response["content-length"]))

    def test_bytes_refused(self) -> None:
        """If the bytes of a found variant are refused or unreadable, no variant headers are sent.

        HEAD does not request the bytes.
        """
        for name, error in (
            ("refusal", UpstreamUnavailable()),
            ("error", OSError("the disk is gone")),
        ):
            stored = self.harness.store_variant(PATH, DATA, "audio/x-old", "attachment")
            setattr(stored, name, error)
            for headers in ({}, {"range": b"bytes=0-1"}):
                response = self.harness.fetch_signed(PATH, **headers)
                self.assert_error(response, UpstreamUnavailable)
                self.assertIsNone(response["content-range"])
                self.assertEqual(b"%d" % len(response.body), response["content-length"])
            self.assertEqual((2, 2), (stored.opened, stored.closed))
            self.assertEqual(200, self.harness.fetch_signed(PATH, b"HEAD").status)

    def test_store_breaks_off(self) -> None:
        """A store failure is a 502 before the first byte, and breaks the response after it."""
        self.stored.error = UpstreamUnavailable()
        self.assert_error(self.harness.fetch_signed(PATH, range=b"bytes=0-1"), UpstreamUnavailable)
        self.stored.error, self.stored.error_at = UpstreamUnavailable(), 1
        self.stored.data = bytes(200_000)
        self.stored.size = len(self.stored.data)
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        self.assertTrue(connection.aborted)
        self.assertEqual((200, False), (connection.response.status, connection.response.complete))
        self.assertEqual(2, self.stored.closed)

    def test_replaced(self) -> None:
        """A variant that was replaced after its lookup is looked up once more, and then is a 502.

        The response has the length of the second object. Only the first lookup is counted.
        """
        for times, headers, expected in (
            (1, {}, b"x" * 20),
            (1, {"range": b"bytes=5-"}, b"x" * 15),
            (2, {}, None),
        ):
            self.harness.calls.clear()
            stored = self.harness.store.stored
            variant = FakeStored(b"x" * 20, self.stored.headers)
            for _ in range(times):
                variant = ReplacedVariant(variant, stored)
            stored[key_of(PATH)] = variant
            log = Log()
            with patch.object(self.harness.metrics, "hit") as hit:
                stop = log.start()
                response = self.harness.fetch_signed(PATH, **headers)
                stop()
            hit.assert_called_once_with("mp3")
            self.assertEqual(["lookup"] * 2, self.harness.called_methods())
            lines = [str(formatEvent(event)) for event in log.events if "error" in event]
            if expected is None:
                self.assert_error(response, UpstreamUnavailable)
                self.assertEqual(["a stored variant cannot be read: another ETag"], lines)
            else:
                self.assertEqual(expected, response.body)
                self.assertEqual(b"%d" % len(expected), response["content-length"])
                self.assertEqual([], lines)

    def test_opened_too_late(self) -> None:
        """A range that the store opens although its client has left is discarded."""
        late = Mock(FileProducer)
        opening: Deferred[FileProducer] = Deferred(lambda opening: opening.callback(late))
        with patch.object(self.stored, "open_range", lambda start, stop: opening):
            connection = self.harness.connect()
            connection.send(self.harness.path(PATH))
            connection.leave()
        late.discard.assert_called_once_with()
        late.send.assert_not_called()
        self.assertEqual(1, self.stored.closed)

    def test_pipelined_hits(self) -> None:
        """Pipelined requests on one connection each get all bytes of the variant."""
        connection = self.harness.connect()
        request = b"GET " + self.harness.path(PATH) + b" HTTP/1.1\r\nHost: h\r\n\r\n"
        connection.send_raw(request * 3)
        self.assertEqual(3, connection.received.count(DATA))
        self.assertFalse(connection.closed)


class RedirectTests(VariantCase):
    """HIT in redirect mode: a 302 to a presigned URL of the store."""

    def setUp(self) -> None:
        self.harness = ResourceHarness(presign_ttl=300)
        self.stored = self.harness.store_variant(PATH, DATA, disposition="attachment")
        self.url = f"https://store.example/{key_of(PATH)}"

    def test_get(self) -> None:
        """A HIT is a 302 without a body and with ``no-store`` (Hit in redirect mode, 1 and 2).

        It has the framing headers of a HIT (Framing by cache state). The bytes are not read.
        """
        self.stored.refusal = self.stored.error = UpstreamUnavailable()
        response = self.harness.fetch_signed(PATH)
        self.assertEqual((302, b""), _seen(response))
        for name, value in {
            "location": f"{self.url}?expires=300".encode(),
            "cache-control": b"no-store",
            "content-length": b"0",
            "content-type": b"audio/mpeg",
            "content-disposition": b"attachment",
            "etag": TAG,
            "x-audio-proxy": b"HIT",
            "accept-ranges": b"bytes",
            "transfer-encoding": None,
            "content-range": None,
        }.items():
            self.assertEqual(value, response[name], name)
        self.assertEqual(["lookup"], self.harness.called_methods())
        self.assertEqual((1, 1), (self.stored.opened, self.stored.closed))

    def test_head_and_range(self) -> None:
        """HEAD has the headers of GET and the object's size (HEAD on signed endpoints, 3 and 4).

        Range does not change the redirect; the store serves ranges (Hit in redirect mode, 3).
        """
        get = self.harness.fetch_signed(PATH, x_request_id=b"same").headers_without_date
        size = (b"content-length", b"%d" % len(DATA))
        expected = sorted([size, *(line for line in get if line[0] != b"content-length")])
        for header in (b"", b"bytes=0-1", b"bytes=9999-", b"bytes=0-1,3-4"):
            for method, headers in ((b"GET", get), (b"HEAD", expected)):
                response = self.harness.fetch_signed(
                    PATH, method, x_request_id=b"same", range=header
                )
                self.assertEqual((302, b""), _seen(response), header)
                self.assertEqual(headers, response.headers_without_date, (method, header))
        self.assertEqual((9, 9), (self.stored.opened, self.stored.closed))

    def test_expiry(self) -> None:
        """AP_PRESIGN_TTL and ``exp`` limit the presigned URL (Hit in redirect mode, 1)."""
        for now, left, seconds in (
            *((0, 1, 1), (0, 299, 299), (0, 300, 300), (0, 301, 300), (0, 10**9, 300)),
            (0.9, 10, 10),
        ):
            self.harness.now = NOW + now
            rest = b"/f:mp3/exp:%d/plain/local://a.mp3" % (NOW + left)
            for method in (b"GET", b"HEAD"):
                location = self.harness.fetch_signed(rest, method)["location"]
                self.assertEqual(f"{self.url}?expires={seconds}".encode(), location)

    def test_last_second(self) -> None:
        """In the last second of ``exp``, the service sends the variant itself (D14)."""
        rest = b"/f:mp3/exp:%d/plain/local://a.mp3" % NOW
        for now in (NOW, NOW + 0.999):
            self.harness.now = now
            response = self.harness.fetch_signed(rest)
            self.assertEqual((200, DATA), _seen(response))
            self.assertIsNone(response["location"])
            self.assertEqual(
                b"public, max-age=0, immutable, no-transform", response["cache-control"]
            )
            self.assertEqual(206, self.harness.fetch_signed(rest, range=b"bytes=0-1").status)
            self.assertEqual(200, self.harness.fetch_signed(rest, b"HEAD").status)
        self.harness.now = NOW + 1
        self.assert_error(self.harness.fetch_signed(rest), Expired)

    def test_miss(self) -> None:
        """In redirect mode a MISS is rendered and sent by the service."""
        rest = b"/f:ogg/plain/local://a.mp3"
        response = self.get_miss(rest)
        self.assertEqual((200, DATA, b"MISS"), (*_seen(response), response["x-audio-proxy"]))
        self.assertIsNone(response["location"])
        self.assertEqual(200, self.harness.fetch_signed(rest, b"HEAD").status)


class ConditionalTests(VariantCase):
    """If-None-Match with the entity tag, which depends only on the URL."""

    def test_match(self) -> None:
        """A list with the variant's tag, in one or several headers, is a 304; another is a 200.

        The variant store is not asked (Request handling order, 3).
        """
        self.harness.store_variant(PATH, DATA)
        self.assertEqual(
            (200, DATA), _seen(self.harness.fetch_signed(PATH, if_none_match=b'"another"'))
        )
        self.harness.store.lookup_error = UpstreamUnavailable()
        self.harness.calls.clear()
        values: tuple[Any, ...] = (TAG, [b'"another, with a comma"', b"W/" + TAG])
        for value in values:
            for method in (b"GET", b"HEAD"):
                response = self.harness.fetch_signed(PATH, method, if_none_match=value)
                self.assertEqual((304, b""), _seen(response), value)
                self.assertEqual(TAG, response["etag"])
                self.assertEqual(MEDIA_CACHE_CONTROL.encode(), response["cache-control"])
                for name in ("content-type", "content-length", "transfer-encoding"):
                    self.assertIsNone(response[name], name)
        self.assertEqual([], self.harness.called_methods())


class ExpiryTests(VariantCase):
    """``exp`` in variant URLs: the last second in which they are served, and limits of max-age."""

    def responses(self, rest: bytes, now: float) -> dict[str, Response]:
        """Return every kind of successful response of a new service."""
        self.harness = ResourceHarness(now=now)
        responses = {"MISS": self.get_miss(rest), "COALESCED": self.get_miss(rest)}
        responses["HEAD of a MISS"] = self.harness.fetch_signed(rest, b"HEAD")
        self.harness.store_variant(rest, DATA)
        responses["HIT"] = self.harness.fetch_signed(rest)
        responses["206"] = self.harness.fetch_signed(rest, range=b"bytes=0-0")
        responses["HEAD of a HIT"] = self.harness.fetch_signed(rest, b"HEAD")
        responses["304"] = self.harness.fetch_signed(rest, if_none_match=TAG)
        return responses

    def test_clamp(self) -> None:
        """``exp`` limits max-age of responses, not of stored headers (Request option exp, 3).

        During the whole second that ``exp`` names, max-age is 0 (D14).
        """
        for now, left, seconds in ((0, 90, 90), (0, 10**9, 31536000), (0, 0, 0), (0.999, 0, 0)):
            rest = b"/f:mp3/exp:%d/plain/local://a.mp3" % (NOW + left)
            for name, response in self.responses(rest, NOW + now).items():
                self.assertEqual(
                    b"public, max-age=%d, immutable, no-transform" % seconds,
                    response["cache-control"],
                    name,
                )
            kept = VariantHeaders.of(self.harness.render(rest).request.options)
            self.assertEqual(MEDIA_CACHE_CONTROL, kept.cache_control)


class DownloadTests(VariantCase):
    """dl: Content-Disposition (D10, RFC 6266)."""

    def disposition(self, dl: bytes) -> str:
        """Return the Content-Disposition for a value of ``dl``."""
        options, _ = parse_options([b"dl:" + dl])
        value = VariantHeaders.of(options).content_disposition
        assert value is not None and value.isascii()
        return value

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
            self.assertEqual(expected, self.disposition(dl))

    def test_sent(self) -> None:
        """A MISS has the Content-Disposition that is stored with the variant."""
        rest = b"/dl:a.mp3/plain/local://a.mp3"
        expected = self.get_miss(rest)["content-disposition"]
        self.assertEqual(self.disposition(b"a.mp3").encode(), expected)
        self.assertEqual(expected, self.harness.fetch_signed(rest, b"HEAD")["content-disposition"])

    @DETERMINISTIC
    @given(
        st.text(
            st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="/\\"),
            min_size=1,
            max_size=60,
        )
    )
    def test_any_name(self, name: str) -> None:
        """For any name, the header is one line from which the exact name can be decoded."""
        escaped = "".join(f"%{byte:02X}" for byte in name.encode()).encode()
        value = self.disposition(escaped)
        match = re.fullmatch(
            r"attachment; filename=\"([^\"\\%]*)\"; filename\*=UTF-8''(\S*)", value
        )
        assert match is not None, value
        self.assertEqual(name, unquote(match[2], errors="strict"))
