"""Exchanges: each request has one response, one log line and one count, however it ends."""

from __future__ import annotations

import gc
from typing import Any

from twisted.logger import LogLevel, formatEvent

from audioproxy.errors import (
    InvalidOptions,
    NotFound,
    OutputDiffers,
    QueueFull,
    RangeNotSatisfiable,
    Refusal,
    RenderFailed,
    RenderTimeout,
    Stopping,
    UpstreamUnavailable,
)
from tests.observe.test_metrics import FORMATS, Counts
from tests.support.http import NOW, Log, ResourceHarness
from tests.web.test_variant import ERRORS, VariantCase

PATH = b"/f:mp3/plain/local://a%20b.mp3"
#: The options and the source of `PATH` in the log.
SUBJECT = "opts=f:mp3 src=local://a%20b.mp3"


class ExchangeCase(VariantCase):
    """A service, its log and its metrics."""

    def setUp(self) -> None:
        # `line` collects the garbage of this test only, which is quick.
        gc.freeze()
        self.addCleanup(gc.unfreeze)
        self.log = Log(self)
        self.make()

    def make(self, **settings: Any) -> None:
        """Replace the service with a new one."""
        self.harness = ResourceHarness(**settings)
        self.counts = Counts(self.harness.metrics)

    def line(self, errors: int = 0, lookup: str | None = None) -> str:
        """Return the only access log line since the last call.

        Assert that its request was counted with its endpoint and status family (Metrics, 2), that
        no request is active any more, the number of logged errors, and that other events without
        an error are shown at debug only.

        :param lookup: the result that its cache lookup was counted with (Metrics, 1), or ``""`` if
            there was none; by default, the cache state in the line.
        """
        gc.collect()
        self.assertEqual((errors, 0), (len(self.log.errors), self.harness.resource.active.count))
        (record,) = self.log.requests
        others = [each for each in self.log.events if not {"record", "error"} & each.keys()]
        shown = [each for each in others if each["log_level"] > LogLevel.debug]
        self.assertEqual(errors, len(shown))
        series = f"http_requests_total {record.endpoint} {record.status // 100}xx"
        self.assertEqual({series: 1}, self.counts.of("http_requests_total"))
        result = (record.cache or "").lower() if lookup is None else lookup
        expected = {f"cache_lookups_total mp3 {result}": 1} if result else {}
        self.assertEqual(expected, self.counts.of("cache_lookups_total"), record)
        self.log.events.clear()
        self.counts = Counts(self.harness.metrics)
        return str(record)


