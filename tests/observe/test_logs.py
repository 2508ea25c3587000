"""Log lines on the output stream: one line per event, in one format, with its request's id."""

from __future__ import annotations

import io
import re
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import Logger, LogLevel, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.observe import log_context
from audioproxy.observe.access_log import AccessLogEntry, log_request
from audioproxy.observe.logs import LEVELS, LineObserver, lost_lines
from tests.support.http import Log

# 2001-09-09 01:46:40 UTC and 123 milliseconds.
TIME = 1_000_000_000.1234
STAMP = "2001-09-09T01:46:40.123Z"


CONTEXT_LOG = log_context.Logger()


def hit(status: int = 200, error_code: str | None = None, sent: int = 7) -> AccessLogEntry:
    """Return the entry of a request for a variant."""
    return AccessLogEntry(
        "abc", "render", status, error_code, "f:mp3", b"local://a", "HIT", sent, 0
    )


class LineObserverTests(SynchronousTestCase):
    """`LineObserver`"""

    def observe(self, **event: Any) -> str:
        """Return the text that is written for an event."""
        stream = io.StringIO()
        LineObserver(stream, "debug")({"log_time": TIME, **event})
        return stream.getvalue()

    def test_lines(self) -> None:
        """A line has the UTC time in milliseconds, the request id, the level and the text (D28)."""
        record = AccessLogEntry(
            "abc", "render", 404, "not_found", "f:mp3", b"local://a b\nc.mp3", None, 77, 5
        )
        request = "render 404 not_found opts=f:mp3 src=local://a%20b%0Ac.mp3 77 bytes in 5ms"
        directives = "{0} {record} %s"
        for event, line in (
            ({"log_format": "{word}", "word": "hello", "log_level": LogLevel.info}, "[info] hello"),
            (
                {"log_format": "{x}", "x": record, "log_level": record.level, "request_id": "abc"},
                f"request_id=abc [info] {request}",
            ),
            # Events of Twisted's legacy log have no level.
            ({"log_format": "old"}, "[info] old"),
            # Braces and percent signs in a field are not format directives.
            ({"log_format": "{text}", "text": directives}, f"[info] {directives}"),
        ):
            self.assertEqual(f"{STAMP} {line}\n", self.observe(**event), event)

    def test_levels(self) -> None:
        """Each AP_LOG_LEVEL shows its lines and those above (Request log)."""
        names = ["debug", "info", "warning", "error"]
        self.assertEqual(names, list(LEVELS))
        for at, least in enumerate(names):
            stream = io.StringIO()
            observer = LineObserver(stream, least)
            for level in LogLevel.iterconstants():
                observer({"log_time": TIME, "log_format": "x", "log_level": level})
            shown = re.findall(r"\[(\w+)\] x", stream.getvalue())
            self.assertEqual([*names[at:], "error"], shown)
            observer.request(hit())
            self.assertEqual(at < 2, "render 200" in stream.getvalue())

    def test_several_lines(self) -> None:
        """Line breaks in a text cannot forge a log line: continuation lines are indented (D28)."""
        for end in ("\n", "\r\n", "\r", "\x0b", "\x85", "\u2028"):
            written = self.observe(log_format="{text}", text=f"x{end}{STAMP} [info] forged{end}")
            self.assertEqual(f"{STAMP} [info] x\n    {STAMP} [info] forged\n", written)

    def test_file_name(self) -> None:
        """An error of the system has its text and its file, whose name controls no terminal."""
        stream = io.StringIO()
        logger = log_context.Logger(observer=LineObserver(stream, "info"))
        for name in (b"/a/\xc3\xb6 \x1b[31m\n\xff.wav", "/a/ö \x1b[31m\n\udcff.wav"):
            error = FileNotFoundError(2, "No such file or directory", name)
            logger.warn("not read: {reason}", reason=error)
        line = " [warning] not read: No such file or directory: /a/ö \\x1b[31m\\n\\udcff.wav\n"
        self.assertEqual(2, stream.getvalue().count(line), stream.getvalue())

    def test_journal(self) -> None:
        """In systemd's journal, each line, also a continuation line, begins with its priority."""
        stream = io.StringIO()
        observer = LineObserver(stream, "debug", journal=True)
        for level in LogLevel.iterconstants():
            observer({"log_time": TIME, "log_format": "x\ny", "log_level": level})
        for status, code in ((200, None), (500, "render_failed")):
            observer.request(hit(status, code))
        stream.write(lost_lines(3, journal=True))
        lines = [line.replace(STAMP, "") for line in stream.getvalue().splitlines()]
        priorities = [7, 7, 6, 6, 4, 4, 3, 3, 3, 3, 6, 4, 4]
        self.assertEqual([f"<{each}>" for each in priorities], [line[:3] for line in lines])
        self.assertEqual(["<4> [warning] x", "<4>    y"], lines[4:6])
        self.assertRegex(lines[-2], r"<4>\S+Z request_id=abc \[warning\] render 500 ")

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

    def test_text_that_the_stream_cannot_spell(self) -> None:
        """Characters that the stream cannot encode are escaped; a line is flushed at once."""
        for encoding, shown in (("ascii", "\\xe9 \\udc80"), ("utf-8", "é \\udc80")):
            raw = io.BytesIO()
            stream = io.TextIOWrapper(raw, encoding=encoding)
            LineObserver(stream, "info")(
                {"log_time": TIME, "log_format": "{text}", "text": "é \udc80"}
            )
            self.assertEqual(f"{STAMP} [info] {shown}\n", raw.getvalue().decode(encoding))
            stream.detach()


