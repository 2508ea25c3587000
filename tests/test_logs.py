"""Log lines on the output stream: one line per event, in one format."""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from typing import Any

from twisted.internet.task import Clock
from twisted.logger import Logger, LogLevel, LogPublisher, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import RenderFailed, RenderTimeout
from audioproxy.logs import LEVELS, LineObserver
from audioproxy.server.site import ProxySite
from audioproxy.web.access_log import AccessLogEntry, log_request
from audioproxy.web.metrics_resource import MetricsResource
from tests.render.harness import RenderHarness
from tests.support.http import Connection, ResourceHarness

# 2001-09-09 01:46:40 UTC and 123 milliseconds.
TIME = 1_000_000_000.1234
STAMP = "2001-09-09T01:46:40.123Z"


class LineObserverTests(SynchronousTestCase):
    """`LineObserver`"""

    def setUp(self) -> None:
        self.stream = io.StringIO()

    def observe(self, level: str = "debug", **event: Any) -> str:
        """Return the text that is written for an event."""
        LineObserver(self.stream, level)({"log_time": TIME, **event})
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text

    def test_shape(self) -> None:
        """A line has the UTC time in milliseconds, the level and the text (Request log; D28)."""
        self.assertEqual(
            f"{STAMP} [info] hello\n",
            self.observe(log_level=LogLevel.info, log_format="{word}", word="hello"),
        )

    def test_request(self) -> None:
        """The request id comes before the level (Request log)."""
        record = AccessLogEntry(
            "abc", "render", 404, "not_found", "f:mp3", b"local://a b\nc.mp3", None, 77, 5
        )
        self.assertEqual(
            f"{STAMP} request_id=abc [info] render 404 not_found opts=f:mp3"
            " src=local://a%20b%0Ac.mp3 77 bytes in 5ms\n",
            self.observe(
                log_level=record.level, log_format="{record}", record=record, request_id="abc"
            ),
        )

    def test_level_names(self) -> None:
        """Levels are spelled as in AP_LOG_LEVEL, and Twisted's critical level is shown as error."""
        for level, name in (
            (LogLevel.debug, "debug"),
            (LogLevel.info, "info"),
            (LogLevel.warn, "warning"),
            (LogLevel.error, "error"),
            (LogLevel.critical, "error"),
        ):
            self.assertEqual(f"{STAMP} [{name}] x\n", self.observe(log_level=level, log_format="x"))

    def test_threshold(self) -> None:
        """AP_LOG_LEVEL selects its own level and all levels above it."""
        order = ["debug", "info", "warning", "error"]
        self.assertEqual(order, list(LEVELS))
        for least in order:
            for level in order:
                written = self.observe(least, log_level=LEVELS[level], log_format="x")
                self.assertEqual(order.index(level) >= order.index(least), bool(written))

    def test_event_without_level(self) -> None:
        """Events of Twisted's legacy log, which have no level, are logged as info."""
        self.assertEqual(f"{STAMP} [info] old\n", self.observe(log_format="old"))

    def test_text_is_no_format(self) -> None:
        """Braces and percent signs in a field are not format directives."""
        text = "{0} {record} %s"
        self.assertEqual(f"{STAMP} [info] {text}\n", self.observe(log_format="{text}", text=text))

    def test_several_lines(self) -> None:
        """Line breaks in a text cannot forge a log line: continuation lines are indented (D28)."""
        for end in ("\n", "\r\n", "\r", "\x0b", "\x85", "\u2028"):
            written = self.observe(log_format="{text}", text=f"x{end}{STAMP} [info] forged{end}")
            self.assertEqual(f"{STAMP} [info] x\n    {STAMP} [info] forged\n", written)

    def test_failure(self) -> None:
        """A crash is logged with its traceback, as one event."""
        try:
            raise ZeroDivisionError("by zero")
        except ZeroDivisionError:
            failure = Failure()
        written = self.observe(
            log_level=LogLevel.critical, log_format="a request crashed", log_failure=failure
        )
        self.assertTrue(written.startswith(f"{STAMP} [error] a request crashed"), written)
        self.assertIn("ZeroDivisionError: by zero", written)
        self.assertIn("test_failure", written)
        self.assertTrue(all(line.startswith("    ") for line in written.splitlines()[1:]))

    def test_given_stream(self) -> None:
        """Lines go to the given stream, even if twistd replaces stdout."""
        observer = LineObserver(self.stream, "info")
        self.patch(sys, "stdout", io.StringIO())
        Logger(observer=LogPublisher(observer)).info("to the real one")
        self.assertTrue(self.stream.getvalue().endswith(" [info] to the real one\n"))
        self.assertEqual("", sys.stdout.getvalue())  # type: ignore[attr-defined]

    def test_text_that_the_stream_cannot_spell(self) -> None:
        """Characters that the stream cannot encode are escaped, so no line is lost."""
        for encoding, shown in (("ascii", "\\xe9 \\udc80"), ("utf-8", "é \\udc80")):
            raw = io.BytesIO()
            stream = io.TextIOWrapper(raw, encoding=encoding)
            LineObserver(stream, "info")(
                {"log_time": TIME, "log_format": "{text}", "text": "é \udc80"}
            )
            self.assertEqual(f"{STAMP} [info] {shown}\n", raw.getvalue().decode(encoding))
            stream.detach()

    def test_flushed(self) -> None:
        """Each line is flushed immediately."""
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, write_through=False)
        LineObserver(stream, "info")({"log_time": TIME, "log_format": "x"})
        self.assertEqual(f"{STAMP} [info] x\n".encode(), raw.getvalue())
        stream.detach()