class LineTests(ExchangeCase):
    """Contents of access log lines."""

    def test_miss(self) -> None:
        """The line of a render has options, source, cache state, bytes and duration."""
        self.send(PATH)
        self.harness.render(PATH).write_output(b"abc")
        self.harness.clock.advance(1.2345)
        self.harness.render(PATH).end()
        self.assertEqual(f"render 200 {SUBJECT} cache=MISS 3 bytes in 1234ms", self.line())

    def test_first_byte(self) -> None:
        """The time to the first byte of a GET is counted when that is sent, by cache state.

        Without a first byte, or without a cache state, nothing is counted.
        """
        first, second = self.send(PATH), self.send(PATH)
        self.harness.clock.advance(0.25)
        self.harness.render(PATH).write_output(b"abc")
        expected = {
            f"first_byte_seconds_{part} {state}": value
            for state in ("miss", "coalesced")
            for part, value in (("count", 1), ("sum", 0.25))
        }
        self.assertEqual(expected, self.counts.of("first_byte"))
        self.harness.clock.advance(8)
        self.harness.render(PATH).end()
        self.assertTrue(first.response.complete and second.response.complete)
        self.send(b"/f:wav/plain/local://a").leave()
        self.harness.store_variant(PATH, b"abc")
        tag = self.harness.fetch_signed(PATH, b"HEAD")["etag"]
        self.harness.fetch_signed(PATH, if_none_match=tag)
        self.harness.fetch_signed(PATH)
        self.assertEqual(
            expected | {"first_byte_seconds_count hit": 1}, self.counts.of("first_byte")
        )

    def test_variants(self) -> None:
        """A line has status, options, source and cache state, as far as they are determined.

        On 401, 410 and 422 it has no options and no source (Request log, 2). A 304 has no cache
        state, as nothing is looked up. Options are never logged without a source (D28).

        Only a GET counts a lookup, with Range as without (HEAD on signed endpoints, 7). A store
        that fails is a 502, not a miss (Errors, 8).
        """
        self.harness.store_variant(PATH, b"0123456789")
        tag = self.harness.fetch_signed(PATH, b"HEAD")["etag"]
        self.line(lookup="")
        missing = b"/f:wav/plain/local://a"
        rows: tuple[tuple[bytes, bytes, dict[str, Any], str, str], ...] = (
            (b"GET", PATH, {}, f"200 {SUBJECT} cache=HIT", "hit"),
            (b"GET", PATH, {"range": b"bytes=2-4"}, f"206 {SUBJECT} cache=HIT", "hit"),
            (b"GET", PATH, {"range": b"bytes=99-"}, f"416 range_not_satisfiable {SUBJECT}", "hit"),
            (b"HEAD", PATH, {}, f"200 {SUBJECT} cache=HIT", ""),
            (b"HEAD", missing, {}, "200 opts=f:wav src=local://a cache=MISS", ""),
            (b"GET", PATH, {"if_none_match": tag}, f"304 {SUBJECT}", ""),
            (b"GET", b"/q:99" + PATH, {}, "422 invalid_options", ""),
            (b"HEAD", b"/exp:1" + PATH, {}, "410 expired", ""),
            (b"GET", b"/plain/http://refused", {}, "404 not_found", ""),
            (b"GET", b"/x", {}, "404 not_found", ""),
        )
        for method, rest, headers, words, lookup in rows:
            sent = len(self.harness.fetch_signed(rest, method, **headers).body)
            line = self.line(lookup=lookup)
            self.assertEqual(f"render {words} {sent} bytes in 0ms", line)
        self.harness.fetch(b"/x" + PATH, b"HEAD")
        self.assertEqual("render 401 invalid_signature 0 bytes in 0ms", self.line())
        self.harness.sources.crash = NotFound()
        self.harness.fetch_signed(missing, b"HEAD")
        self.assertEqual(
            "render 404 not_found opts=f:wav src=local://a 0 bytes in 0ms", self.line()
        )
        self.harness.store.lookup_error = UpstreamUnavailable()
        for method in (b"GET", b"HEAD"):
            self.harness.fetch_signed(PATH, method)
            self.assertTrue(self.line().startswith(f"render 502 upstream_unavailable {SUBJECT} "))

    def test_redirect(self) -> None:
        """The line of a redirect is a HIT with 0 bytes, without the presigned URL."""
        self.make(presign_ttl=300)
        self.harness.store_variant(PATH, b"0123456789")
        for method, lookup in ((b"GET", "hit"), (b"HEAD", "")):
            self.harness.fetch_signed(PATH, method)
            line = self.line(lookup=lookup)
            self.assertEqual(f"render 302 {SUBJECT} cache=HIT 0 bytes in 0ms", line)

    def test_endpoints(self) -> None:
        """Each request has one endpoint class (Request log, 1)."""
        self.make(origin="*")
        for method, target, words in (
            (b"GET", b"/health", "health 200"),
            (b"HEAD", b"/health", "health 200"),
            (b"GET", b"/ready", "ready 200"),
            (b"HEAD", b"/ready", "ready 200"),
            (b"OPTIONS", b"/health", "preflight 204"),
            (b"OPTIONS", b"/anything", "preflight 204"),
            (b"GET", b"/metrics", "unknown 404 not_found"),
            (b"POST", b"/health", "unknown 404 not_found"),
            (b"GET", b"/hls/x/y", "unknown 404 not_found"),
            (b"GET", b"/", "unknown 404 not_found"),
            (b"GET", b"/x/info/plain/local://a", "info 401 invalid_signature"),
            (b"GET", b"/x/information/plain/local://a", "render 401 invalid_signature"),
        ):
            sent = len(self.harness.fetch(target, method).body)
            self.assertEqual(f"{words} {sent} bytes in 0ms", self.line())
        self.harness.readiness.depth_changed(2)
        self.harness.fetch(b"/ready", b"HEAD")
        self.assertEqual("ready 503 0 bytes in 0ms", self.line())

    def test_no_http(self) -> None:
        """Bytes that are not HTTP are logged and counted as ``unknown`` 400."""
        self.harness.connect().send_raw(b"\x16\x03\x01\r\n\r\n")
        self.assertTrue(self.line().startswith("unknown 400 "))

    def test_refused_renders(self) -> None:
        """If a render is refused before its first byte, the response has the refusal's status.

        The line has options and source, but no cache state; a 5xx is a warning.
        """
        arguments: dict[type[Refusal], tuple[Any, ...]] = {
            QueueFull: (7,),
            RangeNotSatisfiable: (9,),
            InvalidOptions: ("Not this.",),
            NotFound: ("a reason for operators",),
        }
        for kind in ERRORS:
            refusal = kind(*arguments.get(kind, ()))
            self.make()
            self.harness.renders.refusal = refusal
            response = self.harness.fetch_signed(PATH)
            self.assert_error(response, kind)
            self.assertEqual(1, self.harness.render(PATH).left)
            retry_after = b"7" if kind is QueueFull else None
            self.assertEqual(retry_after, response["retry-after"])
            (record,) = self.log.requests
            self.assertIs(LogLevel.warn if refusal.status >= 500 else LogLevel.info, record.level)
            words = f"render {refusal.status} {refusal.code} {SUBJECT}"
            line = self.line(lookup="miss")
            self.assertEqual(f"{words} {len(response.body)} bytes in 0ms", line)