class BatchTests(SynchronousTestCase):
    """Batches of access log lines"""

    RECORD = hit()
    FAILED = hit(status=500, error_code="render_failed")

    def setUp(self) -> None:
        self.stream = _Counted()
        self.clock = Clock()

    def observer(self, level: str = "info") -> LineObserver:
        """Return an observer that writes in batches."""
        return LineObserver(self.stream, level, self.clock.callLater)

    def lines_written(self) -> int:
        """Return the number of lines in the stream."""
        return self.stream.getvalue().count("\n")

    def test_events(self) -> None:
        """An access log line is the same without a Twisted log event (Request log)."""
        observer = self.observer()
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        observer.request(self.RECORD)
        log_request(self.RECORD)
        observer.request(self.RECORD)
        Logger(observer=observer).info("hello")
        lines = [line[len(STAMP) :] for line in self.stream.getvalue().splitlines()]
        text = "render 200 opts=f:mp3 src=local://a cache=HIT 7 bytes in 0ms"
        self.assertEqual(lines, [f" request_id=abc [info] {text}"] * 3 + [" [info] hello"])

    def test_together(self) -> None:
        """Access log lines are written within 0.1 s, in order, with one flush for all of them.

        The number of unwritten ones is bounded.
        """
        observer = self.observer()
        for number in range(10_000):
            observer.request(hit(sent=number))
            if number == 99:
                self.assertEqual((self.lines_written(), len(self.clock.getDelayedCalls())), (0, 1))
                self.clock.advance(0.1)
                self.assertEqual((self.lines_written(), self.stream.flushed), (100, 1))
        self.assertGreater(self.lines_written(), 9_000)
        self.clock.advance(1)
        sent = re.findall(r" (\d+) bytes", self.stream.getvalue())
        self.assertEqual(sent, [str(number) for number in range(10_000)])

    def test_at_once(self) -> None:
        """Errors of the service, and all lines once it begins to stop, are written at once."""
        observer = self.observer()
        written = []
        for record in (self.RECORD, self.FAILED, self.RECORD):
            observer.request(record)
            written.append(self.lines_written())
        for _ in range(2):
            observer.write_through()
            written.append(self.lines_written())
        observer.request(self.RECORD)
        self.assertEqual([0, 2, 2, 3, 3, 4], [*written, self.lines_written()])

    def test_stream_that_fails(self) -> None:
        """If the stream fails, lines are lost, but no request fails."""
        for error in (OSError(28, "No space left on device"), ValueError("closed")):
            self.stream.error = error
            observer = LineObserver(self.stream, "info")
            observer.request(self.RECORD)
            observer({"log_time": TIME, "log_level": LogLevel.info, "log_format": "hello"})
        self.stream.error = None
        observer.request(self.RECORD)
        self.assertEqual(self.lines_written(), 1)


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


class RequestIdTests(SynchronousTestCase):
    """`set_request_id` and `Logger` (D54)"""

    def test_coroutines(self) -> None:
        """Everything that a request starts logs the request's id; other events have none."""
        log, waiting = Log(self), Deferred[None]()

        async def child() -> None:
            await waiting
            CONTEXT_LOG.warn("child")

        async def request(name: str) -> None:
            log_context.set_request_id(name)
            Deferred.fromCoroutine(child())
            CONTEXT_LOG.info("request")

        async def end() -> None:
            log_context.set_request_id("other")
            waiting.callback(None)
            CONTEXT_LOG.info("end")

        Deferred.fromCoroutine(request("one"))
        CONTEXT_LOG.info("outside")
        Deferred.fromCoroutine(end())
        found = [event.get("request_id") for event in log.events]
        self.assertEqual(["one", None, "one", "other"], found)