#: Log lines, each with the highest AP_LOG_LEVEL that shows it (Request log).
LINES = {
    r"request_id=health \[debug\] health 200 \d+ bytes in 0ms": "debug",
    r"request_id=ready \[debug\] ready 200 \d+ bytes in 0ms": "debug",
    r"request_id=unready \[debug\] ready 503 \d+ bytes in 0ms": "debug",
    r"request_id=scrape \[debug\] metrics 200 \d+ bytes in 0ms": "debug",
    r"request_id=gone \[debug\] the client has disconnected": "debug",
    r"request_id=left \[debug\] the client has disconnected": "debug",
    r"request_id=missing \[debug\] the reason for a 404: no such route": "debug",
    r"\[debug\] the render of \S+ has a slot": "debug",
    r"\[debug\] the render of \S+ has ended: 3 bytes": "debug",
    r"\[debug\] the render of \S+ is stored": "debug",
    r"\[debug\] the render of \S+ is stopped": "debug",
    r"\[debug\] the render of \S+ has failed: The source has no audio .*": "debug",
    r"\[debug\] the render of \S+ has failed: The encoder could not be started\.": "debug",
    r"request_id=hit \[info\] render 200 opts=\S+ src=\S+ cache=HIT 3 bytes in 0ms": "info",
    r"request_id=missing \[info\] unknown 404 not_found \d+ bytes in 0ms": "info",
    r"request_id=unsigned \[info\] render 401 invalid_signature \d+ bytes in 0ms": "info",
    r"request_id=preflight \[info\] preflight 204 0 bytes in 0ms": "info",
    r"request_id=gone \[info\] render 499 opts=\S+ src=\S+ 0 bytes in 0ms": "info",
    r"request_id=left \[info\] render 200 opts=\S+ src=\S+ cache=MISS 4 bytes in 0ms": "info",
    r"request_id=[0-9a-f]{32} \[info\] unknown 400 bad_request \d+ bytes in 0ms": "info",
    r"request_id=failed \[warning\] render 500 render_failed opts=\S+ src=\S+ \d+ bytes in 0ms": (
        "warning"
    ),
    r"request_id=late \[warning\] render 504 render_timeout opts=\S+ src=\S+ \d+ bytes in 0ms": (
        "warning"
    ),
    r"request_id=broken \[warning\] render 200 render_timeout opts=\S+ src=\S+ cache=MISS 4 bytes"
    r" in 0ms": "warning",
    r"request_id=crash \[warning\] render 500 render_failed opts=\S+ src=\S+ \d+ bytes in 0ms": (
        "warning"
    ),
    r"\[warning\] the encoder failed \(.*\): Invalid data found when processing input": "warning",
    r"\[error\] the encoder cannot be started: .*No such file or directory.*": "error",
    r"request_id=crash \[error\] a request crashed": "error",
}


