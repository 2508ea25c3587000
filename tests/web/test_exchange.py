"""Exchanges: each request has one response and one access log line, however it ends."""

from __future__ import annotations

import gc

from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NotFound, RenderFailed, RenderTimeout
from tests.support.http import Log, ResourceHarness

PATH = b"/f:mp3/plain/local://a%20b.mp3"
OPTIONS_AND_SOURCE = "opts=f:mp3 src=local://a%20b.mp3"


class ExchangeCase(SynchronousTestCase):
    """A service and its log."""

    def setUp(self) -> None:
        self.log = Log()
        self.addCleanup(self.log.start())
        self.harness = ResourceHarness()

    def line(self) -> str:
        """Return the only access log line; assert that no error was logged."""
        gc.collect()
        self.assertEqual([], self.log.errors)
        (record,) = self.log.requests
        self.log.events.clear()
        return str(record)


class LineTests(ExchangeCase):
    """Contents of access log lines."""

    def test_miss(self) -> None:
        """The line of a render has options, source, cache state, bytes and duration."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        self.harness.render(PATH).write_output(b"abc")
        self.harness.clock.advance(1.2345)
        self.harness.render(PATH).end()
        self.assertEqual(
            f"render 200 {OPTIONS_AND_SOURCE} cache=MISS 3 bytes in 1234ms", self.line()
        )

    def test_hit(self) -> None:
        """The line of a HIT has the bytes of the sent body, which are 0 for HEAD."""
        self.harness.store_variant(PATH, b"0123456789")
        self.harness.fetch_signed(PATH, range=b"bytes=2-4")
        self.assertEqual(f"render 206 {OPTIONS_AND_SOURCE} cache=HIT 3 bytes in 0ms", self.line())
        self.harness.fetch_signed(PATH, b"HEAD")
        self.assertEqual(f"render 200 {OPTIONS_AND_SOURCE} cache=HIT 0 bytes in 0ms", self.line())

    def test_redirect(self) -> None:
        """The line of a redirect is a HIT with 0 bytes, without the presigned URL."""
        self.harness = ResourceHarness(presign_ttl=300)
        self.harness.store_variant(PATH, b"0123456789").url = "https://store.example/secret"
        for method in (b"GET", b"HEAD"):
            self.harness.fetch_signed(PATH, method)
            self.assertEqual(
                f"render 302 {OPTIONS_AND_SOURCE} cache=HIT 0 bytes in 0ms", self.line()
            )

    def test_gone_before_any_answer(self) -> None:
        """A client that leaves before any response header is logged with status 499."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        connection.leave()
        self.assertEqual(f"render 499 {OPTIONS_AND_SOURCE} 0 bytes in 0ms", self.line())

    def test_conditional(self) -> None:
        """The line of a 304 has options and source, but no cache state, as nothing is looked up."""
        tag = self.harness.fetch_signed(PATH, b"HEAD")["etag"]
        self.line()
        self.harness.fetch_signed(PATH, if_none_match=tag)
        self.assertEqual(f"render 304 {OPTIONS_AND_SOURCE} 0 bytes in 0ms", self.line())

    def test_refusals(self) -> None:
        """The lines of a 401, a 410 and a 422 have no options and no source (Request log, 2)."""
        self.harness.fetch(b"/x" + PATH, b"HEAD")
        self.assertEqual("render 401 invalid_signature 0 bytes in 0ms", self.line())
        self.harness.fetch_signed(b"/q:99" + PATH, b"HEAD")
        self.assertEqual("render 422 invalid_options 0 bytes in 0ms", self.line())
        self.harness.fetch_signed(b"/exp:1" + PATH, b"HEAD")
        self.assertEqual("render 410 expired 0 bytes in 0ms", self.line())
        self.harness.source = NotFound()
        self.harness.fetch_signed(PATH, b"HEAD")
        self.assertEqual(f"render 404 not_found {OPTIONS_AND_SOURCE} 0 bytes in 0ms", self.line())
        self.harness.fetch_signed(b"/plain/http://refused", b"HEAD")
        # Options are never logged without a source (D28).
        self.assertEqual("render 404 not_found 0 bytes in 0ms", self.line())

    def test_endpoints(self) -> None:
        """Each request has one endpoint class (Request log, 1)."""
        harness = ResourceHarness(origin="*")
        for method, target, endpoint in (
            (b"GET", b"/health", "health"),
            (b"HEAD", b"/ready", "ready"),
            (b"OPTIONS", b"/health", "preflight"),
            (b"GET", b"/metrics", "unknown"),
            (b"POST", b"/health", "unknown"),
            (b"GET", b"/hls/x/y", "unknown"),
            (b"GET", b"/x/info/plain/local://a", "info"),
            (b"GET", b"/x/information/plain/local://a", "render"),
        ):
            harness.fetch(target, method)
            self.assertEqual(endpoint, self.line().partition(" ")[0])

    def test_refused_render(self) -> None:
        """The line of a failed render is a warning with options and source, but no cache state."""
        self.harness.render_error = RenderTimeout()
        self.harness.fetch_signed(PATH)
        (record,) = self.log.requests
        self.assertIs(LogLevel.warn, record.level)
        self.assertRegex(
            str(record), rf"\Arender 504 render_timeout {OPTIONS_AND_SOURCE} \d+ bytes in 0ms\Z"
        )