class LookupTests(ExchangeCase):
    """Cache lookups (Metrics, 1); `line` asserts those of each request."""

    def test_formats(self) -> None:
        """A GET counts once with its format, which is mp3 by default, even without a store."""
        self.make(has_store=False)
        expected = {"cache_lookups_total mp3 miss": 3, "cache_lookups_total mp3 coalesced": 1}
        for rest in (b"/plain/local://a", b"/br:96/plain/local://a", b"/plain/s3://b/k"):
            self.send(rest)
        self.send(b"/exp:%d/plain/local://a" % NOW)
        for form in FORMATS:
            self.send(f"/f:{form}/plain/local://b".encode())
            expected[f"cache_lookups_total {form} miss"] = 3 * (form == "mp3") + 1
        self.assertEqual(expected, self.counts.of("cache_lookups_total"))


class EndTests(ExchangeCase):
    """Clients that leave, failed responses and crashes: subscriptions end, one line is logged."""

    def test_left_before_headers(self) -> None:
        """A client that leaves before any response header is a 499; nothing is written later."""
        for late, failure in ((b"late", None), (b"", RenderFailed())):
            self.make()
            connection = self.send(PATH)
            self.assertEqual({}, self.counts.of("http_requests_total"))
            self.assertEqual(1, self.harness.resource.active.count)
            connection.leave()
            render = self.harness.render(PATH)
            self.assertEqual((1, 1, []), (render.subscribers, render.left, render.waiting))
            self.assertEqual(f"render 499 {SUBJECT} 0 bytes in 0ms", self.line(lookup="miss"))
            if late:
                render.write_output(late)
            render.end(failure)
            self.assertEqual((b"", []), (connection.received, self.log.events))
            self.assertEqual({}, self.counts.changes)

    def test_left_while_streaming(self) -> None:
        """A client that leaves midway, stalled or not, unsubscribes; the bytes sent are logged.

        Those that wait for the client to read are not sent.
        """
        for stalled in (False, True):
            self.make()
            # Without chunks, whose framing waits, too.
            connection = self.send(PATH, version=b"HTTP/1.0")
            render = self.harness.render(PATH)
            render.write_output(b"half")
            if stalled:
                connection.pause(notified=False)
                render.write_output(b"more")
            connection.leave()
            self.assertEqual(1, render.left)
            self.assertEqual(f"render 200 {SUBJECT} cache=MISS 4 bytes in 0ms", self.line())
            render.write_output(b"late")
            render.end(RenderFailed())
            self.assertEqual([], self.log.events)

    def test_left_during_a_hit(self) -> None:
        """A stored variant is closed when its client leaves, and the bytes sent are logged."""
        stored = self.harness.store_variant(PATH, b"x" * 1_000_000)
        connection = self.harness.connect(window=5000)
        connection.send(self.harness.path(PATH))
        self.assertEqual((1, 0), (stored.opened, stored.closed))
        sent = len(connection.response.body)
        connection.leave()
        self.assertEqual((1, 1), (stored.opened, stored.closed))
        self.assertTrue(0 < sent < 5000, sent)
        self.assertEqual(f"render 200 {SUBJECT} cache=HIT {sent} bytes in 0ms", self.line())

    def test_failed_stream(self) -> None:
        """A response that fails midway is aborted, so it looks incomplete (Errors, 10).

        It has no last chunk; to HTTP/1.0, a close would complete it. It is logged once, with the
        status that was sent and an error code, which is another one where the source is to blame
        (D78).
        """
        for version, refusal, code in (
            (b"HTTP/1.1", RenderTimeout(), "render_timeout"),
            (b"HTTP/1.0", RenderTimeout(), "render_timeout"),
            (b"HTTP/1.1", OutputDiffers(), "output_differs"),
        ):
            self.make()
            connection = self.send(PATH, version=version)
            render = self.harness.render(PATH)
            render.write_output(b"some")
            self.assertEqual({}, self.counts.of("http_requests_total"))
            render.end(refusal)
            response = connection.response
            self.assertEqual((b"some", False), (response.body, response.complete), version)
            self.assertEqual((True, 1), (connection.aborted, render.left))
            self.assertEqual(f"render 200 {code} {SUBJECT} cache=MISS 4 bytes in 0ms", self.line())

    def test_cut_by_a_stop(self) -> None:
        """A stop that cuts a response logs its request id and the bytes that were sent (D39)."""
        for stored in (False, True):
            self.make()
            if stored:
                self.harness.store_variant(PATH, b"x" * 1_000_000)
            connection = self.harness.connect(window=5000 if stored else None)
            connection.send(self.harness.path(PATH), x_request_id=b"mine")
            if stored:
                # The time of the stop is over, and then the process ends.
                self.harness.resource.abandon()
                connection.leave()
            else:
                render = self.harness.render(PATH)
                render.write_output(b"some")
                render.end(Stopping())
            (cut,) = [each for each in self.log.events if each["log_level"] is LogLevel.warn][:1]
            self.assertEqual("mine", cut["request_id"])
            sent = len(connection.response.body)
            self.assertEqual(stored, 4 < sent < 5000)
            self.assertEqual(f"a stop has cut this response after {sent} bytes", formatEvent(cut))
            self.log.events.remove(cut)
            code = "" if stored else "stopping "
            self.assertEqual(
                {"http_responses_cut_total stop": 1}, self.counts.of("http_responses_cut")
            )
            self.assertTrue(self.line().startswith(f"render 200 {code}{SUBJECT} "))

    def test_stop_before_the_response(self) -> None:
        """A request whose response had not begun when a stop ends is no response that was cut."""
        self.make()
        connection = self.send(PATH)
        self.harness.resource.abandon()
        connection.leave()
        self.assertEqual({}, self.counts.of("http_responses_cut"))
        self.assertEqual(
            {"http_responses_total render 499": 1}, self.counts.of("http_responses_total")
        )

    def test_reasons(self) -> None:
        """At debug, each refusal has a line with its reason; a 422 names the segment."""
        self.make(insecure=True)
        for target, reason in (
            (b"/x/q:99" + PATH, "The signature is missing or does not match the path."),
            (b"/insecure/q:99" + PATH, '"q:99" is not accepted: '),
            (b"/insecure/exp:1" + PATH, "This URL has expired."),
            (b"/insecure/plain/http://a/b", "a source is local://"),
            (b"/nowhere", "no such route"),
        ):
            self.harness.fetch(target, x_request_id=b"mine")
            (event,) = [each for each in self.log.events if "reason" in each]
            self.assertEqual((LogLevel.debug, "mine"), (event["log_level"], event["request_id"]))
            self.assertIn(f"refused: {reason}", formatEvent(event))
            self.line(lookup="")

    def test_cut_short(self) -> None:
        """A stored variant that becomes shorter breaks the response, with one plain warning."""
        self.harness.store_variant(PATH, b"0123456789").size = 20
        connection = self.send(PATH)
        response = connection.response
        self.assertTrue(connection.aborted)
        self.assertEqual((b"0123456789", False), (response.body, response.complete))
        why = "the file was shortened to 10 bytes or less"
        self.assertEqual([f"a variant cannot be read to its end: {why}"], self.log.warnings)
        cut = self.counts.of("http_responses_cut", "http_response_bytes")
        expected = {"http_responses_cut_total failure": 1, "http_response_bytes_total render": 10}
        self.assertEqual(expected, cut)
        self.assertEqual(
            f"render 200 upstream_unavailable {SUBJECT} cache=HIT 10 bytes in 0ms", self.line()
        )

    def test_crash(self) -> None:
        """An unexpected exception is a 500 with the error document, and is logged.

        What a request logs has its id (D54).
        """
        self.harness.store.lookup_error = ZeroDivisionError("unforeseen")
        response = self.harness.fetch_signed(PATH, x_request_id=b"mine")
        self.assertEqual((500, "render_failed"), (response.status, response.error))
        self.assertEqual(b"no-store", response["cache-control"])
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertEqual(["mine"], [event["request_id"] for event in self.log.errors])
        self.assertTrue(self.line(errors=1).startswith("render 500 render_failed "))