class BatchTests(SynchronousTestCase):
    """Batches of access log lines"""

    RECORD = AccessLogEntry("abc", "render", 200, None, "f:mp3", b"local://a", "HIT", 7, 0)

    def setUp(self) -> None:
        self.stream = _Counted()
        self.clock = Clock()

    def observer(self, level: str = "info") -> LineObserver:
        """Return an observer that writes in batches."""
        return LineObserver(self.stream, level, self.clock.callLater)

    def test_one_text(self) -> None:
        """An access log line is the same with and without a Twisted log event (Request log)."""
        observer = self.observer()
        observer.request(self.RECORD)
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        log_request(self.RECORD)
        lines = [line[len(STAMP) :] for line in self.stream.getvalue().splitlines()]
        text = "render 200 opts=f:mp3 src=local://a cache=HIT 7 bytes in 0ms"
        self.assertEqual(lines, [f" request_id=abc [info] {text}"] * 2)

    def test_together(self) -> None:
        """Access log lines are written within 0.1 s, in order, with one flush for all of them."""
        observer = self.observer()
        for number in range(100):
            observer.request(self.RECORD._replace(sent=number))
        self.assertEqual(self.stream.getvalue(), "")
        self.clock.advance(0.1)
        self.assertEqual(self.stream.flushed, 1)
        sent = re.findall(r" (\d+) bytes", self.stream.getvalue())
        self.assertEqual(sent, [str(number) for number in range(100)])
        self.clock.advance(10)
        self.assertEqual(self.stream.flushed, 1)

    def test_bounded(self) -> None:
        """The number of unwritten access log lines is bounded."""
        observer = self.observer()
        for _ in range(10_000):
            observer.request(self.RECORD)
        written = self.stream.getvalue().count("\n")
        self.assertGreater(written, 9_000)
        self.clock.advance(1)
        self.assertEqual(self.stream.getvalue().count("\n"), 10_000)

    def test_events(self) -> None:
        """Any other event is written at once, after the access log lines of earlier requests."""
        observer = self.observer()
        observer.request(self.RECORD)
        observer({"log_time": TIME, "log_level": LogLevel.info, "log_format": "hello"})
        lines = self.stream.getvalue().splitlines()
        self.assertIn("request_id=abc", lines[0])
        self.assertEqual(lines[1], f"{STAMP} [info] hello")

    def test_warnings(self) -> None:
        """The access log line of an error of the service is written at once."""
        observer = self.observer()
        observer.request(self.RECORD)
        observer.request(self.RECORD._replace(status=500, error_code="render_failed"))
        self.assertEqual(self.stream.getvalue().count("\n"), 2)

    def test_end(self) -> None:
        """Once the service begins to stop, lines are written at once, so that none is lost."""
        observer = self.observer()
        observer.request(self.RECORD)
        observer.write_through()
        observer.request(self.RECORD)
        self.assertEqual(self.stream.getvalue().count("\n"), 2)

    def test_stream_that_fails(self) -> None:
        """If the stream fails, lines are lost, but no request fails."""
        for error in (OSError(28, "No space left on device"), ValueError("closed")):
            self.stream.error = error
            observer = LineObserver(self.stream, "info")
            observer.request(self.RECORD)
            observer({"log_time": TIME, "log_level": LogLevel.info, "log_format": "hello"})
        self.stream.error = None
        observer.request(self.RECORD)
        self.assertEqual(self.stream.getvalue().count("\n"), 1)

    def test_levels(self) -> None:
        """Access log lines below AP_LOG_LEVEL are not written."""
        observer = self.observer("warning")
        observer.request(self.RECORD)
        observer.request(self.RECORD._replace(status=500, error_code="render_failed"))
        observer.write_through()
        self.assertEqual(self.stream.getvalue().count("\n"), 1)


class _Counted(io.StringIO):
    """Stream that counts flushes and raises an error if a test sets one."""

    flushed = 0
    error: Exception | None = None

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)

    def flush(self) -> None:
        self.flushed += 1