class EndTests(ExchangeCase):
    """Clients that leave, failed responses and crashes: subscriptions end, one line is logged."""

    def test_left_before_headers(self) -> None:
        """A client that leaves before the first byte unsubscribes, and nothing is written later."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        connection.leave()
        render = self.harness.render(PATH)
        self.assertEqual((1, 1, []), (render.subscribers, render.left, render.waiting))
        self.assertIn(OPTIONS_AND_SOURCE, self.line())
        render.write_output(b"late")
        render.end()
        self.assertEqual(b"", connection.received)
        self.assertEqual([], self.log.events)

    def test_left_while_streaming(self) -> None:
        """A client that leaves midway unsubscribes, and the line has the bytes sent so far."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        self.harness.render(PATH).write_output(b"half")
        connection.leave()
        self.assertEqual(1, self.harness.render(PATH).left)
        self.assertEqual(f"render 200 {OPTIONS_AND_SOURCE} cache=MISS 4 bytes in 0ms", self.line())
        self.harness.render(PATH).write_output(b"late")
        self.harness.render(PATH).end(RenderFailed())
        self.assertEqual([], self.log.events)

    def test_left_while_paused(self) -> None:
        """A client that leaves while it is stalled unsubscribes and is logged."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        self.harness.render(PATH).write_output(b"one")
        connection.pause()
        self.harness.render(PATH).write_output(b"two")
        connection.leave()
        self.assertEqual(f"render 200 {OPTIONS_AND_SOURCE} cache=MISS 3 bytes in 0ms", self.line())
        self.assertEqual(1, self.harness.render(PATH).left)

    def test_left_during_a_hit(self) -> None:
        """A stored variant is closed when its client leaves."""
        stored = self.harness.store_variant(PATH, b"x" * 1_000_000)
        connection = self.harness.connect(window=1)
        connection.send(self.harness.path(PATH))
        self.assertEqual((1, 0), (stored.opened, stored.closed))
        connection.leave()
        self.assertEqual((1, 1), (stored.opened, stored.closed))
        self.assertRegex(
            self.line(), rf"\Arender 200 {OPTIONS_AND_SOURCE} cache=HIT [1-9]\d+ bytes in 0ms\Z"
        )

    def test_others_stay(self) -> None:
        """A client that leaves does not affect others that share the render."""
        first, second = self.harness.connect(), self.harness.connect()
        first.send(self.harness.path(PATH))
        second.send(self.harness.path(PATH))
        first.leave()
        self.harness.render(PATH).write_output(b"all")
        self.harness.render(PATH).end()
        self.assertEqual((b"all", True), (second.response.body, second.response.complete))

    def test_failed_stream(self) -> None:
        """A response that fails midway is logged once, with its status and an error code."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        self.harness.render(PATH).write_output(b"some")
        self.harness.render(PATH).end(RenderTimeout())
        self.assertEqual(
            f"render 200 render_timeout {OPTIONS_AND_SOURCE} cache=MISS 4 bytes in 0ms", self.line()
        )

    def test_crash(self) -> None:
        """An unexpected exception is a 500 with the error document, and is logged."""
        self.harness.stored = ZeroDivisionError("unforeseen")
        response = self.harness.fetch_signed(PATH)
        self.assertEqual((500, "render_failed"), (response.status, response.error))
        self.assertEqual(b"no-store", response["cache-control"])
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertEqual(1, len(self.log.requests))

    def test_active_requests_end(self) -> None:
        """The number of active requests returns to zero, however the requests end."""
        connections = [self.harness.connect() for _ in range(3)]
        for connection in connections:
            connection.send(self.harness.path(PATH))
        self.assertEqual(3, self.harness.resource.active.count)
        connections[0].leave()
        self.assertEqual(2, self.harness.resource.active.count)
        self.harness.render(PATH).write_output(b"x")
        connections[1].leave()
        self.harness.render(PATH).end()
        self.harness.fetch(b"/health")
        self.assertEqual(0, self.harness.resource.active.count)