class LevelTests(SynchronousTestCase):
    """Selection of lines by AP_LOG_LEVEL"""

    def lines(self, level: str) -> list[str]:
        """Cause all kinds of events and return the log lines, without times and tracebacks."""
        stream = io.StringIO()
        observer = LineObserver(stream, level)
        globalLogPublisher.addObserver(observer)
        try:
            self.fetch()
            self.render()
        finally:
            globalLogPublisher.removeObserver(observer)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        lines = stream.getvalue().splitlines()
        return [line.partition(" ")[2] for line in lines if not line.startswith(" ")]

    def fetch(self) -> None:
        """Send one request for each kind of access log line."""
        harness = ResourceHarness(origin="*")
        paths = [harness.path(f"/cb:{number}/plain/local://a".encode()) for number in range(6)]
        renders = [f"/cb:{number}/plain/local://a".encode() for number in range(6)]
        harness.store_variant(renders[0], b"abc")
        harness.fetch(b"/health", x_request_id=b"health")
        harness.fetch(b"/ready", x_request_id=b"ready")
        harness.readiness.depth_changed(2)
        harness.fetch(b"/ready", x_request_id=b"unready")
        scrapes = ProxySite(MetricsResource(harness.metrics_instrumentation), Clock())
        Connection(scrapes).send(b"/metrics", x_request_id=b"scrape")
        harness.fetch(paths[0], x_request_id=b"hit")
        harness.fetch(b"/metrics", x_request_id=b"missing")
        harness.fetch(b"/x/plain/local://a", x_request_id=b"unsigned")
        harness.fetch(b"/", b"OPTIONS", x_request_id=b"preflight")
        harness.connect().send_raw(b"no request\r\n\r\n")
        gone, left, broken, failed, late = (harness.connect() for _ in range(5))
        gone.send(paths[1], x_request_id=b"gone")
        gone.leave()
        left.send(paths[2], x_request_id=b"left")
        harness.render(renders[2]).write_output(b"half")
        left.leave()
        broken.send(paths[3], x_request_id=b"broken")
        harness.render(renders[3]).write_output(b"some")
        harness.render(renders[3]).end(RenderTimeout())
        failed.send(paths[4], x_request_id=b"failed")
        harness.render(renders[4]).end(RenderFailed())
        late.send(paths[5], x_request_id=b"late")
        harness.render(renders[5]).end(RenderTimeout())
        harness.stored = ZeroDivisionError()
        harness.fetch(paths[0], x_request_id=b"crash")

    def render(self) -> None:
        """Complete a render, fail one, cancel one in the queue, and fail to start one."""
        harness = RenderHarness()
        _, encoder = harness.render()
        encoder.write_stdout(b"abc")
        waiting = harness.start_client("f:opus", b"b.wav")
        harness.answer_probe()
        waiting.disconnect()
        encoder.exit_and_end()
        _, encoder = harness.render("f:wav")
        encoder.write_stderr(b"Invalid data found when processing input")
        encoder.exit_and_end(1)
        harness.start_client("f:ogg")
        harness.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        harness.answer_probe()
        harness.close()

    def test_each_level(self) -> None:
        """Each level shows the contract's lines for itself and the levels above (Request log)."""
        order = list(LEVELS)
        for level in order:
            lines = self.lines(level)
            expected = {
                pattern
                for pattern, highest in LINES.items()
                if order.index(highest) >= order.index(level)
            }
            unexpected = [
                line for line in lines if not any(re.fullmatch(p, line) for p in expected)
            ]
            self.assertEqual([], unexpected, level)
            for pattern in expected:
                found = [line for line in lines if re.fullmatch(pattern, line)]
                # Three renders get a slot.
                self.assertEqual(3 if "slot" in pattern else 1, len(found), (level, pattern))

    def test_one_line_a_request(self) -> None:
        """Every request has exactly one access log line, whatever its outcome."""
        ids = Counter(
            match[1]
            for line in self.lines("debug")
            if (match := re.search(r"request_id=(\S+) .* in 0ms", line))
        )
        self.assertEqual(len([pattern for pattern in LINES if " in 0ms" in pattern]), len(ids))
        self.assertEqual({1}, set(ids.values()))
